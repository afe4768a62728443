"""Stage ``tokens``: tokenises every text of a collection once."""

from typing import Any

from condensery.stages.base import Context
from condensery.stages.corpus.config import TokensConfig
from condensery.text.collection import Collection
from condensery.tokens.artifacts import tokenise_collection, unknown_words


def tokens(config: TokensConfig, context: Context) -> dict[str, Any]:
    """Write the token stores of passages, queries, titles and separate documents; return their numbers of tokens."""
    collection, folder = Collection(context.input("corpus")), context.input("tokenizer")
    how: Any = {"titles": config.titles, "language": config.sentence_language, "workers": config.workers}
    stores = tokenise_collection(collection, folder, context.folder, label=context.stage_name, **how)
    if not config.titles and any(collection.passages.column("title")):
        context.say("encoders do not read the passages' titles (stage.tokens.titles=false)")
    counts = {name: store.token_count for name, store in stores.items()}
    return {**counts, **unknown_words(stores, folder)}
