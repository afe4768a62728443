"""Fusion: joined by hand and by ours, whatever the order of the retrievers; how weights are chosen; damaged files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from damage import MORE
from hypothesis import given
from hypothesis import strategies as st

from condensery.errors import UserError
from condensery.retrieval.indexes import fusion
from condensery.retrieval.indexes.bm25 import BM25Index, build_bm25
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.fusion import FusedIndex, best_point, measure_grid, min_max, weight_grid
from condensery.retrieval.indexes.interface import recall_of
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.ranking import Ranking
from condensery.system.files import read_json, write_json
from condensery.system.progress import ProgressTask, progress
from condensery.text.collection import Collection

PASSAGES = 50
Lists = list[dict[int, float]]  # for each query its passages and their scores


class Listed:
    """A retriever that finds what it was given."""

    def __init__(self, queries: Lists) -> None:
        self.queries, self.asked = queries, 0

    def __len__(self) -> int:
        return PASSAGES

    def search(self, query_rows: np.ndarray, k: int, progress: ProgressTask | None = None) -> Ranking:
        self.asked += 1
        scores, rows = np.full((len(query_rows), k), -np.inf, np.float32), np.full((len(query_rows), k), -1, np.int64)
        for i, query in enumerate(query_rows.tolist()):
            best = sorted(self.queries[query].items(), key=lambda one: (-one[1], one[0]))[:k]
            rows[i, : len(best)], scores[i, : len(best)] = [row for row, _ in best], [score for _, score in best]
        return scores, rows


def by_hand(lists: Sequence[dict[int, float]], weights: Sequence[float], method: str, depth: int) -> dict[int, float]:
    """The fused scores of one query, in plain Python."""
    total: dict[int, float] = {}
    for query, weight in zip(lists, weights, strict=True):
        best = sorted(query.items(), key=lambda one: (-one[1], one[0]))[:depth]
        for rank, (row, score) in enumerate(best, 1):
            lowest, highest = best[-1][1], best[0][1]
            scaled = (score - lowest) / (highest - lowest) if highest > lowest else 1.0
            if weight:
                total[row] = total.get(row, 0.0) + weight * (scaled if method == "weighted" else 1 / (60 + rank))
    return total


def found(ranking: Ranking, query: int = 0) -> list[int]:
    rows = ranking[1][query]
    return [row for row in rows.tolist() if row >= 0]


LEXICAL, DENSE = {1: 9.0, 2: 5.0, 3: 1.0}, {4: 0.8, 2: 0.7, 1: 0.6}


def test_weighted_scores_are_the_ones_worked_out_by_hand() -> None:
    scores, rows = FusedIndex([Listed([LEXICAL]), Listed([DENSE])], [0.6, 0.4], 10).search(np.array([0]), 6)
    # 1: 0.6 * 1 + 0.4 * 0; 2: 0.6 * 0.5 + 0.4 * 0.5; 4: 0.4 * 1; 3: the last of the first and not found by the second
    assert rows.tolist() == [[1, 2, 4, 3, -1, -1]]
    np.testing.assert_allclose(scores[0, :4], [0.6, 0.5, 0.4, 0.0], atol=1e-6)
    assert np.isneginf(scores[0, 4:]).all()
    assert (scores.dtype, rows.dtype) == (np.float32, np.int64)


def test_reciprocal_ranks_are_the_ones_worked_out_by_hand() -> None:
    index = FusedIndex([Listed([LEXICAL]), Listed([DENSE])], [1, 1], 10, "reciprocal_rank", 60)
    scores, rows = index.search(np.array([0]), 4)
    assert rows.tolist() == [[1, 2, 4, 3]]
    np.testing.assert_allclose(scores[0], [1 / 61 + 1 / 63, 2 / 62, 1 / 61, 1 / 63], rtol=1e-6)
    steep = FusedIndex([Listed([LEXICAL]), Listed([DENSE])], [1, 1], 10, "reciprocal_rank", 0)
    np.testing.assert_allclose(steep.search(np.array([0]), 4)[0][0], [4 / 3, 1, 1, 1 / 3], rtol=1e-6)


def test_equal_scores_are_ordered_by_row_and_what_is_found_stands_before_what_is_not() -> None:
    crossed = FusedIndex([Listed([{8: 2.0, 3: 1.0}]), Listed([{3: 2.0, 8: 1.0}])], [1, 1], 10)
    assert found(crossed.search(np.array([0]), 5)) == [3, 8]
    single = FusedIndex([Listed([{7: 3.0}]), Listed([{2: 1.0, 5: 0.5}])], [0.5, 0.5], 10)
    assert found(single.search(np.array([0]), 5)) == [2, 7, 5], "the only candidate counts as the best, not as the last"


def test_scores_are_brought_to_0_to_1_of_each_query_by_itself() -> None:
    scores = np.array([[3.0, -1.0, -np.inf], [2.0, 2.0, -np.inf], [-np.inf] * 3], np.float32)
    values = min_max((scores, np.array([[5, 6, -1], [5, 6, -1], [-1, -1, -1]])))
    assert values.tolist() == [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]


scored = st.dictionaries(
    st.integers(0, PASSAGES - 1), st.integers(-40, 40).map(lambda number: number / 8), min_size=0, max_size=12
)


@MORE
@given(
    st.data(),
    st.integers(2, 4),
    st.integers(1, 5),
    st.integers(1, 15),
    st.sampled_from(["weighted", "reciprocal_rank"]),
)
def test_it_is_the_plain_sum_whatever_the_order_of_the_retrievers(
    data: st.DataObject, members: int, queries: int, depth: int, method: str
) -> None:
    lists = [[data.draw(scored) for _ in range(queries)] for _ in range(members)]
    weights = data.draw(
        st.lists(st.integers(0, 10).map(lambda n: n / 10), min_size=members, max_size=members).filter(any)
    )
    index = FusedIndex([Listed(one) for one in lists], weights, depth, method)
    asked = np.arange(queries)
    scores, rows = index.search(asked, 60)
    for query in range(queries):
        wanted = by_hand([one[query] for one in lists], weights, method, depth)
        got = dict(zip(rows[query].tolist(), scores[query].tolist(), strict=True))
        got.pop(-1, None)
        assert got.keys() == wanted.keys()
        assert [got[row] for row in wanted] == pytest.approx(list(wanted.values()), abs=1e-5)
        own = found((scores, rows), query)
        assert own == sorted(own, key=lambda row: (-got[row], row))
        assert rows[query].tolist() == own + [-1] * (60 - len(own))
    order = data.draw(st.permutations(range(members)))
    other = FusedIndex([Listed(lists[i]) for i in order], [weights[i] for i in order], depth, method)
    for one, same in zip((scores, rows), other.search(asked, 60), strict=True):
        np.testing.assert_array_equal(one, same)
    for one, fewer in zip((scores, rows), index.search(asked, 3), strict=True):
        np.testing.assert_array_equal(one[:, :3], fewer)


@pytest.fixture
def members(collection: Collection, tmp_path: Path, write_dense: object) -> list[BM25Index | DenseIndex]:
    random = np.random.default_rng(2)
    vectors = random.normal(size=(60, 4)), random.normal(size=(12, 4))
    build_bm25(collection, tmp_path / "bm25", k1=0.9, b=0.4)
    dense = DenseIndex(write_dense(*vectors, shard=25), device="cpu")  # type: ignore[operator]
    return [BM25Index(tmp_path / "bm25", collection), dense]


@pytest.mark.parametrize("member", [0, 1])
def test_all_the_weight_on_one_retriever_is_that_retriever(
    member: int, members: list[BM25Index | DenseIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, weights = np.array([3, 0, 7, 11, 3]), [float(member == i) for i in range(2)]
    wanted = members[member].search(asked, 20)[1]
    for method in ("weighted", "reciprocal_rank"):
        index = FusedIndex(members, weights, 20, method)
        np.testing.assert_array_equal(index.search(asked, 20)[1], wanted)
        np.testing.assert_array_equal(FusedIndex([index, members[0]], [1, 0], 20).search(asked, 20)[1], wanted)
    monkeypatch.setattr(fusion, "QUERIES", 2)
    monkeypatch.setattr(fusion, "VALUES", 1)
    np.testing.assert_array_equal(index.search(asked, 20)[1], wanted)


def test_blocks_and_depth_bound_the_work_and_change_nothing(
    members: list[BM25Index | DenseIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = FusedIndex(members, [0.3, 0.7], 15)
    with progress("fuse", 12, "queries") as task:
        whole = index.search(np.arange(12), 10, task)
    monkeypatch.setattr(fusion, "QUERIES", 5)
    monkeypatch.setattr(fusion, "VALUES", 2 * 30 * 2)
    assert [len(joined.rows) for _, joined in index.candidates(index.rankings(np.arange(5)))] == [2, 2, 1]
    for one, other in zip(whole, index.search(np.arange(12), 10), strict=True):
        np.testing.assert_array_equal(one, other)
    deeper = [member.search(np.arange(12), 40) for member in members]
    np.testing.assert_array_equal(index.combine(deeper, 10)[1], whole[1])  # what lies below the depth is left out
    assert len(index) == 60
    assert index.search(np.empty(0, np.int64), 4)[1].shape == (0, 4)
    assert FusedIndex(members, [1, 1], 1000).search(np.arange(2), 100)[1].shape == (2, 100)


def test_the_grid_is_every_share_and_its_best_point_the_evenest_of_the_highest() -> None:
    assert weight_grid(2, 4).tolist() == [[0, 1], [0.25, 0.75], [0.5, 0.5], [0.75, 0.25], [1, 0]]
    three = weight_grid(3, 10)
    assert len(three) == 66
    assert len(np.unique(three, axis=0)) == 66
    np.testing.assert_allclose(three.sum(axis=1), 1)
    grid = weight_grid(2, 4)
    assert best_point(grid, np.array([0.1, 0.2, 0.3, 0.4, 0.1])) == 3
    assert best_point(grid, np.array([0.4, 0.2, 0.3, 0.4, 0.1])) == 3, "nearer to equal weights"
    assert best_point(grid, np.array([0.1, 0.4, 0.3, 0.4, 0.1])) == 1, "as near: the first"


def test_every_point_is_measured_as_a_search_with_its_weights_and_each_retriever_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(5)

    def lists() -> Listed:
        drawn = [random.permutation(PASSAGES)[:8].tolist() for _ in range(7)]
        return Listed([dict(zip(rows, random.normal(size=8).tolist(), strict=True)) for rows in drawn])

    members, asked = [lists(), lists()], np.array([0, 2, 3, 6])

    def measure(rows: np.ndarray, passages: np.ndarray) -> np.ndarray:
        assert passages.shape == (len(rows), 3)
        return (passages * [1.0, 0.1, 0.01]).sum(axis=1) + rows

    monkeypatch.setattr(fusion, "VALUES", 2 * 16 * 3)  # three queries at a time
    grid = weight_grid(2, 5)
    with progress("fuse", 4, "queries") as task:
        values = measure_grid(FusedIndex(members, [0, 1], 8), asked, grid, measure, 3, task)
    assert [member.asked for member in members] == [1, 1]
    for weights, value in zip(grid, values, strict=True):
        single = FusedIndex(members, weights.tolist(), 8).search(asked, 3)[1]
        assert value == pytest.approx(measure(asked, single).mean())


def test_an_artifact_opens_with_its_members_beside_it(
    collection: Collection, members: list[BM25Index | DenseIndex], tmp_path: Path
) -> None:
    store, index = tmp_path / "store", FusedIndex(members, [0.25, 0.75], 30)
    for name, folder in (("bm25/a", "bm25"), ("encode/b", "dense")):
        (store / name).parent.mkdir(parents=True)
        (store / name).symlink_to(tmp_path / folder)
    fusion.write_fused(store / "fuse" / "c", index, ["bm25/a", "encode/b"], None)
    fusion.write_fused(store / "fuse" / "d", FusedIndex([index, members[0]], [1, 2], 9), ["fuse/c", "bm25/a"], None)
    opened = open_index(store / "fuse" / "c", collection, device="cpu")
    assert isinstance(opened, FusedIndex)
    assert (opened.depth, opened.weights.tolist(), opened.method) == (30, [0.25, 0.75], "weighted")
    np.testing.assert_array_equal(opened.search(np.arange(12), 9)[1], index.search(np.arange(12), 9)[1])
    (tmp_path / "link").symlink_to(store / "fuse" / "d")
    nested = open_index(tmp_path / "link", collection, device="cpu")
    wanted = FusedIndex([index, members[0]], [1, 2], 9).search(np.arange(12), 9)[1]
    np.testing.assert_array_equal(nested.search(np.arange(12), 9)[1], wanted)

    path = store / "fuse" / "c" / "index.json"
    write_json(path, {**read_json(path), "members": ["../../other"]})
    with pytest.raises(UserError, match=r"index\.json: '\.\./\.\./other' does not name a file or folder in"):
        open_index(path.parent, collection, device="cpu")
    write_json(path, {**read_json(path), "fusion": "mean"})
    with pytest.raises(UserError, match=r"index\.json: unknown fusion 'mean', expected weighted or reciprocal_rank"):
        open_index(path.parent, collection, device="cpu")


def test_what_an_approximate_member_misses_is_told_of_the_whole(members: list[BM25Index | DenseIndex]) -> None:
    class Approximate(Listed):
        recall = 0.5

    assert recall_of(FusedIndex(members, [1, 1], 9), "x") == {}
    assert recall_of(FusedIndex([*members, Approximate([]), Listed([])], [1] * 4, 9), "x") == {"recall_of_exact": 0.5}
