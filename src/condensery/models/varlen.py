"""Variable-length attention: attention within concatenated rows, without padding or mask. GPUs have kernels for it.

Symbols in shapes: n queries of all rows, m keys of all rows, b rows, h heads, e size of a head.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Segments:
    """The boundaries of concatenated rows.

    Attributes:
        starts: (b + 1,) int32, the index at which each row starts; the last entry is the end of the last row.
        longest: number of tokens in the longest row.
    """

    starts: Tensor
    longest: int

    @cached_property
    def rows(self) -> int:
        """The number b of rows."""
        return len(self.starts) - 1


# A kernel takes queries (n, h, e), keys (m, h, e), values (m, h, e), the segments of the queries and of the keys, and the
# dropout rate. It returns (n, h, e). No segment is empty.
Kernel = Callable[[Tensor, Tensor, Tensor, Segments, Segments, float], Tensor]


def flash(
    query: Tensor, key: Tensor, value: Tensor, asking: Segments, seen: Segments, p: float, window: int | None = None
) -> Tensor:
    """Run FlashAttention. It supports bf16 and fp16 on GPUs of the Ampere generation or later.

    With a ``window``, a query sees this number of tokens on each side of its own position. Torch's attention on nested
    tensors uses the same operator, and ``torch.nn.attention.varlen`` calls it without dropout.
    """
    outputs: tuple[Tensor, ...] = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        asking.starts,
        seen.starts,
        asking.longest,
        seen.longest,
        p,
        False,
        False,
        scale=_scale(query),
        window_size_left=window,
        window_size_right=window,
    )
    return outputs[0]


def memory_efficient(query: Tensor, key: Tensor, value: Tensor, asking: Segments, seen: Segments, p: float) -> Tensor:
    """Run memory-efficient attention, in all precisions on all GPUs. Torch's attention on nested tensors also uses it."""
    outputs: tuple[Any, ...] = torch.ops.aten._efficient_attention_forward(
        query[None],
        key[None],
        value[None],
        None,
        asking.starts,
        seen.starts,
        # a chunk can be wider than the number of its tokens; the backward pass allows at most this number
        min(asking.longest, len(query)),
        min(seen.longest, len(key)),
        p,
        0,  # no mask, so every query sees its whole row
        torch.is_grad_enabled(),
        scale=_scale(query),
    )
    attended: Tensor = outputs[0][0]
    return attended


def _scale(query: Tensor) -> float:
    return 1.0 / math.sqrt(query.shape[-1])


def one_row_after_the_other(
    query: Tensor, key: Tensor, value: Tensor, asking: Segments, seen: Segments, p: float, window: int | None = None
) -> Tensor:
    """Compute variable-length attention by matrix products, row by row: the slow reference for the kernels."""
    parts = []
    for row in range(asking.rows):
        queries = slice(int(asking.starts[row]), int(asking.starts[row + 1]))
        keys = slice(int(seen.starts[row]), int(seen.starts[row + 1]))
        scores = torch.einsum("nhe,mhe->hnm", query[queries], key[keys]) * _scale(query)  # (h, n, m) of this row
        if window is not None:
            places = torch.arange(scores.shape[-1], device=scores.device)
            scores = scores.masked_fill((places[: scores.shape[1], None] - places).abs() > window, -math.inf)
        weights = torch.nn.functional.dropout(scores.softmax(dim=-1), p)
        parts.append(torch.einsum("hnm,mhe->nhe", weights.to(value.dtype), value[keys]))
    return torch.cat(parts)


KERNELS: dict[str, Kernel] = {"FlashAttention": flash, "memory-efficient attention": memory_efficient}  # the best first
WINDOWED: dict[str, Callable[..., Tensor]] = {"FlashAttention": flash}


def have_kernels(device: torch.device) -> bool:
    """Return whether a device may have kernels for variable-length attention. If so, only real tokens are packed."""
    return device.type != "cpu"


def kernel_of(query: Tensor, window: int | None = None) -> Kernel | None:
    """Return the best kernel that works for queries (n, h, e) on their device; None if no kernel works, as on a CPU.

    Args:
        query: (n, h, e) queries.
        window: maximum distance in tokens between a query and a key that it sees; all tokens of the rows must then be
            queries. None = a query sees its whole row.
    """
    name = best_kernel(query.device, query.dtype, query.shape[-1], window is not None)
    if name is None:
        return None
    return KERNELS[name] if window is None else partial(WINDOWED[name], window=window)


@cache
def best_kernel(device: torch.device, dtype: torch.dtype, size: int, windowed: bool = False) -> str | None:
    """Return the name in ``KERNELS`` of the best kernel for heads of ``size``; None if no kernel works.

    Each kernel is tried, because GPUs and builds of torch differ in the kernels that they support.
    """
    if not have_kernels(device):
        return None
    tried = {name: partial(kernel, window=2) for name, kernel in WINDOWED.items()} if windowed else KERNELS
    compared = partial(one_row_after_the_other, window=2) if windowed else one_row_after_the_other
    return next((name for name, kernel in tried.items() if _works(kernel, device, dtype, size, compared)), None)


def _works(kernel: Kernel, device: torch.device, dtype: torch.dtype, size: int, compared: Kernel) -> bool:
    """Return whether a kernel and the reference ``compared`` agree in values and gradients on three small fixed rows."""
    keys = torch.tensor([0, 3, 4, 11])
    queries = torch.tensor([0, 1, 2, 7]) if compared is one_row_after_the_other else keys
    # Autograd calls only the innermost hooks. Without these hooks, the gradient cache's hooks would drop the tensors
    # that the trial saves.
    own_hooks = torch.autograd.graph.saved_tensors_hooks(_same, _same)
    with torch.enable_grad(), torch.autocast(device.type, enabled=False), own_hooks:
        start = torch.arange(11 * 2 * size, dtype=torch.float32).view(11, 2, size)  # (tokens, heads, size)
        inputs = [(start * factor).sin() for factor in (0.31, 0.17, 0.23)]
        inputs[0] = inputs[0][: int(queries[-1])]

        def attended(of: Kernel, where: torch.device, kind: torch.dtype) -> list[Tensor]:
            own = [part.to(where, kind).requires_grad_() for part in inputs]
            asking, seen = (Segments(ends.to(where, torch.int32), int(ends.diff().max())) for ends in (queries, keys))
            output = of(own[0], own[1], own[2], asking, seen, 0.0)
            gradients = torch.autograd.grad((output.float() * output.detach().float().cos()).sum(), own)
            return [part.float().cpu() for part in (output, *gradients)]

        try:
            computed = attended(kernel, device, dtype)
        except torch.OutOfMemoryError:
            raise  # full memory does not show whether the kernel works
        except (RuntimeError, NotImplementedError):
            return False
        wanted = attended(compared, torch.device("cpu"), torch.float32)
    tolerance = 1e-3 if dtype == torch.float32 else 5e-2
    return all(torch.allclose(a, b, atol=tolerance, rtol=tolerance) for a, b in zip(computed, wanted, strict=True))


def _same(tensor: Tensor) -> Tensor:
    return tensor
