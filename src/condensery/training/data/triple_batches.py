"""Batches for fine-tuning: queries, one positive for each query, and hard negatives."""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condensery.losses.contrast import known_positives, teacher_scores
from condensery.models.biencoder import PASSAGE, QUERY
from condensery.randomness import generator, uniforms
from condensery.retrieval.ranking import without_repeats
from condensery.tokens.batches import chunks
from condensery.tokens.text_reader import Readers
from condensery.training.data.steps import ALL, Batch, Ids, Order, PassageVectors, Share, items_of_step
from condensery.training.data.teaching import taught
from condensery.training.data.training_queries import NOTHING, TextQueries, TrainingQueries, drawn_positives

Scores = Callable[[Ids, Ids], NDArray[np.float32]]  # rows of queries (n,) and passages (n, k) -> scores (n, k)


@dataclass(frozen=True, kw_only=True)
class TripleBatch(Batch):
    """A batch of q queries and p passages for fine-tuning. Rows 0 .. q - 1 are queries, and the other rows are passages.

    A chunk holds queries (tower QUERY) or passages (tower PASSAGE). With frozen ``vectors`` all chunks hold queries.

    Attributes:
        positive: (q,) the index of each query's positive among the p passages.
        known: (q, p) bool, True where a passage is excluded as a negative of the query (``NoNegatives``). Such a passage is
            relevant to the query, or has the text of a relevant passage or of the query.
        passages: (p,) the collection rows of the passages, ascending.
        judged: (j, 2) pairs of a query of the batch and the collection row of a passage excluded as a negative of the query.
        teacher: (q, p) fp32, the teacher's score of each pair, NaN where the teacher has no score; None = no teacher.
        scored: (s, 2) pairs of a query of the batch and the collection row of a passage that the teacher scored for it.
        scores: (s,) fp32, the teacher's scores of the pairs in ``scored``.
        vectors: (p, d) frozen vectors of the passages; None = the passages are encoded.
        in_batch: (q, P) fp32, an in-batch teacher's scores of this process's queries and the P passages of all processes,
            ascending by row; NaN for a query built from a passage. None = no in-batch teacher.
    """

    positive: Tensor
    known: Tensor
    passages: Tensor
    judged: Tensor
    teacher: Tensor | None = None
    scored: Tensor | None = None
    scores: Tensor | None = None
    vectors: Tensor | None = None
    in_batch: Tensor | None = None


def taught_batch(batch: TripleBatch, training: TrainingQueries, chosen: Ids) -> TripleBatch:
    """Return ``batch``, the batch of the queries ``chosen`` (b,), with the teacher's scores."""
    scored, scores = map(torch.from_numpy, taught(training, chosen))  # (s, 2), (s,)
    teacher = teacher_scores(scored, scores, batch.passages, len(batch.positive))  # (q, p)
    return replace(batch, teacher=teacher, scored=scored, scores=scores)


class TripleBatches:
    """Makes batches of queries, one positive for each query, and hard negatives.

    The passages of the other queries in a batch are negatives as well. In each epoch, one positive and ``negatives`` hard
    negatives are drawn for each query. Hard negatives are drawn without replacement from the query's pool of negatives. If
    the pool is too small, the missing negatives are drawn from the whole corpus. A passage that is judged relevant to the
    query is never drawn as its hard negative. A passage with the text of a relevant passage or of the query is not drawn
    either (``NoNegatives``). A passage that occurs twice in a batch is encoded once.

    Attributes:
        in_batch_teacher: function that scores each query with every passage of the batch (Lin et al. 2020); None = no such
            teacher.
        pairs: function that draws positives and hard negatives, with the arguments and result of ``draw``; None =
            ``draw_evenly``.

    Args:
        readers: readers of the collection's passages and queries.
        training: the training queries with their positives, their hard negatives and the teacher's scores.
        batch_size: number of queries per step.
        negatives: number of hard negatives per query (0 = in-batch negatives only).
        budget: maximum number of tokens in a chunk, padding included.
        seed: seed of the order, and of the drawn positives and negatives.
        order: function that returns the epoch and the queries of a step; None = all queries, in a new random order each
            epoch.
        shared_negatives: number of passages drawn from the whole collection in each step; they are negatives of all queries
            of the step.
        text_queries: queries built from passages; each step adds a few of them to the judged queries. None = no such queries.
        vectors: function that returns frozen passage vectors, for training the query tower alone (ADORE: Zhan et al. 2021,
            §4.2); None = passages are encoded.
    """

    def __init__(
        self,
        readers: Readers,
        training: TrainingQueries,
        *,
        batch_size: int,
        negatives: int,
        budget: int,
        seed: int,
        order: Order | None = None,
        shared_negatives: int = 0,
        text_queries: TextQueries | None = None,
        vectors: PassageVectors | None = None,
    ) -> None:
        self.readers, self.training, self.batch_size, self.negatives = readers, training, batch_size, negatives
        self.budget, self.seed, self.shared_negatives = budget, seed, shared_negatives
        self.text_queries, self.vectors = text_queries, vectors
        self.in_batch_teacher: Scores | None = None
        self.pairs: Callable[[int, Ids], tuple[Ids, Ids]] | None = None
        self.order = order or partial(items_of_step, batch_size=batch_size, items=len(training.rows), seed=seed)

    def steps_an_epoch(self) -> int:
        """Return the number of batches in one pass over the training queries; the last batch may be short."""
        return -(-len(self.training.rows) // self.batch_size)

    def batch(self, step: int, share: Share = ALL) -> TripleBatch:
        """Return the batch of step ``step`` (from 0), or the part of the batch that ``share`` names."""
        epoch, items = self.order(step)
        chosen, replicated = share.of(items)
        made_of_text = self.text_queries
        of_text = NOTHING if made_of_text is None else made_of_text.of_step(step, self.seed, share, replicated)
        made = replace(self.batch_of(epoch, chosen, of_text, self._shared(step)), replicated=replicated)
        if self.in_batch_teacher is None:
            return made
        whole = len(chosen) == len(items)
        passages = made.passages.numpy() if whole else self._all_passages(step, epoch, items)  # (P,)
        scores = np.full((len(made.positive), len(passages)), np.nan, np.float32)  # (q, P)
        asked = np.broadcast_to(passages, (len(chosen), len(passages)))
        scores[: len(chosen)] = self.in_batch_teacher(self.training.rows[chosen], asked)
        return replace(made, in_batch=torch.from_numpy(scores))

    def _all_passages(self, step: int, epoch: int, items: Ids) -> Ids:
        """Return the passages (P,) that the batches of all processes hold in a step, ascending."""
        positive, hard = self.draw(epoch, items)
        made_of_text = self.text_queries
        of_text = NOTHING if made_of_text is None else made_of_text.of_step(step, self.seed, ALL, replicated=True)
        return np.unique(np.concatenate([positive, hard.reshape(-1), self._of_text(of_text)[1], self._shared(step)]))

    def batch_of(self, epoch: int, chosen: Ids, of_text: Ids = NOTHING, shared: Ids = NOTHING) -> TripleBatch:
        """Return a batch of any queries, with the positives and hard negatives that are drawn for them in an epoch.

        Args:
            epoch: index of the epoch, which determines the drawn passages.
            chosen: (b,) the judged queries, numbered as in ``training``; they come first in the batch.
            of_text: (t,) the queries built from passages, numbered as in ``text_queries``; they follow the judged queries.
            shared: (s,) passages that are negatives of all queries.
        """
        positive, hard = self.draw(epoch, chosen)  # (b,), (b, negatives)
        texts, own = self._of_text(of_text)
        positive = np.concatenate([positive, own])  # (b + t,)
        passages, place = np.unique(np.concatenate([positive, hard.reshape(-1), shared]), return_inverse=True)
        parts, tokens = [], 0
        sides = [(QUERY, *self.readers[QUERY].read(self.training.rows[chosen])), (QUERY, *texts)]
        if self.vectors is None:
            sides.append((PASSAGE, *self.readers[PASSAGE].read(passages)))
        first = 0
        for tower, flat, starts in sides:
            places = np.arange(first, first + len(starts) - 1)  # (rows of this side,)
            parts += chunks(flat, starts, self.budget, self.readers[tower].vocabulary.pad, tower=tower, rows=places)
            first, tokens = first + len(places), tokens + len(flat)
        judged = torch.from_numpy(self._judged(chosen, of_text))  # (j, 2)
        names = torch.from_numpy(passages)  # (p,)
        known = known_positives(judged, names, len(positive))  # (b + t, p)
        targets = torch.from_numpy(place[: len(positive)])  # (b + t,)
        vectors = None if self.vectors is None else torch.from_numpy(self.vectors(passages))  # (p, d)
        made = TripleBatch(
            chunks=parts, tokens=tokens, positive=targets, known=known, passages=names, judged=judged, vectors=vectors
        )
        return made if self.training.teacher is None else taught_batch(made, self.training, chosen)

    def _shared(self, step: int) -> Ids:
        """Return the shared negatives (s,) of a step: passages of the whole collection, without repeated texts.

        All passages are returned if the collection has no more than ``shared_negatives``.
        """
        if not self.shared_negatives:
            return NOTHING
        number = len(self.readers[PASSAGE].texts)
        random = generator(self.seed, "shared negatives", step)
        drawn = random.choice(number, min(self.shared_negatives, number), replace=False, shuffle=False)
        return np.unique(self._first(drawn))

    def _of_text(self, chosen: Ids) -> tuple[tuple[Ids, Ids], Ids]:
        """Return queries that were built from passages.

        Args:
            chosen: (t,) the queries, numbered as in ``text_queries``.

        Returns:
            the token ids of all queries, concatenated (N,), with the index at which each query begins (t + 1,); and the
            passage of each query (t,).
        """
        if self.text_queries is None:
            return (NOTHING, np.zeros(1, np.int64)), NOTHING
        made = self.text_queries
        reader = replace(self.readers[QUERY], texts=made.store)
        return reader.read(made.rows[chosen]), self._first(made.passages[chosen])

    def _first(self, passages: Ids) -> Ids:
        """Return, for each passage, the passage that represents it in a batch.

        If texts are compared, this is the first passage with the same text. Otherwise it is the passage itself.
        """
        return passages if self.training.known is None else self.training.known.passages.first(passages)

    def draw(self, epoch: int, chosen: Ids) -> tuple[Ids, Ids]:
        """Draw positives (b,) and hard negatives (b, negatives) for the queries ``chosen`` (b,) in an epoch."""
        return (self.pairs or self.draw_evenly)(epoch, chosen)

    def draw_evenly(self, epoch: int, chosen: Ids) -> tuple[Ids, Ids]:
        """Draw passages as ``draw`` does: each positive of a query with equal probability, and negatives by their weights."""
        positive = drawn_positives(self.training.positives, self.training.starts, chosen, self.seed, epoch)  # (b,)
        return positive, self._hard_negatives(epoch, chosen, positive)

    def _hard_negatives(self, epoch: int, chosen: Ids, positive: Ids) -> Ids:
        """Draw passages from each query's pool, or from the corpus if the pool has too few: (b, negatives).

        If the corpus has too few passages as well, the query's ``positive`` (b,), which is in the batch already, fills the
        gap.
        """
        if not self.negatives:
            return np.empty((len(chosen), 0), dtype=np.int64)
        training, (pool, known) = self.training, self.pools(chosen)
        places = np.arange(pool.shape[1])[None, :]  # (1, m)
        draws = uniforms(self.seed, "negative", epoch, index=chosen[:, None], second=places)  # (b, m)
        if training.weights is not None:
            # the passages with the smallest values are drawn (Efraimidis and Spirakis 2006)
            draws = -np.log1p(-draws) / training.weights[chosen]
        order = np.argsort(np.where(pool >= 0, draws, np.inf), axis=1, kind="stable")[:, : self.negatives]
        drawn = np.take_along_axis(pool, order, axis=1)  # (b, min(m, negatives))
        missing = self.negatives - drawn.shape[1]
        drawn = np.pad(drawn, ((0, 0), (0, missing)), constant_values=-1)  # (b, negatives)
        draws = uniforms(self.seed, "random", epoch, index=chosen[:, None], second=np.arange(self.negatives)[None, :])
        for row in np.flatnonzero((drawn < 0).any(axis=1)).tolist():
            gaps = drawn[row] < 0  # (negatives,)
            taken = np.union1d(known[row], drawn[row, ~gaps])
            if training.known is not None:
                taken = training.known.passages.copies(taken)
            drawn[row, gaps] = _others(draws[row, gaps], taken, len(self.readers[PASSAGE].texts), positive[row])
        return self._first(drawn)

    def pools(self, chosen: Ids) -> tuple[Ids, list[Ids]]:
        """Return the passages from which hard negatives of queries are drawn, and the passages that are excluded.

        Args:
            chosen: (b,) the queries.

        Returns:
            the hard negatives (b, m), -1 for padding and for excluded passages; and for each query the excluded passages,
            ascending.
        """
        training, pool = self.training, self.training.negatives[chosen].astype(np.int64)  # (b, m)
        if training.known is not None:
            pool = without_repeats(training.known.passages.first(pool))
        flat, numbers = training.no_negatives(chosen)
        known = np.split(flat, np.cumsum(numbers)[:-1])
        for row, passages in enumerate(known):
            pool[row, np.isin(pool[row], passages)] = -1
        return pool, known

    def _judged(self, chosen: Ids, of_text: Ids) -> Ids:
        """Return the pairs of a query of the batch and a passage that is excluded as its negative: (j, 2)."""
        found = [self.training.no_negatives(chosen)]
        if self.text_queries is not None:
            found.append(self.text_queries.no_negatives(of_text))
        passages, numbers = map(np.concatenate, zip(*found, strict=True))
        return np.stack([np.repeat(np.arange(len(numbers)), numbers), self._first(passages)], axis=1)


def _others(draws: NDArray[np.float64], taken: Ids, items: int, otherwise: int) -> list[int]:
    """Return a different item of 0 .. items - 1 for each random number in [0, 1), excluding the items in ``taken``.

    A number for which no item is left gets ``otherwise``.
    """
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
