"""Stage ``tokenizer``: loads a named tokenizer, or trains a WordPiece on the collection."""

from typing import Any

from condensery.stages.base import Context
from condensery.stages.corpus.config import TokenizerConfig
from condensery.text.collection import Collection
from condensery.tokens.artifacts import pretraining_texts
from condensery.tokens.coverage import coverage
from condensery.tokens.tokenizer import load_tokenizer, save_tokenizer, train_wordpiece
from condensery.tokens.vocabulary import Vocabulary


def tokenizer(config: TokenizerConfig, context: Context) -> dict[str, Any]:
    """Save the tokenizer as a Hugging Face folder, and measure how much of the text its tokens lose (``coverage``)."""
    texts, _ = pretraining_texts(Collection(context.input("corpus")))
    if config.name is None:
        how: Any = {"lowercase": config.lowercase, "strip_accents": config.strip_accents, "warn": False}
        chosen = train_wordpiece(texts, config.vocab_size, context.folder, **how)
    else:
        chosen = load_tokenizer(config.name)
        save_tokenizer(chosen, context.folder)
    return {"size": Vocabulary.of(chosen).size, **coverage(chosen, texts).metrics(config.name is None)}
