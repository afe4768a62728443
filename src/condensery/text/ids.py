"""Look up the row of an id by sorted, memory-mapped 64-bit hashes, without a dictionary of millions of strings.

Two ids count as the same when their hashes are equal. Among 8.8 million ids the probability that any two different ids
share a hash is 2e-6. Such a collision within one table is reported as a repeated id.
"""

import unicodedata
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.system.files import load_array
from condensery.text.hashes import id_hash
from condensery.text.records import percent_encoded

SUFFIX = ".rows.npy"
MOST = 255  # maximum number of bytes of an id that are kept for error messages


def alike(identifier: str) -> str:
    """Return the NFKC form of an id without invisible characters and spaces. Ids that look the same have equal forms."""
    plain = unicodedata.normalize("NFKC", identifier)
    kept = "".join(one for one in plain if unicodedata.category(one) not in ("Cf", "Cc", "Zs", "Zl", "Zp"))
    return unicodedata.normalize("NFKC", kept)


def look_alike(identifier: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown id: the known id that looks like it, and the first character in which the two differ.

    Returns:
        The hint, to be appended to an error message; an empty string if no known id looks like it. For a path that is
        not percent-encoded, the hint is the encoded form.
    """
    wanted, encoded = alike(identifier), percent_encoded(identifier)
    same = (one for one in known if one == encoded or (one == wanted if one.isascii() else alike(one) == wanted))
    other = next(same, None)
    if other is None or other == identifier:
        return ""
    if other == encoded:
        return f"; write {shown(other)!r}: ids have %20 for a space, and %25 for a %"
    pairs = enumerate(zip(identifier, other, strict=False))
    at = next((place for place, (one, two) in pairs if one != two), min(len(identifier), len(other)))
    forms = {unicodedata.normalize("NFC", one) for one in (identifier, other)}
    why = ", the Unicode forms NFC and NFD of one text" if len(forms) == 1 else ""
    return (
        f"; {shown(other)!r} looks the same but is another id{why}: character {at + 1} is {_code_points(identifier, at)} here"
        f" and {_code_points(other, at)} there; write both the same way"
    )


def _code_points(identifier: str, at: int) -> str:
    """Return the code points, such as ``U+0065 U+0301``, of the character at ``at`` and of a combining mark after it."""
    codes = [f"U+{ord(one):04X}" for one in identifier[at : at + 2]]
    marked = len(codes) == 2 and unicodedata.combining(identifier[at + 1])
    return " ".join(codes[: 2 if marked else 1]) or "nothing"


def check_distinct(ids: Iterable[object], where: str) -> None:
    """Raise ``UserError`` if two different ids, such as the number 1 and the string "1", become the same string."""
    seen: dict[str, object] = {}
    for one in ids:
        if (other := seen.setdefault(str(one), one)) is not one:
            raise UserError(
                f"{where}: the ids {_called(other)} and {_called(one)} are the same id {shown(str(one))!r}; give every"
                " passage an id of its own, as a text"
            )


def _called(identifier: object) -> str:
    what = {str: "a text", int: "a number", float: "a number"}.get(type(identifier), type(identifier).__name__)
    return f"{shown(repr(identifier))} ({what})"


class KeptIds:
    """Ids in the order in which they were added: the hash of each id, and the beginning of the id for error messages.

    Each id takes 9 bytes of memory, plus the bytes of its stored beginning.
    """

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
        """The hashes of the ids in the order in which they were added, uint64 (n,)."""
        return np.frombuffer(self._hashes, np.uint64)

    def __iter__(self) -> Iterator[str]:
        """Yield the stored part of each id."""
        first = 0
        for length in self._lengths:
            yield self._text[first : first + length].decode(errors="replace")
            first += length

    def __getitem__(self, at: int) -> str:
        """Return the stored part of the id at position ``at``: the whole id, or the beginning of a long id."""
        return next(islice(self, at, None))


class IdIndex:
    """An index from the hash of an id to the row of the id.

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
        """Open a saved index. Its arrays are memory-mapped, so they are read only when rows are looked up."""
        stored = load_array(path, mapped=True)
        return cls(stored[0], stored[1].view(np.int64))

    def save(self, path: Path) -> None:
        """Write the index as one uint64 array (2, n)."""
        np.save(path, np.stack([self.hashes, self.rows.view(np.uint64)]))

    def find(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the row of each hash; -1 for a hash that is not in the index. *Shape:* (m,) -> (m,)."""
        if not len(self.hashes):
            return np.full(len(hashes), -1, np.int64)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[places] == hashes, self.rows[places], -1)

    def find_ids(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Return the row of each id, int64 (m,); -1 for an id that is not in the index."""
        return self.find(np.fromiter((id_hash(identifier) for identifier in ids), np.uint64))

    def first_duplicate(self) -> tuple[int, int] | None:
        """Return (row, earlier row) of the first repeated id of the file; ``None`` when no id is repeated."""
        same = np.flatnonzero(self.hashes[1:] == self.hashes[:-1])
        if not len(same):
            return None
        at = same[np.argmin(self.rows[same + 1])]
        return int(self.rows[at + 1]), int(self.rows[at])
