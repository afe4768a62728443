"""Who scores pairs: retrievers as they rank, functions of texts, and several together."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from condensery import BM25, UserError
from condensery.retrieval.indexes.bm25 import BM25Index, build_bm25
from condensery.retrieval.indexes.fusion import RECIPROCAL_RANK, FusedIndex
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.indexes.reranked import RerankedIndex, write_reranked
from condensery.retrieval.negatives import Negatives
from condensery.retrieval.pair_scores import PairScores
from condensery.retrieval.searchers.reranked import by_texts
from condensery.retrieval.teachers import by_retriever, counts, pool_to_score, taught_by, together
from condensery.system.progress import progress
from condensery.text.collection import Collection

QUERIES = np.array([0, 3, 7])
EVERY = np.tile(np.arange(60), (3, 1))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSERY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bm25(tmp_path: Path, collection: Collection) -> BM25Index:
    build_bm25(collection, tmp_path / "bm25", 0.9, 0.4)
    return BM25Index(tmp_path / "bm25", collection)


@pytest.fixture
def dense(write_dense: Any, collection: Collection) -> Any:
    random = np.random.default_rng(2)
    return open_index(write_dense(random.normal(size=(60, 6)), random.normal(size=(12, 6)), 25), collection)


def texts_of(collection: Collection) -> tuple[Any, Any]:
    """The functions that give the texts of queries and of passages."""
    return collection.queries.column("text").take, collection.passages.full_texts


def scored(score: Any, queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    with progress("x", 1, "pairs") as task:
        found: np.ndarray = score(queries, candidates, task)
    return found


@pytest.mark.parametrize("method", ["weighted", RECIPROCAL_RANK])
def test_given_passages_have_the_scores_that_a_search_finds(method: str, bm25: BM25Index, dense: Any) -> None:
    inner = FusedIndex([bm25, dense], [0.5, 0.5], 10)
    for index in (bm25, dense, FusedIndex([bm25, dense], [0.3, 0.7], 10, method), FusedIndex([inner, bm25], [2, 1], 8)):
        scores, rows = index.search(QUERIES, 60)
        given = by_retriever(index)(QUERIES, EVERY, SimpleNamespace(advance=int))  # type: ignore[arg-type]
        for found, passages, own in zip(scores, rows, given, strict=True):
            there = passages >= 0
            np.testing.assert_allclose(own[passages[there]], found[there], rtol=1e-5, atol=1e-6)
            assert not own[np.setdiff1d(np.arange(60), passages[there])].any(), "what is not found scores 0"


def test_a_reranked_index_scores_its_candidates_alone(tmp_path: Path, collection: Collection) -> None:
    np.save(tmp_path / "candidates.npy", np.array([[9, 4, -1], [5, 2, 30]], np.int32))
    np.save(tmp_path / "scores.npy", np.array([[1.0, 2.0, -np.inf], [3.0, 4.0, 5.0]], np.float32))
    write_reranked(tmp_path, collection, np.array([3, 7]), 3, "train")
    index = RerankedIndex(tmp_path, collection)
    found = index.score(np.array([7, 3]), np.array([[30, 9, -1], [4, 30, 9]]))
    np.testing.assert_array_equal(found, np.array([[5.0, np.nan, np.nan], [2.0, np.nan, 1.0]], np.float32))
    with pytest.raises(UserError, match="was not reranked"):
        index.score(np.array([0]), np.array([[1]]))


def test_several_scorers_are_a_weighted_mean_of_scores_or_of_scaled_ones() -> None:
    one = np.array([[1.0, 3.0, 2.0, 9.0], [5.0, 5.0, 0.0, 9.0]], np.float32)
    other = np.array([[10.0, np.nan, 30.0, 9.0], [1.0, 2.0, 3.0, 9.0]], np.float32)
    scorers = [lambda *_, values=values: values for values in (one, other)]
    candidates = np.array([[4, 5, 6, -1], [7, 8, -1, -1]])
    nan = np.nan
    found = scored(together(scorers, [3, 1]), QUERIES[:2], candidates)
    np.testing.assert_allclose(found, [[3.25, nan, 9.0, nan], [4.0, 4.25, nan, nan]])
    found = scored(together(scorers, scaling="min_max"), QUERIES[:2], candidates)
    np.testing.assert_allclose(found, [[0.0, nan, 0.75, nan], [0.5, 1.0, nan, nan]])
    assert found.dtype == np.float32


def test_positives_stand_before_negatives_and_no_passage_twice(collection: Collection) -> None:
    sources = [
        Negatives(np.array([3, 0]), np.array([[8, 9, 10], [2, -1, -1]], np.int32)),
        Negatives(np.array([0]), np.array([[4, 5]], np.int32)),
    ]
    queries, pool = pool_to_score({3: np.array([6, 9]), 0: np.array([1])}, sources, depth=2)
    assert queries.tolist() == [0, 3]
    assert pool.tolist() == [[1, 2, 4, 5], [6, 9, 8, -1]]


def test_a_function_reads_queries_and_titled_passages(collection: Collection) -> None:
    read: list[tuple[str, str]] = []

    def predict(pairs: list[tuple[str, str]]) -> list[float]:
        read.extend(pairs)
        return [float(len(passage)) for _, passage in pairs]

    found = scored(by_texts(predict, *texts_of(collection), "teacher"), QUERIES[:1], np.array([[1, -1, 2]]))
    texts = collection.passages.column("text")
    assert read == [(collection.queries.column("text")[0], passage) for passage in (f"Title {texts[1]}", texts[2])]
    np.testing.assert_array_equal(found, np.array([[len(texts[1]) + 6, np.nan, len(texts[2])]], np.float32))


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (lambda pairs: [1.0], "for 2 pairs it returned shape (1,)"),
        (lambda pairs: ["a"] * len(pairs), "it must return a number for each pair"),
        (lambda pairs: [1.0, float("nan")], "the score of pair 1 is not finite"),
    ],
)
def test_what_a_function_gives_is_checked(gives: Any, said: str, collection: Collection) -> None:
    with pytest.raises(UserError) as failed:
        scored(by_texts(gives, *texts_of(collection), "teacher"), QUERIES[:1], np.array([[1, 2]]))
    assert said in str(failed.value)


def test_a_teacher_is_a_searcher_a_predictor_or_scores_that_are_there(
    tmp_path: Path, collection: Collection, bm25: BM25Index
) -> None:
    positives, negatives = {0: np.array([1]), 3: np.array([7])}, [Negatives(np.array([0, 3]), np.array([[4], [9]]))]

    class Reads:
        def predict(self, pairs: list[tuple[str, str]]) -> np.ndarray:
            return np.arange(len(pairs))[:, None]

    of_reader = taught_by(Reads(), collection, positives, negatives)
    np.testing.assert_array_equal(of_reader.scores, np.array([[0, 1], [2, 3]], np.float32))
    of_bm25 = taught_by(BM25(stemmer="none"), collection, positives, negatives)
    np.testing.assert_allclose(of_bm25.scores, bm25.score(np.array([0, 3]), of_bm25.passage_rows), rtol=1e-6)
    run = tmp_path / "a.run"
    run.write_text("q0 Q0 p1 1 2.0 x\n")
    for teacher in (run, str(run), {"q0": {"p1": 2.0}}, PairScores.of({"q0": {"p1": 2.0}}, collection)):
        assert taught_by(teacher, collection, positives, negatives).scores.tolist() == [[2.0]]
    with pytest.raises(UserError, match=r"teacher: expected BM25 or a Retriever, .*, not a int"):
        taught_by(3, collection, positives, negatives)


def test_counts_say_what_nothing_can_be_learned_from() -> None:
    scores = np.array([[1.0, 2.0], [np.nan, 1.0], [1.0, 1.0]], np.float32)
    pairs = PairScores(np.array([0, 1, 2]), np.array([[5, 6], [5, 6], [7, 8]]), scores)
    positives = {0: np.array([5]), 1: np.array([5]), 2: np.array([9]), 3: np.array([1])}
    assert counts(pairs, positives) == {
        "queries": 4, "pairs": 5, "queries_without_scores": 2, "queries_without_positive": 3
    }  # fmt: skip
