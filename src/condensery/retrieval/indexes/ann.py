"""Approximate nearest-neighbour search over the vectors of an ``encode`` artifact, with FAISS.

The FAISS index is trained on a sample of the vectors. It may be of any kind that ranks by inner product
(``faiss_descriptions``). Its recall is not known in advance. Therefore, each time the index is used, some queries are also
searched exactly.

Shapes: n queries, k results, d dimensions.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.randomness import generator
from condensery.retrieval.finite import check_finite
from condensery.retrieval.indexes.dense import DenseIndex, Vectors
from condensery.retrieval.indexes.faiss_descriptions import check_on_disk, check_values, measure, said_by_faiss
from condensery.retrieval.indexes.interface import MEMORY, TOP
from condensery.retrieval.indexes.on_disk import FILE, LISTS, build_on_disk, read_index
from condensery.retrieval.ranking import Ranking, ordered
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.system.files import atomic, read_json, write_json
from condensery.system.progress import SILENT, ProgressTask, progress

BLOCK = 65_536  # maximum number of vectors added per call
SOME = 1_000  # number of vectors whose norms are checked
EFFORT = {"nprobe": "nprobe", "ef_search": "efSearch"}  # config key -> FAISS's name; unknown settings are ignored


def build_approximate(
    exact: DenseIndex,
    folder: Path,
    factory: str,
    sample: int = 200_000,
    seed: int = 0,
    threads: int = 1,
    gpu: bool = False,
    *,
    on_disk: bool = False,
    group: ProcessGroup = SINGLE_PROCESS,
    label: str = "ann_index",
    memory: int = MEMORY,
) -> str | None:
    """Write a FAISS inner-product index of all vectors into ``folder``. The file always holds a CPU index.

    Args:
        exact: exact index that holds the vectors (N, d).
        folder: folder of the index.
        factory: FAISS index description, such as ``IVF1024,PQ32``, ``HNSW32`` or ``IVF1024,PQ32,RFlat``.
        sample: number of vectors that train the index, drawn with ``seed``; all vectors if there are fewer.
        seed: seed of the sample.
        threads: CPU threads of FAISS.
        gpu: build the index on a GPU, if FAISS finds one with enough memory and supports this kind of index on GPUs.
        on_disk: keep the inverted lists of an IVF index on disk, both while it is built and while it is searched (module
            ``on_disk``). An interrupted attempt is then continued.
        group: the processes that share the work if ``on_disk`` is set. Only the first process returns; the others raise
            ``NotRankZero``.
        label: label of the progress bar.
        memory: maximum memory in bytes of one part, if ``on_disk`` is set. The block of vectors being added is not counted.

    Returns:
        Description of a transform within the index that changes the ranking, such as dividing vectors by their norms; None =
        no such transform.

    Raises:
        UserError: FAISS does not know the description, needs more vectors or more dimensions for training, or cannot search
            the index that it built. The error is also raised if the index ranks by another measure than the inner product.
            With ``on_disk`` it is also raised if the index keeps vectors outside of its inverted lists, or in lists that
            cannot lie on disk.
    """
    faiss.omp_set_num_threads(threads)
    check_values(factory)

    def new() -> Any:
        return faiss.index_factory(exact.dim, factory, faiss.METRIC_INNER_PRODUCT)

    def changed(index: Any, change: Callable[[Any], None]) -> Any:
        """Train a CPU index or add vectors to it, on the GPU if possible, otherwise on the CPU. Return a CPU index."""
        with said_by_faiss(factory):
            if gpu and faiss.get_num_gpus():
                # a wrong description also raises RuntimeError; the attempt on the CPU then reports it
                with suppress(RuntimeError):
                    theirs = _on_gpu(index)
                    change(theirs)
                    return faiss.index_gpu_to_cpu(theirs)
            change(index)
            return index

    def trained() -> Any:
        return new() if new().is_trained else changed(new(), lambda index: index.train(exact.passage_vectors(drawn)))

    def filled(index: Any, rows: slice, task: ProgressTask) -> Any:
        def add(index: Any) -> None:
            for _, vectors in exact.blocks(BLOCK, rows):
                index.add(vectors)
                task.advance(len(vectors))

        return changed(index, add)

    drawn = np.sort(generator(seed, "approximate").permutation(len(exact))[:sample])
    some = exact.passage_vectors(drawn[:SOME])
    with said_by_faiss(factory):
        does = measure(factory, new(), unit_length=np.allclose(np.linalg.norm(some, axis=1), 1, atol=1e-3))
    if on_disk:
        check_on_disk(factory, new())
        build_on_disk(folder, len(exact), trained, filled, group, label, memory)
        with said_by_faiss(factory):
            read_index(folder).search(some[:1], 1)
        return does
    with progress(label, len(exact), "vectors") as task:
        index = filled(trained(), slice(0, len(exact)), task)
    with atomic(folder / FILE) as temporary:
        faiss.write_index(index, str(temporary))
        del index  # frees its memory before the equally large index is read back
        with said_by_faiss(factory):
            faiss.read_index(str(temporary)).search(some[:1], 1)
    return does


def _on_gpu(index: Any) -> Any:
    """Return a copy of an index on the GPU that this process computes on. Raises ``RuntimeError`` if it cannot be copied."""
    import torch

    number = torch.cuda.current_device() if torch.cuda.is_available() else 0
    return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), number, index)


def write_approximate(folder: Path, exact: DenseIndex, vectors: str, effort: dict[str, int], compared: int) -> None:
    """Write ``index.json``.

    Args:
        folder: folder of the index.
        exact: the index of the original vectors, which is searched exactly.
        vectors: name, ``kind/id``, of the artifact with the original vectors.
        effort: value of each search setting in ``EFFORT``.
        compared: number of queries that are also searched exactly.
    """
    about = {"method": "approximate", "passages": len(exact), "dim": exact.dim, "vectors": vectors}
    write_json(folder / "index.json", {**about, **effort, "compared": compared})


def stand_ins(query: NDArray[np.float32], missed: NDArray[np.float32], others: NDArray[np.float32]) -> int:
    """Count the missed passages for which the search found another passage with an equal score, up to rounding.

    At the last rank, any passage with the same score is a correct result. Which scores are equal depends on the machine: a
    float32 inner product of d numbers has an error of about ``sqrt(d) u`` times the product of the norms (Higham and Mary, "A
    new approach to probabilistic rounding error analysis", 2019). Here u is half of float32's epsilon. Two scores count as
    equal if their difference is less than the sum of their errors.

    Args:
        query: float32 (d,), vector of the query.
        missed: float32 (m, d), vectors of the exact results that were not found.
        others: float32 (o, d), vectors that were found but are not exact results. Each can replace at most one missed vector.
    """
    exactly, of_missed, of_others = (vectors.astype(np.float64) for vectors in (query, missed, others))
    error = np.finfo(np.float32).eps / 2 * np.sqrt(len(query)) * np.linalg.norm(exactly)  # for a passage of norm 1
    least = np.sort(of_missed @ exactly - error * np.linalg.norm(of_missed, axis=1))
    counted = 0
    for most in np.sort(of_others @ exactly + error * np.linalg.norm(of_others, axis=1)):
        counted += int(counted < len(least) and most >= least[counted])
    return counted


class ApproximateIndex:
    """Wraps a FAISS index as a retriever, which may miss passages.

    FAISS computes the scores. They are exact unless the vectors are quantised.

    Attributes:
        exact: exact index over the same vectors.
        recalled: (2,), number of exact results that the index found, among the ``TOP`` best results and among all results. It
            is counted over the queries that are also searched exactly. Ties count as found (``stand_ins``).
        wanted: (2,), number of exact results, among the ``TOP`` best results and among all results.
        short: number of queries for which fewer than k passages were found.
    """

    def __init__(self, folder: Path, exact: DenseIndex, threads: int = 1) -> None:
        self.about: dict[str, Any] = read_json(folder / "index.json")
        self.folder, self.exact, self.threads = folder, exact, max(1, threads)
        self.index = read_index(folder)
        if self.index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise UserError(f"{folder / FILE}: ranks by another measure than the inner product; set another factory")
        if self.index.ntotal != len(exact) or self.index.d != exact.dim:
            raise UserError(f"{folder / FILE}: built from other vectors than {exact.folder} has; run the stage again")
        self._exert()
        self.on_gpu = self._copied()
        self.left, self.short = int(self.about["compared"]), 0
        self.recalled, self.wanted = [0, 0], [0, 0]

    def _exert(self) -> None:
        space = faiss.ParameterSpace()
        space.initialize(self.index)
        known = {space.parameter_ranges.at(i).name for i in range(space.parameter_ranges.size())}
        for ours, name in EFFORT.items():
            if name in known:
                space.set_index_parameter(self.index, name, self.about[ours])

    def _copied(self) -> Any | None:
        """Return a copy of the index on the GPU of the exact search; None if FAISS sees no GPU or cannot copy the index."""
        if self.exact.device == "cpu" or not faiss.get_num_gpus() or (self.folder / LISTS).exists():
            return None
        with suppress(RuntimeError):
            return _on_gpu(self.index)
        return None

    def _found(self, vectors: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Search on the GPU. Without a GPU copy, or with k or nprobe above FAISS's limit on GPUs, search on the CPU."""
        found: tuple[Vectors, NDArray[np.int64]] | None = None
        with suppress(RuntimeError):
            found = self.on_gpu.search(vectors, k) if self.on_gpu is not None else None
        return found or self.index.search(vectors, k)

    def __len__(self) -> int:
        return len(self.exact)

    @property
    def recall(self) -> float | None:
        """Share of the exact results that the index found, over all queries compared so far; None before the first query."""
        return self.recalled[1] / self.wanted[1] if self.wanted[1] else None

    @property
    def recall_of_top(self) -> float | None:
        """``recall`` within the ``TOP`` best results, on which the first metrics of a table depend."""
        return self.recalled[0] / self.wanted[0] if self.wanted[0] else None

    def search(self, query_rows: NDArray[np.integer], k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best passages of queries of the collection, as ``CollectionRetriever.search``."""
        return self.search_vectors(self.exact.query_vectors(query_rows), k, progress)

    def search_vectors(self, vectors: Vectors, k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best passages of query vectors (n, d), as ``DenseIndex.search_vectors``.

        The first queries are also searched exactly, for ``recall``.
        """
        faiss.omp_set_num_threads(self.threads)
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        check_finite(vectors, f"{self.folder}: the vector of query")
        scores, rows = self._found(vectors, k)
        self.short += int(((rows >= 0).sum(axis=1) < min(k, len(self))).sum())
        ranking = ordered(scores, rows, k)
        compared = vectors[: self.left]
        if len(compared):
            self.left -= len(compared)
            self._compare(compared, ranking[1][: len(compared)])
        progress.advance(len(vectors))
        return ranking

    def _compare(self, vectors: Vectors, rows: NDArray[np.int64]) -> None:
        """Search the queries ``vectors`` (n, d) exactly, and count how many of the exact results are in ``rows`` (n, k)."""
        exact = self.exact.search_vectors(vectors, rows.shape[1])[1]
        for which, depth in enumerate((TOP, rows.shape[1])):
            for query, ours, theirs in zip(vectors, rows[:, :depth], exact[:, :depth], strict=True):
                ours, theirs = ours[ours >= 0], theirs[theirs >= 0]
                missed = self.exact.passage_vectors(np.setdiff1d(theirs, ours))
                others = self.exact.passage_vectors(np.setdiff1d(ours, theirs))
                self.recalled[which] += len(theirs) - len(missed) + stand_ins(query, missed, others)
                self.wanted[which] += len(theirs)

    def score(self, query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the exact scores (n, k) of passages (n, k) of each query, as ``DenseIndex.score``."""
        return self.exact.score(query_rows, passage_rows)
