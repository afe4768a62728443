"""Vectors and scores that are NaN or infinite: whoever makes or reads one refuses it, and names the row."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from condensery.errors import UserError
from condensery.retrieval.finite import check_finite, check_scores
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.fusion import FusedIndex
from condensery.retrieval.ranking import Ranking
from condensery.retrieval.shards import rank_in_shards

WriteDense = Callable[..., Path]
BAD = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_first_row_that_is_not_finite_is_named(bad: float, dtype: type) -> None:
    values = np.ones((5, 3), dtype)
    check_finite(values, "the vector of")
    values[3, 1] = values[4, 0] = bad
    with pytest.raises(
        UserError,
        match=r"^the vector of 3 is not finite; its encoder diverged in training \(lower learning_rate\), or needs precision"
        r" fp32$",
    ):
        check_finite(values, "the vector of")
    with pytest.raises(UserError, match=r"^the vector of 'd' is not finite; do this$"):
        check_finite(values, "the vector of", "abcde", "do this")


def test_numbers_whose_sum_is_too_large_are_finite() -> None:
    check_finite(np.full((9, 9), 3e38, np.float32), "x")
    check_finite(np.full((9, 9), 6e4, np.float16), "x")
    check_finite(np.empty((0, 4), np.float32), "x")


@pytest.mark.parametrize("bad", BAD)
def test_scores_of_padding_say_nothing(bad: float) -> None:
    scores, rows = np.array([[1, bad], [2, 1]], np.float32), np.array([[4, -1], [3, 2]])
    check_scores(scores, rows, "a score of query")
    with pytest.raises(UserError, match="a score of query 7 is not finite"):
        check_scores(scores[::-1], rows, "a score of query", [3, 7])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("queries", [1, 3])
def test_a_vector_on_disk_that_is_not_finite_is_named_with_its_file(
    bad: float, queries: int, write_dense: WriteDense
) -> None:
    passages = np.random.default_rng(0).normal(size=(20, 4))
    passages[13, 2] = bad
    index = DenseIndex(write_dense(passages, np.ones((queries, 4)), 8), device="cpu")
    with pytest.raises(UserError, match=r"00001\.npy: the vector of row 5 is not finite; delete the folder"):
        index.search(np.arange(queries), 3)
    with pytest.raises(UserError, match=r"the vector of row 13 is not finite"):
        index.passage_vectors(np.array([2, 13]))
    with pytest.raises(UserError, match=r"a score of query row 0 is not finite; delete the folder"):
        index.score(np.arange(queries), np.array([[2, 13]] + [[2, 3]] * (queries - 1)))


@pytest.mark.parametrize("bad", BAD)
def test_a_query_vector_that_is_not_finite_is_not_searched(bad: float, write_dense: WriteDense) -> None:
    index = DenseIndex(write_dense(np.eye(4), np.array([[1, 0, 0, 0], [0, bad, 0, 0]]), 8), device="cpu")
    with pytest.raises(UserError, match="the vector of query 1 is not finite"):
        index.search(np.arange(2), 3)
    with pytest.raises(UserError, match="a score of query row 1 is not finite"):
        index.score(np.arange(2), np.array([[0, -1], [1, 2]]))


class Listed:
    """A retriever that gives what it is told."""

    def __init__(self, score: float) -> None:
        self.score = score

    def __len__(self) -> int:
        return 9

    def search(self, query_rows: np.ndarray, k: int, progress: object = None) -> Ranking:
        scores = np.tile(np.arange(k, 0, -1, dtype=np.float32), (len(query_rows), 1))
        scores[-1, 0] = self.score
        return scores, np.tile(np.arange(k), (len(query_rows), 1))


@pytest.mark.parametrize("bad", BAD)
def test_scores_that_are_not_finite_are_neither_fused_nor_kept(bad: float, tmp_path: Path) -> None:
    broken = Listed(bad)
    with pytest.raises(UserError, match="fusion: a score by retriever 1 of query 2 is not finite"):
        FusedIndex([Listed(9), broken], [1, 1], 5).search(np.arange(3), 4)
    with pytest.raises(UserError, match="x: a score of query row 6 is not finite"):
        rank_in_shards(lambda rows, task: broken.search(rows, 4), np.array([2, 4, 6]), tmp_path / "ranking", "x")
    assert not (tmp_path / "ranking" / "queries.npy").exists()
