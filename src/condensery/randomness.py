"""Randomness as a function of its keys: the same (seed, epoch, index) gives the same draw, whoever asks and when.

Nothing here keeps a state, so a run that is resumed at step k, or that reads with other workers, draws what an
uninterrupted run draws.
"""

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from condensery.errors import UserError

Key = int | str

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def hash64(*keys: Key) -> int:
    """A 64-bit unsigned integer that depends on every key and on their order; stable across processes and versions."""
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The splitmix64 finaliser (Steele, Lea and Flood 2014), element by element."""
    with np.errstate(over="ignore"):
        values = values + _GOLDEN
        values = (values ^ (values >> np.uint64(30))) * _MIX1
        values = (values ^ (values >> np.uint64(27))) * _MIX2
    return values ^ (values >> np.uint64(31))


def uniforms(*keys: Key, index: ArrayLike, second: ArrayLike | None = None) -> NDArray[np.float64]:
    """Uniform draws in [0, 1), one per entry of ``index`` (any shape, non-negative integers).

    ``second`` (broadcast against ``index``) is a second coordinate, e.g. the position inside span ``index``.
    """
    values = mix(np.asarray(index).astype(np.uint64) ^ np.uint64(hash64(*keys)))
    if second is not None:
        values = mix(values ^ mix(np.asarray(second).astype(np.uint64)))
    return (values >> np.uint64(11)).astype(np.float64) * 2.0**-53


def generator(*keys: Key) -> np.random.Generator:
    """A NumPy generator of its own for these keys."""
    return np.random.Generator(np.random.Philox(key=hash64(*keys)))


def nested_subset(seed: int, items: int, number: int | None) -> NDArray[np.int64]:
    """``number`` of the items 0 .. ``items`` - 1, ascending; None = all. A smaller subset lies in every larger one.

    They are the first of a permutation that depends on the seed and on ``items`` alone. *Shape:* (number,).
    """
    if number is None:
        return np.arange(items)
    return np.sort(generator(seed, "subset").permutation(items)[:number])


def check_subset(number: int | None, items: int, key: str, what: str) -> None:
    """Raise ``UserError`` where a subset of the training set is larger than the set."""
    if number is not None and number > items:
        raise UserError(f"{key}={number}: there are only {items:,} {what}; null takes all")
