"""A batch on its way from one process to another, or to a GPU: all of its tensors in one block of memory.

A batch may be hundreds of chunks of five tensors each. Sent one by one, each costs a file descriptor and a mapping of
memory, or a copy to the GPU of its own.
"""

from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

_ALIGNED = 16  # bytes that tensors begin at a multiple of


class _Place(NamedTuple):
    """Where a tensor lies in the block."""

    start: int  # bytes
    dtype: torch.dtype
    shape: tuple[int, ...]


class _Parts(NamedTuple):
    """A dataclass taken apart, or a list or tuple."""

    kind: type
    values: list[Any]


def packed(value: Any) -> tuple[Tensor, Any]:
    """The tensors of ``value`` in one block (bytes,) uint8, and what ``unpacked`` makes the value of again.

    ``value`` is made of dataclasses, lists and tuples. Tensors that lie in one block already are not copied.
    """
    tensors: list[Tensor] = []
    _collect(value, tensors)
    block, starts = _shared(tensors) or _copied(tensors)
    left = iter(starts)
    return block, _taken_apart(value, left)


def unpacked(block: Tensor, parts: Any) -> Any:
    """The value of which ``packed`` made the two; its tensors are views of ``block``, on the device of that."""
    typed: dict[torch.dtype, Tensor] = {}

    def join(part: Any) -> Any:
        if isinstance(part, _Place):
            if part.dtype not in typed:
                typed[part.dtype] = block.view(part.dtype)
            view = typed[part.dtype]
            return view.as_strided(part.shape, _strides(part.shape), part.start // view.element_size())
        if isinstance(part, _Parts):
            values = [join(each) for each in part.values]
            return part.kind(values) if part.kind in (list, tuple) else _from_fields(part.kind, values)
        return part

    return join(parts)


def _from_fields(kind: type, values: list[Any]) -> Any:
    names = [field.name for field in fields(kind)]
    return kind(**dict(zip(names, values, strict=True)))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a tensor whose last dimension is dense."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def _members(value: Any) -> list[Any] | None:
    """What a value is made of; None where it is no container."""
    if isinstance(value, list | tuple):
        return list(value)
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    return None


def _collect(value: Any, tensors: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        tensors.append(value)
    else:
        for member in _members(value) or ():
            _collect(member, tensors)


def _taken_apart(value: Any, starts: Any) -> Any:
    if isinstance(value, Tensor):
        return _Place(next(starts), value.dtype, tuple(value.shape))
    members = _members(value)
    if members is None:
        return value
    return _Parts(type(value), [_taken_apart(member, starts) for member in members])


def _shared(tensors: list[Tensor]) -> tuple[Tensor, list[int]] | None:
    """The block in which all of them lie already, and where; None where they do not."""
    places = {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}
    if len(places) != 1 or not all(tensor.is_contiguous() for tensor in tensors):
        return None
    storage = next(tensor for tensor in tensors if tensor.numel()).untyped_storage()
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if storage.nbytes() % _ALIGNED or storage.nbytes() > 2 * size:  # of another's making
        return None
    block = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(cast(Any, storage))
    return block, [int(tensor.storage_offset()) * tensor.element_size() if tensor.numel() else 0 for tensor in tensors]


def _copied(tensors: list[Tensor]) -> tuple[Tensor, list[int]]:
    """A block that they are copied into, and where."""
    starts, size = [], 0
    for tensor in tensors:
        starts.append(size)
        size += -(-tensor.numel() * tensor.element_size() // _ALIGNED) * _ALIGNED
    block = torch.empty(size, dtype=torch.uint8, device=tensors[0].device if tensors else "cpu")
    for tensor, start in zip(tensors, starts, strict=True):
        room = block[start : start + tensor.numel() * tensor.element_size()]
        room.view(tensor.dtype).view(tensor.shape).copy_(tensor)
    return block, starts
