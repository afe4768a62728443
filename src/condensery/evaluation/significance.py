"""Test the significance of the difference between two systems by paired, two-sided tests over the queries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.randomness import generator
from condensery.ranges import Count, check_values

Test = Literal["randomisation", "t"]
FEW = 30
CHANCE = "with so few queries, a choice based on them is mostly chance"  # said with fewer queries than FEW
PERMUTATIONS = 10_000
CELLS = 10_000_000  # number of random signs in memory at a time, one byte per sign


class PerQuery(Protocol):
    """Results that can be compared: the value of each metric for each query, with query ids."""

    @property
    def query_ids(self) -> Sequence[str]:
        """Ids of the queries."""

    @property
    def per_query(self) -> dict[str, NDArray[np.float64]]:
        """Name of a metric -> values (queries,), in the order of ``query_ids``."""


def compare(
    system: PerQuery,
    baseline: PerQuery,
    metric: str,
    test: Test = "randomisation",
    permutations: Count = PERMUTATIONS,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the mean difference system - baseline of a metric, and the p-value of the difference.

    Args:
        system, baseline: results on the same queries, in any order.
        metric: name of a metric that both results contain.
        test: "randomisation" (``randomisation_test``) or "t" (``t_test``).
        permutations, seed: arguments of ``randomisation_test``.

    Raises:
        UserError: the two results are for different queries or for no query, or one of them lacks the metric.
    """
    check_values(compare, {"test": test, "permutations": permutations})
    first, second = list(system.query_ids), list(baseline.query_ids)
    if not first:
        raise UserError(f"significance test on {metric}: there are no queries; evaluate both on a split with queries")
    if sorted(first) != sorted(second):
        only = sorted(set(first) ^ set(second))
        raise UserError(
            f"significance test on {metric}: the two systems were measured on different queries "
            f"({len(first)} and {len(second)}; {len(only)} in one only, such as {only[:3]}); evaluate both on one split"
        )
    for side in (system, baseline):
        if metric not in side.per_query:
            raise UserError(f"significance test: one system has no values of {metric}; evaluate both with this metric")
    place = {query: i for i, query in enumerate(second)}
    order = [place[query] for query in first]
    differences = np.asarray(system.per_query[metric]) - np.asarray(baseline.per_query[metric])[order]
    p = t_test(differences) if test == "t" else randomisation_test(differences, permutations, seed)
    return float(differences.mean()), p


def randomisation_test(differences: NDArray[np.float64], permutations: int = PERMUTATIONS, seed: int = 0) -> float:
    """Run Fisher's paired randomisation test (Smucker, Allan and Carterette 2007).

    Under the null hypothesis the two systems' values for a query can be swapped, so each difference may change its sign.
    The p-value is the share of random sign vectors for which the mean difference is at least as far from 0 as the observed
    mean. The observed signs count as one of these vectors, so the smallest p-value is 1 / (permutations + 1). If there are
    at most ``permutations`` different sign vectors, each vector is counted once and the p-value is exact.

    Args:
        differences: (n,) the difference of the two systems on each query.
        permutations: number of random sign vectors.
        seed: seed of the random sign vectors.

    Returns:
        The two-sided p-value.
    """
    moving = differences[differences != 0]  # (m,) a difference of zero changes no sum
    if not len(moving):
        return 1.0
    observed = abs(moving.sum())
    if 2 ** len(moving) <= permutations:
        signs = np.arange(2 ** len(moving))[:, None] >> np.arange(len(moving)) & 1
        return float((np.abs(moving.sum() - 2 * (signs @ moving)) >= observed - 1e-9 * observed).mean())
    random = generator("randomisation test", seed)
    extreme = 0
    block = max(1, CELLS // len(moving))
    for first in range(0, permutations, block):
        shape = (min(block, permutations - first), len(moving))
        flipped = np.unpackbits(np.frombuffer(random.bytes(-(-shape[0] * shape[1] // 8)), np.uint8))
        # sum of signed differences = sum - 2 * (sum of the flipped differences)
        sums = moving.sum() - 2 * (flipped[: shape[0] * shape[1]].reshape(shape) @ moving)
        extreme += int((np.abs(sums) >= observed - 1e-9 * observed).sum())  # equal sums may differ by rounding
    return (extreme + 1) / (permutations + 1)


def t_test(differences: NDArray[np.float64]) -> float:
    """Return the p-value of Student's paired t-test. It is 1 if all differences are zero or there is only one query."""
    if not differences.any():
        return 1.0
    if np.ptp(differences) <= 1e-12 * np.abs(differences).max():  # all differences are equal up to rounding
        return 0.0 if len(differences) > 1 else 1.0
    from scipy import stats  # takes seconds to import, so only this test imports it

    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def queries_needed(differences: NDArray[np.float64], level: float) -> int | None:
    """Estimate, to two digits, how many queries a test needs to detect a mean difference with a probability of 80 %.

    The mean and the standard deviation of the given differences are assumed to hold for all queries. The number is
    ((z(1 - level / 2) + z(0.8)) * deviation / mean)^2; None if the mean or the deviation is 0, or for a single query.

    Args:
        differences: (n,) the difference of two systems on each query.
        level: significance level of the two-sided test.
    """
    mean, spread = float(differences.mean()), float(differences.std(ddof=1)) if len(differences) > 1 else 0.0
    if not mean or not spread:
        return None
    from scipy.special import ndtri  # takes a third of a second to import

    needed = float(((ndtri(1 - level / 2) + ndtri(0.8)) * spread / mean) ** 2)
    return int(float(f"{np.ceil(needed):.1e}"))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple testing by Holm's (1979) step-down procedure, and return them in the given order."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def four_digits(p: float) -> str:
    """Return a p-value with four digits. For a p-value below 0.0001, even 0, the upper bound 0.0001 is returned."""
    return f"{max(p, 1e-4):.4f}"


@dataclass(frozen=True)
class Interval:
    """The 95 % confidence interval of a difference over queries and seeds, and the p-value of a difference of 0."""

    low: float
    high: float
    p: float


def interval(system: Sequence[NDArray[np.float64]], baseline: Sequence[NDArray[np.float64]]) -> Interval:
    """Return the 95 % confidence interval of the difference of two systems' means over queries and seeds.

    Queries and seeds are both treated as random draws. Three variances are added: the variance of the mean difference
    over queries, and for each of the two systems the variance of its mean over seeds. The degrees of freedom of the sum
    are Welch and Satterthwaite's (a quasi-F of two random factors: Clark 1973). The noise within a seed is part of both
    kinds of variance, so the interval is too wide rather than too narrow. A system with one seed, such as BM25, has no
    variance over seeds.

    Args:
        system: one array (n,) for each seed: the value of the metric for each of n queries, always in the same order.
        baseline: the arrays of the other system, with the same queries; the seeds and their number may differ.
    """
    from scipy.special import stdtr, stdtrit  # takes a third of a second to import

    sides = [np.asarray(side, np.float64) for side in (system, baseline)]  # (seeds, n)
    differences = sides[0].mean(axis=0) - sides[1].mean(axis=0)
    spreads = [(differences.var(ddof=1) / len(differences), len(differences) - 1)] if len(differences) > 1 else []
    spreads += [(side.mean(axis=1).var(ddof=1) / len(side), len(side) - 1) for side in sides if len(side) > 1]
    variance = sum(spread for spread, _ in spreads)
    mean = float(differences.mean())
    if variance == 0:
        return Interval(mean, mean, 1.0 if mean == 0 or not spreads else 0.0)
    freedom = variance**2 / sum(spread**2 / of for spread, of in spreads)
    error = float(np.sqrt(variance))
    reach = float(stdtrit(freedom, 0.975)) * error
    return Interval(mean - reach, mean + reach, float(2 * stdtr(freedom, -abs(mean) / error)))
