"""The one gradient cache: the gradient of a large contrastive batch in the memory of one chunk.

The steps are those of Gao and Callan 2021b, §3.3, eq. 8-12:

1. One chunk, of queries or passages, is encoded with a graph, which waits; every other one without, by the backbone alone.
   The vectors are kept.
2. The contrastive loss over all vectors gives one gradient per vector, v = dL / dh (eq. 9).
3. v . h plus the chunk's own losses is back-propagated (eq. 12) chunk by chunk: through the graph that waits, and through
   every other chunk, encoded again under the same dropout. This accumulates the gradient of the whole batch.

One graph is in memory at a time, but for that of a few queries beside that of the passages. A batch that is one chunk is
encoded once. Without contrast (Condenser, MLM) only step 3 is left: that is gradient accumulation.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from condensery.losses.contrast import Contrast
from condensery.system import memory
from condensery.tokens.batches import Chunk

_MANY = 16  # chunks; a batch of more gives free memory back twice a chunk, which costs it a tenth of its time
_FEW = 0.25  # of the tokens of the chunk that waits: the graphs of chunks before it, made beside its own, hold no more


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
    first: _FirstPass | None = None
    if contrast is not None:
        first = _FirstPass(model, chunks)
        losses["contrast"] = first.loss(contrast)
    for index in range(len(chunks)) if first is None else first.order:
        _give_back(chunks)
        part = _back_propagate_chunk(
            partial(model.encode, chunks[index]) if first is None else partial(first.again, index),
            None if first is None else first.gradient[chunks[index].rows],
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


def _waits(chunks: Sequence[Chunk]) -> int:
    """The chunk that is encoded once.

    The first, or the first of the second tower: of two chunks the larger; of more, which are back-propagated in turn, the
    latter where little comes before it.
    """
    second = next((index for index, chunk in enumerate(chunks) if chunk.tower != chunks[0].tower), 0)
    before = sum(chunk.tokens for chunk in chunks[:second])
    return second if before <= (1 if len(chunks) == 2 else _FEW) * chunks[second].tokens else 0


class _FirstPass:
    """Steps 1 and 2: the vectors of all chunks, their gradients (n, d), and what encodes each chunk once more.

    Which chunk waits changes no number: each draws its dropout in its turn, and they are back-propagated in turn; of two
    the one that waits comes first, for two gradients have the same sum in either order.

    Attributes:
        gradient: of the vectors, once ``loss`` was called.
        order: in which chunks are back-propagated.
    """

    gradient: Tensor

    def __init__(self, model: ChunkEncoder, chunks: Sequence[Chunk]) -> None:
        self.model, self.chunks, self.waits = model, chunks, _waits(chunks)
        self.order = [self.waits, 1 - self.waits] if len(chunks) == 2 else range(len(chunks))
        self.replays = _Replays(len(chunks), chunks[0].input_ids.device)
        self.kept: list[tuple[Tensor, dict[str, Tensor]]] = []
        self.vectors: Tensor | None = None
        for index, chunk in enumerate(chunks):
            _give_back(chunks)
            self.replays.save(index)
            vectors = self._first(index)
            if self.vectors is None:
                self.vectors = vectors.new_empty((sum(map(len, chunks)), vectors.shape[1]))
            self.vectors[chunk.rows] = vectors
        if any(chunk.tower != chunks[0].tower for chunk in chunks):
            torch.clear_autocast_cache()  # see below; here of another tower's weights

    def _first(self, index: int) -> Tensor:
        """The vectors of a chunk in the first pass, (b, d)."""
        if index != self.waits:
            with torch.no_grad():
                return _wide(self.model.vectors(self.chunks[index]))
        if index > 0:
            # some releases of torch use, where a graph is wanted, casts that were made without one
            torch.clear_autocast_cache()
        self.kept.append(self.model.encode(self.chunks[index]))
        return _wide(self.kept[0][0].detach())

    def loss(self, contrast: Contrast) -> Tensor:
        """The contrastive loss, detached; ``gradient`` is then that of the vectors."""
        assert self.vectors is not None, "a batch has a chunk"
        self.vectors.requires_grad_()
        with torch.enable_grad(), torch.autocast(self.vectors.device.type, enabled=False):
            loss = contrast(self.vectors)
            (self.gradient,) = torch.autograd.grad(loss, self.vectors)
        return loss.detach()

    def again(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        """A chunk with its graph: that which waits, or a second pass under the same dropout."""
        if index == self.waits:
            return self.kept.pop()
        self.replays.restore(index)
        return self.model.encode(self.chunks[index])


def _add(total: dict[str, Tensor], part: dict[str, Tensor]) -> None:
    for name, value in part.items():
        if name in total:
            total[name] += value.detach()
        else:
            total[name] = value.detach().clone()
