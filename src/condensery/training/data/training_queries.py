"""The queries that are trained on, with their positives, hard negatives and a teacher's scores; queries made of passages."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.randomness import check_subset, nested_subset, uniforms
from condensery.retrieval.negative_pool import NegativePool, NegativeWeights
from condensery.retrieval.no_negatives import NoNegatives
from condensery.retrieval.pair_scores import Teacher
from condensery.text.collection import Collection
from condensery.tokens.ranges import ranges
from condensery.tokens.store import TokenStore
from condensery.training.data.steps import Ids, Share, items_of_step

NOTHING: Ids = np.empty(0, np.int64)


@dataclass(frozen=True)
class TrainingQueries:
    """The q training queries with their positives, their hard negatives and a teacher's scores.

    Attributes:
        rows: (q,) row of each query in the collection, ascending.
        positives: (j,) judged relevant passages of query 0, then of query 1, ...
        starts: (q + 1,) index in ``positives`` of each query's first positive; the last entry is j.
        negatives: (q, m) hard negatives, padded with -1 anywhere; m may be 0. A pool reads them from disk on demand.
        weights: (q, m) > 0, the weight with which each negative is drawn, against the others of its query; None = all are
            drawn alike.
        known: the passages that are no negatives of the queries, besides the positives; None = there are no others.
        teacher: gives a teacher's scores of the queries' passages; None = there is no teacher.
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
    ) -> "TrainingQueries":
        """Make the training queries from their relevant passages.

        Args:
            positives: query row -> its relevant passages, in ascending order of the rows.
            negatives, weights, teacher: as the attributes.
            known: kept only where it names passages besides the positives. Then the first of several equal passages stands
                for all of them wherever one is drawn.
        """
        counts = [len(passages) for passages in positives.values()]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        flat = np.concatenate(list(positives.values())).astype(np.int64)
        known = known if known is not None and known.by_text(positives) else None
        if known is not None:
            flat = known.passages.first(flat)
        return cls(np.fromiter(positives, np.int64), flat, starts, negatives, weights, known, teacher)

    @property
    def by_text(self) -> int:
        """The number of passages that are no negatives by their text alone."""
        return int(self.no_negative_numbers().sum()) - len(self.positives)

    def no_negative_numbers(self) -> Ids:
        """Return the number of passages of the collection that are no negatives of each query: (q,)."""
        return np.diff(self.starts) if self.known is None else self.known.numbers(self.rows)

    def no_negatives(self, chosen: Ids) -> tuple[Ids, Ids]:
        """Return the passages that are no negatives of the queries ``chosen`` (b,).

        Returns:
            the passages of all queries, concatenated and ascending within each query, and the number of each query's
            passages (b,). Where ``known`` is given, only the first of several equal passages is listed.
        """
        if self.known is not None:
            return self.known.lists(self.rows[chosen])
        numbers = self.starts[chosen + 1] - self.starts[chosen]  # (b,)
        return self.positives[ranges(self.starts[chosen], numbers)], numbers


@dataclass(frozen=True)
class TextQueries:
    """Queries with one positive each: the passage that the query was made of.

    Few passages are judged relevant to a training query. All other passages are only ever negatives, so a retriever that is
    trained on judged queries alone learns to rank them low. With queries made of passages every passage can be a positive.

    Attributes:
        store: the queries in tokens.
        rows: (n,) rows in ``store`` of the queries that are trained on.
        passages: (n,) row in the collection of each query's passage.
        batch_size: number of these queries a step.
    """

    store: TokenStore
    rows: Ids
    passages: Ids
    batch_size: int

    def of_step(self, step: int, seed: int, share: Share, replicated: bool) -> Ids:
        """Return the queries (b,) of a step that this process trains on, numbered 0 .. n - 1.

        Args:
            step: from 0.
            seed: seed of the order.
            share: this process's part of the step's queries.
            replicated: True = every process has the whole batch, and so all queries of the step.
        """
        items = items_of_step(step, self.batch_size, len(self.rows), seed)[1]
        return items if replicated else np.array_split(items, share.processes)[share.rank]


def judged_queries(
    collection: Collection, split: str, number: int | None, seed: int, key: str = "train_queries"
) -> dict[int, NDArray[np.integer]]:
    """Return the relevant passages of the judged queries of a split, by query row.

    Args:
        collection: with the judgements.
        split: whose queries are taken.
        number: of queries that are drawn by ``seed``; None = all.
        seed: seed of the draws of queries.
        key: name of the setting that gave ``number``, for the message of the error.

    Raises:
        UserError: the split is not there, a judged query has no positive, or there are fewer than ``number`` queries.
    """
    qrels = collection.qrels(split)
    positives = qrels.positives()
    without = [row for row in qrels.query_set.tolist() if row not in positives]
    if without:
        name = collection.queries.column("id")[without[0]]
        raise UserError(
            f"qrels of the split {split!r}: query {name!r} has no positive (no judgement above 0), nor have"
            f" {len(without) - 1} others; remove them from the qrels"
        )
    check_subset(number, len(positives), key, f"judged queries in the split {split!r}")
    judged = np.fromiter(positives, np.int64)
    chosen = judged[nested_subset(seed, len(judged), number)]
    return {row: positives[row] for row in chosen.tolist()}


def drawn_positives(positives: Ids, starts: Ids, chosen: Ids, seed: int, epoch: int) -> Ids:
    """Draw one relevant passage of each query for an epoch.

    Args:
        positives, starts: as in ``TrainingQueries``.
        chosen: (b,) the queries.
        seed, epoch: on which the draws depend.

    Returns:
        (b,) the drawn passage of each query.
    """
    draws = uniforms(seed, "positive", epoch, index=chosen)  # (b,)
    numbers = starts[chosen + 1] - starts[chosen]  # (b,)
    return positives[starts[chosen] + (draws * numbers).astype(np.int64)]
