"""Vocabulary projection and cross-entropy in one operator, which computes logits for one block of rows at a time.

Symbols in shapes: n rows, d hidden size, V tokens of the vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from condensery.models.linear import with_rows_of_zeros

_BLOCK = {"cpu": 256, "cuda": 2048}  # number of rows per matrix product, enough to keep the device busy
_CACHED = {"cpu": 8, "cuda": 2048}  # number of rows per softmax; on a CPU, few enough to stay in the processor's cache
_ROUND = 1 << 20  # memory is allocated in multiples of this number of elements


class _Kept:
    """Keeps one large block of CPU memory per dtype for the next chunk, because allocating takes longer than filling."""

    def __init__(self) -> None:
        self.free: dict[torch.dtype, Tensor] = {}

    def take(self, like: Tensor, shape: tuple[int, int]) -> Tensor:
        """Return an uninitialised tensor with the dtype and device of ``like``, for exclusive use until ``give``."""
        size = shape[0] * shape[1]
        block = self.free.pop(like.dtype, None) if like.device.type == "cpu" else None
        if block is None or len(block) < size:
            block = None  # frees the old block before the new one is allocated
            block = like.new_empty(-(-size // _ROUND) * _ROUND)  # the next chunk may need a little more
        return block[:size].view(shape)

    def give(self, tensor: Tensor) -> None:
        """Take back a tensor from ``take`` that is no longer read."""
        if tensor.device.type == "cpu" and tensor._base is not None:
            self.free[tensor.dtype] = tensor._base


_kept = _Kept()


class _ProjectedCrossEntropy(torch.autograd.Function):
    """The operator of ``projected_cross_entropy``.

    The forward pass saves softmax(logits) - onehot(targets), (n, V), in the matrix products' precision. The
    backward pass computes all gradients from the saved matrix.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        device = states.device.type
        narrow = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        wide = torch.float64 if states.dtype == torch.float64 else torch.float32
        s, w, b = states.to(narrow), weight.to(narrow), bias.to(narrow)
        if device == "cpu" and narrow != wide:
            s = with_rows_of_zeros(s)  # (m, d)
            targets = nn.functional.pad(targets, (0, len(s) - len(states)))  # (m,)
        errors = _kept.take(s, (len(s), len(w)))  # (m, V)
        losses = s.new_empty(len(s), dtype=wide)  # (m,)
        block, cached = _BLOCK.get(device, 2048), _CACHED.get(device, 2048)
        room = s.new_empty((min(cached, len(s)), len(w)), dtype=wide)  # (cached, V)
        with torch.autocast(device, enabled=False):
            for first in range(0, len(s), block):
                torch.addmm(b, s[first : first + block], w.t(), out=errors[first : first + block])
                for row in range(first, min(first + block, len(s)), cached):
                    here = slice(row, min(row + cached, first + block))
                    losses[here] = _subtract_targets(errors[here], targets[here, None], room)
        ctx.save_for_backward(errors, s, w)
        return losses[: len(states)]

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        errors, s, w = ctx.saved_tensors  # type: ignore[attr-defined]
        by_row, scale = gradient[:, None], gradient.new_zeros((len(s), 1), dtype=s.dtype)  # (n, 1), (m, 1)
        scale[: len(by_row)] = by_row
        of_states = (errors @ w)[: len(by_row)] * by_row
        gradients = of_states, errors.t() @ (s * scale), (errors.t() @ scale)[:, 0], None
        # The next chunk overwrites ``errors``. Autograd refuses a second backward pass, which would read wrong values.
        _kept.give(errors)
        return gradients


def _subtract_targets(logits: Tensor, targets: Tensor, room: Tensor) -> Tensor:
    """Replace logits (r, V) by softmax(logits) - onehot(targets), with targets (r, 1), and return the losses (r,).

    ``room`` is memory in the losses' precision, at least (r, V).
    """
    wide, room = room.dtype, room[: len(logits)]  # (r, V)
    if logits.dtype == wide:
        torch.log_softmax(logits, 1, wide, out=room)
        losses = -room.gather(1, targets)[:, 0]
        torch.exp(room, out=logits)
    else:  # a softmax with one exponential less, which takes half the time; the clamp limits a loss to 87
        torch.softmax(logits, 1, wide, out=room)
        losses = -room.gather(1, targets)[:, 0].clamp_min(torch.finfo(wide).tiny).log()
        logits.copy_(room)
    logits.scatter_add_(1, targets, logits.new_full(targets.shape, -1.0))
    return losses


def projected_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Compute ``cross_entropy(states @ weight.T + bias, targets)`` per row, with a fraction of the memory traffic.

    The matrix products are in autocast's precision if autocast is on. All other computations are in fp32 or wider. The
    operator has a first derivative only.

    Shape:
        states (n, d); weight (V, d); bias (V,); targets (n,) int64; the result (n,).
    """
    return _ProjectedCrossEntropy.apply(states, weight, bias, targets)
