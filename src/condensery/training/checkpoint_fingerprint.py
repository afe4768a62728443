"""Describes the data and settings of a training run in plain values, which are checked when a run is resumed.

A checkpoint stores these values, and a resumed run compares them with its own values. Settings are stored as they are. Texts
and arrays are stored as hashes of their content. File paths and settings of the machine are left out, so that a run may
resume on another machine.
"""

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Plain = bool | int | float | str | None
Fingerprint = dict[str, Plain]

_OF_THE_MACHINE = {"workers", "chunk_tokens", "budget", "threads", "device"}  # batches and losses do not depend on them
_PLACES = {"data", "teacher", "tokenizer"}  # folders and names, whose content is hashed instead
_WHOLE = 1 << 28  # bytes; of a larger array only blocks are hashed, in total a quarter of this number of bytes
_BLOCK = 1 << 14  # bytes per block


def settings_of(thing: object) -> Fingerprint:
    """Return the constructor arguments of ``thing`` that are plain values, by name."""
    return {name: value for name, value in _arguments(thing) if isinstance(value, Plain) and name not in _PLACES}


def described(thing: object, name: str = "") -> Fingerprint:
    """Describe the constructor arguments of ``thing``. If an argument is an object, its own arguments are described too.

    Only constructor arguments that an object keeps as attributes of the same name are described. An object with a method
    ``content`` is described by the result of this method.

    Returns:
        plain values by dotted names below ``name``.
    """
    found: Fingerprint = {}
    _describe(name, thing, found)
    return found


def _describe(name: str, value: Any, found: Fingerprint) -> None:
    if isinstance(value, Plain):
        found[name] = value
    elif isinstance(value, np.ndarray):
        found[name] = hash_of(value)
    elif not isinstance(value, Path | type):
        found[name] = _name_of(value)
        for part, own in _parts(value):
            _describe(f"{name}.{part}" if name else str(part), own, found)


def _name_of(value: Any) -> str:
    kind = value.func if isinstance(value, partial) else value if inspect.isroutine(value) else type(value)
    return str(getattr(kind, "__qualname__", type(kind).__qualname__))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, with their names."""
    if isinstance(value, partial):
        value = value.keywords
    if isinstance(value, Mapping):
        yield from ((str(key), own) for key, own in value.items() if key not in _OF_THE_MACHINE)
    elif isinstance(value, list | tuple):
        yield from zip(getattr(value, "_fields", map(str, range(len(value)))), value, strict=True)
    elif hasattr(value, "content"):
        yield from value.content().items()
    elif hasattr(value, "get_vocab"):  # a tokenizer, whose other settings change as it is used
        yield "vocabulary", hashed(repr(sorted(value.get_vocab().items())).encode())
    else:
        yield from _arguments(value)


def _arguments(thing: object) -> Iterator[tuple[str, Any]]:
    """Yield the constructor arguments that ``thing`` keeps as attributes, except settings of the machine."""
    for name in dict.fromkeys(chain.from_iterable(map(_taken_by, type(thing).__mro__))):
        kept = getattr(thing, "__dict__", {})  # only attributes, no computed properties
        value = getattr(thing, name, kept.get(f"_{name}", thing))
        if value is not thing and name not in _OF_THE_MACHINE:
            yield name, value.item() if isinstance(value, np.generic) else value


def _taken_by(kind: type) -> list[str]:
    """Return the names of the constructor arguments of one class, without those of its base classes."""
    if not inspect.isfunction(made := vars(kind).get("__init__")):
        return []
    _, *taken = inspect.signature(made).parameters.values()
    return [one.name for one in taken if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


def hash_of(array: NDArray[Any]) -> str:
    """Return a hash of an array's dtype, shape and bytes. Of a very large array only evenly spaced blocks are hashed."""
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    digest = hashlib.blake2b(f"{array.dtype.str} {array.shape}".encode(), digest_size=8)
    if len(content) <= _WHOLE:
        digest.update(content.data)
    else:
        for first in np.linspace(0, len(content) - _BLOCK, _WHOLE // _BLOCK // 4).astype(np.int64).tolist():
            digest.update(content[first : first + _BLOCK].data)
    return f"hash {digest.hexdigest()}"


def hashed(content: bytes) -> str:
    """Return the hash of a byte string."""
    return hash_of(np.frombuffer(content, np.uint8))
