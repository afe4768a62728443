"""Search a retriever with texts that are not queries of the collection."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.retrieval.ranking import Ranking
from condensery.system.progress import progress

Encode = Callable[[Sequence[str]], NDArray[np.floating]]  # texts to their query vectors (n, d)
ASKED = 256  # texts that a retriever searches at a time
Search = Callable[[Sequence[str], int], Ranking]  # the k best passages for texts: scores and rows (n, k)


def searcher(retriever: Any, encoder_of: Callable[[Path], Encode]) -> Search:
    """The function that searches a retriever with any texts.

    A fused retriever (with ``members``, a ``depth`` and ``combine``) searches each member at that depth. BM25
    (``search_texts``) reads the texts. A dense retriever (``search_vectors``) gets the vectors of the texts.

    Args:
        retriever: any retriever that ``open_index`` gives, except reranked candidates.
        encoder_of: gives the encoder of a folder of passage vectors; called at once, not at the first search.

    Raises:
        UserError: the retriever knows only the queries of the collection.
    """
    if hasattr(retriever, "combine"):
        members = [searcher(member, encoder_of) for member in retriever.members]

        def joined(texts: Sequence[str], k: int) -> Ranking:
            rankings = [search(texts, retriever.depth) for search in members]
            ranking: Ranking = retriever.combine(rankings, k)
            return ranking

        return joined
    if hasattr(retriever, "search_texts"):
        return lambda texts, k: retriever.search_texts(texts, k)
    if not hasattr(retriever, "search_vectors"):
        raise UserError("reranked candidates are those of the collection's own queries; ask what they were made from")
    encode = encoder_of(getattr(retriever, "exact", retriever).folder)
    return lambda texts, k: retriever.search_vectors(np.asarray(encode(texts), np.float32), k)


def ranked(search: Search, texts: Sequence[str], depth: int, label: str) -> Ranking:
    """The ``depth`` best passages of texts (n,), n > 0: scores and rows (n, depth). Progress is shown as ``label``."""
    found = []
    with progress(label, len(texts), "queries") as task:
        for first in range(0, len(texts), ASKED):
            found.append(search(texts[first : first + ASKED], depth))
            task.advance(len(found[-1][0]))
    scores, rows = zip(*found, strict=True)
    return np.concatenate(scores), np.concatenate(rows)
