"""Votes, intervals and kappa are those of the textbook."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from condensery.evaluation.pair_audit.votes import fleiss_kappa, majority, wilson

# the example of Fleiss (1971) as textbooks give it: 10 items, 14 annotators, 5 categories; kappa = 0.210
EXAMPLE = np.array(
    [
        [0, 0, 0, 0, 14],
        [0, 2, 6, 4, 2],
        [0, 0, 3, 5, 6],
        [0, 3, 9, 2, 0],
        [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0],
        [3, 2, 6, 3, 0],
        [2, 5, 3, 2, 2],
        [6, 5, 2, 1, 0],
        [0, 2, 2, 3, 7],
    ]
)


def slow_kappa(labels: list[list[int]]) -> float:
    """Over all pairs of annotators of each item, one by one; ``labels`` holds a category for each vote."""
    agreed = [[a == b for a, b in combinations(item, 2)] for item in labels]
    observed = sum(sum(pairs) / len(pairs) for pairs in agreed) / len(labels)
    votes = [vote for item in labels for vote in item]
    expected = sum((votes.count(category) / len(votes)) ** 2 for category in set(votes))
    return (observed - expected) / (1 - expected)


def counted(labels: list[list[int]], categories: int) -> np.ndarray:
    return np.array([[item.count(category) for category in range(categories)] for item in labels])


def test_kappa_of_the_published_example() -> None:
    assert fleiss_kappa(EXAMPLE) == pytest.approx(0.210, abs=5e-4)


@pytest.mark.parametrize(("items", "annotators", "categories"), [(7, 2, 2), (30, 3, 2), (12, 5, 4)])
def test_kappa_is_that_of_a_count_over_all_pairs_of_annotators(items: int, annotators: int, categories: int) -> None:
    labels = np.random.default_rng(items).integers(categories, size=(items, annotators)).tolist()
    assert fleiss_kappa(counted(labels, categories)) == pytest.approx(slow_kappa(labels), abs=1e-12)


def test_kappa_of_full_agreement_is_one_and_of_none_beyond_chance_is_about_zero() -> None:
    assert fleiss_kappa(np.array([[3, 0], [0, 3], [3, 0]])) == pytest.approx(1)
    high = np.random.default_rng(0).binomial(3, 0.4, 20_000)
    assert fleiss_kappa(np.stack([high, 3 - high], axis=1)) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("counts", [[[3, 0], [3, 0]], [[1, 0], [0, 1]], np.zeros((0, 2), int)])
def test_kappa_is_not_defined_where_nothing_can_differ(counts: list[list[int]]) -> None:
    assert math.isnan(fleiss_kappa(np.array(counts)))


def test_items_with_different_numbers_of_votes_are_refused() -> None:
    with pytest.raises(ValueError, match="same number"):
        fleiss_kappa(np.array([[3, 0], [1, 1]]))


def test_a_majority_is_more_than_half_and_a_tie_is_none() -> None:
    three = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], bool)
    assert majority(three).tolist() == [True, False, True]
    assert majority(np.array([[1, 1, 0, 0], [1, 1, 1, 0]], bool)).tolist() == [False, True]


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (71, 200), (113, 200), (5, 5), (1, 3)])
def test_the_interval_ends_where_the_score_test_does(successes: int, trials: int) -> None:
    for end in wilson(successes, trials):
        deviation = abs(successes / trials - end)
        assert deviation == pytest.approx(1.959963984540054 * math.sqrt(end * (1 - end) / trials), abs=1e-9)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (71, 200), (113, 200), (5, 5)])
def test_the_interval_is_that_of_scipy(successes: int, trials: int) -> None:
    reference = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    assert wilson(successes, trials) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_without_trials_nothing_is_known_of_a_share() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
