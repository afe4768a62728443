"""Mine hard negatives: passages that a retriever ranks high for a training query and that are not known to be relevant."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.retrieval.indexes.divided import divide
from condensery.retrieval.indexes.interface import CollectionRetriever
from condensery.retrieval.negatives import Negatives, open_negatives, save_negatives
from condensery.retrieval.no_negatives import Ids, NoNegatives, left_out_by_text, packed
from condensery.retrieval.positive_aware import ARRAYS, Below, Judge, Scorer, Scores, counted, lowest
from condensery.retrieval.relabelled import NOTHING, Relabelled
from condensery.retrieval.searchers.base import Searcher, SearcherIndex
from condensery.retrieval.shards import SHARD, padded, rank_in_shards
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.system.cache import cached
from condensery.system.progress import SILENT, ProgressTask
from condensery.text.answers import AnswerMatcher
from condensery.text.collection import Collection

RULE = "without texts that are known"  # part of the cache key; a changed selection rule needs a new string

Rankings = list[tuple[Scores, Ids]]  # for each query, the scores and row numbers of its ranked passages
# If a query's positive scores low, few candidates score below it, and the search goes deeper. Its depth is at most FURTHER
# times the wanted number of negatives, or LEAST passages if that is more. Deeper passages are no harder than random ones.
FURTHER, LEAST = 4, 1_024


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
    below: Below = Below(),  # noqa: B008
    scorer: Scorer | None = None,
    relabelled: Relabelled = NOTHING,
) -> dict[str, Any]:
    """Mine hard negatives: for each query with a positive in ``split``, write its ``depth`` highest-ranked negatives.

    Queries are written in the order of their rows in the collection. Passages are excluded as negatives in this order:

    1. judged positives, and passages that have the text of a positive or of the query (``NoNegatives``);
    2. passages whose score is not below the limits in the argument ``below`` (``positive_aware``);
    3. with ``without_answers``, passages that contain an answer (the search is at least ``skip_top`` + 2 * ``depth`` deep);
    4. the ``skip_top`` best of the remaining passages, because they may be unjudged positives.

    A query gets fewer than ``depth`` negatives only if the search, whose depth is limited, finds no more. After an
    interruption, mining continues after the last complete shard. The result has the same bytes as without interruption.

    Args:
        retriever: ranks the passages.
        collection: the collection of the queries and passages.
        split: split whose queries and judgements are used.
        depth: number of negatives per query.
        folder: folder of the artifact.
        skip_top: number of highest-ranked candidates that are skipped.
        without_answers: exclude passages that contain an answer.
        made_by: name of the retriever, which is written into the artifact.
        size: queries per shard.
        group: the processes that share the shards.
        below: upper limits of a negative's score. Passages excluded by these limits are stored in the arrays ``ARRAYS``.
        scorer: computes the scores that are compared with these limits; None = the retriever.
        relabelled: judgements from filled-in sheets of the stage ``audit_negatives``. Passages judged relevant count as
            positives. Passages that people or the split judge not relevant are never excluded by ``below``.

    Returns:
        Counts for the manifest. With several processes, only the first process returns.

    Raises:
        UserError: no query has a positive, or ``without_answers`` is set and the collection has no answers.
    """
    qrels = collection.qrels(split)
    positives = relabelled.added_to(qrels.positives())
    query_rows = np.array(sorted(positives), np.int64)
    if not len(query_rows):
        raise UserError(f"split '{split}' of collection '{collection.name}': no query has a positive to mine for")
    if without_answers and collection.answers is None:
        raise UserError(f"collection '{collection.name}' has no answers; set stage.mine.without_answers=false")

    known = NoNegatives.of(collection, positives)
    judge = Judge(scorer or retriever, below, positives, relabelled.all_no(qrels)) if below else None
    miner = _Miner(retriever, known, judge)

    wanted = skip_top + depth * (2 if without_answers else 1)

    def rank(rows: Ids, task: ProgressTask) -> tuple[Any, ...]:
        found, measured_by = miner.mined(rows, wanted, task)
        rankings: Rankings = [(one.scores, one.passages) for one in found]
        if without_answers:
            rankings = _unanswered(collection, rows, rankings, skip_top + depth)
        ranking = padded([(scores[skip_top:], passages[skip_top:]) for scores, passages in rankings], depth)
        if not below:
            return ranking
        return *ranking, dict(zip(ARRAYS, (*_left_out(rows, found), *measured_by), strict=True))

    if len(query_rows) <= size:
        divide(retriever, query_rows, miner.depth(query_rows, wanted), folder / "queries.npy", f"mine {split}", group)
    rank_in_shards(rank, query_rows, folder, f"mine {split}", size, group)
    group.leave_unless_rank_zero()
    shutil.rmtree(folder / "queries.found", ignore_errors=True)
    about: dict[str, Any] = {"queries": len(query_rows), "depth": depth, "split": split, "made_by": made_by}
    about |= left_out_by_text(known.by_text(positives), f"mine {split}")
    negatives = Negatives.mapped(folder)
    if below:
        about |= counted(folder, below, int((negatives.counts == 0).sum()), f"mine {split}")
    about |= relabelled.saved(folder, collection, f"mine {split}")
    save_negatives(folder, negatives, collection, about)
    return about


def mined(
    searcher: Searcher,
    collection: Collection,
    split: str,
    depth: int,
    below: Below = Below(),  # noqa: B008
    relabelled: Relabelled = NOTHING,
) -> Negatives:
    """Mine hard negatives with a searcher: return the ``depth`` highest-ranked negatives of each query with a positive.

    Excluded are relevant passages, passages with the text of a relevant passage or of the query, and passages that do not
        score below the limits in ``below``. ``condensery.system.cache`` stores the result for later calls.

    Raises:
        UserError: the collection has no such split, or no query has a positive.
    """
    content = f"{collection.content_hash} {split} {depth} {searcher.identity()} {RULE}"
    if below:
        content += f" {below}"
    if relabelled is not NOTHING:
        content += f" relabelled {relabelled.yes.tolist()} {relabelled.no.tolist()}"

    def make(target: Path) -> None:
        index = SearcherIndex.of(searcher, collection)
        index.warn(np.array(sorted(collection.qrels(split).positives()), np.int64))
        mine(index, collection, split, depth, target, below=below, relabelled=relabelled)

    return open_negatives(cached("negatives", content, make), collection)


class _Found(NamedTuple):
    """The negatives of one query, and the higher-ranked passages that the ``Judge`` excluded.

    Attributes:
        scores: the retriever's scores of the negatives.
        passages: row numbers of the negatives, best first.
        left_out: row numbers of the excluded passages that the retriever ranks above the last negative.
        left_out_scores: the judge's scores of these excluded passages.
    """

    scores: Scores
    passages: Ids
    left_out: Ids
    left_out_scores: Scores


@dataclass(frozen=True)
class _Miner:
    retriever: CollectionRetriever
    known: NoNegatives
    judge: Judge | None

    def depth(self, rows: Ids, wanted: int) -> int:
        """Return how many passages the first search retrieves for each query."""
        return min(wanted + int(self.known.lists(rows)[1].max()), len(self.retriever))

    def mined(self, rows: Ids, wanted: int, task: ProgressTask) -> tuple[list[_Found], tuple[NDArray[Any], ...]]:
        """Return at least the ``wanted`` best negatives of each query, if the search finds so many.

        With a judge, also return the positive that set each query's limits, and its score, as two arrays (n,).
        """
        k = self.depth(rows, wanted)
        if self.judge is None:
            return self._found(rows, None, wanted, k, len(self.retriever), task), ()
        scores, passages = lowest(self.judge.scorer, rows, [self.judge.positives[row] for row in rows.tolist()])
        deepest = min(max(k, FURTHER * wanted, LEAST), len(self.retriever))
        return self._found(rows, self.judge.below.limits(scores), wanted, k, deepest, task), (passages, scores)

    def _found(
        self, rows: Ids, limits: Scores | None, wanted: int, k: int, deepest: int, task: ProgressTask
    ) -> list[_Found]:
        """Search for the ``k`` best passages of each query, and return the negatives among them.

        If a query has fewer than ``wanted`` negatives among these passages, its search goes deeper, to at most ``deepest``
        passages. This happens, for example, if a relevant passage occurs many times in the collection.
        """
        scores, passages = self.retriever.search(rows, k, task)
        free = (passages >= 0) & ~self.known.among(rows, passages)
        kept, judged = free, scores
        if self.judge is not None and limits is not None:
            kept, judged = self.judge.keeps(rows, np.where(free, passages, -1), limits)
        found = []
        for at, keep in enumerate(kept):
            places = np.flatnonzero(keep)
            end = places[wanted - 1] if len(places) >= wanted else k
            out = np.flatnonzero(free[at, :end] & ~keep[:end])
            found.append(_Found(scores[at, places], passages[at, places], passages[at, out], judged[at, out]))
        short = np.flatnonzero((kept.sum(axis=1) < wanted) & (passages[:, -1] >= 0))
        if k < deepest and len(short):
            rest = None if limits is None else limits[short]
            deeper = self._found(rows[short], rest, wanted, min(2 * k, deepest), deepest, SILENT)
            for place, one in zip(short.tolist(), deeper, strict=True):
                found[place] = one
        return found


def _left_out(rows: Ids, found: Sequence[_Found]) -> tuple[Ids, Scores]:
    """Join the passages that the ``Judge`` excluded for the queries ``rows`` (n,) into two arrays.

    Returns:
        The pairs as (query << 32) + passage, int64 (m,), and the judge's scores, float32 (m,).
    """
    queries = np.repeat(rows, [len(one.left_out) for one in found])
    pairs = packed(queries, np.concatenate([one.left_out for one in found]))
    return pairs, np.concatenate([one.left_out_scores for one in found])


def _unanswered(collection: Collection, rows: NDArray[np.int64], rankings: Rankings, wanted: int) -> Rankings:
    """Return the first ``wanted`` passages of each ranking that contain no answer to the query."""
    assert collection.answers is not None
    texts, regex = collection.passages.column("text"), collection.description["answers"] == "regex"
    kept = []
    for row, (scores, passages) in zip(rows.tolist(), rankings, strict=True):
        holds = AnswerMatcher(collection.answers[row], regex)
        free = (at for at, passage in enumerate(passages.tolist()) if not holds(texts[passage]))
        places = list(islice(free, wanted))
        kept.append((scores[places], passages[places]))
    return kept
