"""Measure automatically how related a passage and its context are: search with the context, and rank the passage by BM25."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.evaluation.pair_audit.pairs import Pair
from condensery.retrieval.indexes.bm25 import BM25Index, index_texts
from condensery.retrieval.indexes.terms import Analyser
from condensery.system.progress import SILENT, ProgressTask
from condensery.text.languages import guess
from condensery.text.table import TextTable
from condensery.text.words import first_words

CUTOFFS = (1, 10, 100)
NOT_FOUND = -1


def index_passages(passages: TextTable, folder: Path, k1: float, b: float, stopwords: str, stemmer: str) -> None:
    """Build a BM25 index of the passages' texts, without titles. The language is guessed from the texts.

    All passages of a document share the title, so titles would make any two passages of a document look related.
    """
    texts = passages.column("text")
    index_texts(texts, len(texts), folder, k1, b, Analyser(stopwords, stemmer, guess(texts)), str(passages.path))


def ranks(pairs: Sequence[Pair], index: BM25Index, words: int, progress: ProgressTask = SILENT) -> NDArray[np.int64]:
    """Return the rank, counted from 1, of each pair's passage in a BM25 search with the pair's context as query: (pairs,).

    The rank is ``NOT_FOUND`` if passage and context share no term. Only the first ``words`` words of a context form the
    query. A context that is itself a passage is left out of the ranking.
    """
    contexts = [first_words(pair.context, words) for pair in pairs]
    rows = np.array([pair.row for pair in pairs], np.int64)
    return index.ranks(contexts, rows, np.array([pair.context_row for pair in pairs], np.int64), progress)


def summary(pair_ranks: NDArray[np.int64]) -> dict[str, Any]:
    """Return the share of pairs with a rank up to each cutoff, and the median rank.

    A passage that is not found counts as a passage of infinite rank. An infinite median is returned as None.
    """
    middle = median([np.inf if rank == NOT_FOUND else int(rank) for rank in pair_ranks])
    within = {f"rank_{cutoff}": float(((pair_ranks > 0) & (pair_ranks <= cutoff)).mean()) for cutoff in CUTOFFS}
    return {"pairs": len(pair_ranks), **within, "median_rank": None if middle == np.inf else float(middle)}
