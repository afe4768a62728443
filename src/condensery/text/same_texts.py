"""Texts that stand several times under different ids: which they are, told by 64-bit hashes.

Two texts are the same in Unicode's form NFC and with white space evened out: how a file was written makes no difference.
Case and punctuation do. Hashes are those of ``condensery.text.ids``, with the same chance of a mistake: among 8.8 million
texts 2e-6.
"""

import unicodedata
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from condensery.text.ids import IdIndex, id_hash
from condensery.text.table import TextTable

Ids = NDArray[np.int64]


def plain(text: str) -> str:
    """A text in NFC, its words one blank apart: equal for texts that are the same."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def text_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """A hash of each text, (n,), equal for texts that are the same."""
    return np.fromiter((id_hash(plain(text)) for text in texts), np.uint64)


@dataclass(frozen=True)
class SameTexts:
    """The rows of a table whose text an earlier row has, too.

    Attributes:
        rows: (m,) ascending.
        firsts: (m,) the first row that has the text of each.
    """

    rows: Ids
    firsts: Ids

    @classmethod
    def of(cls, index: IdIndex) -> "SameTexts":
        """From the hashes of all texts. A row may have several: it is the same as each row that has one of them."""
        equal = np.flatnonzero(index.hashes[1:] == index.hashes[:-1])
        one, other = index.rows[equal], index.rows[equal + 1]
        if not len(equal):
            return cls(one, other)
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        rows, places = np.unique(np.concatenate([one, other]), return_inverse=True)
        edges = np.ones(len(one), bool), tuple(places.reshape(2, -1))
        _, groups = connected_components(coo_array(edges, shape=(len(rows), len(rows))), directed=False)
        _, first = np.unique(groups, return_index=True)
        firsts = rows[first[groups]]
        return cls(rows[rows > firsts], firsts[rows > firsts])

    def first(self, rows: NDArray[np.integer]) -> Ids:
        """The first row that has the text of each row, of any shape; -1 stays -1."""
        same: Ids = rows.astype(np.int64)
        if len(self.rows):
            at = np.minimum(np.searchsorted(self.rows, same), len(self.rows) - 1)
            same = np.where(self.rows[at] == same, self.firsts[at], same)
        return same

    def copies(self, firsts: Ids) -> Ids:
        """All rows that have a text of the rows ``firsts`` (n,), ascending; these are first rows themselves."""
        ordered, rows = self._by_first
        begins, ends = (np.searchsorted(ordered, firsts, side) for side in ("left", "right"))
        later = [rows[begin:end] for begin, end in zip(begins, ends, strict=True) if end > begin]
        return np.unique(np.concatenate([firsts, *later]))

    def numbers(self, firsts: Ids) -> Ids:
        """How many rows have the text of each of the rows ``firsts`` (n,)."""
        ordered, _ = self._by_first
        return 1 + np.searchsorted(ordered, firsts, "right") - np.searchsorted(ordered, firsts, "left")

    @cached_property
    def _by_first(self) -> tuple[Ids, Ids]:
        order = np.argsort(self.firsts, kind="stable")
        return self.firsts[order], self.rows[order]


class PassageTexts:
    """The passages of a collection by their text: 16 bytes a passage, twice where there are titles.

    All texts are read once, 8.8 million in about a minute.

    Attributes:
        same: passages whose text, or title and text, an earlier one has.
    """

    def __init__(self, passages: TextTable) -> None:
        whole, bare, titled = array("Q"), array("Q"), array("q")
        columns = (passages.column(name) for name in ("title", "text"))
        for row, (title, text) in enumerate(zip(*columns, strict=True)):
            whole.append(id_hash(plain(f"{title} {text}" if title else text)))
            if title and text.strip():
                titled.append(row)
                bare.append(id_hash(plain(text)))
        self._whole, index = IdIndex.of(np.frombuffer(whole, np.uint64)), IdIndex.of(np.frombuffer(bare, np.uint64))
        self._bare = IdIndex(index.hashes, np.frombuffer(titled, np.int64)[index.rows])
        both = np.concatenate([self._whole.hashes, self._bare.hashes])
        rows, order = np.concatenate([self._whole.rows, self._bare.rows]), np.argsort(both, kind="stable")
        self.same = SameTexts.of(IdIndex(both[order], rows[order]) if titled else self._whole)

    def with_texts(self, hashes: NDArray[np.uint64]) -> tuple[Ids, Ids]:
        """The passages whose text, or title and text, is one of some texts (n,): the places of the texts, and rows.

        Of passages that are the same the first alone.
        """
        whole = self._whole.find(hashes)
        begins, ends = (np.searchsorted(self._bare.hashes, hashes, side) for side in ("left", "right"))
        bare = [(at, self._bare.rows[begins[at] : ends[at]]) for at in np.flatnonzero(ends > begins).tolist()]
        places = [np.flatnonzero(whole >= 0), *(np.full(len(rows), at) for at, rows in bare)]
        return np.concatenate(places), self.same.first(np.concatenate([whole[whole >= 0], *(rows for _, rows in bare)]))
