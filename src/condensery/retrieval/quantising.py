"""Vectors in fewer bits: each number of a dimension is one of 256 levels (int8) or of 2 (binary) of that dimension.

The levels come from a sample of the collection's own passages, since the numbers of some dimensions are ten times as large as
those of others. A search reads the vectors as the levels that their codes stand for, and queries stay as they are: rankings,
windows and fusion are those of ``DenseIndex``. For one bit that is not the Hamming distance, which rounds queries too
(asymmetric distance: Jégou et al. 2011, "Product quantization for nearest neighbor search", section III).

What it costs is measured: some queries are searched in the vectors before they are rounded, shard by shard, and again after.

Shapes: m vectors, d dimensions, n queries, k results.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from condensery.randomness import generator
from condensery.retrieval.dense import BLOCK, DenseIndex, torch_search
from condensery.retrieval.quantiser import FILE as LEVELS
from condensery.retrieval.quantiser import QUANTISED, Quantiser
from condensery.retrieval.ranking import top, unpack
from condensery.system.files import atomic, load_array, read_json, write_json

Dtype = Literal["float32", "float16", "int8", "binary"]
SAMPLE = 1_024  # passages that the levels come from, at most
COMPARED = 500  # queries that are searched in both, at most
DEPTHS = (10, 100)  # of the best of float32, how many are found again
EXACT, RECALL = "exact", "recall.json"  # the folder of what is found before rounding; what came of it


def sample_of(number: int, most: int) -> NDArray[np.int64]:
    """Some of ``number`` rows, ascending; always the same."""
    return np.sort(generator(0, "quantising").permutation(number)[:most])


@dataclass(frozen=True)
class Quantising:
    """How the vectors of a collection are rounded, and the queries by which that is judged.

    Attributes:
        quantiser: gives the codes.
        queries: (n, d).
        own: (n,) the row of the passage that a query is, which it does not find; -1 = none.
    """

    quantiser: Quantiser
    queries: NDArray[np.float32]
    own: NDArray[np.int64]

    @classmethod
    def of(cls, folder: Path, dtype: Dtype, sample: NDArray[np.float32], rows: NDArray[np.int64]) -> Self:
        """From the vectors ``sample`` (m, d) of the passages ``rows`` (m,), and the queries that lie in ``folder``: the
        passages themselves where there are none."""
        path = folder / "queries.npy"
        asked = load_array(path, mapped=True) if path.exists() else sample[:0]
        if len(asked):
            chosen = sample_of(len(asked), COMPARED)
            queries, own = np.asarray(asked[chosen], np.float32), np.full(len(chosen), -1)
        else:
            queries, own = sample[:COMPARED], rows[:COMPARED]
        if not (folder / LEVELS).exists():
            Quantiser.fitted(sample, QUANTISED[dtype]).save(folder)
        return cls(Quantiser.load(folder), queries, own)

    def stored(self, folder: Path, number: int, first: int, vectors: NDArray[np.float32]) -> NDArray[Any]:
        """The codes of a shard of vectors (m, d), of which ``first`` is the first; what the queries find in it is written."""
        keys = torch_search(self.queries, iter([(first, vectors)]), DEPTHS[-1] + 1, "cpu")
        (folder / EXACT).mkdir(exist_ok=True)
        with atomic(folder / EXACT / f"{number:05d}.npy") as temporary, open(temporary, "wb") as stream:
            np.save(stream, keys)
        return self.quantiser.codes(vectors)

    def write_recall(self, folder: Path, shards: int) -> dict[str, Any]:
        """What the index in ``folder`` finds of what was found before rounding: ``recall_10``, ``recall_100``, and by how
        many queries. Kept, so that it is told again after an interruption."""
        if not (folder / RECALL).exists():
            parts = [load_array(folder / EXACT / f"{number:05d}.npy") for number in range(shards)]
            exact = unpack(top(np.concatenate(parts, axis=1), DEPTHS[-1] + 1))[1]
            blocks = DenseIndex(folder, device="cpu").blocks(BLOCK)
            found = unpack(torch_search(self.queries, blocks, DEPTHS[-1] + 1, "cpu"))[1]
            shares = {f"recall_{depth}": share_found(exact, found, self.own, depth) for depth in DEPTHS}
            write_json(folder / RECALL, {**shares, "compared": len(self.queries)})
        shutil.rmtree(folder / EXACT, ignore_errors=True)
        recall: dict[str, Any] = read_json(folder / RECALL)
        return recall


def share_found(exact: NDArray[np.int64], found: NDArray[np.int64], own: NDArray[np.int64], depth: int) -> float:
    """The share of the ``depth`` best rows of ``exact`` (n, k) that are among as many of ``found`` (n, k); the row ``own``
    (n,) of each query, and padding, which is -1, count in neither."""
    wanted = hits = 0
    for best, others, itself in zip(exact, found, own, strict=True):
        of_best, of_others = (rows[(rows >= 0) & (rows != itself)][:depth] for rows in (best, others))
        wanted, hits = wanted + len(of_best), hits + len(np.intersect1d(of_best, of_others))
    return hits / wanted if wanted else 1.0
