"""Mining: the passages that a retriever ranks high for a training query and that are not judged relevant to it."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.retrieval.negatives import Negatives, save_negatives
from condensery.retrieval.no_negatives import NoNegatives, left_out_by_text
from condensery.retrieval.ranking import Ranking
from condensery.retrieval.retriever import CollectionRetriever
from condensery.retrieval.shards import SHARD, open_ranking, padded, rank_in_shards
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.system.progress import ProgressTask
from condensery.text.answers import AnswerMatcher
from condensery.text.collection import Collection

Rankings = list[tuple[NDArray[np.float32], NDArray[np.int64]]]  # scores and passages of each query


def mine(
    retriever: CollectionRetriever,
    collection: Collection,
    split: str,
    depth: int,
    folder: Path,
    skip_top: int = 0,
    without_answers: bool = False,
    made_by: str = "",
    size: int = SHARD,
    group: ProcessGroup = SINGLE_PROCESS,
) -> dict[str, Any]:
    """Write the ``depth`` best negatives of every query of ``split`` that has a positive, in row order.

    Judged positives are left out first, and what has their text or the query's (``NoNegatives``), with ``without_answers``
    also passages that hold an answer of the query (among twice ``depth``), then the ``skip_top`` best (which may be unjudged
    positives); fewer than ``depth`` are written only where no more are found. An interrupted folder is continued behind its
    last whole shard of ``size`` queries and ends with the same bytes. ``made_by`` is what the artifact says of its retriever.
    Returns counts for the manifest, of several processes in the first alone.

    Raises ``UserError`` where no query has a positive, or the collection has no answers and they are asked for.
    """
    positives = collection.qrels(split).positives()
    query_rows = np.array(sorted(positives), np.int64)
    if not len(query_rows):
        raise UserError(f"split '{split}' of collection '{collection.name}': no query has a positive, nothing to mine")
    if without_answers and collection.answers is None:
        raise UserError(f"collection '{collection.name}' has no answers; set stage.mine.without_answers=false")

    known = NoNegatives.of(collection, positives)

    def rank(rows: NDArray[np.int64], task: ProgressTask) -> Ranking:
        wanted = skip_top + depth * (2 if without_answers else 1)
        rankings = _negatives(retriever, rows, wanted, wanted + int(known.lists(rows)[1].max()), known, task)
        if without_answers:
            rankings = _unanswered(collection, rows, rankings, skip_top + depth)
        return padded([(scores[skip_top:], passages[skip_top:]) for scores, passages in rankings], depth)

    rank_in_shards(rank, query_rows, depth, folder, f"mine {split}", size, group)
    group.leave_unless_rank_zero()
    run = open_ranking(folder)
    about: dict[str, Any] = {"queries": len(query_rows), "depth": depth, "split": split, "made_by": made_by}
    about |= left_out_by_text(known.by_text(positives), f"mine {split}")
    save_negatives(folder, Negatives(run.query_rows, run.passage_rows, run.scores), collection, about)
    return about


def _negatives(
    retriever: CollectionRetriever,
    rows: NDArray[np.int64],
    wanted: int,
    k: int,
    known: NoNegatives,
    task: ProgressTask | None,
) -> Rankings:
    """The negatives among the ``k`` best passages of each query; where so many are known that fewer than ``wanted`` are
    left, as where a relevant passage stands often in the collection, among more."""
    k = min(k, len(retriever))
    scores, passages = retriever.search(rows, k, task)
    kept = (passages >= 0) & ~known.among(rows, passages)
    rankings = [(own[keep], found[keep]) for own, found, keep in zip(scores, passages, kept, strict=True)]
    short = np.flatnonzero((kept.sum(axis=1) < wanted) & (passages[:, -1] >= 0))
    if k < len(retriever) and len(short):
        deeper = _negatives(retriever, rows[short], wanted, 2 * k, known, None)
        for place, ranking in zip(short.tolist(), deeper, strict=True):
            rankings[place] = ranking
    return rankings


def _unanswered(collection: Collection, rows: NDArray[np.int64], rankings: Rankings, wanted: int) -> Rankings:
    """Of each ranking the first ``wanted`` passages that hold no answer of the query."""
    assert collection.answers is not None
    texts, regex = collection.passages.column("text"), collection.description["answers"] == "regex"
    kept = []
    for row, (scores, passages) in zip(rows.tolist(), rankings, strict=True):
        holds = AnswerMatcher(collection.answers[row], regex)
        free = (at for at, passage in enumerate(passages.tolist()) if not holds(texts[passage]))
        places = list(islice(free, wanted))
        kept.append((scores[places], passages[places]))
    return kept
