"""Batches for fine-tuning: queries, a positive each, and hard negatives."""

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condensery.errors import UserError
from condensery.losses.contrast import known_positives
from condensery.models.biencoder import PASSAGE, QUERY
from condensery.randomness import check_subset, generator, nested_subset, uniforms
from condensery.retrieval.no_negatives import NoNegatives
from condensery.retrieval.pair_scores import Teacher
from condensery.retrieval.pool import without_repeats
from condensery.text.collection import Collection
from condensery.tokens.batches import chunks, text_rows
from condensery.tokens.prefixes import NO_PREFIXES, Prefixes
from condensery.tokens.ranges import ranges
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.batches.base import ALL, Batch, Ids, Order, PassageVectors, Share, items_of_step
from condensery.training.batches.scheduling import drawn_positives
from condensery.training.batches.teaching import taught_batch
from condensery.training.batches.text_queries import TextQueries

NOTHING: Ids = np.empty(0, np.int64)
Value = TypeVar("Value", bound=np.generic, covariant=True)


@dataclass(frozen=True, kw_only=True)
class TripleBatch(Batch):
    """Queries and passages for fine-tuning. Rows 0 .. q - 1 are the queries, q .. q + p - 1 the passages.

    Its chunks are of queries (tower QUERY) and of passages (tower PASSAGE); where these have ``vectors``, of queries alone.

    Attributes:
        positive: (q,) which of the p passages is each query's positive.
        known: (q, p) True where a passage is no negative of the query: relevant to it, or of a text that is.
        passages: (p,) the rows of the passages in the collection, ascending.
        judged: (j, 2) query of the batch, and row in the collection of a passage that is no negative of it.
        teacher: (q, p) fp32, how a teacher scores the pair, NaN where it has not; None = there is no teacher.
        scored: (s, 2) query of the batch, and row in the collection of a passage that the teacher has scored for it.
        scores: (s,) fp32.
        vectors: (p, d) of the passages, which are frozen; None = the passages are encoded.
    """

    positive: Tensor
    known: Tensor
    passages: Tensor
    judged: Tensor
    teacher: Tensor | None = None
    scored: Tensor | None = None
    scores: Tensor | None = None
    vectors: Tensor | None = None


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


class TripleBatches:
    """Queries, one positive each, and hard negatives; passages of other queries serve as negatives too.

    A positive and ``negatives`` hard negatives are drawn anew each epoch, without replacement from the query's pool. A
    query whose pool is too small is filled up with other passages drawn from the whole corpus. A passage that is judged
    relevant to the query is never its hard negative, nor is one of such a text or of the query's (``NoNegatives``). A
    passage that occurs twice in a batch is encoded once.

    Args:
        queries, passages: token stores of the collection; ``titles`` of the passages or None.
        vocabulary: of the tokens.
        training: the queries and what is known about them.
        batch_size: queries a step.
        negatives: hard negatives a query (0 = in-batch negatives alone).
        query_length, passage_length: longest inputs in tokens, with [CLS] and [SEP].
        budget: padded tokens a chunk may hold.
        seed: of order, positives and negatives.
        order: which queries a step is of; None = all in random order, anew each epoch.
        prefixes: what stands before queries and passages.
        shared_negatives: passages drawn from the whole collection at each step, negatives of all its queries.
        text_queries: made of the passages, a few in each step beside the judged ones; None = there are none.
        vectors: of passages, which are frozen while the queries' tower is trained (ADORE: Zhan et al. 2021, §4.2); None =
            passages are encoded.
    """

    def __init__(
        self,
        queries: TokenStore,
        passages: TokenStore,
        titles: TokenStore | None,
        vocabulary: Vocabulary,
        training: TrainingQueries,
        *,
        batch_size: int,
        negatives: int,
        query_length: int,
        passage_length: int,
        budget: int,
        seed: int,
        order: Order | None = None,
        prefixes: Prefixes = NO_PREFIXES,
        shared_negatives: int = 0,
        text_queries: TextQueries | None = None,
        vectors: PassageVectors | None = None,
    ) -> None:
        self.queries, self.passages, self.titles, self.vocabulary = queries, passages, titles, vocabulary
        self.training, self.batch_size, self.negatives = training, batch_size, negatives
        self.query_length, self.passage_length = query_length, passage_length
        self.budget, self.seed, self.prefixes, self.vectors = budget, seed, prefixes, vectors
        self.text_queries, self.shared_negatives = text_queries, shared_negatives
        self.order = order or partial(items_of_step, batch_size=batch_size, items=len(training.rows), seed=seed)

    def steps_an_epoch(self) -> int:
        """See ``Batches``."""
        return -(-len(self.training.rows) // self.batch_size)

    def batch(self, step: int, share: Share = ALL) -> TripleBatch:
        """See ``Batches``."""
        epoch, items = self.order(step)
        chosen, replicated = share.of(items)
        made_of_text = self.text_queries
        of_text = NOTHING if made_of_text is None else made_of_text.of_step(step, self.seed, share, replicated)
        return replace(self.batch_of(epoch, chosen, of_text, self._shared(step)), replicated=replicated)

    def batch_of(self, epoch: int, chosen: Ids, of_text: Ids = NOTHING, shared: Ids = NOTHING) -> TripleBatch:
        """The batch of any queries (b,), numbered as in ``training``, with what is drawn for them in an epoch.

        Behind them stand the queries ``of_text`` (t,), numbered as in ``text_queries``. The passages ``shared`` (s,) are
        negatives of all.
        """
        positive, hard = self.draw(epoch, chosen)
        texts, own = self._of_text(of_text)
        positive = np.concatenate([positive, own])
        passages, place = np.unique(np.concatenate([positive, hard.reshape(-1), shared]), return_inverse=True)
        parts, tokens = [], 0
        sides = [(QUERY, *self.rows(QUERY, self.training.rows[chosen])), (QUERY, *texts)]
        if self.vectors is None:
            sides.append((PASSAGE, *self.rows(PASSAGE, passages)))
        first = 0
        for tower, flat, starts in sides:
            places = np.arange(first, first + len(starts) - 1)
            parts += chunks(flat, starts, self.budget, self.vocabulary.pad, tower=tower, rows=places)
            first, tokens = first + len(places), tokens + len(flat)
        of_own = np.stack([np.arange(len(chosen), len(positive)), own], axis=1)
        judged = torch.from_numpy(np.concatenate([self._judged(chosen), of_own]))
        names = torch.from_numpy(passages)
        known = known_positives(judged, names, len(positive))
        positive_places = torch.from_numpy(place[: len(positive)])
        made = TripleBatch(
            chunks=parts,
            tokens=tokens,
            positive=positive_places,
            known=known,
            passages=names,
            judged=judged,
            vectors=None if self.vectors is None else torch.from_numpy(self.vectors(passages)),
        )
        return made if self.training.teacher is None else taught_batch(made, self.training, chosen)

    def rows(self, tower: int, rows: Ids) -> tuple[Ids, Ids]:
        """Queries (QUERY) or passages (PASSAGE) by their rows (n,) as they are encoded: flat ids and starts (n + 1,)."""
        if tower == QUERY:
            return text_rows(self.queries, rows, self.vocabulary, self.query_length, prefix=self.prefixes.query)
        how = self.vocabulary, self.passage_length, self.titles
        return text_rows(self.passages, rows, *how, prefix=self.prefixes.passage)

    def _shared(self, step: int) -> Ids:
        """(s,) passages of the whole collection, no two of one text; all where there are no more than are wanted."""
        if not self.shared_negatives:
            return NOTHING
        number, known = len(self.passages), self.training.known
        random = generator(self.seed, "shared negatives", step)
        drawn = random.choice(number, min(self.shared_negatives, number), replace=False, shuffle=False)
        return np.unique(drawn if known is None else known.passages.first(drawn))

    def _of_text(self, chosen: Ids) -> tuple[tuple[Ids, Ids], Ids]:
        """Queries of the text (t,): flat ids and starts (t + 1,), and the passage of each (t,)."""
        if self.text_queries is None:
            return (NOTHING, np.zeros(1, np.int64)), NOTHING
        made, known = self.text_queries, self.training.known
        own = made.passages[chosen]
        rows = text_rows(made.store, made.rows[chosen], self.vocabulary, self.query_length, prefix=self.prefixes.query)
        return rows, own if known is None else known.passages.first(own)

    def draw(self, epoch: int, chosen: Ids) -> tuple[Ids, Ids]:
        """A positive (b,) and hard negatives (b, negatives) of the queries ``chosen`` (b,) in an epoch."""
        positive = self._positives(epoch, chosen)
        return positive, self._hard_negatives(epoch, chosen, positive)

    def _positives(self, epoch: int, chosen: Ids) -> Ids:
        """(b,) one judged relevant passage of each query."""
        return drawn_positives(self.training.positives, self.training.starts, chosen, self.seed, epoch)

    def _hard_negatives(self, epoch: int, chosen: Ids, positive: Ids) -> Ids:
        """(b, negatives) passages from each query's pool, or from the corpus where the pool has too few.

        Where the corpus has too few as well, the query's ``positive`` (b,) stands in, which adds nothing to the batch.
        """
        if not self.negatives:
            return np.empty((len(chosen), 0), dtype=np.int64)
        training, pool = self.training, self.training.negatives[chosen].astype(np.int64)  # (b, m)
        if training.known is not None:
            pool = without_repeats(training.known.passages.first(pool))
        flat, numbers = training.no_negatives(chosen)
        known = np.split(flat, np.cumsum(numbers)[:-1])
        for row, passages in enumerate(known):
            pool[row, np.isin(pool[row], passages)] = -1
        places = np.arange(pool.shape[1])[None, :]
        draws = uniforms(self.seed, "negative", epoch, index=chosen[:, None], second=places)
        if training.weights is not None:
            draws = -np.log1p(-draws) / training.weights[chosen]  # smallest first (Efraimidis and Spirakis 2006)
        order = np.argsort(np.where(pool >= 0, draws, np.inf), axis=1, kind="stable")[:, : self.negatives]
        drawn = np.take_along_axis(pool, order, axis=1)
        missing = self.negatives - drawn.shape[1]
        drawn = np.pad(drawn, ((0, 0), (0, missing)), constant_values=-1)
        draws = uniforms(self.seed, "random", epoch, index=chosen[:, None], second=np.arange(self.negatives)[None, :])
        for row in np.flatnonzero((drawn < 0).any(axis=1)).tolist():
            gaps = drawn[row] < 0
            taken = np.union1d(known[row], drawn[row, ~gaps])
            if training.known is not None:
                taken = training.known.passages.copies(taken)
            drawn[row, gaps] = _others(draws[row, gaps], taken, len(self.passages), positive[row])
        return drawn if training.known is None else training.known.passages.first(drawn)

    def _judged(self, chosen: Ids) -> Ids:
        """(j, 2) each of the batch's queries with each passage that is no negative of it."""
        passages, numbers = self.training.no_negatives(chosen)
        return np.stack([np.repeat(np.arange(len(chosen)), numbers), passages], axis=1)


def _others(draws: NDArray[np.float64], taken: Ids, items: int, otherwise: int) -> list[int]:
    """A different item for each draw in [0, 1), none of them ``taken``; ``otherwise`` where all are."""
    excluded, others = taken.tolist(), []
    for draw in draws.tolist():
        left = items - len(excluded)
        place = int(draw * left) if left > 0 else -1
        for item in excluded:  # ascending
            place += item <= place
        others.append(place if left > 0 else otherwise)
        if left > 0:
            insort(excluded, place)
    return others
