"""How the queries of fine-tuning come together in batches: what adaptive batches read."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sparse

from condensery.retrieval.neighbours import dense_neighbours, lexical_neighbours
from condensery.text.collection import Collection
from condensery.training.adaptive.order import AdaptiveOrder, Similarity
from condensery.training.adaptive.search import Ids
from condensery.training.batches.training_queries import TrainingQueries


@dataclass(frozen=True)
class Bm25Similarity:
    """BM25 of queries and passages of a collection, by row; ``neighbours`` of each are listed."""

    corpus: Path
    queries: Ids
    passages: Ids
    neighbours: int
    folder: Path
    threads: int

    def __call__(self) -> sparse.csr_matrix:
        """(queries, passages), titles before the texts."""
        collection = Collection(self.corpus)
        queries = collection.queries.column("text").take(self.queries)
        columns = (collection.passages.column(name).take(self.passages) for name in ("title", "text"))
        passages = [f"{title} {text}" if title else text for title, text in zip(*columns, strict=True)]
        return lexical_neighbours(queries, passages, self.neighbours, self.folder, self.threads)


def adaptive_order(
    folder: Path,
    corpus: Path,
    training: TrainingQueries,
    *,
    batch_size: int,
    beam: int,
    neighbours: int,
    similarity: Similarity,
    seed: int,
    threads: int,
    device: str | None,
) -> AdaptiveOrder:
    """Hard batches of the queries ``training`` of the collection ``corpus``; ``folder`` holds what they need meanwhile."""
    passages = np.unique(training.positives)
    lexical = Bm25Similarity(corpus, training.rows, passages, neighbours, folder / "bm25", threads)
    dense = partial(dense_neighbours, k=neighbours, threads=threads, device=device)
    pairs = training.positives, training.starts
    known = training.no_negatives(np.arange(len(training.rows))) if training.known is not None else None
    return AdaptiveOrder(folder, *pairs, batch_size, beam, seed, similarity, lexical, dense, known)
