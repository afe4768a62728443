"""Stage ``tokenizer``: a named tokenizer, or a WordPiece trained on the collection."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import check_folder
from condensery.stages.work import Read, Sizes, Work, known, product
from condensery.system.files import expanded
from condensery.text.hashes import content_hashes


class TokenizerConfig(StageConfig):
    """``name`` is a hub name or a folder; null trains a WordPiece of ``vocab_size`` entries.

    ``lowercase`` and ``strip_accents`` are those of the trained one; a named tokenizer stays as it is.
    """

    corpus: Annotated[str, Input("corpus")]
    name: str | None
    vocab_size: Annotated[int, Field(ge=100)]
    lowercase: bool
    strip_accents: bool | Literal["latin"]

    def work(self, read: Read) -> Work:
        """Words of all texts are counted where a WordPiece is trained."""
        sizes = known(read)
        if self.name is not None:
            return Work(sizes, seconds=1.0, disk=1e6)
        return Work(replace(sizes, vocabulary=self.vocab_size), seconds=product(3.7e-6, sizes.tokens), disk=2e5)

    def actual_sizes(self, expected: Sizes, metrics: Mapping[str, Any]) -> Sizes:
        """The true size of the vocabulary."""
        return replace(expected, vocabulary=metrics["size"])

    def _folder(self) -> Path | None:
        folder = expanded(self.name) if self.name else None
        return folder if folder is not None and folder.is_dir() else None

    def by_content(self) -> set[str]:
        """The name, where it is a folder; of a named tokenizer a key that came later and changes nothing of it."""
        return ({"name"} if self._folder() else set()) | ({"strip_accents"} if self.name is not None else set())

    def identity(self) -> list[str]:
        """A tokenizer in a folder counts by content, wherever it lies. ``UserError`` where it is not there."""
        check_folder(self.name, "backbone.tokenizer")
        folder = self._folder()
        if folder is None:
            return []
        return content_hashes(sorted(path for path in folder.iterdir() if path.suffix in {".json", ".txt", ".model"}))


@stage("tokenizer", version=1, makes="tokenizer")
def tokenizer(config: TokenizerConfig, context: Context) -> dict[str, Any]:
    """Save the tokenizer as a Hugging Face folder, and measure what it loses of the texts."""
    from condensery.text.collection import Collection
    from condensery.tokens.artifacts import pretraining_texts
    from condensery.tokens.coverage import coverage
    from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece
    from condensery.tokens.vocabulary import Vocabulary

    texts, _ = pretraining_texts(Collection(context.input("corpus")))
    trained = config.name is None
    if config.name is None:
        how: Any = {"lowercase": config.lowercase, "strip_accents": config.strip_accents, "warn": False}
        chosen = train_wordpiece(texts, config.vocab_size, context.folder, **how)
    else:
        chosen = load_tokenizer(config.name)
        chosen.save_pretrained(context.folder)
    return {"size": Vocabulary.of(chosen).size, **coverage(chosen, texts).metrics(trained)}
