"""One positive among sampled candidates: who is in the sample, and in which order it is ranked."""

from pathlib import Path

import numpy as np
import pytest

from condensery.retrieval.indexes.bm25 import BM25Index, build_bm25
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.sampled import SampledCandidates
from condensery.text.collection import Collection

ROWS = np.arange(12)


@pytest.fixture
def pool(collection: Collection, tmp_path: Path) -> BM25Index:
    build_bm25(collection, tmp_path / "bm25", k1=0.9, b=0.4)
    return BM25Index(tmp_path / "bm25", collection)


@pytest.fixture
def dense(write_dense: object) -> DenseIndex:
    random = np.random.default_rng(2)
    vectors = random.normal(size=(60, 4)), random.normal(size=(12, 4))
    return DenseIndex(write_dense(*vectors, shard=25), device="cpu")  # type: ignore[operator]


def test_the_sample_is_one_positive_and_passages_of_the_pool_that_are_not_relevant(
    collection: Collection, pool: BM25Index, dense: DenseIndex
) -> None:
    positives = collection.qrels("train").positives()
    found = SampledCandidates(dense, pool, positives, 5, 20).candidates(ROWS)
    _, best = pool.search(ROWS, 20)
    for row, (first, *others) in enumerate(found.tolist()):
        assert first in positives[row]
        assert len({*others}) == 5
        assert {*others} <= {*best[row].tolist()} - {*positives[row].tolist()}
    assert len(np.unique([np.argwhere(best[row] == found[row, 1])[0] for row in range(12)])) > 4, "not just the best"


def test_every_ranker_and_every_order_of_queries_has_the_same_sample(
    collection: Collection, pool: BM25Index, dense: DenseIndex
) -> None:
    positives = collection.qrels("train").positives()
    one = SampledCandidates(dense, pool, positives, 5, 20).candidates(ROWS)
    other = SampledCandidates(pool, pool, positives, 5, 20).candidates(ROWS[::-1])
    np.testing.assert_array_equal(one, other[::-1])


@pytest.mark.parametrize("kind", ["dense", "bm25"])
def test_the_sample_is_ranked_as_the_whole_collection_is(
    kind: str, collection: Collection, pool: BM25Index, dense: DenseIndex
) -> None:
    ranker = dense if kind == "dense" else pool
    sampled = SampledCandidates(ranker, pool, collection.qrels("train").positives(), 5, 20)
    scores, rows = sampled.search(ROWS, 10)
    _, whole = ranker.search(ROWS, 60)
    for row, wanted in enumerate(sampled.candidates(ROWS)):
        kept = rows[row][rows[row] >= 0]
        assert {*kept.tolist()} == {*wanted.tolist()} - {-1}
        listed = [passage for passage in whole[row].tolist() if passage in kept]
        assert kept.tolist()[: len(listed)] == listed
        assert (scores[row][len(kept) :] == -np.inf).all()


def test_a_pool_that_finds_too_few_gives_fewer(collection: Collection, pool: BM25Index, dense: DenseIndex) -> None:
    found = SampledCandidates(dense, pool, collection.qrels("train").positives(), 50, 4).candidates(ROWS)
    assert ((found >= 0).sum(axis=1) <= 5).all()
    assert (found[:, 0] >= 0).all()
