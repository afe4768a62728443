"""Draw random numbers as pure functions of keys: the same (seed, epoch, index) gives the same draw in every process.

The functions have no state. A run that is resumed at step k, or that uses another number of workers, therefore draws the same
numbers as an uninterrupted run.
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
    """Return a 64-bit unsigned hash of the sequence of keys. It is the same in all processes and versions."""
    return int.from_bytes(hashlib.blake2b(repr(keys).encode(), digest_size=8).digest(), "little")


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the splitmix64 finaliser (Steele, Lea and Flood 2014), element by element."""
    with np.errstate(over="ignore"):
        values = values + _GOLDEN
        values = (values ^ (values >> np.uint64(30))) * _MIX1
        values = (values ^ (values >> np.uint64(27))) * _MIX2
    return values ^ (values >> np.uint64(31))


def uniforms(*keys: Key, index: ArrayLike, second: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return uniform random numbers in [0, 1), one for each entry of ``index`` (any shape, non-negative integers).

    ``second``: an optional second coordinate of each number, broadcast against ``index``. For example, ``index`` is a span,
    and ``second`` is a position within it.
    """
    values = mix(np.asarray(index).astype(np.uint64) ^ np.uint64(hash64(*keys)))
    if second is not None:
        values = mix(values ^ mix(np.asarray(second).astype(np.uint64)))
    return (values >> np.uint64(11)).astype(np.float64) * 2.0**-53


def generator(*keys: Key) -> np.random.Generator:
    """Return a new NumPy generator whose stream depends only on the keys."""
    return np.random.Generator(np.random.Philox(key=hash64(*keys)))


def nested_subset(seed: int, items: int, number: int | None) -> NDArray[np.int64]:
    """Return a random subset of the items 0 .. ``items`` - 1, ascending. *Shape:* (number,).

    The subset is a prefix of a permutation that depends only on ``seed`` and ``items``. A larger subset therefore contains
    every smaller one.

    Args:
        seed: seed of the permutation.
        items: number of items.
        number: size of the subset; None = all items.
    """
    return np.arange(items) if number is None else np.sort(generator(seed, "subset").permutation(items)[:number])


def check_subset(number: int | None, items: int, key: str, what: str) -> None:
    """Raise ``UserError`` if a subset of the training set is larger than the set.

    Args:
        number: size of the subset; None = all items.
        items: size of the set.
        key: the config key, for the message.
        what: a noun for the items, for the message.
    """
    if number is not None and number > items:
        raise UserError(f"{key}={number}: there are only {items:,} {what}; null means all")
