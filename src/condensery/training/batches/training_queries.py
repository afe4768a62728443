"""The queries that are trained on: their positives, their hard negatives, and what a teacher says of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.randomness import check_subset, nested_subset, uniforms
from condensery.retrieval.no_negatives import NoNegatives
from condensery.retrieval.pair_scores import Teacher
from condensery.text.collection import Collection
from condensery.tokens.ranges import ranges
from condensery.training.batches.steps import Ids

NOTHING: Ids = np.empty(0, np.int64)
Value = TypeVar("Value", bound=np.generic, covariant=True)


class Pool(Protocol[Value]):
    """Something for each hard negative of the training queries (q, m), an array or read from disk as it is asked for."""

    def __getitem__(self, chosen: Ids, /) -> NDArray[Value]:
        """(b, m) of the queries ``chosen`` (b,)."""


@dataclass(frozen=True)
class TrainingQueries:
    """What is known about the training queries.

    Attributes:
        rows: (q,) row of each query in the collection, ascending.
        positives: (j,) judged relevant passages of query 0, then of query 1, ...
        starts: (q + 1,) where each query's begin.
        negatives: (q, m) hard negatives, padded with -1 anywhere; m may be 0.
        weights: (q, m) > 0, how likely each is drawn against the others of its query; None = all alike.
        known: what is no negative of them besides their positives; None = nothing.
        teacher: what a teacher makes of their passages; None = there is none.
    """

    rows: Ids
    positives: Ids
    starts: Ids
    negatives: Pool[np.int32]
    weights: Pool[np.float64] | None = None
    known: NoNegatives | None = None
    teacher: Teacher | None = None

    @classmethod
    def of(
        cls,
        positives: Mapping[int, NDArray[np.integer]],
        negatives: Pool[np.int32],
        weights: Pool[np.float64] | None = None,
        known: NoNegatives | None = None,
        teacher: Teacher | None = None,
    ) -> "TrainingQueries":
        """From the relevant passages of each query row, in ascending order of the rows, and what ``known`` makes of them.

        Where that is more than these, the first of passages that are the same stands for all wherever one is drawn.
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
        """How many passages are no negatives by their text alone."""
        return int(self.no_negative_numbers().sum()) - len(self.positives)

    def no_negative_numbers(self) -> Ids:
        """How many passages of the collection are no negatives of each query (q,)."""
        return np.diff(self.starts) if self.known is None else self.known.numbers(self.rows)

    def no_negatives(self, chosen: Ids) -> tuple[Ids, Ids]:
        """The passages that are no negatives of the queries ``chosen`` (b,), list after list, and their lengths (b,).

        Ascending; where something is ``known``, of passages that are the same the first alone.
        """
        if self.known is not None:
            return self.known.lists(self.rows[chosen])
        numbers = self.starts[chosen + 1] - self.starts[chosen]
        return self.positives[ranges(self.starts[chosen], numbers)], numbers


def judged_queries(
    collection: Collection, split: str, number: int | None, seed: int, key: str = "train_queries"
) -> dict[int, NDArray[np.integer]]:
    """The relevant passages of the judged queries of a split, by query row, or of ``number`` of them drawn by ``seed``.

    Raises:
        UserError: the split is not there, a judged query has no positive, or there are fewer than ``number``, which was set
            in ``key``.
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
    """(b,) the passage that makes a pair of each query ``chosen`` (b,) in an epoch, drawn from its relevant ones.

    ``positives`` and ``starts`` as in ``TrainingQueries``.
    """
    draws = uniforms(seed, "positive", epoch, index=chosen)
    numbers = starts[chosen + 1] - starts[chosen]
    return positives[starts[chosen] + (draws * numbers).astype(np.int64)]
