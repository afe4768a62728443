"""From an id to its row without a dictionary of millions of strings: 64-bit hashes, sorted, memory-mapped.

Two ids count as the same when their hashes are equal. Among 8.8 million ids the chance that any two different ones
share a hash is 2e-6, and that would show as a "duplicate id" error, never as a silent mistake.
"""

import hashlib
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from condensery.errors import shown
from condensery.system.files import load_array

SUFFIX = ".rows.npy"
MOST = 255  # bytes that are kept of an id


def id_hash(identifier: str) -> int:
    """The 64-bit hash by which an id is known."""
    return int.from_bytes(hashlib.blake2b(identifier.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


class KeptIds:
    """Ids by hash as they arrive, with what a message shows of each: 9 bytes and the beginning of the id."""

    def __init__(self) -> None:
        self._hashes, self._lengths, self._text = array("Q"), array("B"), bytearray()

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, identifier: str) -> None:
        """Append an id."""
        beginning = shown(identifier).encode(errors="backslashreplace")[:MOST]
        self._hashes.append(id_hash(identifier))
        self._lengths.append(len(beginning))
        self._text += beginning

    @property
    def hashes(self) -> NDArray[np.uint64]:
        """uint64 (n,), in their order."""
        return np.frombuffer(self._hashes, np.uint64)

    def __getitem__(self, at: int) -> str:
        """What a message shows of an id, quoted."""
        first = sum(self._lengths[:at])
        return repr(self._text[first : first + self._lengths[at]].decode(errors="replace"))


class IdIndex:
    """Finds rows by the hash of their id.

    Attributes:
        hashes: uint64 (n,), ascending.
        rows: int64 (n,), the row of each hash.
    """

    def __init__(self, hashes: NDArray[np.uint64], rows: NDArray[np.int64]) -> None:
        self.hashes, self.rows = hashes, rows

    @classmethod
    def of(cls, hashes: NDArray[np.uint64]) -> "IdIndex":
        """Index ``hashes`` (uint64 (n,), in row order)."""
        order = np.argsort(hashes, kind="stable")
        return cls(hashes[order], order)

    @classmethod
    def load(cls, path: Path) -> "IdIndex":
        """Open a saved index; nothing is read until rows are looked up."""
        stored = load_array(path, mapped=True)
        return cls(stored[0], stored[1].view(np.int64))

    def save(self, path: Path) -> None:
        """Write the index as one uint64 array (2, n)."""
        np.save(path, np.stack([self.hashes, self.rows.view(np.uint64)]))

    def find(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The row of each hash, -1 where there is none. *Shape:* (m,) -> (m,)."""
        if not len(self.hashes):
            return np.full(len(hashes), -1, np.int64)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[places] == hashes, self.rows[places], -1)

    def find_ids(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """The row of each id, -1 where there is none."""
        return self.find(np.fromiter((id_hash(identifier) for identifier in ids), np.uint64))

    def first_duplicate(self) -> tuple[int, int] | None:
        """(row, earlier row) of the repeated id that comes first in the file; ``None`` when every id is there once."""
        same = np.flatnonzero(self.hashes[1:] == self.hashes[:-1])
        if not len(same):
            return None
        at = same[np.argmin(self.rows[same + 1])]
        return int(self.rows[at + 1]), int(self.rows[at])
