"""Quantise vectors to 8 bits (int8, 256 levels) or 1 bit (binary, 2 levels) per dimension, and measure the loss.

The levels of each dimension are fitted to a sample of the collection's passages, because the scale of some dimensions is ten
times the scale of others. A search decodes the codes to their levels and does not quantise queries. Rankings, windows and
fusion therefore work as in ``DenseIndex``. This is an asymmetric distance (Jégou et al. 2011, "Product quantization for
nearest neighbor search", section III). With one bit, it differs from the Hamming distance, which also quantises queries.

The quantisation loss is measured: some queries are searched in the original vectors, shard by shard, and again in the
quantised vectors.

Shapes: m vectors, d dimensions, n queries, k results.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal as as_bytes

from condensery.randomness import generator
from condensery.retrieval.indexes.dense import BLOCK, DenseIndex, search_array, torch_search
from condensery.retrieval.indexes.quantiser import FILE as LEVELS
from condensery.retrieval.indexes.quantiser import QUANTISED, Decoded, Quantiser
from condensery.retrieval.ranking import top, unpack
from condensery.system.files import load_array, read_json, save_array, write_json

Dtype = Literal["float32", "float16", "int8", "binary"]
SAMPLE = 1_024  # maximum number of passages to which the levels are fitted
COMPARED = 500  # maximum number of queries that are searched before and after quantisation
DEPTHS = (10, 100)  # depths at which the recall of the float32 results is measured
EXACT, RECALL = "exact", "recall.json"  # folder of the results before quantisation; file of the measured recall


def sample_of(number: int, most: int) -> NDArray[np.int64]:
    """Return a fixed random sample of at most ``most`` of ``number`` rows, ascending."""
    return np.sort(generator(0, "quantising").permutation(number)[:most])


@dataclass(frozen=True)
class Quantising:
    """Quantises the vectors of a collection, and measures the loss with some queries.

    Attributes:
        quantiser: encodes vectors as codes.
        queries: float32 (n, d), query vectors.
        own: int64 (n,), row number of the passage that is the query itself; it is left out of the results. -1 = none.
    """

    quantiser: Quantiser
    queries: NDArray[np.float32]
    own: NDArray[np.int64]

    @classmethod
    def of(cls, folder: Path, dtype: Dtype, sample: NDArray[np.float32], rows: NDArray[np.int64]) -> Self:
        """Fit the levels to a sample of passages, and choose the queries that measure the loss.

        Args:
            folder: folder of the index. The loss is measured on its queries, or on sampled passages if it has no queries.
            dtype: int8 or binary.
            sample: float32 (m, d), vectors of the sampled passages.
            rows: int64 (m,), row numbers of the sampled passages.
        """
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
        """Quantise a shard of vectors (m, d) and return the codes.

        The results of an exact search in the shard, before quantisation, are written into ``folder``.

        ``number``: index of the shard. ``first``: its first row.
        """
        keys = torch_search(self.queries, iter([(first, vectors)]), DEPTHS[-1] + 1, "cpu")
        (folder / EXACT).mkdir(exist_ok=True)
        save_array(folder / EXACT / f"{number:05d}.npy", keys)
        return self.quantiser.codes(vectors)

    def write_recall(self, folder: Path, shards: int) -> dict[str, Any]:
        """Measure the recall of the quantised index in ``folder`` relative to the results before quantisation.

        The recall is written to a file. After an interruption, this file is read.

        Returns:
            ``recall_10`` and ``recall_100``, and ``compared``, the number of queries.
        """
        if not (folder / RECALL).exists():
            parts = [load_array(folder / EXACT / f"{number:05d}.npy") for number in range(shards)]
            exact = unpack(top(np.concatenate(parts, axis=1), DEPTHS[-1] + 1))[1]
            blocks = DenseIndex(folder, device="cpu").blocks(BLOCK)
            found = unpack(torch_search(self.queries, blocks, DEPTHS[-1] + 1, "cpu"))[1]
            shares = {f"recall_{depth}": share_found(exact, found, self.own, depth) for depth in DEPTHS}
            write_json(folder / RECALL, {**shares, "compared": len(self.queries)})
        shutil.rmtree(folder / EXACT, ignore_errors=True)
        return dict(read_json(folder / RECALL))


def described(dtype: str, vectors: int, quantiser: Quantiser, shares: Mapping[str, float], compared: str) -> str:
    """Return the text that states the size of the quantised vectors and their recall relative to float32.

    Args:
        dtype: int8 or binary.
        vectors: number of vectors.
        quantiser: encodes a vector as a code.
        shares: ``recall_10`` and ``recall_100``.
        compared: description of the queries that were searched before and after quantisation.
    """
    kept, whole = as_bytes(vectors * quantiser.width), as_bytes(4 * vectors * quantiser.dim)
    found = ", ".join(f"{100 * shares[f'recall_{depth}']:.1f} % of the {depth} best" for depth in DEPTHS)
    sizes = f"{dtype}: {kept} of passage vectors instead of {whole}"
    return f"{sizes}; it finds {found} of float32 ({compared})"


def quantised(vectors: NDArray[np.float32], dtype: Dtype) -> tuple[Decoded, str]:
    """Quantise vectors (m, d) in memory to ``dtype``, int8 or binary.

    Returns:
        the codes, and the text from ``described`` about their size and recall. For the recall, up to 500 of the vectors serve
        as queries.
    """
    drawn = sample_of(len(vectors), SAMPLE)
    quantiser = Quantiser.fitted(vectors[drawn], QUANTISED[dtype])
    codes, asked = Decoded(quantiser.codes(vectors), quantiser), drawn[:COMPARED]
    exact, found = (search_array(vectors[asked], one, DEPTHS[-1] + 1, "cpu")[1] for one in (vectors, codes))
    shares = {f"recall_{depth}": share_found(exact, found, asked, depth) for depth in DEPTHS}
    return codes, described(dtype, len(vectors), quantiser, shares, f"{len(asked):,} passages as queries")


def share_found(exact: NDArray[np.int64], found: NDArray[np.int64], own: NDArray[np.int64], depth: int) -> float:
    """Return the share of the ``depth`` best rows of ``exact`` (n, k) that are among the ``depth`` best of ``found`` (n, k).

    Before that, the row ``own`` (n,) of each query and padding (-1) are removed from both.
    """
    wanted = hits = 0
    for best, others, itself in zip(exact, found, own, strict=True):
        of_best, of_others = (rows[(rows >= 0) & (rows != itself)][:depth] for rows in (best, others))
        wanted, hits = wanted + len(of_best), hits + len(np.intersect1d(of_best, of_others))
    return hits / wanted if wanted else 1.0
