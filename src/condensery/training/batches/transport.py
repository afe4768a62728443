"""Packs all tensors of a batch into one block of memory, to send the batch to another process or to a GPU.

A batch may be hundreds of chunks of five tensors each. If tensors were sent one by one, each would cost a file descriptor and
a memory mapping, or its own copy to the GPU.
"""

from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

_ALIGNED = 16  # bytes; each tensor begins at a multiple of this number


class _Place(NamedTuple):
    """The position of a tensor in the block."""

    start: int  # bytes
    dtype: torch.dtype
    shape: tuple[int, ...]


class _Parts(NamedTuple):
    """The members of a dataclass, list or tuple, and the type that ``unpacked`` makes of them again."""

    kind: type
    values: list[Any]


def packed(value: Any) -> tuple[Tensor, Any]:
    """Pack the tensors of ``value`` into one block of memory.

    Args:
        value: made of dataclasses, lists and tuples. Tensors that lie in one block already are not copied.

    Returns:
        the block (bytes,) uint8, and the description of the other parts from which ``unpacked`` rebuilds the value.
    """
    tensors: list[Tensor] = []
    _collect(value, tensors)
    block, starts = _shared(tensors) or _copied(tensors)
    left = iter(starts)
    return block, _taken_apart(value, left)


def unpacked(block: Tensor, parts: Any) -> Any:
    """Rebuild the value from the two results of ``packed``. The value's tensors are views of ``block``, on its device."""
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
    """Return the strides of a contiguous tensor of this shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def _members(value: Any) -> list[Any] | None:
    """Return the members of a list, tuple or dataclass; None where the value is no container."""
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
    """Return the one block in which all tensors lie already, and the byte at which each begins; None where there is none."""
    places = {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}
    if len(places) != 1 or not all(tensor.is_contiguous() for tensor in tensors):
        return None
    storage = next(tensor for tensor in tensors if tensor.numel()).untyped_storage()
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if storage.nbytes() % _ALIGNED or storage.nbytes() > 2 * size:  # not made by ``_copied``
        return None
    block = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(cast(Any, storage))
    return block, [int(tensor.storage_offset()) * tensor.element_size() if tensor.numel() else 0 for tensor in tensors]


def _copied(tensors: list[Tensor]) -> tuple[Tensor, list[int]]:
    """Copy the tensors into a new block; return the block, and the byte at which each tensor begins."""
    starts, size = [], 0
    for tensor in tensors:
        starts.append(size)
        size += -(-tensor.numel() * tensor.element_size() // _ALIGNED) * _ALIGNED
    block = torch.empty(size, dtype=torch.uint8, device=tensors[0].device if tensors else "cpu")
    for tensor, start in zip(tensors, starts, strict=True):
        room = block[start : start + tensor.numel() * tensor.element_size()]
        room.view(tensor.dtype).view(tensor.shape).copy_(tensor)
    return block, starts
