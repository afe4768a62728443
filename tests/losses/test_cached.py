"""The gradient cache with encoders, chunks and losses of one's own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from condensery import UserError, cached_backward


class Towers(nn.Module):
    """Two encoders with dropout; chunks are tensors of ids (b, t), or mappings with them."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words, self.out, self.dropout = nn.Embedding(30, 6), nn.Linear(6, 5), nn.Dropout(dropout)

    def queries(self, ids: Tensor) -> Tensor:
        return self.out(self.dropout(self.words(ids).mean(dim=1)))

    def passages(self, chunk: dict[str, Tensor]) -> Tensor:
        return self.dropout(torch.tanh(self.words(chunk["input_ids"]).sum(dim=1)) @ self.out.weight.T)


def contrast(queries: Tensor, passages: Tensor) -> Tensor:
    return nn.functional.cross_entropy(queries @ passages.T, torch.arange(len(queries)))


def batch() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(4)
    return torch.randint(0, 30, (6, 4), generator=random), torch.randint(0, 30, (9, 7), generator=random)


def gradients(model: nn.Module, back: Callable[[], Any]) -> tuple[float, list[Tensor]]:
    model.zero_grad()
    loss = back()
    return float(loss.detach()), [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("sizes", [(6, 9), (2, 4), (1, 1)])
def test_the_gradient_is_that_of_the_whole_batch(sizes: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model, (queries, passages) = Towers(0.0).double(), batch()

    def whole() -> Tensor:
        loss = contrast(model.queries(queries), model.passages({"input_ids": passages}))
        loss.backward()
        return loss

    def cached() -> Tensor:
        pieces = [{"input_ids": part, "extra": None} for part in passages.split(sizes[1])]
        return cached_backward(contrast, (model.queries, queries.split(sizes[0])), (model.passages, pieces))

    (loss, expected), (ours, found) = gradients(model, whole), gradients(model, cached)
    assert ours == pytest.approx(loss, abs=1e-12)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_both_passes_of_a_chunk_draw_the_same_dropout() -> None:
    """By the definition of the derivative: a step along the gradient changes the loss under the very same draws."""
    torch.manual_seed(0)
    model, (queries, passages) = Towers(0.4).double(), batch()

    def loss() -> Tensor:
        torch.manual_seed(9)
        parts = [{"input_ids": part} for part in passages.split(2)]
        return cached_backward(contrast, (model.queries, queries.split(2)), (model.passages, parts))

    before, gradient = gradients(model, loss)
    step, square = 1e-6, sum(float((one * one).sum()) for one in gradient)
    with torch.no_grad():
        for weight, one in zip(model.parameters(), gradient, strict=True):
            weight += step * one
    after, _ = gradients(model, loss)
    assert after - before == pytest.approx(step * square, rel=1e-3)


def test_gradients_add_up_and_any_backward_is_called() -> None:
    model, (queries, _) = Towers(0.0), batch()
    seen: list[Tensor] = []

    def scaled(value: Tensor) -> None:
        seen.append(value)
        (2 * value).backward()

    def once(backward: Callable[[Tensor], None]) -> None:
        halves = queries.split(3)
        cached_backward(contrast, (model.queries, halves), (model.queries, halves), backward=backward)

    once(Tensor.backward)
    plain = model.out.weight.grad.clone()
    once(scaled)
    assert len(seen) == 4
    torch.testing.assert_close(model.out.weight.grad, 3 * plain)


def test_a_part_without_chunks_is_one_line() -> None:
    model, (queries, _) = Towers(0.0), batch()
    with pytest.raises(UserError, match="part 1 has no chunk"):
        cached_backward(contrast, (model.queries, [queries]), (model.passages, []))
