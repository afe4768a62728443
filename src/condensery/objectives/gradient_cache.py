"""The one gradient cache: the gradient of a large contrastive batch in the memory of one chunk (CO §3.3, eq. 8-12).

1. Every chunk is encoded without a graph, by the backbone alone; the vectors are kept.
2. The contrastive loss over all vectors gives one gradient per vector, v = dL / dh (eq. 10).
3. Every chunk is encoded again with a graph, under the same dropout; v . h plus the chunk's own losses is
   back-propagated (eq. 12), which accumulates the gradient of the whole batch.

A batch that is one chunk is encoded once and back-propagated directly. Without contrast (Condenser, MLM) only step 3 is
left: that is gradient accumulation.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from condensery.objectives import memory
from condensery.objectives.contrast import Contrast
from condensery.tokens.batches import Chunk

memory.keep_flat()


class ChunkEncoder(Protocol):
    """What can be trained through the cache."""

    def vectors(self, chunk: Chunk) -> Tensor:
        """The vectors of the chunk's rows, (b, d), at the least cost."""

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """The same vectors, and the chunk's own losses by name, each a sum divided by its batch-wide count."""


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
    if contrast is not None and len(chunks) == 1:
        vectors, own = model.encode(chunks[0])
        with torch.autocast(vectors.device.type, enabled=False):
            loss = contrast(_wide(vectors)[torch.argsort(chunks[0].rows)])
        _add(losses, {"contrast": loss, **own})
        backward(sum(own.values(), loss))
        return losses
    replays: list[_Replay] = []
    gradient = None
    if contrast is not None:
        losses["contrast"], gradient, replays = _vector_gradients(model, chunks, contrast)
    for index, chunk in enumerate(chunks):
        if gradient is not None:
            replays[index].restore()
        with nullcontext() if index + 1 == len(chunks) else unsynchronised():
            _add(
                losses,
                _back_propagate_chunk(model, chunk, None if gradient is None else gradient[chunk.rows], backward),
            )
        if chunk.input_ids.device.type == "cpu":
            memory.after_chunk(index)
    return losses


def _back_propagate_chunk(
    model: ChunkEncoder, chunk: Chunk, gradient: Tensor | None, backward: Callable[[Tensor], None]
) -> dict[str, Tensor]:
    """Step 3 for one chunk, whose own losses are returned. Nothing of its graph outlives the call."""
    vectors, own = model.encode(chunk)
    # (v . h).sum() back-propagates v into h
    start = vectors.sum() * 0.0 if gradient is None else (_wide(vectors) * gradient).sum()
    backward(sum(own.values(), start))
    return {name: loss.detach() for name, loss in own.items()}


def _vector_gradients(
    model: ChunkEncoder, chunks: Sequence[Chunk], contrast: Contrast
) -> tuple[Tensor, Tensor, list[_Replay]]:
    """Steps 1 and 2: the contrastive loss, its gradient (n, d) by vector, and what replays each chunk's dropout."""
    replays = []
    encoded = []
    with torch.no_grad():
        for chunk in chunks:
            replays.append(_Replay(chunk.input_ids.device))
            encoded.append(_wide(model.vectors(chunk)))
    # torch before 2.15 keeps casts made without a graph, and the second pass would lose the gradient through them
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
