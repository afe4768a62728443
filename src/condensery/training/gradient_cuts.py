"""Cuts batches into chunks of any sizes, for ``check_gradients``."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from condensery.losses.cached import PieceChunk

Cut = Literal["as given", "one row", "uneven", "whole"]


def borders(cut: Cut, rows: int, first: int = 0) -> list[int]:
    """Return the rows at which chunks begin, and the row at which the last chunk ends."""
    if cut == "one row":
        return list(range(first, first + rows + 1))
    inside = accumulate(range(1, rows + 1)) if cut == "uneven" else []  # 1, 2, 3 ... rows
    return [first, *(first + border for border in inside if border < rows), first + rows]


def rows_of(given: Sequence[PieceChunk], first: int, last: int) -> list[PieceChunk]:
    """Return the rows ``first`` to ``last`` - 1 of a part: one chunk, or several where given chunks cannot be joined."""
    start, found = int(given[0].rows[0]), []
    for chunk in given:
        begin = int(chunk.rows[0]) - start
        low, high = max(first - begin, 0), min(last - begin, len(chunk))
        if low < high:
            found.append(replace(chunk, piece=_slice(chunk.piece, low, high, len(chunk)), rows=chunk.rows[low:high]))
    joined = found[0].piece if len(found) == 1 else _joined([chunk.piece for chunk in found])
    return found if joined is None else [PieceChunk(joined, found[0].tower, torch.cat([one.rows for one in found]))]


def _slice(piece: Any, first: int, last: int, rows: int) -> Any:
    if not hasattr(piece, "keys"):
        return piece[first:last]
    cut = {
        key: value[first:last] if hasattr(value, "__len__") and len(value) == rows else value
        for key, value in piece.items()
    }
    return cut if isinstance(piece, dict) else type(piece)(cut)


def _joined(pieces: Sequence[Any]) -> Any:
    """Return the chunks joined into one; None where they cannot be joined, such as tensors of different widths."""
    first = pieces[0]
    if isinstance(first, Tensor):
        alike = all(isinstance(piece, Tensor) and piece.shape[1:] == first.shape[1:] for piece in pieces)
        return torch.cat(list(pieces)) if alike else None
    if isinstance(first, list | tuple) and all(type(piece) is type(first) for piece in pieces):
        return type(first)(entry for piece in pieces for entry in piece)
    if hasattr(first, "keys") and all(piece.keys() == first.keys() for piece in pieces):
        values = {key: _joined([piece[key] for piece in pieces]) for key in first.keys()}  # noqa: SIM118
        if all(value is not None or first[key] is None for key, value in values.items()):
            return values if isinstance(first, dict) else type(first)(values)
    return None


def in_default_dtype(piece: Any) -> Any:
    """Return a chunk with its floats in the default dtype, which is float64 while gradients are compared."""
    if isinstance(piece, Tensor) and piece.is_floating_point():
        return piece.detach().to(torch.get_default_dtype())
    if isinstance(piece, Mapping):
        made = {key: in_default_dtype(value) for key, value in piece.items()}
        return made if any(made[key] is not value for key, value in piece.items()) else piece
    return piece


def rows_of_chunk(chunk: Any, first: int, last: int) -> Any:
    """Return the rows ``first`` to ``last`` - 1 of a chunk of ours.

    Each tensor of the chunk has b rows, except ``masked``, positions in (b * t), and ``targets``, the ids at these positions.
    """
    width, changes = chunk.input_ids.shape[1], {}
    for one in fields(chunk):
        value = getattr(chunk, one.name)
        if is_dataclass(value):
            changes[one.name] = rows_of_chunk(value, first, last)
        elif isinstance(value, Tensor) and one.name not in ("masked", "targets"):
            changes[one.name] = value[first:last]
    if chunk.masked is not None:
        inside = (chunk.masked >= first * width) & (chunk.masked < last * width)
        changes |= {"masked": chunk.masked[inside] - first * width, "targets": chunk.targets[inside]}
    return replace(chunk, **changes)
