"""Tests of significance: p-values are right, pairs are the same queries, corrections hold."""

import itertools

import numpy as np
import pytest
from scipy import stats

from condensery.errors import UserError
from condensery.evaluation.metrics import Evaluation
from condensery.evaluation.significance import Interval, compare, holm, interval, randomisation_test, t_test


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


def reciprocal_ranks(queries: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two systems' reciprocal ranks, with the ties that such numbers have."""
    random = np.random.default_rng(seed)
    values = 1 / random.integers(1, 12, (2, queries))
    values[values < 0.1] = 0
    return values[0], values[1]


@pytest.mark.parametrize("seed", range(6))
def test_few_queries_give_the_exact_p_value_of_scipy(seed: int) -> None:
    system, baseline = reciprocal_ranks(queries=10, seed=seed)
    theirs = stats.permutation_test(
        (system, baseline), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
    )
    assert compare(evaluation(system), evaluation(baseline), "MRR@10")[1] == pytest.approx(theirs.pvalue, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_many_queries_agree_with_scipy_as_far_as_drawing_allows(seed: int) -> None:
    system, baseline = reciprocal_ranks(queries=200, seed=seed)
    ours = compare(evaluation(system), evaluation(baseline), "MRR@10", permutations=20_000)[1]
    theirs = stats.permutation_test(
        (system, baseline),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        batch=2_000,
        rng=np.random.default_rng(0),
    )
    assert ours == pytest.approx(theirs.pvalue, abs=0.02)


@pytest.mark.parametrize("queries", [5, 50, 500])
def test_the_t_test_is_that_of_scipy(queries: int) -> None:
    system, baseline = reciprocal_ranks(queries, seed=queries)
    ours = compare(evaluation(system), evaluation(baseline), "MRR@10", test="t")[1]
    assert ours == pytest.approx(stats.ttest_rel(system, baseline).pvalue, rel=1e-9)


def test_ties_change_neither_side() -> None:
    differences = np.array([0.5, -0.25, 1.0, 0.1, 0.75, 0.3])
    tied = np.concatenate([differences, np.zeros(500)])
    assert randomisation_test(tied) == randomisation_test(differences) == 6 / 64


@pytest.mark.parametrize("test", ["randomisation", "t"])
def test_equal_systems_and_a_single_query_prove_nothing(test: str) -> None:
    values, _ = reciprocal_ranks(40, seed=0)
    same = evaluation(values)
    assert compare(same, same, "MRR@10", test=test) == (0.0, 1.0)  # type: ignore[arg-type]
    one = compare(evaluation(np.ones(1)), evaluation(np.zeros(1)), "MRR@10", test=test)  # type: ignore[arg-type]
    assert one == (1.0, 1.0)


def test_a_difference_that_is_the_same_for_all_queries_is_certain_in_spite_of_rounding() -> None:
    values = np.random.default_rng(0).random(30)
    assert compare(evaluation(values + 0.1), evaluation(values), "MRR@10", test="t")[1] == 0.0


def test_no_queries_at_all_is_a_user_error() -> None:
    with pytest.raises(UserError, match="there are no queries"):
        compare(evaluation(np.ones(0)), evaluation(np.ones(0)), "MRR@10")


def test_holm_by_hand() -> None:
    # sorted: .01 x 5, .011 x 4 = .044 < .05, .02 x 3, .04 x 2, .3 x 1; none smaller than the one before it
    assert holm([0.02, 0.3, 0.01, 0.04, 0.011]) == pytest.approx([0.06, 0.3, 0.05, 0.08, 0.05])
    assert holm([0.02, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.2]) == [0.2]


def test_holm_rejects_what_the_step_down_procedure_rejects() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        p = (random.random(random.integers(1, 12)) ** 3).tolist()
        rejected = set()
        for rank, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
            if p[i] >= 0.05 / (len(p) - rank):
                break
            rejected.add(i)
        assert {i for i, adjusted in enumerate(holm(p)) if adjusted < 0.05} == rejected


def test_with_one_seed_the_interval_is_students() -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(0.1, 1, 60), random.normal(0, 1, 60)
    known = stats.ttest_rel(first, second)
    low, high = known.confidence_interval(0.95)
    found = interval([first], [second])
    assert (found.low, found.high, found.p) == pytest.approx((low, high, known.pvalue))


def test_with_queries_that_do_not_differ_the_interval_is_welchs() -> None:
    """Seeds move all queries alike, so that they alone are chance."""
    first, second = np.array([0.30, 0.34, 0.31]), np.array([0.25, 0.27, 0.21, 0.24])
    known = stats.ttest_ind(first, second, equal_var=False)
    low, high = known.confidence_interval(0.95)
    found = interval([np.full(50, value) for value in first], [np.full(50, value) for value in second])
    assert (found.low, found.high, found.p) == pytest.approx((low, high, known.pvalue))


def test_the_interval_holds_the_difference_as_often_as_it_says() -> None:
    """The true difference is .1; queries, seeds and what is left of chance are drawn anew each time."""
    random = np.random.default_rng(0)
    held = []
    for _ in range(500):
        queries = random.normal(0, 1, 40)  # how much better the one is, of each
        seeds = [random.normal(0, 0.2, 3) for _ in range(2)]
        sides = [
            [mean + share * queries + seed + random.normal(0, 0.3, 40) for seed in drawn]
            for mean, share, drawn in zip((0.1, 0.0), (0.5, -0.5), seeds, strict=True)
        ]
        found = interval(*sides)
        held.append(found.low <= 0.1 <= found.high)
    assert 0.93 < np.mean(held) < 0.985


def test_an_interval_without_chance_is_a_point() -> None:
    assert interval([np.full(9, 0.5)], [np.full(9, 0.5)]) == Interval(0.0, 0.0, 1.0)
    assert interval([np.full(9, 0.5)], [np.full(9, 0.25)]) == Interval(0.25, 0.25, 0.0)
    assert interval([np.array([0.5])], [np.array([0.25])]) == Interval(0.25, 0.25, 1.0), "a single query says nothing"
