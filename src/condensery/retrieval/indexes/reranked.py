"""Store and search an index of the rankings of some queries: reranked candidates, or the rankings of a run file."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.retrieval.ranking import Ranking, ordered, scores_in
from condensery.system.files import load_array, read_json, save_array, write_json
from condensery.system.progress import SILENT, ProgressTask
from condensery.text.collection import Collection

Rows = NDArray[np.integer]
Scores = NDArray[np.float32]


class RerankedIndex:
    """A retriever that stores the rankings of some queries, and can search only for these queries.

    A ranking holds reranked candidates, or the passages of a run file. ``index.json`` says which of the two.
    """

    def __init__(self, folder: Path, collection: Collection) -> None:
        self.folder, self.collection = folder, collection
        self.about: dict[str, Any] = read_json(folder / "index.json")
        self.query_rows = load_array(folder / "queries.npy")
        self.candidates = load_array(folder / "candidates.npy", mapped=True)
        self.scores = load_array(folder / "scores.npy", mapped=True)

    def __len__(self) -> int:
        return int(self.about["passages"])

    def search(self, query_rows: Rows, k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best candidates of queries, as ``CollectionRetriever.search``. Only candidates are returned.

        Raises ``UserError`` for a query that was not reranked.
        """
        place = self._places(query_rows)
        progress.advance(len(place))
        return ordered(self.scores[place], self.candidates[place], k)

    def score(self, query_rows: Rows, passage_rows: Rows) -> Scores:
        """Return the reranker's scores (n, k) of passages (n, k); NaN for passages that were not reranked.

        Raises ``UserError`` for a query that was not reranked.
        """
        place = self._places(query_rows)
        return scores_in((self.scores[place], self.candidates[place]), passage_rows, otherwise=np.nan)

    def _places(self, query_rows: Rows) -> NDArray[np.integer]:
        """Return the indices of queries (n,) among the reranked queries."""
        place = np.minimum(np.searchsorted(self.query_rows, query_rows), len(self.query_rows) - 1)
        strange = np.flatnonzero(self.query_rows[place] != query_rows)
        if len(strange):
            name = self.collection.queries.column("id")[int(query_rows[strange[0]])]
            done, does = ("read", "reads the run") if self.about["method"] == "run" else ("reranked", "reranks")
            raise UserError(
                f"{self.folder}: query {shown(name)!r} was not {done} (only those of the split {self.about['split']!r} were);"
                f" set the key split of the stage that {does}"
            )
        return place


def write_reranked(
    folder: Path, collection: Collection, query_rows: Rows, depth: int, split: str, method: str = "rerank"
) -> dict[str, Any]:
    """Write queries.npy and index.json into ``folder``, which already holds candidates.npy and scores.npy.

    ``method``: ``rerank``, or ``run`` for the rankings of a run file. Returns the content of ``index.json``.
    """
    save_array(folder / "queries.npy", query_rows)
    about = {"method": method, "passages": len(collection.passages), "split": split}
    about |= {"queries": len(query_rows), "depth": depth}
    write_json(folder / "index.json", about)
    return about
