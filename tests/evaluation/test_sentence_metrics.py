"""Spearman's correlation of cosines, and the accuracy of triplets."""

import numpy as np
import pytest
from scipy import stats

from condensery.evaluation.sentence_tasks import nearer, spearman


def _at(*degrees: float, length: float = 1.0) -> np.ndarray:
    angles = np.radians(np.array(degrees))
    return (np.stack([np.cos(angles), np.sin(angles)], axis=1) * length).astype(np.float32)


def test_spearman_is_of_the_ranks_of_cosines_and_not_of_inner_products() -> None:
    first = _at(0, 0, 0, 0)
    second = _at(10, 40, 70, 100) * np.array([[1], [9], [0.1], [5]], np.float32)
    assert spearman(first, second, np.array([5.0, 4.9, 0.2, 0.1])).mean() == pytest.approx(1.0)
    assert spearman(first, second, np.array([0.0, 1.0, 2.0, 3.0])).mean() == pytest.approx(-1.0)
    # ranks 1 2 3 4 against 1 3 2 4: 1 - 6 * 2 / (4 * 15)
    assert spearman(first, second, np.array([9.0, 2.0, 3.0, 1.0])).mean() == pytest.approx(0.8)


def test_equal_scores_share_their_rank() -> None:
    # ranks 4 3 2 1 against 3.5 3.5 1.5 1.5: covariance 4, variances 5 and 4
    found = spearman(_at(0, 0, 0, 0), _at(10, 20, 30, 40), np.array([1.0, 1, 0, 0]))
    assert found.mean() == pytest.approx(4 / 20**0.5)


def _drawn(pairs: int, related: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs whose angle follows the score by so much; the scores are 0 to 5, many of them equal."""
    random = np.random.default_rng(seed)
    scores = random.integers(0, 6, pairs).astype(float)
    angles = 90 - 10 * (related * scores + random.normal(0, 1, pairs))
    return _at(*np.zeros(pairs)), _at(*angles), scores


def test_a_pair_stands_for_what_the_correlation_is_without_it() -> None:
    first, second, scores = _drawn(40, 0.3, seed=1)
    found, cosines = spearman(first, second, scores), (first * second).sum(axis=1)
    assert found.mean() == pytest.approx(stats.spearmanr(cosines, scores).statistic, abs=1e-12)
    without = [stats.spearmanr(np.delete(cosines, i), np.delete(scores, i)).statistic for i in range(40)]
    np.testing.assert_allclose(np.diff(found), -39 * np.diff(without), atol=1e-9)


@pytest.mark.slow
def test_the_pairs_values_have_the_standard_error_of_the_correlation() -> None:
    samples = [spearman(*_drawn(200, 0.3, seed)) for seed in range(200)]
    told = np.mean([values.std(ddof=1) / 200**0.5 for values in samples])
    assert told == pytest.approx(np.std([values.mean() for values in samples], ddof=1), rel=0.15)


def test_vectors_that_are_all_alike_tell_nothing() -> None:
    assert spearman(_at(5, 5, 5), _at(7, 7, 7), np.array([0.0, 1, 2])).tolist() == [0.0] * 3
    assert spearman(np.zeros((3, 2), np.float32), _at(1, 2, 3), np.array([0.0, 1, 2])).tolist() == [0.0] * 3


def test_a_triplet_is_right_where_the_positive_is_nearer() -> None:
    anchor = np.zeros((3, 2), np.float32)
    assert nearer(anchor, _at(0, 90, 45, length=2.0), _at(0, 10, 20, length=3.0)).tolist() == [1, 1, 1]
    assert nearer(anchor, _at(0, 0, 0, length=2.0), np.array([[2.1, 0], [0, 2.0], [1.9, 0]])).tolist() == [1, 0, 0]
