"""The two kinds of trial of ``check_gradients``: a loss over vectors with its encoders, or a training module.

A trial can split its batch into chunks of any size. It computes the loss and its gradient in two ways. The method ``plain``
keeps all graphs in memory together. The method ``cached`` uses the gradient cache, as training does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from itertools import accumulate, count, pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from condensery.distributed import gathered
from condensery.errors import UserError
from condensery.losses.cached_backward import PieceChunk, cached_backward, chunks_of
from condensery.losses.captured import Captured
from condensery.losses.gradient_cache import backpropagate, wide
from condensery.models.dropout import seed_torch
from condensery.randomness import hash64
from condensery.tokens.batches import Chunk
from condensery.training.data.steps import ALL, Batch, Share
from condensery.training.modules.optimisation import TrainingModule

EVERY_PART = "every part"
Cut = Literal["as given", "one row", "uneven", "whole"]
WHOLE = 1 << 40  # chunk size in tokens that is large enough for any batch


class Replayed:
    """Calls functions with random numbers that depend only on a key, if the caller replays torch's random state.

    The gradient cache must restore torch's random state before the second pass of a chunk. So a second call with the same
    key must begin in the same random state as the first call. If it does not, the call draws other random numbers, and the
    dropout is not replayed.

    Attributes:
        replayed: True = every repeated call with a key began in the random state of the first call with this key.
    """

    _calls = count()

    def __init__(self, seed: int) -> None:
        self.seed, self.replayed = seed, True
        self._begun: dict[str, Tensor] = {}

    def call(self, key: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``function(*arguments)``, with random numbers that depend on ``key``."""
        state = torch.get_rng_state()
        if torch.equal(self._begun.setdefault(repr(key), state), state):
            seed_torch(hash64(self.seed, repr(key)) >> 1)
        else:
            self.replayed = False
        found = function(*arguments)
        seed_torch(hash64("behind", next(self._calls)) >> 1)  # a new state, which only a replay can restore
        return found


class TrialOfParts:
    """The trial of a loss and its encoders, each with the chunks that it encodes, as ``cached_backward`` takes them.

    Attributes:
        captured: the modules and tensors that the loss and the encoders read.
        by_rows: whether the random numbers of a chunk depend only on its rows. They are then the same in one process as in
            several.
    """

    by_rows = True

    def __init__(self, loss: Callable[..., Tensor], parts: Sequence[Any], cached: Callable[..., Any]) -> None:
        for number, part in enumerate(parts):
            if not isinstance(part, tuple | list) or len(part) != 2 or not callable(part[0]):
                raise UserError(f"check_gradients: part {number} must be a tuple of an encoder and its chunks")
        self.loss, self.way = loss, cached
        self.encoders = [encode for encode, _ in parts]
        pieces = [[given] if isinstance(given, Tensor) or hasattr(given, "keys") else list(given) for _, given in parts]
        every = chunks_of([(encode, own) for (encode, _), own in zip(parts, pieces, strict=True)])
        self.given = [[chunk for chunk in every if chunk.tower == tower] for tower in range(len(parts))]
        self.captured = Captured({"loss": loss, **{f"part {n}": encode for n, encode in enumerate(self.encoders)}})
        self._fixed: str | None = None

    def freezable(self) -> list[str]:
        """Return the names of the parts that can be frozen."""
        return [f"part {number}" for number in range(len(self.encoders))]

    @contextmanager
    def frozen(self, part: str | None) -> Iterator[None]:
        """Context manager. Inside it, a part is frozen; None = no part."""
        self._fixed = part
        try:
            yield
        finally:
            self._fixed = None

    def chunks(self, cut: Cut, share: Share) -> list[Any]:
        """Return the chunks of one process."""
        sizes = [sum(map(len, own)) for own in self.given]
        shares = [-(-sizes[0] // share.processes) * number for number in range(share.processes)] + [sizes[0]]
        found = []
        for own, size in zip(self.given, sizes, strict=True):
            first, last = (at * size // sizes[0] for at in shares[share.rank : share.rank + 2])
            places = [0, *accumulate(map(len, own))] if cut == "as given" else borders(cut, last - first, first)
            inside = sorted({first, last, *(place for place in places if first < place < last)})
            found += [chunk for begin, end in pairwise(inside) for chunk in rows_of(own, begin, end)]
        return [replace(chunk, piece=in_default_dtype(chunk.piece)) for chunk in found]

    def plain(self, chunks: Sequence[PieceChunk], random: Replayed) -> Tensor:
        """Return the loss of the whole batch, with its graph."""
        towers: list[list[Tensor]] = [[] for _ in self.encoders]
        for chunk in chunks:
            towers[chunk.tower].append(wide(self._encoder(chunk.tower, chunks, random)(chunk.piece)))
        return random.call("loss", self.loss, *map(torch.cat, towers))

    def cached(self, chunks: Sequence[PieceChunk], random: Replayed) -> Tensor | None:
        """Add the gradient of this process's share to ``.grad``, as in training. Return what ``way`` returns."""
        parts = []
        for tower in range(len(self.encoders)):
            pieces = [chunk.piece for chunk in chunks if chunk.tower == tower]
            parts.append((self._encoder(tower, chunks, random), pieces))

        def loss(*vectors: Tensor) -> Tensor:
            shared = self.way is cached_backward  # any other function gathers the vectors itself
            return random.call("loss", self.loss, *(map(gathered, vectors) if shared else vectors))

        return self.way(loss, *parts)

    def _encoder(self, tower: int, chunks: Sequence[PieceChunk], random: Replayed) -> Callable[[Any], Tensor]:
        """Return the encoder of a part, with random numbers that depend on the rows of the chunk."""
        rows = {id(chunk.piece): chunk.rows.tolist() for chunk in chunks}
        fixed = self._fixed in (f"part {tower}", EVERY_PART)

        def encode(piece: Any) -> Any:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not fixed):
                if id(piece) in rows:
                    vectors = random.call(("rows", tower, rows[id(piece)]), self.encoders[tower], piece)
                else:  # the checked function has copied the chunk
                    vectors = self.encoders[tower](piece)
            return vectors.detach() if fixed else vectors

        return encode


class TrialOfModule:
    """The trial of a ``TrainingModule`` with a data module, an object that makes batches, or a batch."""

    by_rows = False

    def __init__(self, module: TrainingModule, data: Any) -> None:
        self.module, self.captured = module, Captured({"": module})
        if hasattr(data, "setup"):
            module.check_kind(data)
            data.prepare_data()
            data.setup()
        self.data = getattr(data, "batches", data)
        if not isinstance(self.data, Batch) and not hasattr(self.data, "batch"):
            raise UserError(f"check_gradients: a data module or a batch is needed, not a {type(data).__name__}")
        self.share = ALL

    def freezable(self) -> list[str]:
        return [name for name, part in self.module.model.named_children() if any(True for _ in part.parameters())]

    @contextmanager
    def frozen(self, part: str | None) -> Iterator[None]:
        model = self.module.model
        owner = model if part == EVERY_PART else None if part is None else model.get_submodule(part)
        learning = [weight for weight in (owner.parameters() if owner else ()) if weight.requires_grad]
        try:
            for weight in learning:
                weight.requires_grad_(False)
            yield
        finally:
            for weight in learning:
                weight.requires_grad_(True)

    def chunks(self, cut: Cut, share: Share) -> list[Any]:
        self.share = share
        batch = self._batch(share, whole=cut != "as given")
        if cut == "as given":
            return list(batch.chunks)
        together, found = getattr(batch, "size", 1), []  # number of rows per list in batches of the cross-encoder
        for chunk in batch.chunks:
            edges = pairwise(together * border for border in borders(cut, len(chunk) // together))
            found += [rows_of_chunk(chunk, first, last) for first, last in edges]
        return found

    def plain(self, chunks: Sequence[Chunk], random: Replayed) -> Tensor:
        encoder, contrast = self._objective(random)
        encoded = [encoder.encode(chunk) for chunk in chunks]
        losses = [loss for _, own in encoded for loss in own.values()]
        if contrast is not None:
            order = torch.argsort(torch.cat([chunk.rows for chunk in chunks]))
            losses.append(contrast(torch.cat([wide(vectors) for vectors, _ in encoded])[order]))
        return torch.stack(losses).sum()

    def cached(self, chunks: Sequence[Chunk], random: Replayed) -> Tensor:
        encoder, contrast = self._objective(random)
        return torch.stack(list(backpropagate(encoder, chunks, contrast).values())).sum()

    def _batch(self, share: Share, whole: bool) -> Any:
        if isinstance(self.data, Batch):
            return self.data.to(self.module.device)
        budget = getattr(self.data, "budget", None)
        try:
            if whole and budget is not None:
                self.data.budget = WHOLE
            return self.data.batch(0, share).to(self.module.device)
        finally:
            if budget is not None:
                self.data.budget = budget

    def _objective(self, random: Replayed) -> tuple["_Repeated", Callable[[Tensor], Tensor] | None]:
        encoder, contrast = self.module.objective(self._batch(self.share, whole=False))
        return _Repeated(encoder, random), contrast and (lambda vectors: random.call("loss", contrast, vectors))


class _Repeated:
    """Wraps a ``ChunkEncoder`` so that its random numbers depend on the rows of the chunk."""

    def __init__(self, encoder: Any, random: Replayed) -> None:
        self.encoder, self.random = encoder, random

    def vectors(self, chunk: Chunk) -> Tensor:
        return self.random.call(("rows", chunk.rows.tolist()), self.encoder.vectors, chunk)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        return self.random.call(("rows", chunk.rows.tolist()), self.encoder.encode, chunk)


def borders(cut: Cut, rows: int, first: int = 0) -> list[int]:
    """Return the rows at which chunks begin, and the row at which the last chunk ends."""
    if cut == "one row":
        return list(range(first, first + rows + 1))
    inside = accumulate(range(1, rows + 1)) if cut == "uneven" else []  # 1, 2, 3 ... rows
    return [first, *(first + border for border in inside if border < rows), first + rows]


def rows_of(given: Sequence[PieceChunk], first: int, last: int) -> list[PieceChunk]:
    """Return the rows ``first`` to ``last`` - 1 of a part, as one chunk, or as several if the chunks cannot be joined."""
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
    """Return the chunks joined into one; None if this is impossible, as for tensors of different widths."""
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
    """Return the rows ``first`` to ``last`` - 1 of a ``Chunk``.

    Each tensor of the chunk has b rows, except ``masked``, which holds positions in the flattened chunk (b * t), and
    ``targets``, which holds the token ids at these positions.
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
