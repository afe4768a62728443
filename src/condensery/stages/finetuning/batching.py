"""Inputs of the batches of fine-tuning: similarities for adaptive batches, and scores of an in-batch teacher."""

from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from condensery.distributed import rank
from condensery.retrieval.indexes.fusion import FusedIndex
from condensery.retrieval.indexes.interface import CollectionRetriever
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.neighbours import dense_neighbours, lexical_neighbours
from condensery.stages.base import Context
from condensery.stages.finetuning.config import FinetuneConfig
from condensery.text.collection import Collection
from condensery.training.adaptive.order import AdaptiveOrder
from condensery.training.adaptive.search import Ids
from condensery.training.data.training_queries import TrainingQueries
from condensery.training.data.triple_batches import Scores

SCHEDULE = "schedule"  # subfolder of the artifact for files that adaptive batches need during training


def bm25_similarity(
    corpus: Path, queries: Ids, passages: Ids, neighbours: int, folder: Path, threads: int
) -> sparse.csr_matrix:
    """Return the BM25 scores (queries, passages) between queries and passages of a collection.

    Args:
        corpus: folder of the collection.
        queries, passages: rows in the collection. A passage is its title and its text.
        neighbours: number of passages per query, and of queries per passage, that are kept.
        folder: folder of the temporary index.
        threads: threads of the search.
    """
    collection = Collection(corpus)
    asked, texts = collection.queries.column("text").take(queries), collection.passages.full_texts(passages)
    return lexical_neighbours(asked, texts, neighbours, folder, threads)


def adaptive_order(config: FinetuneConfig, context: Context, training: TrainingQueries) -> AdaptiveOrder:
    """Return the order of hard batches (Zhao et al., §3.2), which needs the folder ``SCHEDULE`` during training."""
    own, runtime, folder = config.adaptive, context.runtime, context.folder / SCHEDULE
    asked = context.input("corpus"), training.rows, np.unique(training.positives)
    lexical = partial(bm25_similarity, *asked, own.neighbours, folder / "bm25", runtime.threads)
    dense = partial(dense_neighbours, k=own.neighbours, threads=runtime.threads, device=runtime.search_device)
    known = training.no_negatives(np.arange(len(training.rows))) if training.known is not None else None
    how = config.batch_size, own.beam, config.seed, own.similarity
    return AdaptiveOrder(folder, training.positives, training.starts, *how, lexical, dense, known)


@lru_cache(maxsize=1)
def _opened(folder: Path, corpus: Path, threads: int) -> CollectionRetriever:
    return open_index(folder, Collection(corpus), threads, device="cpu")


def _scores(folder: Path, corpus: Path, threads: int, queries: Ids, passages: Ids) -> NDArray[np.float32]:
    return _opened(folder, corpus, threads).score(queries, passages)


def scores_of(folder: Path, corpus: Path, threads: int, label: str = "in-batch teacher") -> Scores:
    """Return the function that scores a batch with an index, the in-batch teacher. Each process opens the index itself.

    A fused index scores only passages among the best ``depth`` of its retrievers, and a batch has few of these. If
    ``depth`` is below the number of passages, the run prints a warning.

    Args:
        folder: folder of the index.
        corpus: folder of the collection.
        threads: CPU threads of the index.
        label: name of the stage, with which the warning begins.

    Raises:
        UserError: the folder holds no index, or an index of another collection.
    """
    index = _opened(folder, corpus, threads)
    if isinstance(index, FusedIndex) and index.depth < len(index) and rank() == 0:
        scored = f"the in-batch teacher scores the best {index.depth:,} of {len(index):,} passages for a query"
        print(f"[{label}] warning: {scored}, and all others 0; raise stage.fuse.depth", flush=True)
    return partial(_scores, folder, corpus, threads)
