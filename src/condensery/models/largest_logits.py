"""Vocabulary projection and the largest logit of each text in one operator, which keeps no logits for the backward pass.

Symbols in shapes: b texts, n packed tokens, d hidden size, V tokens of the vocabulary, m entries of the result (b, V) that
have a gradient.
"""

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from condensery.models.linear import with_rows_of_zeros

_FEW = 4  # if at most one column in _FEW has a gradient, tokens are searched in these columns only, which is faster


class _LargestLogits(torch.autograd.Function):
    """The operator of ``largest_logits``.

    The forward pass saves, for each entry of the result that has a gradient, the token with the largest logit. The
    backward pass multiplies only by the columns of the vocabulary that have a gradient in some text.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        texts: list[slice],
        least: float,
        with_gradient: bool,
    ) -> Tensor:
        device = states.device.type
        narrow = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        wide = torch.float64 if states.dtype == torch.float64 else torch.float32
        s, w = states.to(narrow), weight.to(narrow)
        found = s.new_empty((len(texts), len(w)), dtype=wide)  # (b, V)
        entries = []  # the entries with a gradient: text, column, token
        with torch.autocast(device, enabled=False):
            logits = (with_rows_of_zeros(s) if device == "cpu" and narrow != wide else s) @ w.t()  # (at least n, V)
            for number, text in enumerate(texts):
                found[number] = logits[text].to(wide).amax(dim=0)
                if bias is not None:
                    found[number] += bias
                if with_gradient:
                    columns = (found[number] > least).nonzero()[:, 0]
                    few = _FEW * len(columns) <= len(w)
                    tokens = (logits[text, columns] if few else logits[text]).max(dim=0).indices
                    tokens = tokens if few else tokens[columns]
                    entries.append((torch.full_like(columns, number), columns, tokens + text.start))
        if entries:
            ctx.save_for_backward(s, w, *(torch.cat(part) for part in zip(*entries, strict=True)))
        ctx.of_bias = None if bias is None else bias.dtype  # type: ignore[attr-defined]
        return found.clamp_(min=least)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None, None]:
        s, w, texts, columns, tokens = ctx.saved_tensors  # type: ignore[attr-defined]
        values = gradient[texts, columns]  # (m,)
        used, places = columns.unique(return_inverse=True)  # the u columns with a gradient
        of_logits = s.new_zeros((len(s), len(used)))  # (n, u)
        of_logits[tokens, places] = values.to(s.dtype)
        of_weight = torch.zeros_like(w, dtype=gradient.dtype)  # (V, d)
        of_weight[used] = (of_logits.t() @ s).to(gradient.dtype)
        of_bias = None
        if ctx.of_bias is not None:  # type: ignore[attr-defined]
            of_bias = gradient.new_zeros(len(w)).index_add_(0, columns, values)
        return of_logits @ w[used], of_weight, of_bias, None, None, None


def largest_logits(states: Tensor, layer: nn.Linear, texts: list[slice], least: float = -torch.inf) -> Tensor:
    """Return, for each text and each token v of the vocabulary, the largest logit of v at the text's tokens.

    Results below ``least`` are replaced by ``least``.

    The matrix products are in autocast's precision if autocast is on. All other computations are in fp32 or wider. A logit
    that is not above ``least`` has no gradient. Of several equal largest logits one has the gradient. The operator has a
    first derivative only.

    Args:
        states: (n, d) states of the packed tokens of all texts.
        layer: the vocabulary projection.
        texts: (b,) the tokens of each text; no text is empty.
        least: lower bound of the result, such as 0 for ReLU.

    Returns:
        the result (b, V).
    """
    with_gradient = torch.is_grad_enabled()  # within the operator it is always off
    return _LargestLogits.apply(states, layer.weight, layer.bias, texts, least, with_gradient)
