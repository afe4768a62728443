"""Numbers to codes of 8 bits or of one, and back: in each dimension a code c stands for ``offset + step c``.

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
_LEAST, _MOST = -128, 127  # of an int8


@dataclass(frozen=True)
class Quantiser:
    """The levels of each dimension.

    Attributes:
        bits: of a code, 8 or 1; eight of the latter are a byte, the first the highest.
        offset, step: (d,).
        threshold: (d,) above it the one bit is set.
    """

    bits: int
    offset: NDArray[np.float32]
    step: NDArray[np.float32]
    threshold: NDArray[np.float32]

    @classmethod
    def fitted(cls, sample: NDArray[np.float32], bits: int) -> Self:
        """The levels for vectors such as those of a sample (m, d).

        Of 8 bits the levels are even steps from the least to the largest number. Of one bit they are the means of the numbers
        up to the mean, and of those above it, which lose least (Lloyd 1982).
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
        """d"""
        return len(self.offset)

    @property
    def width(self) -> int:
        """Bytes of a vector."""
        return -(-self.dim * self.bits // 8)

    def codes(self, vectors: NDArray[np.floating]) -> NDArray[Any]:
        """(m, d) -> (m, d) int8, or (m, d / 8) uint8 of single bits. What lies beyond the levels gets the last."""
        if self.bits == 1:
            return np.packbits(vectors > self.threshold, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(self.step > 0, (vectors - self.offset) / self.step, 0)
        return np.clip(np.rint(steps), _LEAST, _MOST).astype(np.int8)

    def vectors(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """What the codes of ``codes`` stand for, (m, d)."""
        numbers = np.unpackbits(codes, axis=1, count=self.dim) if self.bits == 1 else codes
        return numbers.astype(np.float32) * self.step + self.offset

    def save(self, folder: Path) -> None:
        """Write it beside the vectors."""
        with atomic(folder / FILE) as temporary, open(temporary, "wb") as stream:
            np.savez(stream, bits=self.bits, offset=self.offset, step=self.step, threshold=self.threshold)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Raises ``UserError`` where the file is missing or is no such one."""
        stored = load_arrays(folder / FILE)
        try:
            return cls(int(stored["bits"]), stored["offset"], stored["step"], stored["threshold"])
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{folder / FILE}: not the levels of a quantised index; {RECOMPUTE}") from None


def _means(
    numbers: NDArray[np.float64], part: NDArray[np.bool_], otherwise: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The mean over the vectors in ``part`` (m, d), of each dimension; ``otherwise`` (d,) where there are none."""
    count = part.sum(axis=0)
    return np.where(count, np.where(part, numbers, 0).sum(axis=0) / np.maximum(count, 1), otherwise)


@dataclass(frozen=True)
class Decoded:
    """Codes on disk that are read as vectors."""

    codes: NDArray[Any]
    quantiser: Quantiser

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        return self.quantiser.vectors(self.codes[rows])
