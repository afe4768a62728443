"""The one gradient cache: the gradient of a large contrastive batch in the memory of one chunk.

The steps are those of Gao and Callan 2021b, §3.3, eq. 8-12:

1. One chunk, of queries or passages, is encoded with a graph, which waits; every other one without, by the backbone alone.
   The vectors are kept.
2. The contrastive loss over all vectors gives one gradient per vector, v = dL / dh (eq. 9). Weights that the loss itself
   reads, such as a learned temperature, get theirs here.
3. v . h plus the chunk's own losses is back-propagated (eq. 12) chunk by chunk: through the graph that waits, and through
   every other chunk, encoded again under the same dropout. This accumulates the gradient of the whole batch.

One graph is in memory at a time, but for that of a few queries beside that of the passages. A batch that is one chunk is
encoded once, and so is a chunk whose vectors have no gradient: step 3 passes over it. Without contrast (Condenser, MLM)
only step 3 is left: that is gradient accumulation.
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


def wide(vectors: Tensor) -> Tensor:
    """In fp32, or in fp64 where they are."""
    return vectors if vectors.dtype == torch.float64 else vectors.float()


class _Replays:
    """The state of the random number generators before each chunk, so that its second pass draws the same dropout.

    In one block of memory: a small one made amid the tensors of each chunk would keep the room around it from being used
    as a whole again.
    """

    def __init__(self, chunks: int, device: torch.device) -> None:
        self.gpus = [device] if device.type == "cuda" else _gpus_in_use()  # chunks of texts say nothing of the device
        self.cpu = torch.get_rng_state().new_empty((chunks, len(torch.get_rng_state())))
        self.cuda = [self.cpu.new_empty((chunks, len(torch.cuda.get_rng_state(gpu)))) for gpu in self.gpus]

    def save(self, chunk: int) -> None:
        """Before the first pass of this chunk."""
        self.cpu[chunk] = torch.get_rng_state()
        for gpu, states in zip(self.gpus, self.cuda, strict=True):
            states[chunk] = torch.cuda.get_rng_state(gpu)

    def restore(self, chunk: int) -> None:
        """Before its second pass."""
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
        chunks: the batch; ``Chunk.rows`` says which rows of the batch each holds, every row 0 .. n - 1 once.
        contrast: loss of the vectors of all rows in batch order, (n, d) in fp32 or wider -> scalar; None = no contrast. It
            may read weights of its own.
        backward: called once a chunk with the scalar to back-propagate (Lightning's scales it for fp16), and once before
            where the contrast reads weights of its own.
        padded: chunks may have vectors of several widths; zeros stand behind the narrower ones.

    Returns:
        the losses, detached: ``contrast`` (where there is one) and the sum over the chunks of each of the model's own.

    Raises:
        UserError: nothing has a gradient, the contrast has none or is no scalar, or the vectors have several widths.
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
    start = vectors.sum() * 0.0 if gradient is None else (wide(vectors) * gradient[:, : vectors.shape[1]]).sum()
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


def leaves(root: Tensor) -> Iterator[Tensor]:
    """The tensors that ``root`` was computed from, which have no history and whose gradient is asked for; each once."""
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
    """Steps 1 and 2: the vectors of all chunks, their gradients (n, d), and what encodes each chunk once more.

    Which chunk waits changes no number: each draws its dropout in its turn, and they are back-propagated in turn; of two
    the one that waits comes first, for two gradients have the same sum in either order.

    Attributes:
        gradient: of the vectors, once ``loss`` was called; None = none of them has one.
        order: in which chunks are back-propagated; those that have no gradient are left out.
    """

    gradient: Tensor | None

    def __init__(self, model: ChunkEncoder, chunks: Sequence[Chunk], padded: bool = False) -> None:
        self.model, self.chunks, self.waits, self.padded = model, chunks, _waits(chunks), padded
        self.replays = _Replays(len(chunks), chunks[0].input_ids.device)
        self.kept: list[tuple[Tensor, dict[str, Tensor]]] = []
        self.vectors: Tensor | None = None
        self.learning: set[int] = set()  # towers of which a chunk has a gradient
        self.fixed: set[int] = set()  # chunks that are known to have none
        for index, chunk in enumerate(chunks):
            _give_back(chunks)
            self.replays.save(index)
            self._place(chunk, self._first(index))
        if any(chunk.tower != chunks[0].tower for chunk in chunks):
            torch.clear_autocast_cache()  # see below; here of another tower's weights
        order = [self.waits, 1 - self.waits] if len(chunks) == 2 else range(len(chunks))
        own_losses = bool(self.kept[0][1])
        self.order = [index for index in order if own_losses or index not in self.fixed]

    def _first(self, index: int) -> Tensor:
        """The vectors of a chunk in the first pass, (b, d)."""
        chunk = self.chunks[index]
        if index == self.waits:
            if index > 0:
                # some releases of torch use, where a graph is wanted, casts that were made without one
                torch.clear_autocast_cache()
            self.kept.append(self.model.encode(chunk))
            vectors = self.kept[0][0]
        elif chunk.tower in self.learning:
            with torch.no_grad():
                vectors = self.model.vectors(chunk)
        else:
            with saved_tensors_hooks(_nothing, _nothing):  # a graph that tells whether there is one, and holds nothing
                vectors = self.model.vectors(chunk)
        if vectors.requires_grad:
            self.learning.add(chunk.tower)
        elif chunk.tower not in self.learning or index == self.waits:
            self.fixed.add(index)
        return wide(vectors.detach())

    def _place(self, chunk: Chunk, vectors: Tensor) -> None:
        """Put a chunk's vectors beside those before, in the wider dtype; where one lies on a GPU, all do."""
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
        """The contrastive loss, detached; ``gradient`` is then that of the vectors.

        Weights that the contrast reads itself get their gradient through ``backward``, which may scale it. By how much, the
        gradient of a summand tells: that of the vectors is not to be scaled, for it goes through ``backward`` once more.
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
        """The gradient of a chunk's vectors, (b, d) or wider; None where no vector has one."""
        return None if self.gradient is None else self.gradient[self.chunks[index].rows]

    def again(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        """A chunk with its graph: that which waits, or a second pass under the same dropout."""
        if index == self.waits:
            return self.kept.pop()
        self.replays.restore(index)
        return self.model.encode(self.chunks[index])


def _nothing(_: Any) -> Any:
    return None


def kind_of(value: Any) -> str:
    """What a value is, for a message: its shape or its type."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _add(total: dict[str, Tensor], part: dict[str, Tensor]) -> None:
    for name, value in part.items():
        if name in total:
            total[name] += value.detach()
        else:
            total[name] = value.detach().clone()
