"""Build the inputs of an encoder that reads queries and passages separately."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from condensery.tokens.batches import Chunk, chunks, text_rows
from condensery.tokens.prefixes import NONE
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class TextReader:
    """Builds rows [CLS] text [SEP], or with titles [CLS] title [SEP] text [SEP]. Its ``len`` is the number of texts.

    Attributes:
        texts: token store of the texts.
        vocabulary: supplies the ids of the special tokens.
        length: maximum number of tokens per row, [CLS] and [SEP] included.
        titles: token store of the titles of the texts; None = rows without titles.
        prefix: (p,) ids that follow each [CLS].
    """

    texts: TokenStore
    vocabulary: Vocabulary
    length: int
    titles: TokenStore | None = None
    prefix: Ids = field(default_factory=lambda: NONE)

    def __len__(self) -> int:
        return len(self.texts)

    def content(self) -> dict[str, Any]:
        """Return the arrays of the texts by name, and the settings of the rows."""
        settings = {"vocabulary": self.vocabulary, "length": self.length, "titles": self.titles, "prefix": self.prefix}
        return {**self.texts.content(), **settings}

    def read(self, rows: ArrayLike, hidden: Ids | None = None) -> tuple[Ids, Ids]:
        """Return the flat ids and the row starts (n + 1,) of the texts ``rows`` (n,); ``hidden`` as in ``text_rows``."""
        return text_rows(self.texts, rows, self.vocabulary, self.length, self.titles, hidden, self.prefix)

    def chunks(self, rows: ArrayLike, budget: int, tower: int = 0, hidden: Ids | None = None) -> list[Chunk]:
        """Return the rows of ``read`` in chunks of at most ``budget`` padded tokens; ``Chunk.rows`` are 0 .. n - 1."""
        return chunks(*self.read(rows, hidden), budget, self.vocabulary.pad, tower=tower)


class Readers(NamedTuple):
    """The readers of passages and of queries, with ``Chunk.tower`` as index."""

    passages: TextReader
    queries: TextReader
