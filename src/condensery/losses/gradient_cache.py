"""The gradient cache: computes the gradient of a large contrastive batch in the memory of one chunk.

The steps are those of Gao and Callan 2021b, §3.3, eq. 8-12:

1. Every chunk is encoded, and its vectors are kept. One chunk, of queries or passages, is encoded with its graph, which
   waits for step 3. Every other chunk is encoded without a graph, by the backbone alone.
2. The contrastive loss over all vectors gives one gradient per vector, v = dL / dh (eq. 9). The loss's own weights, such as
   a learned temperature, get their gradient here.
3. The sum of v . h and the chunk's own losses is back-propagated chunk by chunk (eq. 12). The waiting chunk has its graph;
   every other chunk is encoded again under the same dropout. This accumulates the gradient of the whole batch.

One graph is in memory at a time, except that the graph of a few queries may exist beside that of the passages. A batch of
one chunk is encoded once. A chunk whose vectors have no gradient is encoded once as well: step 3 skips it. Without a
contrast (Condenser, MLM) only step 3 remains, which is plain gradient accumulation.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from condensery.errors import UserError
from condensery.losses.contrast import Contrast
from condensery.system import memory
from condensery.tokens.batches import Chunk

_MANY = 16  # chunks; a batch with more returns free memory twice per chunk, which costs a tenth of its time
# the waiting chunk's graph exists beside the graphs of the chunks before it; these have at most this share of its tokens
_FEW = 0.25


class ChunkEncoder(Protocol):
    """A model that can be trained through the gradient cache."""

    def vectors(self, chunk: Chunk) -> Tensor:
        """The vectors of the chunk's rows, (b, d), without the computations that only ``encode`` needs."""

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """The same vectors (b, d), and the chunk's own losses by name, each a sum divided by its batch-wide count.

        Under autocast the method casts at least the weights that ``vectors`` casts.
        """


def wide(vectors: Tensor) -> Tensor:
    """The vectors in fp32; fp64 vectors stay in fp64."""
    return vectors if vectors.dtype == torch.float64 else vectors.float()


class _Replays:
    """The states of the random number generators before each chunk, so that its second pass draws the same dropout.

    All states are in one block of memory. A small tensor per chunk would lie between the chunk's other tensors, and would
    fragment the memory that they leave free.
    """

    def __init__(self, chunks: int, device: torch.device) -> None:
        self.gpus = [device] if device.type == "cuda" else _gpus_in_use()  # chunks of texts do not tell the device
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
) -> dict[str, Tensor]:
    """Accumulate the gradient of ``contrast`` + the chunks' own losses over a whole batch, in the memory of one chunk.

    Args:
        model: encodes a chunk.
        chunks: the batch; ``Chunk.rows`` gives the batch rows of each chunk, every row 0 .. n - 1 once.
        contrast: loss of the vectors of all rows in batch order, (n, d) in fp32 or wider -> scalar; None = no contrast. It
            may have weights of its own.
        backward: called once per chunk with the scalar to back-propagate (Lightning's scales it for fp16). If the contrast
            has weights, ``backward`` is called once before that for them.
        padded: whether chunks may have vectors of several widths; the narrower ones are then padded with zeros.

    Returns:
        the losses, detached: ``contrast`` (if there is one), and the sum over the chunks of each of the model's own losses.

    Raises:
        UserError: no weight has a gradient, the contrast has no gradient or is no scalar, or the vectors have several
            widths.
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
        first = _FirstPass(model, chunks, padded)
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
        memory.give_back()


def _back_propagate_chunk(
    encode: Callable[[], tuple[Tensor, dict[str, Tensor]]],
    gradient: Tensor | None,
    backward: Callable[[Tensor], None],
    encoded: Callable[[], None],
) -> dict[str, Tensor]:
    """Step 3 for one chunk. Its graph is freed before the call returns.

    Args:
        encode: gives the chunk's vectors (b, d) and its own losses.
        gradient: (b, d) or wider, v of the chunk's vectors; None = they have none.
        backward: back-propagates a scalar.
        encoded: called between the forward and the backward pass, when the most memory is in use.

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
    """The index of the chunk that is encoded once: the first of the batch, or the first of the second tower.

    Of two chunks the larger one is chosen. More than two chunks are back-propagated in turn; the first of the second tower
    is chosen if the chunks before it hold at most ``_FEW`` of its tokens.
    """
    second = next((index for index, chunk in enumerate(chunks) if chunk.tower != chunks[0].tower), 0)
    before = sum(chunk.tokens for chunk in chunks[:second])
    return second if before <= (1 if len(chunks) == 2 else _FEW) * chunks[second].tokens else 0


def leaves(root: Tensor) -> Iterator[Tensor]:
    """The leaf tensors that require a gradient and from which ``root`` was computed, each once."""
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
    """Steps 1 and 2: the vectors of all chunks, their gradients (n, d), and the second encoding of each chunk.

    The choice of the waiting chunk changes no number, because every chunk draws its dropout in its turn and is
    back-propagated in its turn. Of two chunks the waiting one comes first; the sum of two gradients is the same in either
    order.

    Attributes:
        gradient: (n, d) of the vectors, set by ``loss``; None = no vector has a gradient.
        order: the order in which chunks are back-propagated, without the chunks that have no gradient.
    """

    gradient: Tensor | None

    def __init__(self, model: ChunkEncoder, chunks: Sequence[Chunk], padded: bool = False) -> None:
        self.model, self.chunks, self.waits, self.padded = model, chunks, _waits(chunks), padded
        self.replays = _Replays(len(chunks), chunks[0].input_ids.device)
        self.kept: list[tuple[Tensor, dict[str, Tensor]]] = []
        self.vectors: Tensor | None = None
        self.learning: set[int] = set()  # towers that have a chunk with a gradient
        self.fixed: set[int] = set()  # chunks that are known to have no gradient
        for index, chunk in enumerate(chunks):
            _give_back(chunks)
            self.replays.save(index)
            self._place(chunk, self._first(index))
        if any(chunk.tower != chunks[0].tower for chunk in chunks):
            torch.clear_autocast_cache()  # as in ``_first``, here for the weights of the other tower
        order = [self.waits, 1 - self.waits] if len(chunks) == 2 else range(len(chunks))
        own_losses = bool(self.kept[0][1])
        self.order = [index for index in order if own_losses or index not in self.fixed]

    def _first(self, index: int) -> Tensor:
        """The vectors of a chunk in the first pass, (b, d)."""
        chunk = self.chunks[index]
        if index == self.waits:
            if index > 0:
                # some releases of torch reuse casts that were made without a graph, even if a graph is wanted
                torch.clear_autocast_cache()
            self.kept.append(self.model.encode(chunk))
            vectors = self.kept[0][0]
        elif chunk.tower in self.learning:
            with torch.no_grad():
                vectors = self.model.vectors(chunk)
        else:
            with saved_tensors_hooks(_nothing, _nothing):  # a graph without saved tensors: is there a gradient?
                vectors = self.model.vectors(chunk)
        if vectors.requires_grad:
            self.learning.add(chunk.tower)
        elif chunk.tower not in self.learning or index == self.waits:
            self.fixed.add(index)
        return wide(vectors.detach())

    def _place(self, chunk: Chunk, vectors: Tensor) -> None:
        """Write a chunk's vectors (b, d) into those of the batch (n, d).

        The batch has the widest dtype of its chunks, and is on a GPU as soon as a chunk's vectors are.
        """
        rows, width = sum(map(len, self.chunks)), vectors.shape[1]
        if self.vectors is None:
            self.vectors = vectors.new_zeros((rows, width)) if self.padded else vectors.new_empty((rows, width))
        elif (missing := width - self.vectors.shape[1]) and not self.padded:
            raise UserError(
                f"vectors of {self.vectors.shape[1]} and of {width} dimensions in one batch; give all the same"
            )
        elif missing > 0:
            self.vectors = torch.nn.functional.pad(self.vectors, (0, missing))
        dtype = torch.promote_types(self.vectors.dtype, vectors.dtype)
        device = vectors.device if self.vectors.device.type == "cpu" else self.vectors.device
        self.vectors = self.vectors.to(device, dtype)
        self.vectors[chunk.rows, :width] = vectors.to(device, dtype)

    def loss(self, contrast: Contrast, backward: Callable[[Tensor], None]) -> Tensor:
        """The contrastive loss, detached. Sets ``gradient`` to the gradient of the vectors.

        The contrast's own weights get their gradient through ``backward``, which may scale it. The scale is the gradient of
        a zero that is added to the loss. The vectors' gradient is divided by the scale, because it passes ``backward`` again.
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
                    raise UserError("the loss has no gradient: it detaches the vectors, or computes under no_grad")
            elif any(leaf is not vectors for leaf in leaves(loss)):
                summand = loss.new_zeros((), requires_grad=True)
                backward(loss + summand)
                if summand.grad is None:
                    raise UserError("`backward` did not back-propagate the scalar that it was given")
                if vectors.requires_grad:
                    self.gradient = torch.zeros_like(vectors) if vectors.grad is None else vectors.grad / summand.grad
            else:
                (self.gradient,) = torch.autograd.grad(loss, vectors)
        return loss.detach()

    def gradient_of(self, index: int) -> Tensor | None:
        """The gradient of a chunk's vectors, (b, d) or wider; None if no vector has a gradient."""
        return None if self.gradient is None else self.gradient[self.chunks[index].rows]

    def again(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The vectors (b, d) and own losses of a chunk, with their graph.

        The waiting chunk has them already; another chunk is encoded a second time under the same dropout.
        """
        if index == self.waits:
            return self.kept.pop()
        self.replays.restore(index)
        return self.model.encode(self.chunks[index])


def _nothing(_: Any) -> Any:
    return None


def kind_of(value: Any) -> str:
    """A description of a value for a message: the shape of a tensor, the type of another value."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _add(total: dict[str, Tensor], part: dict[str, Tensor]) -> None:
    for name, value in part.items():
        if name in total:
            total[name] += value.detach()
        else:
            total[name] = value.detach().clone()
