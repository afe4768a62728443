"""The losses of sentence tasks are their definitions, written out."""

import math

import pytest
import torch

from condensery.losses.similarity import cosine_regression, triplet_margin


def _random(seed: int) -> torch.Tensor:
    return torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_regression_is_the_mean_square_of_cosine_minus_score() -> None:
    first, second = _random(0), _random(1)
    scores = torch.tensor([0.0, 0.2, 0.5, 0.9, 1.0], dtype=torch.float64)
    total = 0.0
    for u, v, score in zip(first, second, scores, strict=True):
        cosine = float(u @ v) / math.sqrt(float(u @ u) * float(v @ v))
        total += (cosine - float(score)) ** 2
    assert float(cosine_regression(first, second, scores)) == pytest.approx(total / 5, rel=1e-10)
    assert float(cosine_regression(first, 3 * first, torch.ones(5, dtype=torch.float64))) == pytest.approx(
        0.0, abs=1e-15
    )


def test_the_triplet_loss_is_the_hinge_of_euclidean_distances() -> None:
    anchor, positive, negative = (_random(seed) for seed in range(3))
    for margin in (0.5, 3.0):
        terms = [
            max(0.0, math.dist(a, p) - math.dist(a, n) + margin)
            for a, p, n in zip(anchor.tolist(), positive.tolist(), negative.tolist(), strict=True)
        ]
        assert any(terms)
        expected = sum(terms) / 5
        assert float(triplet_margin(anchor, positive, negative, margin)) == pytest.approx(expected, rel=1e-5)
    assert float(triplet_margin(anchor, anchor, anchor + 9, 1.0)) == 0.0
