"""Exact inner-product search over the vectors of an ``encode`` artifact, which may be larger than memory.

Vectors are read shard by shard, in blocks. On a CPU, a block is searched with FAISS. On a GPU, it is searched with a matrix
product and a top-k selection in torch. A single query on a CPU is searched with NumPy, so that neither FAISS nor torch is
imported. All three methods give the same ranking up to rounding: score descending, ties by row ascending.

Shapes: n queries, m passages per block, k results, d dimensions.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.retrieval.finite import check_finite
from condensery.retrieval.indexes.interface import MEMORY
from condensery.retrieval.indexes.quantiser import FILE as QUANTISER
from condensery.retrieval.indexes.quantiser import QUANTISED, Decoded, Quantiser
from condensery.retrieval.indexes.windows import FILE as WINDOWS
from condensery.retrieval.indexes.windows import best_of_windows, scores_of_best_window
from condensery.retrieval.ranking import EMPTY, LAST_ROW, SIGN_FLIP, Keys, Ranking, pack, top, unpack
from condensery.system.files import RECOMPUTE, load_array, read_json, save_array, write_json
from condensery.system.progress import SILENT, ProgressTask

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 65_536  # maximum number of passages per block
QUERIES = 1_024  # maximum number of queries per matrix product in torch

Vectors = NDArray[np.floating]
Blocks = Iterator[tuple[int, NDArray[np.float32]]]  # the first row of each block, and its vectors (m, d)

QUERY_ROWS = "query_rows.npy"  # rows of the encoded queries, if only some queries of the collection are encoded


def device_of_search(device: str | None) -> str:
    """Return the device of a search: ``device``; for None the GPU if there is one, and otherwise the CPU.

    On "cpu", the search uses FAISS, or NumPy for a single query.
    """
    if device:
        return device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


class DenseIndex:
    """Searches the vectors of a collection's passages exactly. The vectors of passages and queries are on disk."""

    def __init__(self, folder: Path, threads: int = 1, memory: int = MEMORY, device: str | None = None) -> None:
        """Open the index in ``folder``.

        Args:
            folder: folder of the index.
            threads: CPU threads of FAISS.
            memory: maximum memory of a search in bytes, besides its result.
            device: "cpu", "cuda", ...; None = the GPU if there is one.
        """
        self.about = about = dict[str, Any](read_json(folder / "index.json"))
        self.folder, self.dim, self.passages = folder, int(about["dim"]), int(about["passages"])
        self.shards: list[tuple[int, int]] = [(first, stop) for first, stop in about["shards"]]
        self.starts = load_array(folder / WINDOWS) if "windows" in about else None  # (P + 1,) first window of each text
        self.quantiser = Quantiser.load(folder) if about.get("dtype") in QUANTISED else None
        self.threads, self.memory = max(1, threads), memory
        self.device = device_of_search(device)
        # ``divided.divide`` replaces this function with a function that returns stored rankings
        self.ranked: Callable[[NDArray[np.integer], int], Ranking | None] = lambda query_rows, k: None

    def __len__(self) -> int:
        return self.passages

    def query_vectors(self, query_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the vectors (n, d) of queries of the collection. Raises ``UserError`` if a query was not encoded."""
        queries, rows = load_array(self.folder / "queries.npy", mapped=True), np.asarray(query_rows, dtype=np.int64)
        if (self.folder / QUERY_ROWS).exists():
            encoded = load_array(self.folder / QUERY_ROWS)
            if not np.isin(rows, encoded).all():
                raise UserError(
                    f"{self.folder}: these queries are not encoded; add their split to query_splits of the stage, or"
                    " set query_splits to null"
                )
            rows = np.searchsorted(encoded, rows)
        return queries[rows].astype(np.float32)

    def passage_vectors(self, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the vectors (n, d) of the passages ``rows`` (n,), in this order.

        If the index has one vector per window, ``rows`` count windows. Rows in ascending order are read fastest.
        """
        vectors = np.empty((len(rows), self.dim), np.float32)
        for number, (first, stop) in enumerate(self.shards):
            here = np.flatnonzero((rows >= first) & (rows < stop))
            if len(here):
                vectors[here] = self.shard(number)[rows[here] - first]
        check_finite(vectors, f"{self.folder}: the vector of row", rows, RECOMPUTE)
        return vectors

    def search(self, query_rows: NDArray[np.integer], k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best passages of queries of the collection, as ``CollectionRetriever.search``."""
        ranking = self.ranked(query_rows, k)
        if ranking is None:
            return self.search_vectors(self.query_vectors(query_rows), k, progress)
        progress.advance(len(query_rows))
        return ranking

    def search_vectors(
        self, vectors: Vectors, k: int, progress: ProgressTask = SILENT, rows: slice | None = None
    ) -> Ranking:
        """Return the k best passages for query vectors (n, d): scores and rows (n, k), as ``CollectionRetriever.search``.

        ``rows``: the passages to search, a slice of whole shards; None = all. With windows, ``rows`` must be None. Raises
        ``UserError`` if a query vector or a passage vector is not finite.
        """
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        check_finite(vectors, f"{self.folder}: the vector of query")
        most = k if self.starts is None else k * int(np.diff(self.starts).max(initial=1))
        # room for the candidates of two blocks, and for copies while they are merged
        group = max(1, self.memory // (2 * 8 * 6 * max(most, 1)))
        parts = []
        for first in range(0, len(vectors), group):
            queries = vectors[first : first + group]
            if self.starts is None:
                parts.append(self._search_group(queries, k, rows))
            else:
                parts.append(best_of_windows(partial(self._search_group, queries), self.starts, k))
            progress.advance(len(queries))
        return unpack(np.concatenate(parts) if parts else np.empty((0, k), np.int64))

    def score(self, query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the exact scores (n, k) of passages (n, k) for queries (n,) of the collection; NaN for padding (row -1).

        With windows, the score of a passage is the score of its best window. Raises ``UserError`` if a score is not finite.
        """
        queries = self.query_vectors(query_rows)

        def products(rows: NDArray[np.integer]) -> NDArray[np.float32]:
            shards = ((*edges, self.shard(number)) for number, edges in enumerate(self.shards))
            found = inner_products(queries, rows, shards)
            check_finite(found, f"{self.folder}: a score of query row", query_rows, RECOMPUTE)
            return found

        return scores_of_best_window(products, self.starts, passage_rows)

    def _search_group(self, queries: NDArray[np.float32], k: int, rows: slice | None = None) -> Keys:
        blocks = self.blocks(min(BLOCK, max(1, self.memory // (4 * 4 * self.dim))), rows)
        if self.device == "cpu" and len(queries) == 1:
            return numpy_search(queries, blocks, k)
        if self.device == "cpu":
            return faiss_search(queries, blocks, k, self.threads)
        return torch_search(queries, blocks, k, self.device, self.memory)

    def shard(self, number: int) -> "NDArray[np.floating] | Decoded":
        """Return the vectors (m, d) of a shard, read on access. Raises ``UserError`` if the file has another shape."""
        path, (first, stop) = shard_path(self.folder, number), self.shards[number]
        stored, width = load_array(path, mapped=True), self.quantiser.width if self.quantiser else self.dim
        if stored.shape != (stop - first, width):
            beside = f"the file {QUANTISER}" if self.quantiser and len(stored) == stop - first else "index.json"
            raise UserError(f"{path}: its shape {stored.shape} does not fit {beside} of the index; {RECOMPUTE}")
        return Decoded(stored, self.quantiser) if self.quantiser else stored

    def blocks(self, size: int, rows: slice | None = None) -> Blocks:
        """Yield all passages in order, in blocks: the first row of the block, and its vectors (at most ``size``, d).

        ``rows``: the rows to yield, from ``start`` to ``stop``; None = all.
        """
        for number, (first, stop) in enumerate(self.shards):
            path = shard_path(self.folder, number)
            begin, end = (first, stop) if rows is None else (max(first, rows.start), min(stop, rows.stop))
            if begin >= end:
                continue
            shard = self.shard(number)
            for start in range(begin - first, end - first, size):
                block = np.array(shard[start : min(start + size, end - first)], dtype=np.float32)
                check_finite(block, f"{path}: the vector of row", range(start, start + len(block)), RECOMPUTE)
                yield first + start, block


def write_vectors(folder: Path, parts: Iterable[NDArray[np.floating]]) -> DenseIndex:
    """Write passage vectors as an exact index into ``folder``, and open it.

    Args:
        folder: folder of the index.
        parts: vectors of consecutive passages, float32 or float16 (m, d) each. Only one part at a time is in memory.
    """
    edges, dim, dtype = [0], 0, "float32"
    for number, vectors in enumerate(parts):
        save_array(shard_path(folder, number), vectors)
        dim, dtype = vectors.shape[1], str(vectors.dtype)
        edges.append(edges[-1] + len(vectors))
    about = {"method": "dense", "passages": edges[-1], "queries": 0, "dim": dim, "dtype": dtype}
    write_json(folder / "index.json", {**about, "shards": list(pairwise(edges))})
    return DenseIndex(folder)


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of the file with the vectors of a shard of passages."""
    return folder / "passages" / f"{number:05d}.npy"


def inner_products(
    queries: Vectors, rows: NDArray[np.integer], shards: "Iterable[tuple[int, int, Vectors | Decoded]]"
) -> NDArray[np.float32]:
    """Return the inner products (n, k) of query vectors (n, d) with the vectors of chosen rows.

    Args:
        queries: (n, d), query vectors.
        rows: (n, k), rows to score for each query. The product is 0 for a row that is in no shard.
        shards: for each shard its first row, its last row + 1, and its vectors (m, d).
    """
    products = np.zeros(rows.shape, np.float32)
    for first, stop, vectors in shards:
        places = np.argwhere((rows >= first) & (rows < stop))
        for at in range(0, len(places), BLOCK):
            query, column = places[at : at + BLOCK].T
            chosen = vectors[rows[query, column] - first].astype(np.float32)  # (at most BLOCK, d)
            products[query, column] = np.einsum("id,id->i", queries[query], chosen)
    return products


def search_array(
    queries: NDArray[np.float32], passages: "NDArray[np.float32] | Decoded", k: int, device: str, threads: int = 1
) -> Ranking:
    """Search passage vectors (m, d) in memory with query vectors (n, d), as ``DenseIndex.search_vectors`` does."""
    blocks = ((first, passages[first : first + BLOCK]) for first in range(0, len(passages), BLOCK))
    if device == "cpu":
        return unpack(faiss_search(np.ascontiguousarray(queries), blocks, k, threads))
    return unpack(torch_search(queries, blocks, k, device))


def numpy_search(queries: NDArray[np.float32], blocks: Blocks, k: int) -> Keys:
    """Return the k best keys (n, k) over all blocks, by matrix product and selection in NumPy.

    It needs 64 bytes of memory per (query, passage) pair of a block.
    """
    best: Keys = np.full((len(queries), k), EMPTY, np.int64)
    for first, passages in blocks:
        keys = pack(queries @ passages.T, np.arange(first, first + len(passages)))  # (n, m)
        best = top(np.concatenate([best, top(keys, k)], axis=1), k)
    return best


def faiss_search(queries: NDArray[np.float32], blocks: Blocks, k: int, threads: int) -> Keys:
    """Return the k best keys (n, k) over all blocks, each searched with FAISS's flat inner product."""
    import faiss

    faiss.omp_set_num_threads(threads)
    best: Keys = np.full((len(queries), k), EMPTY, np.int64)
    for first, passages in blocks:
        wanted = min(k + 1, len(passages))
        scores, rows = faiss.knn(queries, passages, wanted, metric=faiss.METRIC_INNER_PRODUCT)
        keys = pack(scores, rows + first)
        if wanted > k:
            # Of passages tied at rank k, FAISS returns any. If rank k + 1 has the same score, torch searches the query again.
            tied = np.flatnonzero(scores[:, k - 1] == scores[:, k])
            keys = keys[:, :k]
            if len(tied):
                keys[tied] = torch_search(queries[tied], iter([(first, passages)]), k, "cpu", 4 * passages.nbytes)
        best = top(np.concatenate([best, keys], axis=1), k)
    return best


def torch_search(queries: NDArray[np.float32], blocks: Blocks, k: int, device: str, memory: int = MEMORY) -> Keys:
    """Return the k best keys (n, k) over all blocks, by matrix product and selection in torch on ``device``.

    ``memory``: maximum memory of the search in bytes.
    """
    import torch

    query_tensor = torch.from_numpy(queries).to(device)
    best = torch.full((len(queries), k), EMPTY, dtype=torch.int64, device=device)
    for first, vectors in blocks:
        passages = torch.from_numpy(vectors).to(device)  # (m, d)
        rows = torch.arange(first, first + len(passages), device=device)
        step = min(QUERIES, max(1, memory // (2 * 32 * len(passages))))  # 32 bytes: score, bits, key and a copy
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            keys = pack_tensor(query_tensor[part] @ passages.T, rows)  # (step, m)
            keys = keys.topk(min(k, keys.shape[1])).values
            best[part] = torch.cat([best[part], keys], dim=1).topk(k).values
    return best.cpu().numpy()


def pack_tensor(scores: "Tensor", rows: "Tensor") -> "Tensor":
    """Pack scores, float32 (n, m), and rows (m,) into keys, int64 (n, m), as ``ranking.pack`` does, but in torch."""
    import torch

    bits = (scores + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ SIGN_FLIP, bits).long()
    return (ordered << 32) + (LAST_ROW - rows)
