"""The one gradient cache: the gradient of a large contrastive batch in the memory of one chunk (CO §3.3, eq. 8-12).

1. The first chunk is encoded with a graph, which waits; every other chunk without one, by the backbone alone. The
   vectors are kept.
2. The contrastive loss over all vectors gives one gradient per vector, v = dL / dh (eq. 10).
3. v . h plus the chunk's own losses is back-propagated (eq. 12) through the graph that waits, then through every other
   chunk, encoded again under the same dropout. This accumulates the gradient of the whole batch.

One graph is in memory at a time, and a batch that is one chunk is encoded once. Without contrast (Condenser, MLM) only
step 3 is left: that is gradient accumulation.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from condensery import memory
from condensery.objectives.contrast import Contrast
from condensery.tokens.batches import Chunk

_MANY = 16  # chunks; a batch of more gives free memory back after each, which costs up to a tenth of its time

memory.keep_flat()


class ChunkEncoder(Protocol):
    """What can be trained through the cache."""

    def vectors(self, chunk: Chunk) -> Tensor:
        """The vectors of the chunk's rows, (b, d), at the least cost."""

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """The same vectors, and the chunk's own losses by name, each a sum divided by its batch-wide count.

        Under autocast it casts at least the weights that ``vectors`` casts.
        """


def _wide(vectors: Tensor) -> Tensor:
    return vectors if vectors.dtype == torch.float64 else vectors.float()


class _Replay:
    """The state of the random number generators before a chunk, so that its second pass draws the same dropout."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)


def backpropagate(
    model: ChunkEncoder,
    chunks: Sequence[Chunk],
    contrast: Contrast | None,
    backward: Callable[[Tensor], None] = Tensor.backward,
    unsynchronised: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> dict[str, Tensor]:
    """Accumulate the gradient of ``contrast`` + the chunks' own losses over a whole batch, in the memory of one chunk.

    Args:
        model: encodes a chunk.
        chunks: the batch; ``Chunk.rows`` says which rows of the batch each holds, every row 0 .. n - 1 once.
        contrast: loss of the vectors of all rows in batch order, (n, d) in fp32 or wider -> scalar; None = no contrast.
        backward: called once a chunk with the scalar to back-propagate (Lightning's scales it for fp16).
        unsynchronised: context in which no gradient is exchanged between processes; all chunks but the last run in it.

    Returns:
        the losses, detached: ``contrast`` (where there is one) and the sum over the chunks of each of the model's own.
    """
    losses: dict[str, Tensor] = {}
    kept = [model.encode(chunks[0])]
    gradient: Tensor | None = None
    replays: list[_Replay] = []
    if contrast is not None:
        losses["contrast"], gradient, replays = _vector_gradients(model, kept[0][0].detach(), chunks, contrast)
    for index, chunk in _flat(chunks):
        if index > 0 and replays:
            replays[index - 1].restore()
        with nullcontext() if index + 1 == len(chunks) else unsynchronised():
            _add(
                losses,
                _back_propagate_chunk(
                    *(kept.pop() if index == 0 else model.encode(chunk)),
                    None if gradient is None else gradient[chunk.rows],
                    backward,
                ),
            )
    return losses


def _flat(chunks: Sequence[Chunk]) -> Iterator[tuple[int, Chunk]]:
    """Enumerate the chunks of a pass; what each leaves behind is given back where there are many."""
    for index, chunk in enumerate(chunks):
        if len(chunks) > _MANY and chunk.input_ids.device.type == "cpu":
            memory.give_back()
        yield index, chunk


def _back_propagate_chunk(
    vectors: Tensor, own: dict[str, Tensor], gradient: Tensor | None, backward: Callable[[Tensor], None]
) -> dict[str, Tensor]:
    """Step 3 for one encoded chunk, whose own losses are returned. Nothing of its graph outlives the call."""
    # (v . h).sum() back-propagates v into h
    start = vectors.sum() * 0.0 if gradient is None else (_wide(vectors) * gradient).sum()
    backward(sum(own.values(), start))
    return {name: loss.detach() for name, loss in own.items()}


def _vector_gradients(
    model: ChunkEncoder, first: Tensor, chunks: Sequence[Chunk], contrast: Contrast
) -> tuple[Tensor, Tensor, list[_Replay]]:
    """Steps 1 and 2: the contrastive loss, its gradient (n, d) by vector, and what replays each other chunk's dropout.

    ``first``: the vectors of the first chunk, which is encoded already.
    """
    replays = []
    encoded = [_wide(first)]
    with torch.no_grad():
        for index, chunk in _flat(chunks):
            if index == 0:
                continue
            replays.append(_Replay(chunk.input_ids.device))
            encoded.append(_wide(model.vectors(chunk)))
    if any(chunk.tower != chunks[0].tower for chunk in chunks):
        # some releases of torch keep, for the second pass, casts made without a graph: here of another tower's weights
        torch.clear_autocast_cache()
    rows = torch.cat([chunk.rows for chunk in chunks])
    vectors = torch.cat(encoded)
    vectors = torch.empty_like(vectors).index_copy_(0, rows, vectors).requires_grad_()
    with torch.enable_grad(), torch.autocast(vectors.device.type, enabled=False):
        loss = contrast(vectors)
        (gradient,) = torch.autograd.grad(loss, vectors)
    return loss.detach(), gradient, replays


def _add(total: dict[str, Tensor], part: dict[str, Tensor]) -> None:
    for name, value in part.items():
        total[name] = total[name] + value.detach() if name in total else value.detach()
