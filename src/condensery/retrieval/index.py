"""Open an index, a folder that a retriever searches. The file ``index.json`` in it names the kind.

The kinds are BM25 postings, dense vectors, an approximation of dense vectors, the reranked candidates of some queries, and
several joined indexes.
"""

from pathlib import Path
from typing import Any

from condensery.errors import UserError, shown
from condensery.retrieval.collection_retriever import MEMORY, CollectionRetriever
from condensery.retrieval.own_passages import WithoutOwn
from condensery.system.files import read_json
from condensery.text.collection import Collection


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
        from condensery.retrieval.fusion import open_fused

        # The members leave out own passages, whose scores would count in the minima and maxima of the members.
        return open_fused(folder, lambda member: open_index(member, collection, threads, memory, device, own_by_id))
    return WithoutOwn(_single(folder, about, collection, threads, memory, device), collection, own_by_id)


def _single(
    folder: Path, about: dict[str, Any], collection: Collection, threads: int, memory: int, device: str | None
) -> CollectionRetriever:
    """Open an index of any kind but the joined one."""
    # Imported here: a BM25 search must not wait for FAISS.
    if about.get("method") == "bm25":
        from condensery.retrieval.bm25 import BM25Index

        return BM25Index(folder, collection, threads)
    if about.get("method") == "dense":
        from condensery.retrieval.dense import DenseIndex

        return DenseIndex(folder, threads=threads, memory=memory, device=device)
    if about.get("method") == "approximate":
        from condensery.retrieval.ann import ApproximateIndex
        from condensery.retrieval.dense import DenseIndex

        vectors = DenseIndex(folder.parents[1] / about["vectors"], threads, memory, device)
        return ApproximateIndex(folder, vectors, threads)
    if about.get("method") == "rerank":
        from condensery.retrieval.reranking import RerankedIndex

        return RerankedIndex(folder, collection)
    known = "bm25, dense, approximate, rerank or fused"
    raise UserError(f"{folder / 'index.json'}: unknown method {shown(str(about.get('method')))!r}, expected {known}")
