"""Mining: positives out, exact depth, and the same bytes after an interruption."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from condensery.progress import Task
from condensery.retrieval.bm25 import build_bm25
from condensery.retrieval.index import Retriever, open_index
from condensery.retrieval.mining import mine, read_negatives
from condensery.retrieval.ranking import Ranking
from condensery.text.collection import Collection


@pytest.fixture
def retriever(write_dense: Callable[..., Path], collection: Collection) -> Retriever:
    random = np.random.default_rng(2)
    return open_index(
        write_dense(random.normal(size=(60, 6)), random.normal(size=(12, 6)), 25), collection, device="cpu"
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_judged_positives_are_left_out_and_the_depth_is_exact(
    tmp_path: Path, retriever: Retriever, collection: Collection
) -> None:
    summary = mine(retriever, collection, "train", 7, tmp_path / "n.jsonl", block=5)
    assert summary == {"queries": 12, "depth": 7}
    positives = collection.qrels("train").positives()
    found = lines(tmp_path / "n.jsonl")
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
    tmp_path: Path, retriever: Retriever, collection: Collection
) -> None:
    mine(retriever, collection, "train", 60, tmp_path / "n.jsonl")
    for query, line in enumerate(lines(tmp_path / "n.jsonl")):
        assert f"p{59 - query}" in line["negative_ids"]
        assert len(line["negative_ids"]) == 60 - len({query, 2 * query + 1})


def test_skip_top_leaves_out_the_best_after_the_positives(
    tmp_path: Path, retriever: Retriever, collection: Collection
) -> None:
    mine(retriever, collection, "train", 10, tmp_path / "all.jsonl")
    mine(retriever, collection, "train", 7, tmp_path / "skipped.jsonl", skip_top=3)
    for whole, skipped in zip(lines(tmp_path / "all.jsonl"), lines(tmp_path / "skipped.jsonl"), strict=True):
        assert skipped["negative_ids"] == whole["negative_ids"][3:]


@pytest.mark.parametrize("kept", [0, 1, 100, 0.31, 0.5, 0.77, 0.999, 1.0])
def test_a_torn_file_is_continued_to_the_same_bytes(
    tmp_path: Path, retriever: Retriever, collection: Collection, kept: float
) -> None:
    path = tmp_path / "n.jsonl"
    mine(retriever, collection, "train", 7, path, block=5)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    mine(retriever, collection, "train", 7, path, block=5)
    assert path.read_bytes() == whole


def test_whole_blocks_are_not_searched_again(tmp_path: Path, retriever: Retriever, collection: Collection) -> None:
    class Counting:
        def __init__(self) -> None:
            self.searched: list[list[int]] = []

        def __len__(self) -> int:
            return len(retriever)

        def search(self, query_rows: np.ndarray, k: int, progress: Task | None = None) -> Ranking:
            self.searched.append(query_rows.tolist())
            return retriever.search(query_rows, k, progress)

    path = tmp_path / "n.jsonl"
    mine(retriever, collection, "train", 7, path, block=5)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:7]))
    counting = Counting()
    mine(counting, collection, "train", 7, path, block=5)
    assert counting.searched == [[5, 6, 7, 8, 9], [10, 11]]


def test_mined_negatives_read_back(tmp_path: Path, retriever: Retriever, collection: Collection) -> None:
    mine(retriever, collection, "train", 7, tmp_path / "n.jsonl")
    negatives = read_negatives(tmp_path / "n.jsonl", collection)
    assert negatives.query_rows.tolist() == list(range(12))
    assert negatives.passage_rows.dtype == np.int32
    names = [[f"p{row}" for row in rows] for rows in negatives.passage_rows.tolist()]
    assert names == [line["negative_ids"] for line in lines(tmp_path / "n.jsonl")]


def test_bm25_mines_what_it_finds(tmp_path: Path, collection: Collection) -> None:
    build_bm25(collection, tmp_path / "i", 0.9, 0.4)
    index = open_index(tmp_path / "i", collection)
    mine(index, collection, "train", 59, tmp_path / "n.jsonl")
    negatives = read_negatives(tmp_path / "n.jsonl", collection)
    _, rows = index.search(np.arange(12), 60)
    positives = collection.qrels("train").positives()
    expected = [sum(row >= 0 and row not in positives[query] for row in rows[query].tolist()) for query in range(12)]
    assert negatives.counts.tolist() == expected
    assert (negatives.counts < 58).any()  # some passages share no word with the query
