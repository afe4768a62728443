"""Tests of significance: p-values are right, pairs are the same queries, corrections hold."""

import itertools

import numpy as np
import pytest

from condensery.errors import UserError
from condensery.evaluation.metrics import Evaluation
from condensery.evaluation.significance import compare, holm, randomisation_test, t_test


def evaluation(values: np.ndarray, ids: list[str] | None = None) -> Evaluation:
    return Evaluation(ids or [f"q{i}" for i in range(len(values))], {"MRR@10": values})


def test_the_p_value_is_the_share_of_sign_vectors() -> None:
    differences = np.array([0.5, -0.1, 0.3, 0.25, 0.0, 0.2, 0.4, -0.05, 0.0])
    moving = differences[differences != 0]
    sums = [abs(np.dot(signs, moving)) for signs in itertools.product([1, -1], repeat=len(moving))]
    exact = np.mean([one >= abs(moving.sum()) - 1e-12 for one in sums])
    assert randomisation_test(differences, 100_000) == pytest.approx(exact, abs=0.004)


def test_p_values_are_uniform_where_nothing_differs() -> None:
    random = np.random.default_rng(0)
    p = [randomisation_test(random.normal(size=80), 1000, seed) for seed in range(300)]
    assert 0.02 < np.mean(np.array(p) < 0.05) < 0.09
    assert 0.4 < np.mean(p) < 0.6


def test_a_large_difference_reaches_the_smallest_p_and_none_gives_one() -> None:
    assert randomisation_test(np.full(100, 0.1), 10_000) == 1 / 10_001
    assert randomisation_test(np.zeros(100)) == 1.0
    assert t_test(np.zeros(100)) == 1.0


def test_the_result_depends_on_the_seed_and_on_nothing_else() -> None:
    differences = np.random.default_rng(0).normal(0.1, 1, 200)
    assert randomisation_test(differences, 1000, 1) == randomisation_test(differences, 1000, 1)
    assert len({randomisation_test(differences, 1000, seed) for seed in range(5)}) > 1


def test_both_tests_agree_on_many_queries() -> None:
    differences = np.random.default_rng(0).normal(0.1, 1, 400)
    assert t_test(differences) == pytest.approx(randomisation_test(differences, 20_000), abs=0.01)


def test_queries_are_paired_by_id_not_by_place() -> None:
    values = np.random.default_rng(0).random(50)
    ids = [f"q{i}" for i in range(50)]
    order = np.random.default_rng(1).permutation(50)
    shuffled = evaluation(values[order], [ids[i] for i in order])
    difference, p = compare(evaluation(values + 0.01, ids), shuffled, "MRR@10")
    assert difference == pytest.approx(0.01)
    assert p < 0.001


def test_the_sign_says_who_is_better() -> None:
    low, high = evaluation(np.full(20, 0.1)), evaluation(np.full(20, 0.3))
    assert compare(high, low, "MRR@10")[0] == pytest.approx(0.2)
    assert compare(low, high, "MRR@10", test="t") == (pytest.approx(-0.2), 0.0)


def test_different_queries_or_a_missing_metric_are_user_errors() -> None:
    with pytest.raises(UserError, match="different queries"):
        compare(evaluation(np.ones(3)), evaluation(np.ones(4)), "MRR@10")
    with pytest.raises(UserError, match="different queries"):
        compare(evaluation(np.ones(2), ["a", "b"]), evaluation(np.ones(2), ["a", "c"]), "MRR@10")
    with pytest.raises(UserError, match="NDCG"):
        compare(evaluation(np.ones(3)), evaluation(np.ones(3)), "NDCG@10")


def test_holm_is_step_down_and_keeps_the_order() -> None:
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
