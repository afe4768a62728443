"""A retriever whose scores are all known, and a collection for it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from condensery.retrieval.ranking import Ranking, pack, top, unpack
from condensery.system.progress import ProgressTask
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter


class Table:
    """A retriever with the scores (n, m) of all pairs; it is killed after some searches."""

    def __init__(self, scores: Any, alive: int = 99) -> None:
        self.table, self.alive = np.asarray(scores, np.float32), alive

    def __len__(self) -> int:
        return self.table.shape[1]

    def search(self, query_rows: np.ndarray, k: int, progress: ProgressTask | None = None) -> Ranking:
        if self.alive == 0:
            raise KeyboardInterrupt
        self.alive -= 1
        return unpack(top(pack(self.table[query_rows], np.arange(len(self))), k))

    def score(self, query_rows: np.ndarray, passage_rows: np.ndarray) -> np.ndarray:
        found = np.take_along_axis(self.table[query_rows], np.maximum(passage_rows, 0), axis=1)
        return np.where(passage_rows < 0, np.float32(np.nan), found)


def collection_of(folder: Path, positives: Mapping[int, list[int]], passages: int) -> Collection:
    with CollectionWriter(folder, "hand-made") as writer:
        for query, relevant in positives.items():
            for passage in relevant:
                writer.add_judgement("train", f"q{query}", f"p{passage}", 1)
        for passage in range(passages):
            writer.add_passage(Passage(f"p{passage}", "", f"text {passage}"))
        for query in positives:
            writer.add_query(Query(f"q{query}", f"query {query}"))
    return Collection(folder)
