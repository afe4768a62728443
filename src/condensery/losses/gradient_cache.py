"""The gradient cache: computes the gradient of a large contrastive batch in the memory of one chunk.

The steps follow Gao and Callan 2021b, §3.3, eq. 8-12. Here h is a vector and L the contrastive loss.

1. Encode every chunk and keep its vectors. One chunk, called the waiting chunk, is encoded with its autograd graph, and the
   graph is kept until step 3. Every other chunk is encoded without a graph, by the backbone alone.
2. Compute the contrastive loss over all vectors, and its gradient at each vector, v = dL / dh (eq. 9). The loss's own
   weights, such as a learned temperature, get their gradient in this step.
3. For each chunk, back-propagate the sum of v . h over its vectors plus the chunk's own losses (eq. 12). The waiting chunk
   uses its kept graph. Every other chunk is encoded again with the same dropout masks. The gradient of the whole batch
   accumulates.

One graph is in memory at a time, with two exceptions. The graph of a few queries may be in memory together with the graph of
the passages. If the batch has two chunks that together fit the token budget of one chunk, both graphs are kept. The two
graphs together take no more memory than one full chunk. Such a batch is encoded only once, like a batch of one chunk. A chunk
whose vectors need no gradient is also encoded only once, because step 3 skips it. Without a contrastive loss, as in MLM, only
step 3 remains. This step is then plain gradient accumulation.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from condensery.errors import UserError
from condensery.losses.contrast import Contrast
from condensery.system import memory_growth
from condensery.tokens.batches import Chunk

# If a batch on a CPU has more chunks than this, free memory is returned to the system twice per chunk.
# This takes a tenth of the batch's time.
_MANY = 16
# The graph of the waiting chunk is kept while the chunks before it are back-propagated, each with a graph of its own.
# Together these chunks may hold at most this share of the waiting chunk's tokens.
_FEW = 0.25


class ChunkEncoder(Protocol):
    """A model that can be trained through the gradient cache."""

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return the vectors of the chunk's rows, (b, d), without the computations that only ``encode`` needs."""

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the same vectors (b, d) as ``vectors``, and the chunk's own losses by name.

        Each loss is a sum over the chunk, divided by a count over the whole batch, such as the number of masked tokens.
        Under autocast, ``encode`` casts at least the weights that ``vectors`` casts.
        """


def wide(vectors: Tensor) -> Tensor:
    """Return the vectors in fp32; fp64 vectors stay in fp64."""
    return vectors if vectors.dtype == torch.float64 else vectors.float()


class _Replays:
    """Saves the states of the random number generators before each chunk, so that its second pass draws the same dropout.

    All states are in one block of memory. If each chunk had a small tensor of its own, this tensor would lie between the
    chunk's other tensors. It would fragment the free memory after the other tensors are released.
    """

    def __init__(self, chunks: int, device: torch.device) -> None:
        self.gpus = [device] if device.type == "cuda" else _gpus_in_use()  # chunks of strings have no device
        self.cpu = torch.get_rng_state().new_empty((chunks, len(torch.get_rng_state())))
        self.cuda = [self.cpu.new_empty((chunks, len(torch.cuda.get_rng_state(gpu)))) for gpu in self.gpus]

    def save(self, chunk: int) -> None:
        """Save the states, before the first pass of this chunk."""
        self.cpu[chunk] = torch.get_rng_state()
        for gpu, states in zip(self.gpus, self.cuda, strict=True):
            states[chunk] = torch.cuda.get_rng_state(gpu)

    def restore(self, chunk: int) -> None:
        """Restore the states, before the second pass of this chunk."""
        torch.set_rng_state(self.cpu[chunk].clone())
        for gpu, states in zip(self.gpus, self.cuda, strict=True):
            torch.cuda.set_rng_state(states[chunk].clone(), gpu)


def _gpus_in_use() -> list[torch.device]:
    if not torch.cuda.is_initialized():
        return []
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


def backpropagate(
    model: ChunkEncoder,
    chunks: Sequence[Chunk],
    contrast: Contrast | None,
    backward: Callable[[Tensor], None] = Tensor.backward,
    *,
    padded: bool = False,
    budget: int = 0,
) -> dict[str, Tensor]:
    """Accumulate the gradient of ``contrast`` plus the chunks' own losses over a whole batch, with the memory of one chunk.

    Args:
        model: model that encodes a chunk.
        chunks: chunks of the batch; ``Chunk.rows`` are the batch rows of a chunk. Each row 0 .. n - 1 is in one chunk.
        contrast: function that maps the vectors of all rows in batch order, (n, d) in fp32 or wider, to a scalar loss. It
            may have trainable weights. None = no contrastive loss.
        backward: function that back-propagates a scalar (Lightning's function also scales it for fp16). It is called once per
            chunk; if ``contrast`` has weights, ``backward`` is called once more, for these weights, before the chunks.
        padded: whether chunks may have vectors of different widths; narrower vectors are then padded with zeros.
        budget: maximum number of tokens of a chunk, padding included. If the batch consists of two chunks that together have
            at most this number of tokens, both graphs are kept from the first pass to the second. Otherwise, or if the budget
            is 0, one graph at a time is kept.

    Returns:
        the losses by name, detached: ``contrast`` (if there is one), and the model's own losses, summed over the chunks.

    Raises:
        UserError: no weight has a gradient, ``contrast`` has no gradient or is not a scalar, or the vectors have different
            widths although ``padded`` is false.
    """
    losses: dict[str, Tensor] = {}
    first: _FirstPass | None = None
    propagated = 0

    def propagate(scalar: Tensor) -> None:
        nonlocal propagated
        if scalar.requires_grad:
            propagated += 1
            backward(scalar)

    if contrast is not None:
        first = _FirstPass(model, chunks, padded, budget)
        losses["contrast"] = first.loss(contrast, propagate)
    for index in range(len(chunks)) if first is None else first.order:
        _give_back(chunks)
        part = _back_propagate_chunk(
            partial(model.encode, chunks[index]) if first is None else partial(first.again, index),
            None if first is None else first.gradient_of(index),
            propagate,
            partial(_give_back, chunks),
        )
        _add(losses, part)
    if not propagated:
        raise UserError("nothing is trained: no weight that the loss depends on has requires_grad=True")
    return losses


def _give_back(chunks: Sequence[Chunk]) -> None:
    """On a CPU with many chunks, return free memory to the system, so that no chunk starts in fragmented memory."""
    if len(chunks) > _MANY and chunks[0].input_ids.device.type == "cpu":
        memory_growth.give_back()


def _back_propagate_chunk(
    encode: Callable[[], tuple[Tensor, dict[str, Tensor]]],
    gradient: Tensor | None,
    backward: Callable[[Tensor], None],
    encoded: Callable[[], None],
) -> dict[str, Tensor]:
    """Run step 3 for one chunk. The chunk's graph is freed before the call returns.

    Args:
        encode: function that returns the chunk's vectors (b, d) and the chunk's own losses.
        gradient: (b, d) the gradient v at the chunk's vectors, with further columns if vectors are padded. None = no
            gradient.
        backward: function that back-propagates a scalar.
        encoded: function that is called between the forward and the backward pass, when memory use peaks.

    Returns:
        the chunk's own losses by name, detached.
    """
    vectors, own = encode()
    encoded()
    # (v . h).sum() back-propagates v into h
    start = vectors.sum() * 0.0 if gradient is None else (wide(vectors) * gradient[:, : vectors.shape[1]]).sum()
    backward(sum(own.values(), start))
    return {name: loss.detach() for name, loss in own.items()}


def _waits(chunks: Sequence[Chunk]) -> int:
    """Return the index of the waiting chunk: the first chunk of the batch, or the first chunk of the second tower.

    If the batch has two chunks of different towers, the larger chunk is chosen. With more than two chunks, the first chunk of
    the second tower is chosen if the chunks before it are small: together they have at most ``_FEW`` times its number of
    tokens. These small chunks are back-propagated first, and the graph of each is then in memory together with the waiting
    chunk's graph.
    """
    second = next((index for index, chunk in enumerate(chunks) if chunk.tower != chunks[0].tower), 0)
    before = sum(chunk.tokens for chunk in chunks[:second])
    return second if before <= (1 if len(chunks) == 2 else _FEW) * chunks[second].tokens else 0


def leaves(root: Tensor) -> Iterator[Tensor]:
    """Yield, once each, the leaf tensors that require a gradient and from which ``root`` was computed."""
    if root.grad_fn is None:
        yield from [root] if root.requires_grad else []
        return
    waiting, seen = [root.grad_fn], {root.grad_fn}
    while waiting:
        node: Any = waiting.pop()
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable
        before = {function for function, _ in node.next_functions if function is not None} - seen
        seen |= before
        waiting.extend(before)


class _FirstPass:
    """Runs steps 1 and 2 and holds their results: the vectors of all chunks and the gradients at the vectors.

    For step 3, ``again`` encodes a chunk a second time.

    The choice of the waiting chunk does not change the result, because the chunks draw their dropout and are
    back-propagated in batch order. In a batch of two chunks, the waiting chunk is back-propagated first. That does not
    change the result either, because the sum of two gradients does not depend on their order.

    Attributes:
        gradient: (n, d) gradient at the vectors, set by ``loss``; None = no vector needs a gradient.
        order: indices of the chunks in the order in which they are back-propagated, without the chunks that need no
            gradient.
    """

    gradient: Tensor | None

    def __init__(self, model: ChunkEncoder, chunks: Sequence[Chunk], padded: bool = False, budget: int = 0) -> None:
        self.model, self.chunks, self.waits, self.padded = model, chunks, _waits(chunks), padded
        self.keeps_both = len(chunks) == 2 and sum(chunk.tokens for chunk in chunks) <= budget
        self.replays = _Replays(len(chunks), chunks[0].input_ids.device)
        self.kept: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}  # index of a chunk -> its vectors and own losses
        self.vectors: Tensor | None = None
        self.learning: set[int] = set()  # towers with at least one chunk whose vectors require a gradient
        self.fixed: set[int] = set()  # indices of chunks whose vectors are known to require no gradient
        for index, chunk in enumerate(chunks):
            _give_back(chunks)
            self.replays.save(index)
            self._place(chunk, self._first(index))
        if any(chunk.tower != chunks[0].tower for chunk in chunks):
            torch.clear_autocast_cache()  # for the weights of the other tower; ``_first`` gives the reason
        order = [self.waits, 1 - self.waits] if len(chunks) == 2 else range(len(chunks))
        own_losses = bool(self.kept[self.waits][1])
        self.order = [index for index in order if own_losses or index not in self.fixed]

    def _first(self, index: int) -> Tensor:
        """Return the vectors of a chunk in the first pass, (b, d)."""
        chunk = self.chunks[index]
        if index == self.waits or self.keeps_both:
            if index > 0:
                # Some releases of torch reuse weight casts that were made without a graph, even if a graph is needed.
                torch.clear_autocast_cache()
            self.kept[index] = self.model.encode(chunk)
            vectors = self.kept[index][0]
        elif chunk.tower in self.learning:
            with torch.no_grad():
                vectors = self.model.vectors(chunk)
        else:
            # The graph saves no tensors. It only shows whether the vectors require a gradient.
            with saved_tensors_hooks(_nothing, _nothing):
                vectors = self.model.vectors(chunk)
        if vectors.requires_grad:
            self.learning.add(chunk.tower)
        elif chunk.tower not in self.learning or index == self.waits:
            self.fixed.add(index)
        return wide(vectors.detach())

    def _place(self, chunk: Chunk, vectors: Tensor) -> None:
        """Write a chunk's vectors (b, d) into the vectors of the batch (n, d).

        The batch's vectors get the widest dtype among the chunks' vectors. They move to a GPU as soon as one chunk's vectors
        are on the GPU.
        """
        rows, width = sum(map(len, self.chunks)), vectors.shape[1]
        if self.vectors is None:
            self.vectors = vectors.new_zeros((rows, width)) if self.padded else vectors.new_empty((rows, width))
        elif (missing := width - self.vectors.shape[1]) and not self.padded:
            raise UserError(
                f"a batch has vectors of {self.vectors.shape[1]} and of {width} dimensions; all must have the same"
            )
        elif missing > 0:
            self.vectors = torch.nn.functional.pad(self.vectors, (0, missing))
        dtype = torch.promote_types(self.vectors.dtype, vectors.dtype)
        device = vectors.device if self.vectors.device.type == "cpu" else self.vectors.device
        self.vectors = self.vectors.to(device, dtype)
        self.vectors[chunk.rows, :width] = vectors.to(device, dtype)

    def loss(self, contrast: Contrast, backward: Callable[[Tensor], None]) -> Tensor:
        """Return the contrastive loss, detached, and set ``gradient`` to the gradient at the vectors.

        The weights of ``contrast`` get their gradient through ``backward``, which may scale gradients. To measure the scale,
        a zero that requires a gradient is added to the loss. The gradient at this zero is the scale. The gradient at the
        vectors is divided by the scale, because it passes through ``backward`` a second time in step 3.
        """
        assert self.vectors is not None, "a batch has a chunk"
        self.gradient = None
        vectors = self.vectors.requires_grad_(bool(self.learning))
        with torch.enable_grad(), torch.autocast(vectors.device.type, enabled=False):
            loss = contrast(vectors)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise UserError(f"the loss must be a scalar, not {kind_of(loss)}")
            if not loss.requires_grad:
                if vectors.requires_grad:
                    raise UserError("the loss has no gradient; remove detach() or no_grad() from its computation")
            elif any(leaf is not vectors for leaf in leaves(loss)):
                summand = loss.new_zeros((), requires_grad=True)
                backward(loss + summand)
                if summand.grad is None:
                    raise UserError("`backward` must back-propagate the scalar that it gets, as scalar.backward() does")
                if vectors.requires_grad:
                    self.gradient = torch.zeros_like(vectors) if vectors.grad is None else vectors.grad / summand.grad
            else:
                (self.gradient,) = torch.autograd.grad(loss, vectors)
        return loss.detach()

    def gradient_of(self, index: int) -> Tensor | None:
        """Return a chunk's rows of ``gradient``, (b, d), wider if vectors are padded; None if ``gradient`` is None."""
        return None if self.gradient is None else self.gradient[self.chunks[index].rows]

    def again(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the vectors (b, d) and own losses of a chunk, with their graph.

        The waiting chunk's vectors and losses were kept. Any other chunk is encoded again with the same dropout masks, unless
        its graph was kept as well.
        """
        if index in self.kept:
            return self.kept.pop(index)
        self.replays.restore(index)
        return self.model.encode(self.chunks[index])


def _nothing(_: Any) -> Any:
    return None


def kind_of(value: Any) -> str:
    """Describe a value for an error message: a tensor by its shape, any other value by its type."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _add(total: dict[str, Tensor], part: dict[str, Tensor]) -> None:
    for name, value in part.items():
        if name in total:
            total[name] += value.detach()
        else:
            total[name] = value.detach().clone()
