"""Quantise vectors by a scalar quantiser with 8 bits or 1 bit per dimension.

In each dimension, a code c decodes to ``offset + step c``.

Shapes: m vectors, d dimensions.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.system.files import RECOMPUTE, atomic, load_arrays

QUANTISED = {"int8": 8, "binary": 1}  # dtype of an index -> bits per dimension
FILE = "quantiser.npz"
_LEAST, _MOST = -128, 127  # range of an int8


@dataclass(frozen=True)
class Quantiser:
    """The quantisation levels of each dimension.

    Attributes:
        bits: bits per code, 8 or 1. Eight 1-bit codes are packed into a byte, the first code as the highest bit.
        offset, step: float32 (d,); code c decodes to ``offset + step c``.
        threshold: float32 (d,); a 1-bit code is 1 for values above the threshold.
    """

    bits: int
    offset: NDArray[np.float32]
    step: NDArray[np.float32]
    threshold: NDArray[np.float32]

    @classmethod
    def fitted(cls, sample: NDArray[np.float32], bits: int) -> Self:
        """Fit the levels to a sample of vectors (m, d).

        With 8 bits, the levels are equally spaced from the minimum to the maximum of a dimension. With 1 bit, the threshold
        is the mean of the dimension. The two levels are the means of the values up to the threshold and above it, because
        these means give the smallest loss (Lloyd 1982).
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
        """Number of dimensions d."""
        return len(self.offset)

    @property
    def width(self) -> int:
        """Number of bytes of a quantised vector."""
        return -(-self.dim * self.bits // 8)

    def codes(self, vectors: NDArray[np.floating]) -> NDArray[Any]:
        """Return the codes of vectors (m, d): int8 (m, d), or packed bits, uint8 (m, d / 8, rounded up).

        A value outside the range of the levels gets the nearest level.
        """
        if self.bits == 1:
            return np.packbits(vectors > self.threshold, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(self.step > 0, (vectors - self.offset) / self.step, 0)
        return np.clip(np.rint(steps), _LEAST, _MOST).astype(np.int8)

    def vectors(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Decode codes into vectors, float32 (m, d)."""
        numbers = np.unpackbits(codes, axis=1, count=self.dim) if self.bits == 1 else codes
        return numbers.astype(np.float32) * self.step + self.offset

    def save(self, folder: Path) -> None:
        """Write the levels into ``folder``, next to the vectors."""
        with atomic(folder / FILE) as temporary, open(temporary, "wb") as stream:
            np.savez(stream, bits=self.bits, offset=self.offset, step=self.step, threshold=self.threshold)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the levels that ``save`` wrote. Raises ``UserError`` if the file is missing or has other content."""
        stored = load_arrays(folder / FILE)
        try:
            return cls(int(stored["bits"]), stored["offset"], stored["step"], stored["threshold"])
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{folder / FILE}: not the levels of a quantised index; {RECOMPUTE}") from None


def _means(
    numbers: NDArray[np.float64], part: NDArray[np.bool_], otherwise: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the mean (d,) of each dimension over the values in the mask ``part`` (m, d).

    A dimension without such values gets the value of ``otherwise`` (d,).
    """
    count = part.sum(axis=0)
    return np.where(count, np.where(part, numbers, 0).sum(axis=0) / np.maximum(count, 1), otherwise)


@dataclass(frozen=True)
class Decoded:
    """Wraps codes, on disk or in memory, and decodes them to vectors on access."""

    codes: NDArray[Any]
    quantiser: Quantiser

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        return self.quantiser.vectors(self.codes[rows])
