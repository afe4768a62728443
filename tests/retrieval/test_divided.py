"""Exact search in parts of the passages: the bits of one search, shared by processes or tasks, and kept by a restart."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_processes import in_parts

from condensery.retrieval.cross_encoders import search_candidates
from condensery.retrieval.indexes import divided
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.divided import divide
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.indexes.own_passages import WithoutOwn
from condensery.retrieval.mining import mine
from condensery.retrieval.shards import rank_in_shards
from condensery.sharing import SINGLE_PROCESS, NotRankZero, ProcessGroup, ShardsLeft, ShardTask, TaskGroup
from condensery.system.progress import SILENT
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

PASSAGES, QUERIES, DIM, SHARD = 500, 40, 12, 30
ALL = np.arange(QUERIES)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """Passages and queries; query 3 is passage 7, and so does not find it."""
    folder = tmp_path_factory.mktemp("collection")
    names = ["same" if query == 3 else f"q{query}" for query in range(QUERIES)]
    with CollectionWriter(folder, "numbers") as writer:
        for query, name in enumerate(names):
            writer.add_judgement("train", name, f"p{10 + query}", 1)
        for passage in range(PASSAGES):
            writer.add_passage(Passage("same" if passage == 7 else f"p{passage}", "", f"the number {passage}"))
        for query, name in enumerate(names):
            writer.add_query(Query(name, "the number 7" if query == 3 else f"what is {query}"))
    return Collection(folder)


@pytest.fixture
def folder(write_dense: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index whose parts have three or four shards each; half of all scores are ties."""
    monkeypatch.setattr(divided, "PART", 100)
    random = np.random.default_rng(0)
    passages = np.tile(random.integers(-3, 4, (PASSAGES // 2, DIM)), (2, 1)) / 7
    return write_dense(passages.astype(np.float32), random.normal(size=(QUERIES, DIM)), SHARD)


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def evaluated(
    folder: Path, collection: Collection, target: Path, group: ProcessGroup = SINGLE_PROCESS, device: str = "cpu"
) -> None:
    """Rank all queries as the stage evaluate does."""
    retriever = open_index(folder, collection, device=device)
    divide(retriever, ALL, 20, target / "queries.npy", "x", group)
    rank_in_shards(lambda rows, task: retriever.search(rows, 20, task), ALL, target, "x", group=group)


def plain(folder: Path, collection: Collection, target: Path) -> dict[str, bytes]:
    retriever = open_index(folder, collection, device="cpu")
    rank_in_shards(lambda rows, task: retriever.search(rows, 20, task), ALL, target, "x")
    return files(target)


def without_found(target: Path) -> dict[str, bytes]:
    return {name: content for name, content in files(target).items() if not name.startswith("queries.found")}


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_processes_that_share_passages_find_the_bits_of_one_search(
    processes: int, folder: Path, collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = plain(folder, collection, tmp_path / "plain")
    search, searched = DenseIndex.search_vectors, list[slice]()

    def noted(index: DenseIndex, vectors: Any, k: int, progress: Any = SILENT, rows: slice | None = None) -> Any:
        assert k == 21, "one deeper, as a query is a passage"
        assert rows is not None
        searched.append(rows)
        return search(index, vectors, k, progress, rows)

    monkeypatch.setattr(DenseIndex, "search_vectors", noted)
    in_parts(processes, lambda group: evaluated(folder, collection, tmp_path / "parts", group))
    assert without_found(tmp_path / "parts") == wanted
    edges = sorted((rows.start, rows.stop) for rows in searched)
    assert edges == [(0, 120), (120, 210), (210, 300), (300, 420), (420, 500)], "whole shards, each searched once"


def test_torch_searches_parts_to_the_same_bits(folder: Path, collection: Collection, tmp_path: Path) -> None:
    index = open_index(folder, collection, device="meta")  # torch's way, on the CPU
    assert isinstance(index, WithoutOwn)
    assert isinstance(index.retriever, DenseIndex)
    index.retriever.device = "cpu:0"
    wanted = index.search(ALL, 20)
    divide(index, ALL, 20, tmp_path / "queries.npy", "x", SINGLE_PROCESS)
    assert (tmp_path / "queries.found").exists()
    for found, other in zip(index.search(ALL, 20), wanted, strict=True):
        np.testing.assert_array_equal(found, other)


def test_tasks_anywhere_at_any_time_do_the_same(folder: Path, collection: Collection, tmp_path: Path) -> None:
    wanted = plain(folder, collection, tmp_path / "plain")

    def run(task: ShardTask) -> None:
        evaluated(folder, collection, tmp_path / "tasks", TaskGroup.of(task))

    with pytest.raises(ShardsLeft) as left:
        run(ShardTask())
    agreed = left.value.agreed
    assert agreed[-1] == [0, 1, 2, 3, 4]
    for shard in (3, 0, 4, 2, 1):
        with pytest.raises(NotRankZero):
            run(ShardTask(agreed, [shard]))
    run(ShardTask([*agreed[:-1], agreed[-1]]))
    assert without_found(tmp_path / "tasks") == wanted


def test_a_restart_keeps_the_parts(
    folder: Path, collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = plain(folder, collection, tmp_path / "plain")
    search, begun = DenseIndex.search_vectors, []

    def dies(index: DenseIndex, vectors: Any, k: int, progress: Any = SILENT, rows: slice | None = None) -> Any:
        begun.append(rows)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return search(index, vectors, k, progress, rows)

    monkeypatch.setattr(DenseIndex, "search_vectors", dies)
    with pytest.raises(KeyboardInterrupt):
        evaluated(folder, collection, tmp_path / "parts")
    evaluated(folder, collection, tmp_path / "parts")
    assert len(begun) == 5 + 1, "the part that was interrupted is searched again, and no other"
    assert without_found(tmp_path / "parts") == wanted
    evaluated(folder, collection, tmp_path / "parts")
    assert len(begun) == 5 + 1, "once all are ranked, nothing is searched"


def test_another_depth_and_other_queries_are_searched_as_before(
    folder: Path, collection: Collection, tmp_path: Path
) -> None:
    retriever, fresh = (open_index(folder, collection, device="cpu") for _ in range(2))
    divide(retriever, ALL[:20], 20, tmp_path / "queries.npy", "x", SINGLE_PROCESS)
    for rows, k in ((ALL[:20], 20), (ALL[5:9], 20), (ALL[:20], 33), (ALL, 20)):
        for found, other in zip(retriever.search(rows, k), fresh.search(rows, k), strict=True):
            np.testing.assert_allclose(found, other, rtol=1e-6)


@pytest.mark.parametrize("processes", [1, 3])
def test_candidates_and_negatives_are_those_of_one_search(
    processes: int, folder: Path, collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(target: Path, group: ProcessGroup) -> None:
        retriever = open_index(folder, collection, device="cpu")
        search_candidates(retriever, ALL, 15, target / "candidates" / "candidates.npy", "x", group)
        mine(retriever, collection, "train", 10, target / "mined", group=group)

    with monkeypatch.context() as large:
        large.setattr(divided, "PART", 10**6)
        work(tmp_path / "plain", SINGLE_PROCESS)
    parts = list[int]()
    compute = divided.compute_in_shards
    monkeypatch.setattr(
        divided, "compute_in_shards", lambda *given, **named: parts.append(given[1]) or compute(*given, **named)
    )
    in_parts(processes, lambda group: work(tmp_path / "parts", group))
    assert parts == [5] * 2 * processes
    assert files(tmp_path / "parts") == files(tmp_path / "plain"), "and nothing is left of the parts"
