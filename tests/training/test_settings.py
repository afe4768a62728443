"""The learning rate."""

import pytest

from condensery.training.learning_rate import linear_schedule


@pytest.mark.parametrize(("steps", "warmup"), [(100, 0.1), (7, 0.3), (10, 0.0), (1, 0.1), (5, 1.0), (1000, 0.0005)])
def test_the_rate_rises_to_the_peak_falls_to_zero_and_is_never_zero_while_training(steps: int, warmup: float) -> None:
    rates = [linear_schedule(step, steps, warmup) for step in range(steps + 1)]
    assert all(0 < rate <= 1 for rate in rates[:-1])
    assert rates[-1] == 0 or warmup == 1.0
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert top == pytest.approx(warmup * steps, abs=1.01)


def test_the_rates_are_those_of_a_linear_schedule() -> None:
    rates = [linear_schedule(step, 20, 0.2) for step in range(21)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4] == 1.0
    assert [rates[step] for step in (8, 12, 19, 20)] == pytest.approx([12 / 16, 8 / 16, 1 / 16, 0.0])
