"""Find texts that occur several times under different ids, by 64-bit hashes.

Two texts are the same if they are equal in Unicode's form NFC with each run of white space replaced by one space. Case
and punctuation make a difference. Texts are hashed as ids are (``condensery.text.hashes``), so the probability of a
collision is the same: 2e-6 among 8.8 million texts.
"""

import unicodedata
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from condensery.text.hashes import id_hash
from condensery.text.ids import IdIndex
from condensery.text.table import TextTable

Ids = NDArray[np.int64]


def plain(text: str) -> str:
    """Return the form in which all texts that are the same are equal: NFC, with one space between words."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def text_hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return a hash of each text, uint64 (n,). Texts that are the same have the same hash."""
    return np.fromiter((id_hash(plain(text)) for text in texts), np.uint64)


@dataclass(frozen=True)
class SameTexts:
    """The rows of a table that repeat the text of an earlier row.

    Attributes:
        rows: (m,) the repeating rows, ascending.
        firsts: (m,) for each of ``rows`` the first row with the same text.
    """

    rows: Ids
    firsts: Ids

    @classmethod
    def of(cls, index: IdIndex) -> "SameTexts":
        """Find the repeating rows by the hashes of all texts.

        A row may have several hashes. Two rows are the same if they share a hash.
        """
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
        """Return for each of ``rows`` (any shape, which is kept) the first row with the same text; -1 stays -1."""
        same: Ids = rows.astype(np.int64)
        if len(self.rows):
            at = np.minimum(np.searchsorted(self.rows, same), len(self.rows) - 1)
            same = np.where(self.rows[at] == same, self.firsts[at], same)
        return same

    def copies(self, firsts: Ids) -> Ids:
        """Return all rows that have the same text as one of the rows ``firsts`` (n,), ascending, ``firsts`` included."""
        ordered, rows = self._by_first
        begins, ends = (np.searchsorted(ordered, firsts, side) for side in ("left", "right"))
        later = [rows[begin:end] for begin, end in zip(begins, ends, strict=True) if end > begin]
        return np.unique(np.concatenate([firsts, *later]))

    def numbers(self, firsts: Ids) -> Ids:
        """Return how many rows have the text of each row in ``firsts`` (n,), this row included: (n,)."""
        ordered, _ = self._by_first
        return 1 + np.searchsorted(ordered, firsts, "right") - np.searchsorted(ordered, firsts, "left")

    @cached_property
    def _by_first(self) -> tuple[Ids, Ids]:
        order = np.argsort(self.firsts, kind="stable")
        return self.firsts[order], self.rows[order]


class PassageTexts:
    """An index that finds the passages of a collection by their text.

    The index takes 16 bytes per passage, or 32 bytes with titles. Building it reads all texts once, which takes about a
    minute for 8.8 million texts.

    Attributes:
        same: the passages that have the text, or the title and text, of an earlier passage.
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
        """Find the passages whose text, or title and text, is one of the given texts.

        Args:
            hashes: uint64 (n,), the hashes of the texts.

        Returns:
            Two arrays (m,): the index of the text in ``hashes``, and the row of the passage. Of several passages with
            the same text, only the first is returned.
        """
        whole = self._whole.find(hashes)
        begins, ends = (np.searchsorted(self._bare.hashes, hashes, side) for side in ("left", "right"))
        bare = [(at, self._bare.rows[begins[at] : ends[at]]) for at in np.flatnonzero(ends > begins).tolist()]
        places = [np.flatnonzero(whole >= 0), *(np.full(len(rows), at) for at, rows in bare)]
        return np.concatenate(places), self.same.first(np.concatenate([whole[whole >= 0], *(rows for _, rows in bare)]))
