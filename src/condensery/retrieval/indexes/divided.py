"""Exact search in parts of the passages, for few queries over a collection that takes long to read.

Several processes share the parts (``condensery.sharing``), on any device and node, and a restart keeps complete parts. The
best passages of each query are then merged. The results equal those of one search over all passages, to the last bit. The
reason is that every search reads the vectors shard by shard, and a part consists of whole shards.

Shapes: n queries, k results, p parts.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.interface import CollectionRetriever
from condensery.retrieval.indexes.own_passages import WithoutOwn
from condensery.retrieval.ranking import Ranking, ordered
from condensery.retrieval.shards import SHARD, compute_in_shards
from condensery.sharing import ProcessGroup
from condensery.system.files import load_array
from condensery.system.progress import ProgressTask

PART = 2**20  # passages per part, rounded to whole shards of vectors


def shared_search(about: dict[str, Any], queries: int) -> bool:
    """Return whether processes can share a search. The search must be exact, and have many queries or many passages.

    ``about``: content of the index's ``index.json``. If passages have several windows, processes share only the queries.
    """
    return about.get("method") == "dense" and (queries > SHARD or ("windows" not in about and about["passages"] > PART))


def divide(
    retriever: CollectionRetriever, query_rows: NDArray[np.integer], k: int, path: Path, label: str, group: ProcessGroup
) -> None:
    """Search a large exact index part by part for the ``k`` best passages of queries (n,), and store the results.

    After that, ``retriever`` ranks these queries at this depth from the stored results. Nothing happens for any other
    retriever. Nothing happens for more than ``SHARD`` queries either, because processes then share the queries.

    Args:
        retriever: retriever from ``open_index``.
        query_rows: int (n,), rows of the queries, ascending.
        k: number of passages per query.
        path: file that the caller writes as soon as all queries are ranked. If this file exists, nothing is searched. The
            results are stored beside it, in ``path.with_suffix(".found")``, which the caller removes.
        label: label of the progress bar.
        group: the processes that share the parts.
    """
    index = retriever.retriever if isinstance(retriever, WithoutOwn) else None
    if not isinstance(index, DenseIndex) or len(query_rows) > SHARD or not shared_search(index.about, len(query_rows)):
        return
    assert isinstance(retriever, WithoutOwn)
    if group.from_rank_zero(path.exists):
        return
    folder, depth = path.with_suffix(".found"), retriever.depth(retriever.own(query_rows), k)
    firsts: dict[int, int] = {}  # index of the part -> its first row
    for first, _ in index.shards:
        firsts.setdefault(first // PART, first)
    edges = [*firsts.values(), len(index)]

    def work(part: slice, task: ProgressTask) -> dict[str, NDArray[Any]]:
        rows = slice(edges[part.start], edges[part.stop])
        scores, passages = index.search_vectors(index.query_vectors(query_rows), depth, rows=rows)
        task.advance(amount(part))
        return {"scores": scores[None], "passages": passages[None].astype(np.int32)}

    def amount(part: slice) -> int:
        return edges[part.stop] - edges[part.start]

    def merged(wanted: NDArray[np.integer], k: int) -> Ranking | None:
        if k != depth or not np.isin(wanted, query_rows).all():
            return None
        places = np.searchsorted(query_rows, wanted)
        best = np.empty((len(places), 0), np.float32), np.empty((len(places), 0), np.int64)
        parts = (load_array(folder / f"{name}.npy", mapped=True) for name in ("scores", "passages"))  # (p, n, k)
        for scores, passages in zip(*parts, strict=True):
            best = ordered(np.hstack([best[0], scores[places]]), np.hstack([best[1], passages[places]]), k)
        return best

    found = folder / "scores.npy"
    compute_in_shards(work, len(firsts), found, label, size=1, group=group, unit="passages", amount=amount)
    index.ranked = merged
