"""Batches for fine-tuning: queries, a positive each, and hard negatives."""

from bisect import insort
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condensery.losses.contrast import known_positives, teacher_scores
from condensery.models.biencoder import PASSAGE, QUERY
from condensery.randomness import generator, uniforms
from condensery.retrieval.pool import without_repeats
from condensery.tokens.batches import chunks, text_rows
from condensery.tokens.prefixes import NO_PREFIXES, Prefixes
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.batches.steps import ALL, Batch, Ids, Order, PassageVectors, Share, items_of_step
from condensery.training.batches.teaching import taught
from condensery.training.batches.text_queries import TextQueries
from condensery.training.batches.training_queries import NOTHING, TrainingQueries, drawn_positives


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


def taught_batch(batch: TripleBatch, training: TrainingQueries, chosen: Ids) -> TripleBatch:
    """The batch of the queries ``chosen`` (b,) with the scores of their teacher."""
    scored, scores = map(torch.from_numpy, taught(training, chosen))
    teacher = teacher_scores(scored, scores, batch.passages, len(batch.positive))
    return replace(batch, teacher=teacher, scored=scored, scores=scores)


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
