"""Dropout whose random numbers are cheap on a CPU."""

import math

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

_LEVELS = 1 << 16


class _CheapDropout(torch.autograd.Function):
    """Dropout with 16 random bits per element: one 64-bit draw serves four elements."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor, p: float) -> Tensor:
        dropped = min(round(p * _LEVELS), _LEVELS - 1)
        words = torch.empty(math.ceil(values.numel() / 4), dtype=torch.int64).random_(-(2**63), None)
        keep = words.view(torch.int16)[: values.numel()].view(values.shape).ge_(dropped - _LEVELS // 2)  # 0 or 1
        ctx.save_for_backward(keep)
        ctx.scale = _LEVELS / (_LEVELS - dropped)  # type: ignore[attr-defined]
        return _drop(values, keep, ctx.scale)  # type: ignore[attr-defined]

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return _drop(gradient, keep, ctx.scale), None  # type: ignore[attr-defined]


def _drop(values: Tensor, keep: Tensor, scale: float) -> Tensor:
    """Return ``values * keep * scale``. ``keep`` is int16, because torch vectorises neither bool products nor ``where``.

    An infinite element becomes NaN if it is dropped, as in torch's own dropout.
    """
    return keep.to(values.dtype).mul_(values).mul_(scale)


def dropout(values: Tensor, p: float, training: bool) -> Tensor:
    """Zero each element with probability ``p`` and scale the rest by 1 / (1 - p). The result has the same shape and dtype.

    On a CPU the probability is rounded to a multiple of 2^-16, and drawing the mask takes a fifth of the time of
    ``bernoulli_``. On other devices and in compiled code torch's own dropout is called. Both implementations draw from
    torch's default generator, so restoring the generator's state replays the mask.
    """
    if not training or p == 0.0:
        return values
    if values.device.type == "cpu" and p < 1.0 and not torch.compiler.is_compiling():
        return _CheapDropout.apply(values, p)
    return nn.functional.dropout(values, p)


class Dropout(nn.Dropout):
    """A ``torch.nn.Dropout`` that calls ``dropout`` of this module."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training)


def seed_torch(seed: int) -> None:
    """Seed torch's default generators, as ``torch.manual_seed`` does.

    Without a GPU, ``torch.manual_seed`` formats the call stack for three absent kinds of device. This would take up to a
    millisecond per step, so only the CPU's generator is seeded.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def use_cheap_dropout(module: nn.Module) -> None:
    """Replace every ``torch.nn.Dropout`` below ``module`` by ``Dropout``, in place."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            setattr(module, name, Dropout(child.p))
        else:
            use_cheap_dropout(child)
