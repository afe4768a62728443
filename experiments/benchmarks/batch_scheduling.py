"""Measure how hard the batches of adaptive scheduling are, and what they cost (Zhao et al., §3.2).

    python experiments/benchmarks/batch_scheduling.py root=DIR [batch=32] [beam=5] [queries=N]
    python experiments/benchmarks/batch_scheduling.py synthetic=100000 [batch=64] [beam=5]

DIR is a BEIR folder. The pairs are its training queries (the first N, or all) with their positives. The similarity is BM25.
``synthetic`` is a number of random pairs of vectors, which are compared by inner product. The vectors have 32 dimensions, and
lie around centres, one for every 50 pairs. The program uses one thread. It prints a JSON line each for random batches, greedy
search and beam search:

    hardness                mean h(B) over at most 200 batches of the epoch. It counts all similarities within a batch, even
                            those that the search does not see, except those of a query and a passage relevant to it
    times_random            hardness divided by that of random batches; missing for vectors, whose products are around 0
    neighbours_cpu_s        CPU-seconds to find the 100 nearest neighbours in both directions, once per epoch
    schedule_cpu_s          CPU-seconds of the search, for the whole epoch
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import time

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from condensery.randomness import generator
from condensery.retrieval.neighbours import dense_neighbours, lexical_neighbours
from condensery.training.adaptive.search import Ids, Scheduler

NEIGHBOURS, MEASURED, SEED = 100, 200, 1
USAGE = "usage: batch_scheduling.py root=DIR | synthetic=PAIRS [batch=N] [beam=N] [queries=N]"


@dataclass(frozen=True)
class Pairs:
    """Training pairs.

    Attributes:
        passage: (t,) row of each query's positive among u passages.
        neighbours: function that returns the sparse similarities (t, u).
        among: function that returns all similarities of queries (n,) and passages (m,), (n, m).
        lexical: whether the similarities are BM25 scores.
    """

    passage: Ids
    neighbours: Callable[[], sparse.csr_matrix]
    among: Callable[[Ids, Ids], NDArray[np.floating]]
    lexical: bool


def from_folder(root: Path, limit: int | None, scratch: Path) -> Pairs:
    """Return the training pairs of a BEIR folder, with BM25 as similarity."""
    from condensery.retrieval.indexes.bm25 import BM25Index
    from condensery.text.collection import Collection
    from condensery.text.formats.beir import BeirSource
    from condensery.text.formats.beir import read as read_beir
    from condensery.text.source import Splits
    from condensery.text.writer import CollectionWriter

    splits = Splits(train="train", dev=None, test=None)
    source = BeirSource(
        name="pairs",
        root=str(root),
        splits=splits,
        documents=None,
        empty_passages="drop",
        dev_queries=0,
        unlabelled_queries=0,
    )
    with CollectionWriter(scratch / "corpus", "pairs") as writer:
        read_beir(source, writer)
    collection = Collection(scratch / "corpus")
    positives = dict(list(collection.qrels("train").positives().items())[:limit])
    rows, passage = np.unique([found[0] for found in positives.values()], return_inverse=True)
    titles, texts = (collection.passages.column(name).take(rows) for name in ("title", "text"))
    passages = [f"{title} {text}" if title else text for title, text in zip(titles, texts, strict=True)]
    queries = collection.queries.column("text").take(list(positives))

    def neighbours() -> sparse.csr_matrix:
        return lexical_neighbours(queries, passages, NEIGHBOURS, scratch / "bm25")

    def among(asked: Ids, read: Ids) -> NDArray[np.floating]:
        scores, found = BM25Index(scratch / "bm25").search_texts([queries[i] for i in asked], len(passages))
        full = np.zeros((len(asked), len(passages) + 1), np.float32)
        np.put_along_axis(full, found, np.where(found < 0, 0, scores), axis=1)  # -1, no passage: the last column
        return full[:, read]

    return Pairs(passage, neighbours, among, True)


def made_up(pairs: int) -> Pairs:
    """Return clustered random vectors, with the inner product as similarity."""
    random = generator(SEED, "benchmark")
    centres = random.normal(size=(max(1, pairs // 50), 32))
    queries, passages = (
        (centres[np.arange(pairs) % len(centres)] + 0.6 * random.normal(size=(pairs, 32))).astype(np.float32)
        for _ in range(2)
    )

    def neighbours() -> sparse.csr_matrix:
        return dense_neighbours(queries, passages, NEIGHBOURS)

    return Pairs(np.arange(pairs), neighbours, lambda asked, read: queries[asked] @ passages[read].T, False)


def mean_hardness(pairs: Pairs, batches: list[Ids]) -> float:
    """Return the mean h(B) of evenly spaced batches, computed from all similarities."""
    places = np.linspace(0, len(batches) - 1, min(MEASURED, len(batches))).astype(int)
    values = []
    for batch in (batches[place] for place in places):
        passages = pairs.passage[batch]
        scores = pairs.among(batch, passages)
        values.append(scores[passages[:, None] != passages].sum())
    return float(np.mean(values))


def without_own(similarity: sparse.csr_matrix, passage: Ids) -> sparse.csr_matrix:
    """Return the similarities without those of each query's own passage."""
    own = sparse.csr_matrix((np.ones(len(passage), np.float32), (np.arange(len(passage)), passage)), similarity.shape)
    return (similarity - similarity.multiply(own)).tocsr()


def main(pairs: Pairs, batch: int, beam: int) -> None:
    """Run the benchmark and print its lines."""
    items = len(pairs.passage)
    start = time.process_time()
    similarity = without_own(pairs.neighbours(), pairs.passage)
    listing = time.process_time() - start
    order = generator(SEED, "order", 0).permutation(items)
    random = mean_hardness(pairs, [order[first : first + batch] for first in range(0, items - batch + 1, batch)])
    shared = {"pairs": items, "passages": similarity.shape[1], "batch": batch}
    print(json.dumps({"batches": "random", "hardness": round(random, 1), **shared}), flush=True)
    for name, width in (("greedy", 1), (f"beam {beam}", beam)):
        start = time.process_time()
        made = list(Scheduler(similarity, pairs.passage, batch, width, SEED, 0).batches(np.empty(0, np.int64)))
        cost = time.process_time() - start
        hard = mean_hardness(pairs, [found for found in made if len(found) == batch])
        line = {"batches": name, "hardness": round(hard, 1)}
        line |= {"times_random": round(hard / random, 2)} if pairs.lexical else {}
        costs = {"neighbours_cpu_s": round(listing, 1), "schedule_cpu_s": round(cost, 1)}
        print(json.dumps({**line, **costs, **shared}), flush=True)


if __name__ == "__main__":
    try:
        options = dict(argument.split("=", 1) for argument in sys.argv[1:])
        root, synthetic = options.pop("root", None), options.pop("synthetic", None)
        numbers = {"batch": 32 if root else 64, "beam": 5, "queries": 0}
        if (root is None) == (synthetic is None) or options.keys() - numbers.keys():
            raise ValueError
        numbers |= {name: int(value) for name, value in options.items()}
        size = int(synthetic or 0)
    except ValueError:
        sys.exit(USAGE)
    with tempfile.TemporaryDirectory() as folder:
        chosen = from_folder(Path(root), numbers["queries"] or None, Path(folder)) if root else made_up(size)
        main(chosen, numbers["batch"], numbers["beam"])
