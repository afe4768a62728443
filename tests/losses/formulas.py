"""The check that a loss is its formula, on the vectors of small encoders in double precision."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from condensery import RetrievalLoss, cached_backward


def encoder(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(4, 6).double()


def texts(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check_formula(
    loss: RetrievalLoss, formula: Callable[[Tensor, Tensor], Tensor], given: Mapping[str, Tensor]
) -> None:
    """Check value and gradient against a formula of 5 queries and 9 passages, alone and through the gradient cache.

    Args:
        loss: the loss that is checked.
        formula: the value as a function of the vectors of queries and passages.
        given: further arguments of the loss.
    """
    plain, alone, cached = encoder(1), encoder(1), encoder(1)
    queries, passages = texts(5, 2), texts(9, 3)
    expected = formula(plain(queries), plain(passages))
    expected.backward()
    found = loss(alone(queries), alone(passages), **given)
    found.backward()
    through = cached_backward(
        lambda q, p: loss(q, p, **given), (cached, queries.split([2, 1, 2])), (cached, passages.split(4))
    )
    for value, one in ((found, alone), (through, cached)):
        torch.testing.assert_close(value.detach(), expected.detach(), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(one.weight.grad, plain.weight.grad, rtol=1e-9, atol=1e-12)
