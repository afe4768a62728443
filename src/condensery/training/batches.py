"""Batches as a function of the step: nothing is remembered, so a resumed run sees what an uninterrupted one sees."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from condensery.models.biencoder import PASSAGE, QUERY
from condensery.randomness import generator, uniforms
from condensery.tokens.batches import Chunk, Context, chunks, text_rows
from condensery.tokens.masking import mask_spans
from condensery.tokens.ranges import ranges
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.sources import Rows, Source

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class SpanBatch:
    """Texts for pre-training, in chunks. Rows 2i and 2i + 1 of a batch of pairs belong together.

    Attributes:
        chunks: together they hold rows 0 .. n - 1.
        masked: masked tokens of the whole batch.
        tokens: tokens of the whole batch that the encoder reads, padding not counted.
        context_masked: tokens of the whole batch that a decoder predicts.
    """

    chunks: list[Chunk]
    masked: int
    tokens: int
    context_masked: int = 0

    def to(self, device: torch.device) -> "SpanBatch":
        """The same batch on ``device``."""
        return replace(self, chunks=[chunk.to(device, non_blocking=True) for chunk in self.chunks])


@dataclass(frozen=True)
class TripleBatch:
    """Queries and passages for fine-tuning. Rows 0 .. q - 1 are the queries, q .. q + p - 1 the passages.

    Attributes:
        chunks: of queries (tower QUERY) and of passages (tower PASSAGE).
        positive: (q,) which of the p passages is each query's positive.
        known: (q, p) True where a passage is judged relevant to the query.
        tokens: tokens of the whole batch, padding not counted.
    """

    chunks: list[Chunk]
    positive: Tensor
    known: Tensor
    tokens: int

    def to(self, device: torch.device) -> "TripleBatch":
        """The same batch on ``device``."""
        moved = [chunk.to(device, non_blocking=True) for chunk in self.chunks]
        return replace(self, chunks=moved, positive=self.positive.to(device), known=self.known.to(device))


class Batches(Protocol):
    """Makes the batch of a step."""

    def steps_an_epoch(self) -> int:
        """Batches until every item was seen once; the last may be short."""

    def batch(self, step: int) -> SpanBatch | TripleBatch:
        """The batch of step ``step``, from 0."""


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, items: int) -> Ids:
    """The order of the items in an epoch: a permutation, (items,)."""
    return generator(seed, "order", epoch).permutation(items)


def _items(step: int, batch_size: int, items: int, seed: int) -> tuple[int, Ids]:
    """The epoch of a step and the items of its batch."""
    epoch, position = divmod(step, -(-items // batch_size))
    return epoch, _order(seed, epoch, items)[position * batch_size : (position + 1) * batch_size]


@dataclass(frozen=True)
class ContextMasking:
    """What the decoder of a context autoencoder (CoT-MAE, RetroMAE) reads beside the vectors.

    Attributes:
        context: partner = the other text of the pair (CoT-MAE); same = the text that the encoder reads (RetroMAE).
        both: encode both texts of a pair, each as the context of the other, or only the first.
        rate: share of the tokens that the decoder predicts from the others; None = all, and none is masked (causal and
            enhanced decoders, which hide tokens from each other themselves).
    """

    context: Literal["partner", "same"]
    both: bool
    rate: float | None


class SpanBatches:
    """Texts of a corpus, masked.

    Args:
        source: where the rows come from.
        vocabulary: of the tokens.
        batch_size: items of the source a step.
        mask_rate, whole_word: see ``mask_spans``; ``mask_rate`` None = nothing is masked or predicted.
        budget: padded tokens a chunk may hold.
        seed: of order and masks.
        context: what a decoder reads; None = there is none.
    """

    def __init__(
        self,
        source: Source,
        vocabulary: Vocabulary,
        *,
        batch_size: int,
        mask_rate: float | None,
        whole_word: bool,
        budget: int,
        seed: int,
        context: ContextMasking | None = None,
    ) -> None:
        self.source, self.vocabulary, self.batch_size = source, vocabulary, batch_size
        self.mask_rate, self.whole_word, self.budget, self.seed = mask_rate, whole_word, budget, seed
        self.context = context

    def steps_an_epoch(self) -> int:
        """See ``Batches``."""
        return -(-self.source.items // self.batch_size)

    def batch(self, step: int) -> SpanBatch:
        """See ``Batches``."""
        epoch, chosen = _items(step, self.batch_size, self.source.items, self.seed)
        rows = self.source.rows(step, epoch, chosen)
        context, read = None, 0
        if self.context is not None:
            every = np.arange(len(rows))
            encoded = every if self.context.both else every[::2]
            other = rows.take(encoded ^ 1 if self.context.context == "partner" else encoded)
            rows = rows.take(encoded)
            context, read = self._context(other, epoch)
        ids, masked, targets = self._masked(rows, "mask", epoch, self.mask_rate)
        parts = chunks(
            ids, rows.starts, self.budget, self.vocabulary.pad, masked=masked, targets=targets, context=context
        )
        return SpanBatch(parts, 0 if masked is None else len(masked), len(rows.flat), read)

    def _masked(self, rows: Rows, what: str, epoch: int, rate: float | None) -> tuple[Ids, Ids | None, Ids | None]:
        if rate is None:
            return rows.flat, None, None
        how, keys = (self.vocabulary, rate, self.whole_word), (self.seed, what, epoch)
        return mask_spans(rows.flat, rows.starts, *how, *keys, span_ids=rows.names)

    def _context(self, rows: Rows, epoch: int) -> tuple[Context, int]:
        """What the decoder reads, and how many tokens it predicts."""
        assert self.context is not None
        ids, masked, targets = self._masked(rows, "context mask", epoch, self.context.rate)
        if masked is None or targets is None:
            masked = np.flatnonzero(~self.vocabulary.is_special[ids])
            targets = ids[masked]
        return Context(ids, rows.starts, masked, targets), len(masked)


class Pool(Protocol):
    """Hard negatives of the training queries (q, m), an array or read from disk: ``pool[chosen]`` is (b, m)."""

    def __getitem__(self, chosen: Ids, /) -> NDArray[np.int32]: ...


@dataclass(frozen=True)
class TrainingQueries:
    """What is known about the training queries.

    Attributes:
        rows: (q,) row of each query in the collection, ascending.
        positives: (j,) judged relevant passages of query 0, then of query 1, ...
        starts: (q + 1,) where each query's begin.
        negatives: (q, m) hard negatives, padded with -1 anywhere; m may be 0.
    """

    rows: Ids
    positives: Ids
    starts: Ids
    negatives: Pool


class TripleBatches:
    """Queries, one positive each, and hard negatives; passages of other queries serve as negatives too.

    A positive and ``negatives`` hard negatives are drawn anew each epoch, without replacement from the query's pool. A
    query whose pool is too small is filled up with other passages drawn from the whole corpus. A passage that is judged
    relevant to the query is never its hard negative. A passage that occurs twice in a batch is encoded once.

    Args:
        queries, passages: token stores of the collection; ``titles`` of the passages or None.
        vocabulary: of the tokens.
        training: the queries and what is known about them.
        batch_size: queries a step.
        negatives: hard negatives a query (0 = in-batch negatives alone).
        query_length, passage_length: longest inputs in tokens, with [CLS] and [SEP].
        budget: padded tokens a chunk may hold.
        seed: of order, positives and negatives.
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
    ) -> None:
        self.queries, self.passages, self.titles, self.vocabulary = queries, passages, titles, vocabulary
        self.training, self.batch_size, self.negatives = training, batch_size, negatives
        self.query_length, self.passage_length = query_length, passage_length
        self.budget, self.seed = budget, seed

    def steps_an_epoch(self) -> int:
        """See ``Batches``."""
        return -(-len(self.training.rows) // self.batch_size)

    def batch(self, step: int) -> TripleBatch:
        """See ``Batches``."""
        epoch, chosen = _items(step, self.batch_size, len(self.training.rows), self.seed)
        positive = self._positives(epoch, chosen)
        hard = self._hard_negatives(epoch, chosen, positive)
        passages, place = np.unique(np.concatenate([positive, hard.reshape(-1)]), return_inverse=True)
        parts, tokens = [], 0
        sides = (
            (QUERY, self.queries, self.training.rows[chosen], self.query_length, None),
            (PASSAGE, self.passages, passages, self.passage_length, self.titles),
        )
        first = 0
        for tower, store, rows, length, titles in sides:
            flat, starts = text_rows(store, rows, self.vocabulary, length, titles)
            names = np.arange(first, first + len(rows))
            parts += chunks(flat, starts, self.budget, self.vocabulary.pad, tower=tower, rows=names)
            first, tokens = first + len(rows), tokens + len(flat)
        known = self._known(chosen, passages)
        return TripleBatch(parts, torch.from_numpy(place[: len(chosen)]), torch.from_numpy(known), tokens)

    def _positives(self, epoch: int, chosen: Ids) -> Ids:
        """(b,) one judged relevant passage of each query."""
        starts = self.training.starts
        draws = uniforms(self.seed, "positive", epoch, index=chosen)
        numbers = starts[chosen + 1] - starts[chosen]
        return self.training.positives[starts[chosen] + (draws * numbers).astype(np.int64)]

    def _hard_negatives(self, epoch: int, chosen: Ids, positive: Ids) -> Ids:
        """(b, negatives) passages from each query's pool, or from the corpus where the pool has too few.

        Where the corpus has too few as well, the query's ``positive`` (b,) stands in, which adds nothing to the batch.
        """
        if not self.negatives:
            return np.empty((len(chosen), 0), dtype=np.int64)
        pool = self.training.negatives[chosen].astype(np.int64)  # (b, m)
        starts = self.training.starts
        judged = [self.training.positives[starts[query] : starts[query + 1]] for query in chosen]
        for row, relevant in enumerate(judged):
            pool[row, np.isin(pool[row], relevant)] = -1
        places = np.arange(pool.shape[1])[None, :]
        draws = uniforms(self.seed, "negative", epoch, index=chosen[:, None], second=places)
        order = np.argsort(np.where(pool >= 0, draws, 2.0), axis=1, kind="stable")[:, : self.negatives]
        found = np.take_along_axis(pool, order, axis=1)
        missing = self.negatives - found.shape[1]
        found = np.pad(found, ((0, 0), (0, missing)), constant_values=-1)
        draws = uniforms(self.seed, "random", epoch, index=chosen[:, None], second=np.arange(self.negatives)[None, :])
        for row in np.flatnonzero((found < 0).any(axis=1)).tolist():
            gaps = found[row] < 0
            taken = np.union1d(judged[row], found[row, ~gaps])
            found[row, gaps] = _others(draws[row, gaps], taken, len(self.passages), positive[row])
        return found

    def _known(self, chosen: Ids, passages: Ids) -> NDArray[np.bool_]:
        """(b, p) True where one of the batch's ``passages`` (sorted) is judged relevant to the query."""
        starts = self.training.starts
        numbers = starts[chosen + 1] - starts[chosen]
        judged = self.training.positives[ranges(starts[chosen], numbers)]
        query = np.repeat(np.arange(len(chosen)), numbers)
        column = np.minimum(np.searchsorted(passages, judged), len(passages) - 1)
        here = passages[column] == judged
        known = np.zeros((len(chosen), len(passages)), dtype=np.bool_)
        known[query[here], column[here]] = True
        return known


def _others(draws: NDArray[np.float64], taken: Ids, items: int, otherwise: int) -> list[int]:
    """A different item for each draw in [0, 1), none of them ``taken``; ``otherwise`` where all are."""
    excluded, found = taken.tolist(), []
    for draw in draws.tolist():
        left = items - len(excluded)
        place = int(draw * left) if left > 0 else -1
        for item in excluded:  # ascending
            place += item <= place
        found.append(place if left > 0 else otherwise)
        if left > 0:
            insort(excluded, place)
    return found


class StepDataset(Dataset[SpanBatch | TripleBatch]):
    """The batches of a training run by step; what PyTorch's loader and its workers read."""

    def __init__(self, batches: Batches, steps: int) -> None:
        self.batches, self.steps = batches, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> SpanBatch | TripleBatch:
        return self.batches.batch(step)


class StepSampler(Sampler[int]):
    """Steps ``first``, ``first + 1``, ... ``steps - 1``.

    The length is that of the whole run: Lightning counts the batches of the interrupted part when it resumes.
    """

    def __init__(self, first: int, steps: int) -> None:
        self.first, self.steps = first, steps

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.steps))

    def __len__(self) -> int:
        return self.steps
