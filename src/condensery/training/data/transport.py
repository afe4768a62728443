"""Packs all tensors of a batch into one block of memory, to send the batch to another process or to a GPU.

A batch may have hundreds of chunks with five tensors each. If the tensors were sent to a process one by one, each tensor
would need a file descriptor and a memory mapping. If they were sent to a GPU, each would need a separate copy operation.
"""

import io
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ALIGNED = 16  # bytes; each tensor begins at a multiple of this number


@dataclass(frozen=True)
class Packed:
    """A batch in one block of memory.

    Attributes:
        block: (bytes,) uint8, the bytes of all tensors one after the other.
        kinds: the dtype and the shape of each tensor.
        rest: the pickled batch, with an index in place of each tensor.
    """

    block: Tensor
    kinds: tuple[tuple[torch.dtype, torch.Size], ...]
    rest: bytes


class _WithoutTensors(pickle.Pickler):
    tensors: list[Tensor]

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        self.tensors.append(value)
        return len(self.tensors) - 1


class _WithTensors(pickle.Unpickler):
    tensors: list[Tensor]

    def persistent_load(self, number: int) -> Tensor:
        return self.tensors[number]


def packed(batch: Any) -> Packed:
    """Pack a batch, which is a dataclass. A batch from ``unpacked`` is in one block already and is not copied."""
    if done := vars(batch).get("_packed"):
        return done
    stream = io.BytesIO()
    pickler = _WithoutTensors(stream, pickle.HIGHEST_PROTOCOL)
    pickler.tensors = tensors = list[Tensor]()
    pickler.dump((type(batch), vars(batch)))
    kinds = tuple((tensor.dtype, tensor.shape) for tensor in tensors)
    block = torch.empty(sum(_rooms(kinds)), dtype=torch.uint8, device=(tensors[0].device if tensors else "cpu"))
    for tensor, place in zip(tensors, _views(block, kinds), strict=True):
        place.copy_(tensor)
    return Packed(block, kinds, stream.getvalue())


def unpacked(pack: Packed) -> Any:
    """Return the batch that was packed. Its tensors are views of the block, on the block's device."""
    unpickler = _WithTensors(io.BytesIO(pack.rest))
    unpickler.tensors = _views(pack.block, pack.kinds)
    kind, values = unpickler.load()
    batch = kind(**values)
    object.__setattr__(batch, "_packed", pack)  # a batch is frozen
    return batch


def _views(block: Tensor, kinds: tuple[tuple[torch.dtype, torch.Size], ...]) -> list[Tensor]:
    """Return the tensors as views of the block."""
    rooms = zip(block.split(_rooms(kinds)), kinds, strict=True)
    return [room[: shape.numel() * dtype.itemsize].view(dtype).view(shape) for room, (dtype, shape) in rooms]


def _rooms(kinds: tuple[tuple[torch.dtype, torch.Size], ...]) -> list[int]:
    """Return the number of bytes that each tensor occupies in the block."""
    return [-(-shape.numel() * dtype.itemsize // _ALIGNED) * _ALIGNED for dtype, shape in kinds]
