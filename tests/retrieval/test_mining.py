"""Mining: positives out, exact depth, and the same bytes after an interruption."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import peak_memory
from simulated_processes import in_parts

from condensery.retrieval import negatives
from condensery.retrieval.indexes.bm25 import build_bm25
from condensery.retrieval.indexes.interface import CollectionRetriever
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.mining import mine
from condensery.retrieval.negatives import open_negatives, read_negatives
from condensery.retrieval.ranking import Ranking
from condensery.system.progress import ProgressTask
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter


@pytest.fixture
def retriever(write_dense: Callable[..., Path], collection: Collection) -> CollectionRetriever:
    random = np.random.default_rng(2)
    return open_index(
        write_dense(random.normal(size=(60, 6)), random.normal(size=(12, 6)), 25), collection, device="cpu"
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "negatives.jsonl").read_text().splitlines()]


def test_judged_positives_are_left_out_and_the_depth_is_exact(
    tmp_path: Path, retriever: CollectionRetriever, collection: Collection
) -> None:
    summary = mine(retriever, collection, "train", 7, tmp_path / "n", made_by="finetune/1", size=5)
    assert json.loads((tmp_path / "n" / "negatives.json").read_text()) == summary
    assert summary == {"queries": 12, "depth": 7, "split": "train", "made_by": "finetune/1"}
    positives = collection.qrels("train").positives()
    found = lines(tmp_path / "n")
    assert [line["query_id"] for line in found] == [f"q{query}" for query in range(12)]
    left_out = 0
    for query, line in enumerate(found):
        _, rows = retriever.search(np.array([query]), 60)
        ranked = [row for row in rows[0].tolist() if row not in positives[query]]
        left_out += ranked[:7] != rows[0][:7].tolist()
        assert line["negative_ids"] == [f"p{row}" for row in ranked[:7]]
        assert len(line["scores"]) == 7
        assert line["scores"] == sorted(line["scores"], reverse=True)
    assert left_out > 0  # the test means nothing when no positive ranks high


def test_judged_irrelevant_passages_may_be_negatives(
    tmp_path: Path, retriever: CollectionRetriever, collection: Collection
) -> None:
    mine(retriever, collection, "train", 60, tmp_path / "n")
    for query, line in enumerate(lines(tmp_path / "n")):
        assert f"p{59 - query}" in line["negative_ids"]
        assert len(line["negative_ids"]) == 60 - len({query, 2 * query + 1})


def test_skip_top_leaves_out_the_best_after_the_positives(
    tmp_path: Path, retriever: CollectionRetriever, collection: Collection
) -> None:
    mine(retriever, collection, "train", 10, tmp_path / "all")
    mine(retriever, collection, "train", 7, tmp_path / "skipped", skip_top=3)
    for whole, skipped in zip(lines(tmp_path / "all"), lines(tmp_path / "skipped"), strict=True):
        assert skipped["negative_ids"] == whole["negative_ids"][3:]


class Searches:
    """A retriever that tells what it was asked, and is killed after some searches."""

    def __init__(self, retriever: CollectionRetriever, alive: int = 99) -> None:
        self.retriever, self.alive = retriever, alive
        self.searched: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.retriever)

    def search(self, query_rows: np.ndarray, k: int, progress: ProgressTask | None = None) -> Ranking:
        if len(self.searched) == self.alive:
            raise KeyboardInterrupt
        self.searched.append(query_rows.tolist())
        return self.retriever.search(query_rows, k, progress)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("alive", [0, 1, 2])
def test_an_interrupted_folder_keeps_its_whole_shards_and_ends_with_the_same_bytes(
    tmp_path: Path, retriever: CollectionRetriever, collection: Collection, alive: int
) -> None:
    mine(retriever, collection, "train", 7, tmp_path / "whole", size=5)
    with pytest.raises(KeyboardInterrupt):
        mine(Searches(retriever, alive), collection, "train", 7, tmp_path / "n", size=5)
    (tmp_path / "n" / "queries.parts").mkdir(parents=True, exist_ok=True)
    (tmp_path / "n" / "queries.parts" / ".00002.1.tmp").write_bytes(b"torn")
    again = Searches(retriever)
    mine(again, collection, "train", 7, tmp_path / "n", size=5)
    assert again.searched == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]][alive:]
    assert contents(tmp_path / "n") == contents(tmp_path / "whole")


@pytest.mark.parametrize("alive", [0, 1])
def test_several_processes_share_the_shards_and_end_with_the_same_bytes(
    tmp_path: Path, retriever: CollectionRetriever, collection: Collection, alive: int
) -> None:
    whole = mine(retriever, collection, "train", 7, tmp_path / "whole", size=5)
    with pytest.raises(KeyboardInterrupt):
        mine(Searches(retriever, alive), collection, "train", 7, tmp_path / "n", size=5)
    searches = [Searches(retriever), Searches(retriever)]
    found = in_parts(
        2, lambda part: mine(searches[part.rank], collection, "train", 7, tmp_path / "n", size=5, group=part)
    )
    assert found == [whole, None]
    shards = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]][alive:]
    assert [one.searched for one in searches] == [shards[::2], shards[1::2]]
    assert contents(tmp_path / "n") == contents(tmp_path / "whole")


@pytest.mark.parametrize("lost", ["negatives.jsonl", "negatives.json"])
def test_what_was_ranked_is_not_searched_again(
    tmp_path: Path, retriever: CollectionRetriever, collection: Collection, lost: str
) -> None:
    mine(retriever, collection, "train", 7, tmp_path / "n", size=5)
    whole = contents(tmp_path / "n")
    (tmp_path / "n" / lost).unlink()
    again = Searches(retriever)
    mine(again, collection, "train", 7, tmp_path / "n", size=5)
    assert again.searched == []
    assert contents(tmp_path / "n") == whole


def test_shards_do_not_change_what_is_found(
    tmp_path: Path, retriever: CollectionRetriever, collection: Collection
) -> None:
    for size in (1, 5, 12, 100):
        mine(retriever, collection, "train", 7, tmp_path / f"{size}", size=size)
        rows = open_negatives(tmp_path / f"{size}", collection).passage_rows
        np.testing.assert_array_equal(rows, open_negatives(tmp_path / "1", collection).passage_rows)


@pytest.mark.slow
def test_mining_holds_a_shard_and_not_all_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """700 queries x 400 passages are 3.4 MB as rows and scores; a shard of 10 is a seventieth."""
    with CollectionWriter(tmp_path / "c", "many") as writer:
        for query in range(700):
            writer.add_judgement("train", f"q{query}", "p0", 1)
        for passage in range(450):
            writer.add_passage(Passage(f"p{passage}", "", f"text {passage}"))
        for query in range(700):
            writer.add_query(Query(f"q{query}", "query"))

    class Same:
        def __len__(self) -> int:
            return 450

        def search(self, query_rows: np.ndarray, k: int, progress: ProgressTask | None = None) -> Ranking:
            rows = np.tile(np.arange(k), (len(query_rows), 1))
            return -rows.astype(np.float32), rows

    collection = Collection(tmp_path / "c")
    mine(Same(), collection, "train", 1, tmp_path / "first")  # what is imported on the way is not counted
    monkeypatch.setattr(negatives, "WRITTEN", 16)
    peak = peak_memory(lambda: mine(Same(), collection, "train", 400, tmp_path / "n", size=10))
    assert peak < 1_700_000
    assert open_negatives(tmp_path / "n", collection).passage_rows[699].tolist() == list(range(1, 401))


def test_passages_that_hold_an_answer_are_left_out_where_asked(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path / "c", "answers") as writer:
        for query in range(2):
            writer.add_judgement("train", f"q{query}", "p0", 1)
            writer.add_query(Query(f"q{query}", "query", (f"answer {query}",)))
        for passage in range(40):
            writer.add_passage(Passage(f"p{passage}", "", f"the Answer {passage % 3} of {passage}"))

    class Same:
        def __len__(self) -> int:
            return 40

        def search(self, query_rows: np.ndarray, k: int, progress: ProgressTask | None = None) -> Ranking:
            rows = np.tile(np.arange(k), (len(query_rows), 1))
            return -rows.astype(np.float32), rows

    collection = Collection(tmp_path / "c")
    mine(Same(), collection, "train", 6, tmp_path / "n", without_answers=True, skip_top=1)
    found = open_negatives(tmp_path / "n", collection).passage_rows.tolist()
    assert found == [[2, 4, 5, 7, 8, 10], [3, 5, 6, 8, 9, 11]]


def test_mined_negatives_read_back(tmp_path: Path, retriever: CollectionRetriever, collection: Collection) -> None:
    mine(retriever, collection, "train", 7, tmp_path / "n")
    found = open_negatives(tmp_path / "n", collection)
    assert found.query_rows.tolist() == list(range(12))
    assert found.passage_rows.dtype == np.int32
    names = [[f"p{row}" for row in rows] for rows in found.passage_rows.tolist()]
    assert names == [line["negative_ids"] for line in lines(tmp_path / "n")]
    exchanged = read_negatives(tmp_path / "n" / "negatives.jsonl", collection)
    np.testing.assert_array_equal(exchanged.passage_rows, found.passage_rows)
    assert found.scores is not None
    for line, scores in zip(lines(tmp_path / "n"), found.scores, strict=True):
        np.testing.assert_allclose(line["scores"], scores, rtol=1e-5)


def test_bm25_mines_what_it_finds(tmp_path: Path, collection: Collection) -> None:
    build_bm25(collection, tmp_path / "i", 0.9, 0.4)
    index = open_index(tmp_path / "i", collection)
    mine(index, collection, "train", 59, tmp_path / "n")
    found = open_negatives(tmp_path / "n", collection)
    _, rows = index.search(np.arange(12), 60)
    positives = collection.qrels("train").positives()
    expected = [sum(row >= 0 and row not in positives[query] for row in rows[query].tolist()) for query in range(12)]
    assert found.counts.tolist() == expected
    assert (found.counts < 58).any()  # some passages share no word with the query
