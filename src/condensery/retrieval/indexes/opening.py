"""Open the folder of an index as a retriever. The file ``index.json`` in the folder names the kind of the index.

The kinds are BM25 postings, dense vectors, an approximate index of dense vectors, the rankings of some queries (reranked
candidates, or a run file), several fused indexes, and kinds that other packages register (``kinds``). An open index can be
searched with queries of its collection. Unless it holds the rankings of some queries, it can also be searched with any other
query string.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.retrieval.indexes.interface import MEMORY, CollectionRetriever
from condensery.retrieval.indexes.kinds import opener_of
from condensery.retrieval.indexes.own_passages import WithoutOwn
from condensery.retrieval.ranking import Ranking
from condensery.system.files import read_json
from condensery.system.progress import progress
from condensery.text.collection import Collection

Encode = Callable[[Sequence[str]], NDArray[np.floating]]  # n texts -> query vectors (n, d)
ASKED = 256  # texts per search
Search = Callable[[Sequence[str], int], Ranking]  # n texts, k -> scores and rows (n, k) of the best passages


def open_index(
    folder: Path,
    collection: Collection,
    threads: int = 1,
    memory: int = MEMORY,
    device: str | None = None,
    own_by_id: bool = False,
) -> CollectionRetriever:
    """Open the retriever of an index folder. A query's own passage is left out of its results.

    Args:
        folder: folder of the index.
        collection: the collection from which the index was built.
        threads: CPU threads.
        memory: maximum memory of a dense search in bytes.
        device: device of dense indexes; None = the GPU if there is one.
        own_by_id: a query's own passage is the passage with the query's id, whatever its text (``own_passages``).

    Raises:
        UserError: the folder holds no index, or an index of another collection.
    """
    about: dict[str, Any] = read_json(folder / "index.json")
    if about.get("passages") != len(collection.passages):
        raise UserError(
            f"{folder}: the index holds {about.get('passages')} passages, the collection '{collection.name}' has "
            f"{len(collection.passages)}; build the index again"
        )
    if about.get("method") == "fused":
        from condensery.retrieval.indexes.fusion import open_fused

        # The members leave out own passages, whose scores would otherwise change the members' minima and maxima.
        return open_fused(folder, lambda member: open_index(member, collection, threads, memory, device, own_by_id))
    return WithoutOwn(_single(folder, about, collection, threads, memory, device), collection, own_by_id)


def _single(
    folder: Path, about: dict[str, Any], collection: Collection, threads: int, memory: int, device: str | None
) -> CollectionRetriever:
    """Open an index of any kind except a fused index."""
    # Imported here, so that a BM25 search does not wait for FAISS.
    if about.get("method") == "bm25":
        from condensery.retrieval.indexes.bm25 import BM25Index

        return BM25Index(folder, collection, threads)
    if about.get("method") == "dense":
        from condensery.retrieval.indexes.dense import DenseIndex

        return DenseIndex(folder, threads=threads, memory=memory, device=device)
    if about.get("method") == "approximate":
        from condensery.retrieval.indexes.ann import ApproximateIndex
        from condensery.retrieval.indexes.dense import DenseIndex

        vectors = DenseIndex(folder.parents[1] / about["vectors"], threads, memory, device)
        return ApproximateIndex(folder, vectors, threads)
    if about.get("method") in ("rerank", "run"):
        from condensery.retrieval.indexes.reranked import RerankedIndex

        return RerankedIndex(folder, collection)
    if opened := opener_of(str(about.get("method"))):
        return opened(folder, collection, threads, memory, device)
    known = "bm25, dense, approximate, rerank, run or fused"
    raise UserError(f"{folder / 'index.json'}: unknown method {shown(str(about.get('method')))!r}, expected {known}")


def search_of_texts(retriever: Any, encoder_of: Callable[[Path], Encode]) -> Search:
    """Return a function that searches a retriever with any query strings.

    - A fused retriever (with ``members``, ``depth`` and ``combine``) searches each member at depth ``depth``.
    - BM25 (``search_texts``) searches with the strings.
    - A dense retriever (``search_vectors``) searches with the encoded strings.

    Args:
        retriever: any retriever from ``open_index`` that does not hold the rankings of some queries.
        encoder_of: returns the query encoder that belongs to a folder of passage vectors. It is called immediately, not at
            the first search.

    Raises:
        UserError: the retriever can be searched only with queries of the collection.
    """
    if hasattr(retriever, "combine"):
        members = [search_of_texts(member, encoder_of) for member in retriever.members]
        return lambda texts, k: retriever.combine([search(texts, retriever.depth) for search in members], k)
    if hasattr(retriever, "search_texts"):
        return lambda texts, k: retriever.search_texts(texts, k)
    if not hasattr(retriever, "search_vectors"):
        raise UserError("rerankings and run files rank only the collection's own queries; ask a retriever without them")
    encode = encoder_of(getattr(retriever, "exact", retriever).folder)
    return lambda texts, k: retriever.search_vectors(np.asarray(encode(texts), np.float32), k)


def ranked(search: Search, texts: Sequence[str], depth: int, label: str) -> Ranking:
    """Return the ``depth`` best passages for n > 0 query strings: scores and rows (n, depth).

    ``label``: label of the progress bar.
    """
    found = []
    with progress(label, len(texts), "queries") as task:
        for first in range(0, len(texts), ASKED):
            found.append(search(texts[first : first + ASKED], depth))
            task.advance(len(found[-1][0]))
    scores, rows = zip(*found, strict=True)
    return np.concatenate(scores), np.concatenate(rows)
