"""Ranks come to shares and a median, and a passage that is never found counts as far away."""

import numpy as np

from condensery.evaluation.proxy import NOT_FOUND, summary


def test_shares_and_median_of_ranks() -> None:
    found = summary(np.array([1, 1, 2, 10, 11, 100, 101, NOT_FOUND]))
    assert found == {"pairs": 8, "rank_1": 2 / 8, "rank_10": 4 / 8, "rank_100": 6 / 8, "median_rank": 10.5}


def test_the_median_is_unknown_where_half_of_the_passages_are_not_found() -> None:
    assert summary(np.array([1, 1, NOT_FOUND, NOT_FOUND]))["median_rank"] is None
    assert summary(np.array([1, 7, NOT_FOUND]))["median_rank"] == 7
