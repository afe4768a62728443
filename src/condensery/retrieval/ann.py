"""Approximate search over the vectors of an ``encode`` artifact: a FAISS index, trained on a sample, of any of its kinds
that ranks by inner product (``retrieval.factory``).

How much it misses is not known beforehand, so some queries of each use are searched exactly as well.

Shapes: n queries, k results, d dimensions.
"""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.randomness import generator
from condensery.retrieval.collection_retriever import TOP
from condensery.retrieval.dense import DenseIndex, Vectors
from condensery.retrieval.factory import check_numbers, measure, said_by_faiss
from condensery.retrieval.finite import check_finite
from condensery.retrieval.ranking import EMPTY, Ranking, pack, top, unpack
from condensery.system.files import atomic, read_json, write_json
from condensery.system.progress import ProgressTask

FILE = "passages.faiss"
BLOCK = 65_536  # vectors added at a time, at most
SOME = 1_000  # vectors whose lengths are looked at
EFFORT = {"nprobe": "nprobe", "ef_search": "efSearch"}  # ours -> FAISS's; an index takes those that it knows


def build_approximate(
    exact: DenseIndex,
    folder: Path,
    factory: str,
    sample: int,
    seed: int,
    threads: int,
    task: ProgressTask,
    gpu: bool = False,
) -> str | None:
    """Write a FAISS index of all vectors into ``folder``, by inner product; a CPU's, wherever it is made.

    Returns what it does to the vectors that changes their order, as one that divides them by their lengths; None where
    nothing.

    Args:
        exact: gives the vectors (N, d).
        factory: FAISS's description, such as ``IVF1024,PQ32``, ``HNSW32`` or ``IVF1024,PQ32,RFlat``.
        sample: vectors that it is trained on, drawn with ``seed``; all where there are no more.
        task: advances by the vectors added.
        gpu: make it on a GPU where FAISS sees one, knows the kind there and has the memory for it.

    Raises:
        UserError: FAISS does not know the description, cannot train it on so few or so short vectors, or can do nothing
            with what it makes; or it ranks by another measure.
    """
    faiss.omp_set_num_threads(threads)
    check_numbers(factory)

    def new() -> Any:
        return faiss.index_factory(exact.dim, factory, faiss.METRIC_INNER_PRODUCT)

    drawn = np.sort(generator(seed, "approximate").permutation(len(exact))[:sample])
    some = exact.passage_vectors(drawn[:SOME])
    with said_by_faiss(factory):
        does = measure(factory, new(), unit_length=np.allclose(np.linalg.norm(some, axis=1), 1, atol=1e-3))
        learned = exact.passage_vectors(drawn) if not new().is_trained else None
        index = _made_on_gpu(new(), exact, learned) if gpu and faiss.get_num_gpus() else None
        if index:
            task.advance(len(exact))
        else:
            index = new()
            if learned is not None:
                index.train(learned)
            for _, vectors in exact.blocks(BLOCK):
                index.add(vectors)
                task.advance(len(vectors))
    with atomic(folder / FILE) as temporary:
        faiss.write_index(index, str(temporary))
        del index  # what is read back is as large
        with said_by_faiss(factory):
            faiss.read_index(str(temporary)).search(some[:1], 1)
    return does


def _made_on_gpu(index: Any, exact: DenseIndex, learned: Vectors | None) -> Any | None:
    """The index, trained and filled on the first GPU; None where that cannot be."""
    try:
        theirs = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
        if learned is not None:
            theirs.train(learned)
        for _, vectors in exact.blocks(BLOCK):
            theirs.add(vectors)
        return faiss.index_gpu_to_cpu(theirs)
    except RuntimeError:  # of what is wrong with the description as well, which the CPU then says
        return None


def write_approximate(folder: Path, exact: DenseIndex, vectors: str, effort: dict[str, int], compared: int) -> None:
    """Write ``index.json``. ``vectors``: ``kind/id`` of the artifact with the vectors; ``effort``: see ``EFFORT``."""
    about = {"method": "approximate", "passages": len(exact), "dim": exact.dim, "vectors": vectors}
    write_json(folder / "index.json", {**about, **effort, "compared": compared})


def stand_ins(query: NDArray[np.float32], missed: NDArray[np.float32], others: NDArray[np.float32]) -> int:
    """How many of the missed passages have one of the others in their place, which scores as high but for rounding.

    Of equal scores at the last place any is right, and which scores are equal is up to the machine: a float32 inner
    product of length d errs by about ``sqrt(d) u`` times the product of the norms, u half of float32's epsilon (Higham
    and Mary, "A new approach to probabilistic rounding error analysis", 2019). Scores closer than both errors are equal.

    Args:
        query: (d,)
        missed: (m, d), among the exact results and not found.
        others: (o, d), found and not among the exact results; each stands in for one.
    """
    exactly, of_missed, of_others = (vectors.astype(np.float64) for vectors in (query, missed, others))
    error = np.finfo(np.float32).eps / 2 * np.sqrt(len(query)) * np.linalg.norm(exactly)  # for a passage of norm 1
    least = np.sort(of_missed @ exactly - error * np.linalg.norm(of_missed, axis=1))
    counted = 0
    for most in np.sort(of_others @ exactly + error * np.linalg.norm(of_others, axis=1)):
        counted += int(counted < len(least) and most >= least[counted])
    return counted


class ApproximateIndex:
    """A retriever that may miss passages; the scores of what it finds are FAISS's, exact unless vectors are quantised.

    Attributes:
        exact: the vectors behind it.
        recalled, wanted: (2,) of the queries searched exactly as well, how many of the exact results came, or others of
            the same score (see ``stand_ins``), and how many there are: of the ``TOP`` best, and of all.
        short: queries for which fewer passages were found than were asked for.
    """

    def __init__(self, folder: Path, exact: DenseIndex, threads: int = 1) -> None:
        self.about: dict[str, Any] = read_json(folder / "index.json")
        self.folder, self.exact, self.threads = folder, exact, max(1, threads)
        try:
            self.index = faiss.read_index(str(folder / FILE))
        except RuntimeError:
            raise UserError(f"{folder / FILE}: not a FAISS index; remove the folder and run the stage again") from None
        if self.index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise UserError(f"{folder / FILE}: ranks by another measure than the inner product; set another factory")
        if self.index.ntotal != len(exact) or self.index.d != exact.dim:
            raise UserError(f"{folder / FILE}: made of other vectors than those in {exact.folder}; run the stage again")
        self._exert()
        self.left, self.short = int(self.about["compared"]), 0
        self.recalled, self.wanted = [0, 0], [0, 0]

    def _exert(self) -> None:
        space = faiss.ParameterSpace()
        space.initialize(self.index)
        known = {space.parameter_ranges.at(i).name for i in range(space.parameter_ranges.size())}
        for ours, name in EFFORT.items():
            if name in known:
                space.set_index_parameter(self.index, name, self.about[ours])

    def __len__(self) -> int:
        return len(self.exact)

    @property
    def recall(self) -> float | None:
        """The share of the exact results that were found, over the queries compared so far; None before the first."""
        return self.recalled[1] / self.wanted[1] if self.wanted[1] else None

    @property
    def recall_of_top(self) -> float | None:
        """The same of the ``TOP`` best alone, which the first metrics of a table look at."""
        return self.recalled[0] / self.wanted[0] if self.wanted[0] else None

    def search(self, query_rows: NDArray[np.integer], k: int, progress: ProgressTask | None = None) -> Ranking:
        """As ``Retriever.search``."""
        return self.search_vectors(self.exact.query_vectors(query_rows), k, progress)

    def search_vectors(self, vectors: Vectors, k: int, progress: ProgressTask | None = None) -> Ranking:
        """As ``DenseIndex.search_vectors``; the first queries count for ``recall``."""
        faiss.omp_set_num_threads(self.threads)
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        check_finite(vectors, f"{self.folder}: the vector of query")
        scores, rows = self.index.search(vectors, k)
        self.short += int(((rows >= 0).sum(axis=1) < min(k, len(self))).sum())
        ranking = unpack(top(np.where(rows >= 0, pack(np.where(rows >= 0, scores, 0), rows), EMPTY), k))
        compared = vectors[: self.left]
        if len(compared):
            self.left -= len(compared)
            self._compare(compared, ranking[1][: len(compared)])
        if progress:
            progress.advance(len(vectors))
        return ranking

    def _compare(self, vectors: Vectors, rows: NDArray[np.int64]) -> None:
        """Count what exact search finds for the queries (n, d), and how much of it is among ``rows`` (n, k)."""
        exact = self.exact.search_vectors(vectors, rows.shape[1])[1]
        for which, depth in enumerate((TOP, rows.shape[1])):
            for query, ours, theirs in zip(vectors, rows[:, :depth], exact[:, :depth], strict=True):
                ours, theirs = ours[ours >= 0], theirs[theirs >= 0]
                missed = self.exact.passage_vectors(np.setdiff1d(theirs, ours))
                others = self.exact.passage_vectors(np.setdiff1d(ours, theirs))
                self.recalled[which] += len(theirs) - len(missed) + stand_ins(query, missed, others)
                self.wanted[which] += len(theirs)

    def score(self, query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """As ``DenseIndex.score``: exact."""
        return self.exact.score(query_rows, passage_rows)
