"""The projected cross-entropy is torch's own, whatever weights its rows, and never holds the logits of a chunk."""

import pytest
import torch
from torch import Tensor, nn

from condensery.models import cross_entropy
from condensery.models.cross_entropy import projected_cross_entropy

ROWS, SIZE, WORDS = 11, 6, 37


def _inputs(dtype: torch.dtype, rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    states, weight, bias = (
        torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((rows, SIZE), (WORDS, SIZE), (WORDS,))
    )
    return states, weight, bias, torch.randint(WORDS, (rows,), generator=random)


def _torchs(states: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(nn.functional.linear(states, weight, bias).double(), targets, reduction="none")


@pytest.mark.parametrize("block", [1, 4, 11, 100])
def test_losses_and_gradients_are_torchs_for_any_weights_of_the_rows(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cross_entropy._BLOCK, "cpu", block)
    *leaves, targets = _inputs(torch.float64)
    weights = torch.linspace(-1, 2, ROWS).double()
    found = projected_cross_entropy(*leaves, targets)
    wanted = _torchs(*leaves, targets)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=0)
    ours = torch.autograd.grad((found * weights).sum(), leaves)
    for one, other in zip(ours, torch.autograd.grad((wanted * weights).sum(), leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_autocast_multiplies_in_bf16_and_adds_up_in_fp32() -> None:
    *leaves, targets = _inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = projected_cross_entropy(*leaves, targets)
        logits = nn.functional.linear(*leaves)
    wanted = nn.functional.cross_entropy(logits.float(), targets, reduction="none")
    assert logits.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    ours, torchs = (torch.autograd.grad(losses.sum(), leaves) for losses in (found, wanted))
    for one, other in zip(ours, torchs, strict=True):
        assert one.dtype == torch.float32
        assert float((one - other).abs().max() / other.abs().max()) < 2e-2


def test_without_rows_the_gradient_is_zero() -> None:
    *leaves, targets = _inputs(torch.float32, rows=0)
    projected_cross_entropy(*leaves, targets).sum().backward()
    assert all(leaf.grad is not None and not leaf.grad.any() for leaf in leaves)
