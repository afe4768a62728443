"""The one gradient cache: the gradient of a large contrastive batch in the memory of one chunk (CO §3.3, eq. 8-12).

1. The first chunk is encoded with a graph, which waits; every other chunk without one, by the backbone alone. The
   vectors are kept.
2. The contrastive loss over all vectors gives one gradient per vector, v = dL / dh (eq. 10).
3. v . h plus the chunk's own losses is back-propagated (eq. 12) through the graph that waits, then through every other
   chunk, encoded again under the same dropout. This accumulates the gradient of the whole batch.

One graph is in memory at a time, and a batch that is one chunk is encoded once. Without contrast (Condenser, MLM) only
step 3 is left: that is gradient accumulation.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from condensery import memory
from condensery.objectives.contrast import Contrast
from condensery.tokens.batches import Chunk

_MANY = 16  # chunks; a batch of more gives free memory back twice a chunk, which costs it a tenth of its time

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


class _Replays:
    """The state of the random number generators before each chunk, so that its second pass draws the same dropout.

    In one block of memory: a small one made amid the tensors of each chunk would keep the room around it from being used
    as a whole again.
    """

    def __init__(self, chunks: int, device: torch.device) -> None:
        self.device = device
        self.cpu = torch.get_rng_state().new_empty((chunks, len(torch.get_rng_state())))
        self.cuda = None
        if device.type == "cuda":
            self.cuda = self.cpu.new_empty((chunks, len(torch.cuda.get_rng_state(device))))

    def save(self, chunk: int) -> None:
        """Before the first pass of this chunk."""
        self.cpu[chunk] = torch.get_rng_state()
        if self.cuda is not None:
            self.cuda[chunk] = torch.cuda.get_rng_state(self.device)

    def restore(self, chunk: int) -> None:
        """Before its second pass."""
        torch.set_rng_state(self.cpu[chunk].clone())
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda[chunk].clone(), self.device)


def backpropagate(
    model: ChunkEncoder,
    chunks: Sequence[Chunk],
    contrast: Contrast | None,
    backward: Callable[[Tensor], None] = Tensor.backward,
) -> dict[str, Tensor]:
    """Accumulate the gradient of ``contrast`` + the chunks' own losses over a whole batch, in the memory of one chunk.

    Args:
        model: encodes a chunk.
        chunks: the batch; ``Chunk.rows`` says which rows of the batch each holds, every row 0 .. n - 1 once.
        contrast: loss of the vectors of all rows in batch order, (n, d) in fp32 or wider -> scalar; None = no contrast.
        backward: called once a chunk with the scalar to back-propagate (Lightning's scales it for fp16).

    Returns:
        the losses, detached: ``contrast`` (where there is one) and the sum over the chunks of each of the model's own.
    """
    losses: dict[str, Tensor] = {}
    kept = [model.encode(chunks[0])]
    gradient: Tensor | None = None
    replays: _Replays | None = None
    if contrast is not None:
        losses["contrast"], gradient, replays = _vector_gradients(model, kept[0][0].detach(), chunks, contrast)
    for index, chunk in enumerate(chunks):
        if index > 0 and replays is not None:
            replays.restore(index)
        _give_back(chunks)
        part = _back_propagate_chunk(
            kept.pop if index == 0 else partial(model.encode, chunk),
            None if gradient is None else gradient[chunk.rows],
            backward,
            partial(_give_back, chunks),
        )
        _add(losses, part)
    return losses


def _give_back(chunks: Sequence[Chunk]) -> None:
    """Where a CPU has many chunks before it, let none inherit the free memory in which those before it left holes."""
    if len(chunks) > _MANY and chunks[0].input_ids.device.type == "cpu":
        memory.give_back()


def _back_propagate_chunk(
    encode: Callable[[], tuple[Tensor, dict[str, Tensor]]],
    gradient: Tensor | None,
    backward: Callable[[Tensor], None],
    encoded: Callable[[], None],
) -> dict[str, Tensor]:
    """Step 3 for one chunk, whose own losses are returned. Nothing of its graph outlives the call.

    ``encoded`` is called between the two passes, when the memory is at its fullest.
    """
    vectors, own = encode()
    encoded()
    # (v . h).sum() back-propagates v into h
    start = vectors.sum() * 0.0 if gradient is None else (_wide(vectors) * gradient).sum()
    backward(sum(own.values(), start))
    return {name: loss.detach() for name, loss in own.items()}


def _vector_gradients(
    model: ChunkEncoder, first: Tensor, chunks: Sequence[Chunk], contrast: Contrast
) -> tuple[Tensor, Tensor, _Replays]:
    """Steps 1 and 2: the contrastive loss, its gradient (n, d) by vector, and what replays each chunk's dropout.

    ``first``: the vectors of the first chunk, which is encoded already.
    """
    replays = _Replays(len(chunks), first.device)
    vectors = _wide(first).new_empty((sum(map(len, chunks)), first.shape[1]))
    with torch.no_grad():
        for index, chunk in enumerate(chunks):
            _give_back(chunks)
            replays.save(index)
            vectors[chunk.rows] = _wide(first if index == 0 else model.vectors(chunk))
    if any(chunk.tower != chunks[0].tower for chunk in chunks):
        # some releases of torch keep, for the second pass, casts made without a graph: here of another tower's weights
        torch.clear_autocast_cache()
    vectors.requires_grad_()
    with torch.enable_grad(), torch.autocast(vectors.device.type, enabled=False):
        loss = contrast(vectors)
        (gradient,) = torch.autograd.grad(loss, vectors)
    return loss.detach(), gradient, replays


def _add(total: dict[str, Tensor], part: dict[str, Tensor]) -> None:
    for name, value in part.items():
        if name in total:
            total[name] += value.detach()
        else:
            total[name] = value.detach().clone()
