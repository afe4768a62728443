"""The spans of COSTA's texts, drawn by number of words (Ma et al. 2022, "Multi-granularity span sampling").

Symbols in shapes: b rows of a chunk, s spans of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv
from torch import Tensor

from condensery.randomness import uniforms
from condensery.tokens.batches import Chunk
from condensery.training.data.span_batches import SpanBatch, SpanBatches
from condensery.training.data.spans import SpanPairDataModule
from condensery.training.data.steps import ALL, Ids, Share, items_of_step

ALPHA, BETA = 4.0, 2.0  # parameters of the Beta distribution of a span's length; it favours long spans


@dataclass(frozen=True)
class SpannedChunk(Chunk):
    """A chunk with spans of its rows.

    Shape:
        spans: int64 (b, s, 2) first token in the row, and number of tokens; 0 tokens if a row is too short for the span.
    """

    spans: Tensor = field(default_factory=lambda: torch.empty(0))


def draw_spans(
    words: NDArray[np.int64], granularities: Sequence[tuple[int, int]], draws: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Draw spans of whole words from one text.

    The number of words is least + (most - least) x, rounded, where x is a sample from Beta(4, 2). ``most`` is reduced to the
    number of words of a shorter text. All positions of a span of this length are equally likely.

    Args:
        words: (w + 1,) position of the first token of each word, and the position after the last word.
        granularities: least and most words of a span, for each granularity.
        draws: (granularities, spans, 2) random numbers in [0, 1), for the length and the position of each span.

    Returns:
        (granularities * spans, 2) first token and number of tokens; zeros if the text has too few words.
    """
    number, found = len(words) - 1, np.zeros((*draws.shape[:2], 2), np.int64)
    for (least, most), each, drawn in zip(granularities, found, draws, strict=True):
        if number >= least:
            share = betaincinv(ALPHA, BETA, drawn[:, 0])  # (spans,)
            size = np.rint(least + (min(most, number) - least) * share).astype(np.int64)
            first = (drawn[:, 1] * (number - size + 1)).astype(np.int64)
            each[:, 0], each[:, 1] = words[first], words[first + size] - words[first]
    return found.reshape(-1, 2)


@dataclass(eq=False, kw_only=True)
class SpannedBatches(SpanBatches):
    """Makes batches of masked texts with spans. The spans are a function of the seed, the epoch and the text.

    Attributes:
        granularities: least and most words of a span, for each granularity.
        spans_each: spans of a text for each granularity.
    """

    granularities: Sequence[tuple[int, int]]
    spans_each: int

    def batch(self, step: int, share: Share = ALL) -> SpanBatch:
        """Return the batch of step ``step`` (from 0), or the part of the batch that ``share`` names."""
        made = super().batch(step, share)
        epoch, items = items_of_step(step, self.batch_size, self.source.items, self.seed)
        chosen, _ = share.of(items)
        return replace(made, chunks=[self._spanned(chunk, epoch, chosen) for chunk in made.chunks])

    def _spanned(self, chunk: Chunk, epoch: int, chosen: Ids) -> SpannedChunk:
        """Return a chunk with its spans. ``chosen`` (n,): for each row of the batch, the index of its item in the source."""
        ids, rows = chunk.input_ids.numpy().copy(), chunk.rows.numpy()
        if chunk.masked is not None and chunk.targets is not None:
            ids.reshape(-1)[chunk.masked.numpy()] = chunk.targets.numpy()
        shape = len(self.granularities), self.spans_each, 2
        second = np.arange(np.prod(shape))
        draws = uniforms(self.seed, "spans of text", epoch, index=chosen[rows][:, None], second=second)  # (b, 2 s)
        spans = [
            draw_spans(self._words(row[:length]), self.granularities, drawn.reshape(shape))
            for row, length, drawn in zip(ids, chunk.lengths.tolist(), draws, strict=True)
        ]
        return SpannedChunk(**vars(chunk), spans=torch.from_numpy(np.stack(spans)))

    def _words(self, ids: Ids) -> NDArray[np.int64]:
        """Return the positions at which words begin in a row of ids (t,), and the position of [SEP]. [CLS] is not a word."""
        begins = self.vocabulary.continues[ids[1:]] != 1  # (t - 1,), for the tokens after [CLS]
        begins[:1] = begins[-1:] = True
        return 1 + np.flatnonzero(begins)


class SpannedDataModule(SpanPairDataModule):
    """The data of COSTA: single texts of ``SpanPairDataModule``, with random spans of each text.

    Args:
        data, tokenizer: as in ``SpanPairDataModule``.
        granularities: least and most words of a span, for each granularity.
        spans_each: spans of a text for each granularity.
        others: further arguments of ``SpanPairDataModule``.
    """

    def __init__(
        self,
        data: Any,
        tokenizer: Any = None,
        *,
        granularities: Sequence[tuple[int, int]] = ((1, 1), (4, 16), (16, 64), (64, 128)),
        spans_each: int = 5,
        **others: Any,
    ) -> None:
        super().__init__(data, tokenizer, **{"pairs": None, **others})
        self.granularities, self.spans_each = granularities, spans_each

    def make_batches(self) -> SpannedBatches:
        """Return the object that makes the batches of masked texts with spans."""
        own = {"granularities": self.granularities, "spans_each": self.spans_each}
        return self.masked_batches(SpannedBatches, **own)
