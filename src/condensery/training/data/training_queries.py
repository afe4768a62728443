"""The training queries with positives, hard negatives and teacher scores, and the queries built from passages."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.randomness import check_subset, nested_subset, uniforms
from condensery.retrieval.negative_pool import NegativePool, NegativeWeights
from condensery.retrieval.no_negatives import NoNegatives, packed
from condensery.retrieval.pair_scores import Teacher
from condensery.text.collection import Collection
from condensery.text.ids import IdIndex
from condensery.text.same_texts import SameTexts, text_hashes
from condensery.tokens.ranges import ranges
from condensery.tokens.store import TokenStore
from condensery.training.data.steps import Ids, Share, items_of_step

NOTHING: Ids = np.empty(0, np.int64)


@dataclass(frozen=True)
class TrainingQueries:
    """The q training queries with their positives, their hard negatives and a teacher's scores.

    Attributes:
        rows: (q,) row of each query in the collection, ascending; with ``of(each=True)``, a row occurs once per positive.
        positives: (j,) judged relevant passages of query 0, then of query 1, ...
        starts: (q + 1,) index in ``positives`` of each query's first positive; the last entry is j.
        negatives: (q, m) hard negatives. Entries of -1, anywhere in a row, are padding; m may be 0. A
            ``NegativePool`` reads the negatives from disk on demand.
        weights: (q, m) > 0, sampling weight of each negative among the negatives of its query; None = equal weights.
        known: passages that are excluded as negatives of the queries in addition to the positives; None = no further
            passages.
        teacher: source of a teacher's scores of the queries' passages; None = there is no teacher.
    """

    rows: Ids
    positives: Ids
    starts: Ids
    negatives: NegativePool | NDArray[np.int32]
    weights: NegativeWeights | NDArray[np.float64] | None = None
    known: NoNegatives | None = None
    teacher: Teacher | None = None

    @classmethod
    def of(
        cls,
        positives: Mapping[int, NDArray[np.integer]],
        negatives: NegativePool | NDArray[np.int32],
        weights: NegativeWeights | NDArray[np.float64] | None = None,
        known: NoNegatives | None = None,
        teacher: Teacher | None = None,
        each: bool = False,
    ) -> "TrainingQueries":
        """Create the training queries from their relevant passages.

        Args:
            positives: query row -> its relevant passages, in ascending order of the rows.
            negatives, weights, teacher: see the attributes.
            known: passages excluded as negatives. It is kept only if it excludes further passages besides the positives,
                because of the passages' text. Passages with equal text then count as one passage, which the first of them
                represents.
            each: make a training query of each positive (``rows_of``). ``known`` must be given, and is kept.
        """
        rows, flat = rows_of(positives, each), np.concatenate(list(positives.values())).astype(np.int64)
        counts = [1] * len(flat) if each else [len(passages) for passages in positives.values()]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        known = known if known is not None and (each or known.by_text(positives)) else None
        if known is not None:
            flat = known.passages.first(flat)
        return cls(rows, flat, starts, negatives, weights, known, teacher)

    @property
    def by_text(self) -> int:
        """The number of query-passage pairs that are excluded as negatives only because of the passage's text."""
        return 0 if self.known is None else int(self.known.numbers(np.unique(self.rows)).sum()) - len(self.positives)

    def no_negative_numbers(self) -> Ids:
        """Return the number of passages of the collection that are excluded as negatives of each query: (q,)."""
        return np.diff(self.starts) if self.known is None else self.known.numbers(self.rows)

    def no_negatives(self, chosen: Ids) -> tuple[Ids, Ids]:
        """Return the passages that are excluded as negatives of the queries ``chosen`` (b,).

        Returns:
            the passages of all queries, concatenated and ascending within each query, and the number of each query's
            passages (b,). If ``known`` is given, only the first of several passages with equal text is listed.
        """
        if self.known is not None:
            return self.known.lists(self.rows[chosen])
        numbers = self.starts[chosen + 1] - self.starts[chosen]  # (b,)
        return self.positives[ranges(self.starts[chosen], numbers)], numbers


@dataclass(frozen=True)
class TextQueries:
    """Queries that were built from passages. The positive of each query is its passage.

    Few passages are judged relevant to a training query. All other passages occur only as negatives. So a retriever that is
    trained on judged queries alone learns to rank these other passages low. With queries built from passages, every passage
    can be a positive.

    Attributes:
        store: the tokenised queries.
        rows: (n,) rows in ``store`` of the queries that are trained on.
        passages: (n,) row in the collection of each query's passage.
        batch_size: number of these queries per step.
        known: groups of queries with the same text. The passages of a group are excluded as negatives of all its queries.
            None = only the query's own passage is excluded.
    """

    store: TokenStore
    rows: Ids
    passages: Ids
    batch_size: int
    known: NoNegatives | None = None

    @classmethod
    def of(
        cls, texts: Iterable[str], store: TokenStore, rows: Ids, passages: Ids, collection: Collection, batch_size: int
    ) -> "TextQueries":
        """Create the object, and find the queries with the same text.

        Args:
            texts: (n,) the text of each query, in the order of ``rows``.
            store, rows, passages, batch_size: see the attributes.
            collection: the collection of the passages.
        """
        same, same_passages = SameTexts.of(IdIndex.of(text_hashes(texts))), collection.passage_texts.same
        pairs = packed(same.first(np.arange(len(rows))), same_passages.first(passages))
        return cls(store, rows, passages, batch_size, NoNegatives(same, same_passages, np.unique(pairs)))

    def no_negatives(self, chosen: Ids) -> tuple[Ids, Ids]:
        """Return the passages that are excluded as negatives of queries (b,), as ``TrainingQueries.no_negatives`` does."""
        if self.known is not None:
            return self.known.lists(chosen)
        return self.passages[chosen], np.ones(len(chosen), np.int64)

    def of_step(self, step: int, seed: int, share: Share, replicated: bool) -> Ids:
        """Return the queries (b,) of a step that this process trains on, numbered 0 .. n - 1.

        Args:
            step: index of the step, from 0.
            seed: seed of the order.
            share: this process's part of the step's queries.
            replicated: True = every process has the whole batch, and so gets all queries of the step.
        """
        items = items_of_step(step, self.batch_size, len(self.rows), seed)[1]
        return items if replicated else np.array_split(items, share.processes)[share.rank]


def judged_queries(
    collection: Collection, split: str, number: int | None, seed: int, key: str = "train_queries"
) -> dict[int, NDArray[np.integer]]:
    """Return the relevant passages of the judged queries of a split, by query row.

    Args:
        collection: collection with the judgements.
        split: name of the split.
        number: number of queries, drawn by ``seed``; None = all queries.
        seed: seed with which the queries are drawn.
        key: name of the setting that gave ``number``, for the error message.

    Raises:
        UserError: the split does not exist, a judged query has no positive, or there are fewer than ``number`` queries.
    """
    qrels = collection.qrels(split)
    positives = qrels.positives()
    if without := [row for row in qrels.query_set.tolist() if row not in positives]:
        name = collection.queries.column("id")[without[0]]
        raise UserError(
            f"qrels of the split {split!r}: queries without a positive (a judgement above 0): {name!r} and"
            f" {len(without) - 1} others; remove them from the qrels"
        )
    check_subset(number, len(positives), key, f"judged queries in the split {split!r}")
    judged = np.fromiter(positives, np.int64)
    return {row: positives[row] for row in judged[nested_subset(seed, len(judged), number)].tolist()}


def rows_of(positives: Mapping[int, NDArray[np.integer]], each: bool) -> Ids:
    """Return the rows of the training queries (q,). With ``each``, a row is repeated for every positive of the query."""
    rows = np.fromiter(positives, np.int64)
    return np.repeat(rows, [len(passages) for passages in positives.values()]) if each else rows


def drawn_positives(positives: Ids, starts: Ids, chosen: Ids, seed: int, epoch: int) -> Ids:
    """Draw one relevant passage for each query in an epoch.

    Args:
        positives, starts: as in ``TrainingQueries``.
        chosen: (b,) the queries.
        seed, epoch: seed and epoch that determine which passages are drawn.

    Returns:
        (b,) the drawn passage of each query.
    """
    draws = uniforms(seed, "positive", epoch, index=chosen)  # (b,)
    numbers = starts[chosen + 1] - starts[chosen]  # (b,)
    return positives[starts[chosen] + (draws * numbers).astype(np.int64)]
