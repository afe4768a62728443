"""Every retriever scores given passages as its search does."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from condensery.errors import UserError
from condensery.retrieval.indexes.ann import ApproximateIndex, build_approximate, write_approximate
from condensery.retrieval.indexes.bm25 import BM25Index, build_bm25
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.fusion import FusedIndex
from condensery.retrieval.indexes.interface import CollectionRetriever
from condensery.retrieval.indexes.own_passages import WithoutOwn
from condensery.retrieval.indexes.reranked import RerankedIndex, write_reranked
from condensery.retrieval.searchers.base import SearcherIndex
from condensery.retrieval.searchers.bm25 import BM25
from condensery.system.progress import progress
from condensery.text.collection import Collection

QUERIES = np.array([3, 0, 11])


@pytest.fixture
def dense(write_dense: Callable[..., Path]) -> DenseIndex:
    random = np.random.default_rng(2)
    folder = write_dense(random.normal(size=(60, 6)), random.normal(size=(12, 6)), 25)
    return DenseIndex(folder, device="cpu")


@pytest.fixture
def bm25(tmp_path: Path, collection: Collection) -> BM25Index:
    build_bm25(collection, tmp_path / "bm25", 0.9, 0.4)
    return BM25Index(tmp_path / "bm25", collection)


def check(retriever: CollectionRetriever, unfound: float | None = None) -> None:
    """What search finds scores the same; ``unfound`` is the score of the rest, where there is one."""
    scores, rows = retriever.search(QUERIES, len(retriever))
    order = np.random.default_rng(0).permuted(rows, axis=1)
    order[1, 4] = -1
    given = retriever.score(QUERIES, order)
    assert given.dtype == np.float32
    assert np.isnan(given[order < 0]).all()
    for query in range(len(QUERIES)):
        known = dict(zip(rows[query].tolist(), scores[query].tolist(), strict=True))
        there = order[query] >= 0
        expected = [known[row] for row in order[query][there].tolist()]
        np.testing.assert_allclose(given[query][there], expected, rtol=1e-5, atol=1e-6)
        if unfound is not None:
            rest = np.setdiff1d(np.arange(len(retriever)), rows[query])
            assert len(rest)
            np.testing.assert_array_equal(
                retriever.score(QUERIES[[query]], rest[None]), np.full((1, len(rest)), unfound)
            )


def test_bm25_and_dense_score_exactly(bm25: BM25Index, dense: DenseIndex, collection: Collection) -> None:
    check(bm25, unfound=0.0)
    check(dense)
    check(WithoutOwn(bm25, collection), unfound=0.0)
    check(SearcherIndex.of(BM25(stemmer="none"), collection), unfound=0.0)


def test_approximate_search_scores_exactly(dense: DenseIndex, tmp_path: Path) -> None:
    with progress("test", 60, "passages") as task:
        build_approximate(dense, tmp_path, "PQ2x4", 60, 0, 1, task)
    write_approximate(tmp_path, dense, "dense/1", {"nprobe": 1, "ef_search": 16}, 0)
    rows = np.arange(60)[None].repeat(3, axis=0)
    index = ApproximateIndex(tmp_path, dense)
    np.testing.assert_array_equal(index.score(QUERIES, rows), dense.score(QUERIES, rows))
    assert (index.search(QUERIES, 60)[0] != dense.search(QUERIES, 60)[0]).any()


@pytest.mark.parametrize("method", ["weighted", "reciprocal_rank"])
def test_a_fused_ranking_scores_as_it_ranks(method: str, bm25: BM25Index, dense: DenseIndex) -> None:
    fused = FusedIndex([bm25, dense], [0.6, 0.4], 10, method)
    check(fused, unfound=0.0)
    check(FusedIndex([fused, dense], [1.0, 2.0], 10, method), unfound=0.0)


def test_a_reranker_scores_what_it_read(tmp_path: Path, collection: Collection) -> None:
    random = np.random.default_rng(1)
    candidates = np.stack([random.permutation(60)[:8] for _ in range(11)])
    candidates[:, 6] = -1
    np.save(tmp_path / "candidates.npy", candidates.astype(np.int32))
    np.save(tmp_path / "scores.npy", random.normal(size=candidates.shape).astype(np.float32))
    write_reranked(tmp_path, collection, np.array([0, *range(2, 12)]), 8, "train")
    index = RerankedIndex(tmp_path, collection)
    check(index, unfound=np.nan)
    with pytest.raises(UserError, match="query 'q1' was not reranked"):
        index.score(np.array([1]), np.array([[0]]))


def test_a_searcher_without_passages_scores_nothing() -> None:
    with pytest.raises(UserError, match="nothing is indexed yet"):
        BM25().score(["query"], np.zeros((1, 1), np.int64))
