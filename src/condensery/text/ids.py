"""From an id to its row without a dictionary of millions of strings: 64-bit hashes, sorted, memory-mapped.

Two ids count as the same when their hashes are equal. Among 8.8 million ids the chance that any two different ones
share a hash is 2e-6, and that would show as a "duplicate id" error, never as a silent mistake.
"""

import hashlib
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.system.files import load_array

SUFFIX = ".rows.npy"
MOST = 255  # bytes that are kept of an id
NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)  # a text that a whole number may be written as


def id_hash(identifier: str) -> int:
    """The 64-bit hash by which an id is known."""
    return int.from_bytes(hashlib.blake2b(identifier.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


def alike(identifier: str) -> str:
    """What ids that look the same have in common: their NFKC form without invisible characters and blanks."""
    plain = unicodedata.normalize("NFKC", identifier)
    kept = "".join(one for one in plain if unicodedata.category(one) not in ("Cf", "Cc", "Zs", "Zl", "Zp"))
    return unicodedata.normalize("NFKC", kept)


def look_alike(identifier: str, known: Iterable[str]) -> str:
    """The hint for an unknown id where one is known that looks the same, and where they differ; empty where none is."""
    wanted = alike(identifier)
    other = next((one for one in known if (one == wanted if one.isascii() else alike(one) == wanted)), None)
    if other is None or other == identifier:
        return ""
    pairs = enumerate(zip(identifier, other, strict=False))
    at = next((place for place, (one, two) in pairs if one != two), min(len(identifier), len(other)))
    forms = {unicodedata.normalize("NFC", one) for one in (identifier, other)}
    why = ", the Unicode forms NFC and NFD of one text" if len(forms) == 1 else ""
    return (
        f"; {shown(other)!r} looks the same and is another id{why}: character {at + 1} is {_code_points(identifier, at)} here"
        f" and {_code_points(other, at)} there; write both the same way"
    )


def _code_points(identifier: str, at: int) -> str:
    """The character at a place and the mark behind it, by number, as ``U+0065 U+0301``."""
    codes = [f"U+{ord(one):04X}" for one in identifier[at : at + 2]]
    marked = len(codes) == 2 and unicodedata.combining(identifier[at + 1])
    return " ".join(codes[: 2 if marked else 1]) or "nothing"


def check_distinct(ids: Iterable[object], where: str) -> None:
    """Raise ``UserError`` where two of these ids, such as the number 1 and the text "1", are written alike."""
    seen: dict[str, object] = {}
    for one in ids:
        if (other := seen.setdefault(str(one), one)) is not one:
            raise UserError(
                f"{where}: the ids {_called(other)} and {_called(one)} are the same id {shown(str(one))!r}; give every"
                " passage an id of its own, as a text"
            )


class OneKind:
    """Takes the ids of one table, which may be texts or whole numbers, and refuses a number that a text is written as."""

    def __init__(self) -> None:
        self._taken: dict[type, array[int]] = {int: array("Q"), str: array("Q")}  # 8 bytes an id that is a number
        self._sets: dict[type, set[int]] = {}  # once there are both

    def taken(self, identifier: object, place: str) -> str:
        """The id as a text; ``UserError`` where it is neither, or where one of the other kind has it already."""
        if isinstance(identifier, bool) or not isinstance(identifier, int | str):
            raise UserError(f"{place}: an id must be a text or a whole number, not {shown(repr(identifier))}")
        if isinstance(identifier, str) and not NUMBER.fullmatch(identifier):
            return identifier  # no number is written so
        own, other = (int, str) if isinstance(identifier, int) else (str, int)
        number = id_hash(str(identifier))
        self._taken[own].append(number)
        if self._taken[other]:
            self._sets = self._sets or {kind: set(numbers) for kind, numbers in self._taken.items()}
            self._sets[own].add(number)
            if number in self._sets[other]:
                one = f"the number {identifier} and the text {str(identifier)!r}"
                raise UserError(f"{place}: {one} are the same id; give one of them another")
        return str(identifier)


def _called(identifier: object) -> str:
    what = (
        "a text"
        if isinstance(identifier, str)
        else "a number"
        if isinstance(identifier, int | float)
        else type(identifier).__name__
    )
    return f"{shown(repr(identifier))} ({what})"


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

    def beginning(self, at: int) -> str:
        """What is kept of an id: all of it, or the beginning of a long one."""
        first = sum(self._lengths[:at])
        return self._text[first : first + self._lengths[at]].decode(errors="replace")

    def __iter__(self) -> Iterator[str]:
        """What is kept of each."""
        first = 0
        for length in self._lengths:
            yield self._text[first : first + length].decode(errors="replace")
            first += length

    def __getitem__(self, at: int) -> str:
        """What a message shows of an id, quoted."""
        return repr(self.beginning(at))


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
