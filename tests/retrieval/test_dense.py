"""Exact dense search: FAISS, torch and NumPy agree with sorting all scores, in bounded memory."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from forked import peak_memory

from condensery.errors import UserError
from condensery.retrieval.indexes.dense import (
    DenseIndex,
    faiss_search,
    numpy_search,
    shard_path,
    torch_search,
    write_vectors,
)
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.ranking import Ranking, unpack
from condensery.text.collection import Collection

WriteDense = Callable[..., Path]


def whole_numbers(seed: int, *shape: int) -> np.ndarray:
    """Vectors whose inner products are exact in float32, with many ties."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def by_definition(queries: np.ndarray, passages: np.ndarray, k: int) -> Ranking:
    scores = queries @ passages.T
    rows = np.stack([np.lexsort((np.arange(len(passages)), -one))[:k] for one in scores])
    return np.take_along_axis(scores, rows, axis=1), rows


SEARCHES: dict[str, Callable[..., np.ndarray]] = {
    "faiss": lambda queries, blocks, k: faiss_search(queries, blocks, k, 1),
    "torch": lambda queries, blocks, k: torch_search(queries, blocks, k, "cpu"),
    "numpy": numpy_search,
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("k", [1, 10, 120, 200])
def test_all_searches_rank_by_score_then_row_even_where_many_tie(search: str, k: int) -> None:
    queries, passages = whole_numbers(0, 33, 4), whole_numbers(1, 500, 4)
    blocks = ((first, passages[first : first + 150]) for first in range(0, 500, 150))
    scores, rows = unpack(SEARCHES[search](queries, blocks, k))
    expected_scores, expected_rows = by_definition(queries, passages, k)
    np.testing.assert_array_equal(rows, expected_rows)
    np.testing.assert_array_equal(scores, expected_scores)


def test_torch_and_faiss_agree_on_real_numbers(write_dense: WriteDense) -> None:
    random = np.random.default_rng(0)
    passages, queries = random.normal(size=(3000, 32)), random.normal(size=(50, 32))
    folder = write_dense(passages, queries, 1000)
    asked = np.arange(50)
    index = DenseIndex(folder, device="cpu")
    scores, rows = index.search(asked, 100)
    other = unpack(torch_search(index.query_vectors(asked), index.blocks(700), 100, "cpu", memory=10**6))
    np.testing.assert_allclose(scores, other[0], rtol=1e-4, atol=1e-5)
    assert (rows == other[1]).mean() > 0.999  # neighbours closer than rounding may swap


def test_a_single_query_is_searched_in_numpy_with_the_same_result(
    write_dense: WriteDense, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    index = DenseIndex(write_dense(random.normal(size=(3000, 32)), random.normal(size=(50, 32)), 1000), device="cpu")
    scores, rows = index.search(np.arange(50), 100)
    monkeypatch.setattr("condensery.retrieval.indexes.dense.faiss_search", lambda *_: pytest.fail("FAISS was asked"))
    found = [index.search(np.array([query]), 100) for query in range(50)]
    np.testing.assert_allclose(np.concatenate([score for score, _ in found]), scores, rtol=1e-4, atol=1e-5)
    assert (np.concatenate([row for _, row in found]) == rows).mean() > 0.999


def test_collapsed_vectors_rank_in_row_order(write_dense: WriteDense) -> None:
    folder = write_dense(np.ones((400, 8)), np.ones((3, 8)), 150)
    _, rows = DenseIndex(folder, device="cpu").search(np.arange(3), 20)
    assert rows.tolist() == [list(range(20))] * 3


def test_fewer_passages_than_asked_for_are_padded(write_dense: WriteDense) -> None:
    folder = write_dense(whole_numbers(0, 5, 4), whole_numbers(1, 2, 4), 2)
    scores, rows = DenseIndex(folder, device="cpu").search(np.arange(2), 8)
    assert sorted(rows[0, :5].tolist()) == [0, 1, 2, 3, 4]
    assert (rows[:, 5:] == -1).all()
    assert np.isneginf(scores[:, 5:]).all()


def test_no_query_gives_an_empty_ranking(write_dense: WriteDense) -> None:
    folder = write_dense(whole_numbers(0, 5, 4), whole_numbers(1, 2, 4), 2)
    scores, rows = DenseIndex(folder, device="cpu").search(np.array([], np.int64), 3)
    assert scores.shape == rows.shape == (0, 3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_blocks_and_query_groups_change_nothing(write_dense: WriteDense, dtype: str) -> None:
    passages, queries = whole_numbers(0, 700, 16), whole_numbers(1, 40, 16)
    folder = write_dense(passages, queries, 256, dtype)
    asked = np.array([5, 0, 39, 5])
    scores, rows = DenseIndex(folder, device="cpu").search(asked, 30)
    expected = by_definition(queries[asked], passages, 30)
    np.testing.assert_array_equal(rows, expected[1])
    small = DenseIndex(folder, device="cpu", memory=16_000).search(asked, 30)
    np.testing.assert_array_equal(small[0], scores)
    np.testing.assert_array_equal(small[1], rows)


def test_vectors_written_in_parts_are_searched(write_dense: WriteDense, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    wanted = DenseIndex(write_dense(vectors, vectors[:5], 30), device="cpu").search(np.arange(5), 7)
    written = write_vectors(tmp_path / "written", (vectors[first : first + 40] for first in range(0, 100, 40)))
    assert (len(written), written.dim, written.shards) == (100, 8, [(0, 40), (40, 80), (80, 100)])
    found = DenseIndex(written.folder, device="cpu").search_vectors(vectors[:5], 7)
    np.testing.assert_array_equal(found[1], wanted[1])


@pytest.mark.parametrize(("rows", "width"), [(20, 8), (60, 8), (50, 7)])
def test_a_shard_of_another_shape_is_refused(tmp_path: Path, rows: int, width: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    index = DenseIndex(write_vectors(tmp_path, [vectors[:50], vectors[50:]]).folder, device="cpu")
    np.save(shard_path(tmp_path, 0), np.resize(vectors, (rows, width)))
    with pytest.raises(UserError, match=rf"00000\.npy: its shape \({rows}, {width}\) does not fit index\.json"):
        index.search_vectors(vectors[:3], 5)
    with pytest.raises(UserError, match="does not fit"):
        index.passage_vectors(np.arange(5))


def test_memory_stays_within_the_budget(write_dense: WriteDense) -> None:
    folder = write_dense(np.random.default_rng(0).normal(size=(40_000, 64)), np.ones((200, 64)), 10_000)
    budget = 2_000_000  # the vectors are 10 MB, all scores 32 MB
    index = DenseIndex(folder, device="cpu", memory=budget)
    vectors = index.query_vectors(np.arange(200))
    assert peak_memory(lambda: index.search(np.arange(200), 100)) < 1.5 * budget
    assert peak_memory(lambda: torch_search(vectors, index.blocks(2_000), 100, "cpu", memory=budget)) < 1.5 * budget


def test_open_index_finds_the_method(write_dense: WriteDense, collection: Collection) -> None:
    passages, queries = whole_numbers(0, 60, 4), whole_numbers(1, 12, 4)
    index = open_index(write_dense(passages, queries, 25), collection, device="cpu")
    assert len(index) == 60
    np.testing.assert_array_equal(index.search(np.array([4]), 5)[1], by_definition(queries[[4]], passages, 5)[1])
