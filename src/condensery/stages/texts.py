"""Which texts of a collection are pre-trained on, and the token stores made of them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from condensery.text.collection import Collection
from condensery.text.table import Column

if TYPE_CHECKING:
    from condensery.tokens.store import TokenStore
    from condensery.tokens.vocabulary import Vocabulary


def pretraining_texts(collection: Collection) -> tuple[Column[str], np.ndarray]:
    """The texts of all documents one behind the other, and the first text of each document (documents + 1,).

    These are the passages, grouped by document, unless the collection has separate documents.
    """
    if collection.documents is None:
        return collection.passages.column("text"), collection.document_starts
    passages: pa.ChunkedArray = collection.documents.arrow("passages")
    counts = pc.list_value_length(passages).to_numpy()
    return Column(pc.list_flatten(passages).chunks), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@dataclass(frozen=True)
class Tokens:
    """The artifact of the stage ``tokens``, opened as it is asked for."""

    folder: Path

    @cached_property
    def vocabulary(self) -> "Vocabulary":
        """Of all stores."""
        from condensery.tokens.vocabulary import Vocabulary

        return Vocabulary.load(self.folder)

    @cached_property
    def passages(self) -> "TokenStore":
        """The passages, in row order, without titles."""
        return self._store("passages")

    @cached_property
    def queries(self) -> "TokenStore":
        """The queries of all splits, in row order."""
        return self._store("queries")

    @cached_property
    def titles(self) -> "TokenStore | None":
        """The titles of the passages, where they are read before the text."""
        return self._store("titles") if (self.folder / "titles").is_dir() else None

    @cached_property
    def documents(self) -> "TokenStore":
        """What is pre-trained on, grouped by document."""
        return self._store("documents") if (self.folder / "documents").is_dir() else self.passages

    def _store(self, name: str) -> "TokenStore":
        from condensery.tokens.store import TokenStore

        return TokenStore(self.folder / name)
