"""Open an index, a folder that a retriever searches. The file ``index.json`` in it names the kind.

The kinds are BM25 postings, dense vectors, an approximation of dense vectors, the reranked candidates of some queries, and
several joined indexes. An open index is searched with queries of its collection, and with any other texts.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.retrieval.indexes.interface import MEMORY, CollectionRetriever
from condensery.retrieval.indexes.own_passages import WithoutOwn
from condensery.retrieval.ranking import Ranking
from condensery.system.files import read_json
from condensery.system.progress import progress
from condensery.text.collection import Collection

Encode = Callable[[Sequence[str]], NDArray[np.floating]]  # texts to their query vectors (n, d)
ASKED = 256  # texts that a retriever searches at a time
Search = Callable[[Sequence[str], int], Ranking]  # the k best passages for texts: scores and rows (n, k)


def open_index(
    folder: Path,
    collection: Collection,
    threads: int = 1,
    memory: int = MEMORY,
    device: str | None = None,
    own_by_id: bool = False,
) -> CollectionRetriever:
    """Open the retriever of an index folder. No query finds its own passage.

    Args:
        folder: folder of the index.
        collection: the collection from which the index was built.
        threads: CPU threads.
        memory: bytes that a search in a dense index may hold at a time.
        device: of dense indexes; None = the GPU where there is one.
        own_by_id: a query's own passage is the one with its id, whatever the text (``own_passages``).

    Raises:
        UserError: the folder is no index, or was built from another collection.
    """
    about: dict[str, Any] = read_json(folder / "index.json")
    if about.get("passages") != len(collection.passages):
        raise UserError(
            f"{folder}: the index holds {about.get('passages')} passages, the collection '{collection.name}' has "
            f"{len(collection.passages)}; build the index again"
        )
    if about.get("method") == "fused":
        from condensery.retrieval.indexes.fused import open_fused

        # The members leave out own passages, whose scores would count in the minima and maxima of the members.
        return open_fused(folder, lambda member: open_index(member, collection, threads, memory, device, own_by_id))
    return WithoutOwn(_single(folder, about, collection, threads, memory, device), collection, own_by_id)


def _single(
    folder: Path, about: dict[str, Any], collection: Collection, threads: int, memory: int, device: str | None
) -> CollectionRetriever:
    """Open an index of any kind but the joined one."""
    # Imported here: a BM25 search must not wait for FAISS.
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
    if about.get("method") == "rerank":
        from condensery.retrieval.indexes.reranked import RerankedIndex

        return RerankedIndex(folder, collection)
    known = "bm25, dense, approximate, rerank or fused"
    raise UserError(f"{folder / 'index.json'}: unknown method {shown(str(about.get('method')))!r}, expected {known}")


def search_of_texts(retriever: Any, encoder_of: Callable[[Path], Encode]) -> Search:
    """Return the function that searches a retriever with any texts.

    A fused retriever (with ``members``, a ``depth`` and ``combine``) searches each member at that depth. BM25
    (``search_texts``) reads the texts. A dense retriever (``search_vectors``) gets the vectors of the texts.

    Args:
        retriever: any retriever that ``open_index`` gives, except reranked candidates.
        encoder_of: gives the encoder of a folder of passage vectors; called at once, not at the first search.

    Raises:
        UserError: the retriever knows only the queries of the collection.
    """
    if hasattr(retriever, "combine"):
        members = [search_of_texts(member, encoder_of) for member in retriever.members]

        def joined(texts: Sequence[str], k: int) -> Ranking:
            rankings = [search(texts, retriever.depth) for search in members]
            ranking: Ranking = retriever.combine(rankings, k)
            return ranking

        return joined
    if hasattr(retriever, "search_texts"):
        return lambda texts, k: retriever.search_texts(texts, k)
    if not hasattr(retriever, "search_vectors"):
        raise UserError("reranked candidates are those of the collection's own queries; ask what they were made from")
    encode = encoder_of(getattr(retriever, "exact", retriever).folder)
    return lambda texts, k: retriever.search_vectors(np.asarray(encode(texts), np.float32), k)


def ranked(search: Search, texts: Sequence[str], depth: int, label: str) -> Ranking:
    """Return the ``depth`` best passages of texts (n,), n > 0: scores and rows (n, depth). Progress is shown as ``label``."""
    found = []
    with progress(label, len(texts), "queries") as task:
        for first in range(0, len(texts), ASKED):
            found.append(search(texts[first : first + ASKED], depth))
            task.advance(len(found[-1][0]))
    scores, rows = zip(*found, strict=True)
    return np.concatenate(scores), np.concatenate(rows)
