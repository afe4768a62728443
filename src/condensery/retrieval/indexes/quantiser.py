"""Quantise numbers to codes of 8 bits or of 1 bit, and back. In each dimension a code c stands for ``offset + step c``.

Shapes: m vectors, d dimensions.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.system.files import RECOMPUTE, atomic, load_arrays

QUANTISED = {"int8": 8, "binary": 1}  # dtype of an index -> bits a number
FILE = "quantiser.npz"
_LEAST, _MOST = -128, 127  # range of an int8


@dataclass(frozen=True)
class Quantiser:
    """The levels of each dimension.

    Attributes:
        bits: bits of a code, 8 or 1. Eight codes of 1 bit fill a byte, the first as the highest bit.
        offset, step: (d,) code c stands for ``offset + step c``.
        threshold: (d,) a code of 1 bit is set for numbers above the threshold.
    """

    bits: int
    offset: NDArray[np.float32]
    step: NDArray[np.float32]
    threshold: NDArray[np.float32]

    @classmethod
    def fitted(cls, sample: NDArray[np.float32], bits: int) -> Self:
        """Fit the levels to a sample of vectors (m, d).

        With 8 bits the levels are even steps from the least to the largest number of a dimension. With 1 bit one level is
        the mean of the numbers up to the overall mean, the other the mean of the numbers above it. These levels lose least
        (Lloyd 1982).
        """
        wide = sample.astype(np.float64)
        threshold = wide.mean(axis=0)
        if bits == 1:
            above = wide > threshold
            low, high = (_means(wide, part, threshold) for part in (~above, above))
            offset, step = low, high - low
        else:
            low, high = wide.min(axis=0), wide.max(axis=0)
            step = (high - low) / (_MOST - _LEAST)
            offset = low - _LEAST * step
        return cls(bits, *(np.asarray(part, np.float32) for part in (offset, step, threshold)))

    @property
    def dim(self) -> int:
        """The number of dimensions d."""
        return len(self.offset)

    @property
    def width(self) -> int:
        """The number of bytes of a quantised vector."""
        return -(-self.dim * self.bits // 8)

    def codes(self, vectors: NDArray[np.floating]) -> NDArray[Any]:
        """Return the codes of vectors (m, d): (m, d) int8, or (m, d / 8) uint8 of single bits.

        A number beyond the levels gets the nearest level.
        """
        if self.bits == 1:
            return np.packbits(vectors > self.threshold, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(self.step > 0, (vectors - self.offset) / self.step, 0)
        return np.clip(np.rint(steps), _LEAST, _MOST).astype(np.int8)

    def vectors(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Return the vectors (m, d) that the codes of ``codes`` stand for."""
        numbers = np.unpackbits(codes, axis=1, count=self.dim) if self.bits == 1 else codes
        return numbers.astype(np.float32) * self.step + self.offset

    def save(self, folder: Path) -> None:
        """Write the levels beside the vectors in ``folder``."""
        with atomic(folder / FILE) as temporary, open(temporary, "wb") as stream:
            np.savez(stream, bits=self.bits, offset=self.offset, step=self.step, threshold=self.threshold)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the levels that ``save`` wrote. Raises ``UserError`` where the file is missing or is of another kind."""
        stored = load_arrays(folder / FILE)
        try:
            return cls(int(stored["bits"]), stored["offset"], stored["step"], stored["threshold"])
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{folder / FILE}: not the levels of a quantised index; {RECOMPUTE}") from None


def _means(
    numbers: NDArray[np.float64], part: NDArray[np.bool_], otherwise: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean of the numbers in ``part`` (m, d) for each dimension: (d,); ``otherwise`` (d,) where there are none."""
    count = part.sum(axis=0)
    return np.where(count, np.where(part, numbers, 0).sum(axis=0) / np.maximum(count, 1), otherwise)


@dataclass(frozen=True)
class Decoded:
    """Codes on disk that are read as vectors."""

    codes: NDArray[Any]
    quantiser: Quantiser

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        return self.quantiser.vectors(self.codes[rows])
