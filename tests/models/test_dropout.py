"""The cheap dropout drops as often as it says, scales, replays, and differentiates."""

import pytest
import textbook
import torch
from torch import nn

from condensery.models.dropout import Dropout, dropout, use_cheap_dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_rate_is_p_and_what_is_kept_is_scaled_so_that_the_mean_stays(p: float) -> None:
    torch.manual_seed(0)
    n = 400_000
    result = dropout(torch.ones(n, dtype=torch.float64), p, training=True)
    kept = result != 0
    assert abs(float(kept.double().mean()) - (1 - p)) < 5 * (p * (1 - p) / n) ** 0.5
    assert len(result[kept].unique()) == 1
    assert float(result.max()) == pytest.approx(1 / (1 - p), rel=2e-4)  # p is a multiple of 2^-16
    assert float(result.max()) * (1 - round(p * 65536) / 65536) == pytest.approx(1, rel=1e-12)


def test_elements_are_dropped_independently_also_the_four_of_one_draw() -> None:
    torch.manual_seed(0)
    kept = (dropout(torch.ones(100_000, 4), 0.5, training=True) != 0).double()
    assert torch.allclose(torch.corrcoef(kept.T), torch.eye(4).double(), atol=0.015)
    assert torch.corrcoef(torch.stack([kept[:-1, 3], kept[1:, 0]]))[0, 1].abs() < 0.015


def test_the_mask_is_replayed_from_the_state_of_torchs_generator_and_differs_without() -> None:
    values = torch.randn(7, 13)
    state = torch.get_rng_state()
    first = dropout(values, 0.3, training=True)
    second = dropout(values, 0.3, training=True)
    torch.set_rng_state(state)
    assert torch.equal(dropout(values, 0.3, training=True), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("shape", [(5,), (3, 7), (0, 4), (2, 3, 5)])
def test_the_gradient_goes_through_what_was_kept_with_the_same_scale(shape: tuple[int, ...]) -> None:
    values = torch.randn(shape, dtype=torch.float64).transpose(0, -1).requires_grad_()  # not contiguous
    weights = torch.randn(values.shape, dtype=torch.float64)
    result = dropout(values, 0.4, training=True)
    (result * weights).sum().backward()
    assert values.grad is not None
    scale = 65536 / (65536 - round(0.4 * 65536))
    torch.testing.assert_close(values.grad, weights * (result != 0) * scale, rtol=1e-12, atol=0)
    torch.testing.assert_close(result, values * (result != 0) * scale, rtol=1e-12, atol=0)


def test_nothing_happens_in_evaluation_or_at_p_zero() -> None:
    values = torch.randn(4)
    state = torch.get_rng_state()
    assert dropout(values, 0.5, training=False) is values
    assert dropout(values, 0.0, training=True) is values
    assert torch.equal(torch.get_rng_state(), state), "random numbers were drawn for nothing"


def test_almost_one_and_one_keep_the_result_finite() -> None:
    for p in (1 - 1e-7, 1.0):
        assert torch.isfinite(dropout(torch.ones(1000), p, training=True)).all()


def test_bf16_stays_bf16_forward_and_backward() -> None:
    values = torch.randn(64, dtype=torch.bfloat16, requires_grad=True)
    result = dropout(values, 0.1, training=True)
    result.sum().backward()
    assert result.dtype == torch.bfloat16
    assert values.grad is not None
    assert values.grad.dtype == torch.bfloat16
    assert torch.equal(values.grad != 0, result != 0)


def test_every_dropout_of_a_model_is_replaced_with_its_own_rate() -> None:
    model = textbook.language_model(dropout=0.15)
    before = sum(type(module) is nn.Dropout for module in model.modules())
    use_cheap_dropout(model)
    rates = [module.p for module in model.modules() if isinstance(module, Dropout)]
    assert before == len(rates) > 6
    assert set(rates) == {0.15}
    assert not any(type(module) is nn.Dropout for module in model.modules())
