"""Batches as a function of the step: nothing is remembered, so a resumed run sees what an uninterrupted one sees."""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from condensery.models.biencoder import PASSAGE, QUERY
from condensery.objectives.contrast import known_positives
from condensery.randomness import generator, uniforms
from condensery.tokens.batches import Chunk, Context, chunks, text_rows
from condensery.tokens.masking import mask_spans
from condensery.tokens.ranges import ranges
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.scheduling import drawn_positives
from condensery.training.sources import Rows, Source

Ids = NDArray[np.int64]
Value = TypeVar("Value", bound=np.generic, covariant=True)
Order = Callable[[int], tuple[int, Ids]]  # step -> its epoch and the items of its batch
_COUNTED = 1_000_000  # tokens of the first batches, to say how many steps a larger number is


@dataclass(frozen=True)
class SpanBatch:
    """Texts for pre-training, in chunks. Rows 2i and 2i + 1 of a batch of pairs belong together.

    Attributes:
        chunks: together they hold rows 0 .. n - 1.
        masked: masked tokens of the whole batch.
        tokens: tokens of the whole batch that the encoder reads, padding not counted.
        context_masked: tokens of the whole batch that a decoder predicts.
        alone: see ``Batch``.
    """

    chunks: list[Chunk]
    masked: int
    tokens: int
    context_masked: int = 0
    alone: bool = False

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
        passages: (p,) the rows of the passages in the collection, ascending.
        judged: (j, 2) query of the batch, and row in the collection of a passage judged relevant to it.
        alone: see ``Batch``.
    """

    chunks: list[Chunk]
    positive: Tensor
    known: Tensor
    tokens: int
    passages: Tensor
    judged: Tensor
    alone: bool = False

    def to(self, device: torch.device) -> "TripleBatch":
        """The same batch on ``device``."""
        moved = [chunk.to(device, non_blocking=True) for chunk in self.chunks]
        tables = {name: getattr(self, name).to(device) for name in ("positive", "known", "passages", "judged")}
        return replace(self, chunks=moved, **tables)


class Batch(Protocol):
    """What a process trains on in one step: the batch, or its share of it."""

    @property
    def chunks(self) -> Sequence[Chunk]:
        """Together they hold all rows of the batch."""

    @property
    def tokens(self) -> int:
        """Tokens of the whole batch, padding not counted."""

    @property
    def alone(self) -> bool:
        """Whether every process has the whole batch: there are more processes than items to share."""

    def to(self, device: torch.device) -> "Batch":
        """The same batch on ``device``."""


@dataclass(frozen=True)
class Share:
    """Which part of each batch is made: all of it, or that of one of several processes that train together."""

    rank: int = 0
    processes: int = 1

    def of(self, items: Ids) -> tuple[Ids, bool]:
        """The items (n,) from among a batch's, as many as others get or one less, and ``Batch.alone``."""
        if len(items) < self.processes:
            return items, True
        return np.array_split(items, self.processes)[self.rank], False


ALL = Share()


class Batches(Protocol):
    """Makes the batch of a step."""

    def steps_an_epoch(self) -> int:
        """Batches until every item was seen once; the last may be short."""

    def batch(self, step: int, share: Share = ALL) -> Batch:
        """The batch of step ``step``, from 0, or a share of it."""


def steps_of_epochs(batches: Batches, epochs: float) -> int:
    """Optimisation steps in so many passes over the items, one at least."""
    return max(1, round(epochs * batches.steps_an_epoch()))


def steps_of_tokens(batches: Batches, tokens: int) -> int:
    """Optimisation steps that read about ``tokens`` tokens in all, one at least.

    The first million is counted, batch by batch; what is beyond it is taken to be alike.
    """
    steps = counted = 0
    while counted < min(tokens, _COUNTED):
        counted += batches.batch(steps).tokens
        steps += 1
    return max(1, round(steps * tokens / counted))


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, items: int) -> Ids:
    """The order of the items in an epoch: a permutation, (items,)."""
    return generator(seed, "order", epoch).permutation(items)


def items_of_step(step: int, batch_size: int, items: int, seed: int) -> tuple[int, Ids]:
    """The epoch of a step and the items of its batch."""
    epoch, position = divmod(step, -(-items // batch_size))
    return epoch, _order(seed, epoch, items)[position * batch_size : (position + 1) * batch_size]


def items_in_sequence(step: int, batch_size: int, items: int) -> tuple[int, Ids]:
    """As ``items_of_step``, in the order in which the items stand."""
    epoch, position = divmod(step, -(-items // batch_size))
    return epoch, np.arange(position * batch_size, min((position + 1) * batch_size, items))


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

    def batch(self, step: int, share: Share = ALL) -> SpanBatch:
        """See ``Batches``."""
        epoch, items = items_of_step(step, self.batch_size, self.source.items, self.seed)
        chosen, alone = share.of(items)
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
        return SpanBatch(parts, 0 if masked is None else len(masked), len(rows.flat), read, alone)

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
    """

    rows: Ids
    positives: Ids
    starts: Ids
    negatives: Pool[np.int32]
    weights: Pool[np.float64] | None = None


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
        order: which queries a step is of; None = all in random order, anew each epoch.
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
    ) -> None:
        self.queries, self.passages, self.titles, self.vocabulary = queries, passages, titles, vocabulary
        self.training, self.batch_size, self.negatives = training, batch_size, negatives
        self.query_length, self.passage_length = query_length, passage_length
        self.budget, self.seed = budget, seed
        self.order = order or partial(items_of_step, batch_size=batch_size, items=len(training.rows), seed=seed)

    def steps_an_epoch(self) -> int:
        """See ``Batches``."""
        return -(-len(self.training.rows) // self.batch_size)

    def batch(self, step: int, share: Share = ALL) -> TripleBatch:
        """See ``Batches``."""
        epoch, items = self.order(step)
        chosen, alone = share.of(items)
        return replace(self.batch_of(epoch, chosen), alone=alone)

    def batch_of(self, epoch: int, chosen: Ids) -> TripleBatch:
        """The batch of any queries (b,), numbered as in ``training``, with what is drawn for them in an epoch."""
        positive, hard = self.draw(epoch, chosen)
        passages, place = np.unique(np.concatenate([positive, hard.reshape(-1)]), return_inverse=True)
        parts, tokens = [], 0
        sides = (
            (QUERY, self.queries, self.training.rows[chosen], self.query_length, None),
            (PASSAGE, self.passages, passages, self.passage_length, self.titles),
        )
        first = 0
        for tower, store, rows, length, titles in sides:
            flat, starts = text_rows(store, rows, self.vocabulary, length, titles)
            places = np.arange(first, first + len(rows))
            parts += chunks(flat, starts, self.budget, self.vocabulary.pad, tower=tower, rows=places)
            first, tokens = first + len(rows), tokens + len(flat)
        judged, names = torch.from_numpy(self._judged(chosen)), torch.from_numpy(passages)
        known = known_positives(judged, names, len(chosen))
        return TripleBatch(parts, torch.from_numpy(place[: len(chosen)]), known, tokens, names, judged)

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
        pool = self.training.negatives[chosen].astype(np.int64)  # (b, m)
        starts = self.training.starts
        judged = [self.training.positives[starts[query] : starts[query + 1]] for query in chosen]
        for row, relevant in enumerate(judged):
            pool[row, np.isin(pool[row], relevant)] = -1
        places = np.arange(pool.shape[1])[None, :]
        draws = uniforms(self.seed, "negative", epoch, index=chosen[:, None], second=places)
        if self.training.weights is not None:
            draws = -np.log1p(-draws) / self.training.weights[chosen]  # smallest first (Efraimidis and Spirakis 2006)
        order = np.argsort(np.where(pool >= 0, draws, np.inf), axis=1, kind="stable")[:, : self.negatives]
        found = np.take_along_axis(pool, order, axis=1)
        missing = self.negatives - found.shape[1]
        found = np.pad(found, ((0, 0), (0, missing)), constant_values=-1)
        draws = uniforms(self.seed, "random", epoch, index=chosen[:, None], second=np.arange(self.negatives)[None, :])
        for row in np.flatnonzero((found < 0).any(axis=1)).tolist():
            gaps = found[row] < 0
            taken = np.union1d(judged[row], found[row, ~gaps])
            found[row, gaps] = _others(draws[row, gaps], taken, len(self.passages), positive[row])
        return found

    def _judged(self, chosen: Ids) -> Ids:
        """(j, 2) each of the batch's queries with each passage judged relevant to it."""
        starts = self.training.starts
        numbers = starts[chosen + 1] - starts[chosen]
        passages = self.training.positives[ranges(starts[chosen], numbers)]
        return np.stack([np.repeat(np.arange(len(chosen)), numbers), passages], axis=1)


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


class StepDataset(Dataset[Batch]):
    """The batches of a training run by step, or this process's share; what PyTorch's loader and its workers read."""

    def __init__(self, batches: Batches, steps: int, share: Share = ALL) -> None:
        self.batches, self.steps, self.share = batches, steps, share

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> Batch:
        return self.batches.batch(step, self.share)


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
