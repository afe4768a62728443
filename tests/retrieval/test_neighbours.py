"""Lists of nearest neighbours in both directions, by BM25 and by inner product, against all scores at once."""

from pathlib import Path

import numpy as np
import pytest

from condensery.retrieval.indexes import bm25
from condensery.retrieval.indexes.bm25 import BM25Index, index_texts
from condensery.retrieval.indexes.terms import Analyser
from condensery.retrieval.neighbours import BM25, dense_neighbours, lexical_neighbours

WORDS = [*"abcdefghijkl"]
random = np.random.default_rng(3)
PASSAGES = [" ".join(f"word{letter}" for letter in random.choice(WORDS, 6)) for _ in range(30)]
QUERIES = [" ".join(f"word{letter}" for letter in random.choice(WORDS, 2)) for _ in range(50)]


def both_ways(scores: np.ndarray, k: int) -> np.ndarray:
    """The scores that are above 0 and among the k best of their row or of their column; ties by index."""
    of_rows = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1) < k
    of_columns = np.argsort(np.argsort(-scores, axis=0, kind="stable"), axis=0) < k
    return np.where((of_rows | of_columns) & (scores > 0), scores, 0.0)


@pytest.mark.parametrize(("k", "room"), [(3, None), (3, 40), (100, 40)])
def test_bm25_lists_the_best_of_queries_and_of_passages(
    k: int, room: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyser = Analyser(BM25["stopwords"], BM25["stemmer"])
    index_texts(PASSAGES, len(PASSAGES), tmp_path, BM25["k1"], BM25["b"], analyser, "x")
    scores, rows = BM25Index(tmp_path).search_texts(QUERIES, len(PASSAGES))
    whole = np.zeros((len(QUERIES), len(PASSAGES)), np.float32)
    for query in range(len(QUERIES)):
        found = rows[query] >= 0
        whole[query, rows[query][found]] = scores[query][found]
    if room:
        monkeypatch.setattr(bm25, "POSTINGS", room)  # what is known is sifted again and again
    found = lexical_neighbours(QUERIES, PASSAGES, k, tmp_path / "again")
    np.testing.assert_array_equal(found.toarray(), both_ways(whole, k))
    assert (found.nnz < (whole > 0).sum()) == (k == 3)


def test_threads_change_nothing(tmp_path: Path) -> None:
    one, two = (lexical_neighbours(QUERIES, PASSAGES, 3, tmp_path / str(n), threads=n) for n in (1, 3))
    np.testing.assert_array_equal(one.toarray(), two.toarray())


@pytest.mark.parametrize("k", [4, 100])
def test_inner_products_are_listed_above_their_mean(k: int) -> None:
    draw = np.random.default_rng(4)
    queries, passages = (draw.normal(2.0, 1.0, (n, 6)).astype(np.float32) for n in (40, 25))
    products = queries @ passages.T
    found = dense_neighbours(queries, passages, k)
    np.testing.assert_allclose(found.toarray(), both_ways(products - products.mean(), k), atol=1e-4)
    assert found.data.min() > 0


def test_what_is_added_to_all_inner_products_changes_nothing() -> None:
    draw = np.random.default_rng(4)
    queries, passages = (draw.normal(0.0, 1.0, (n, 6)).astype(np.float32) for n in (40, 25))
    ones = [
        np.concatenate([vectors, np.full((len(vectors), 1), 5.0, np.float32)], 1) for vectors in (queries, passages)
    ]
    plain, moved = dense_neighbours(queries, passages, 4), dense_neighbours(*ones, 4)
    np.testing.assert_allclose(plain.toarray(), moved.toarray(), atol=1e-4)
