"""Batches of masked texts for pre-training."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np

from condensery.ranges import PositiveShare, check_values
from condensery.tokens.batches import TokenRows, chunks
from condensery.tokens.masking import mask_spans
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.data.sources import Rows, RowSource
from condensery.training.data.steps import ALL, Batch, Ids, Share, items_of_step


@dataclass(frozen=True, kw_only=True)
class SpanBatch(Batch):
    """A batch of texts for pre-training. In a batch of pairs, rows 2i and 2i + 1 form a pair.

    Attributes:
        masked: number of masked tokens in all chunks.
        context_masked: number of tokens that a decoder predicts, over all chunks.
    """

    masked: int
    context_masked: int = 0


@dataclass(frozen=True)
class ContextMasking:
    """The settings of the text that the decoder of a masked auto-encoder reads (CoT-MAE, RetroMAE).

    In addition to this text, the decoder reads the encoder's vector. CoT-MAE is from Wu et al. 2022, and eq. 8-11 of
    Wu et al. 2023 define its decoder.

    Attributes:
        context: partner = the other text of the pair (CoT-MAE); same = the text that the encoder reads (RetroMAE).
        both: True = the encoder reads both texts of a pair, in two rows. False = the encoder reads only the first text.
        rate: fraction of the tokens that are masked, and that the decoder predicts from the other tokens. None = no token is
            masked and all tokens are predicted. This value is for causal and enhanced decoders, whose attention masks hide
            tokens.
    """

    context: Literal["partner", "same"]
    both: bool
    rate: PositiveShare | None

    def __post_init__(self) -> None:
        check_values(ContextMasking, vars(self))


@dataclass(eq=False)
class SpanBatches:
    """Makes batches of masked texts of a corpus.

    Attributes:
        source: the texts or pairs of texts, which become the rows of a batch.
        vocabulary: vocabulary of the tokens.
        batch_size: number of items of the source per step.
        mask_rate: share of the tokens that are masked and predicted, see ``mask_spans``; None = no token is masked.
        whole_word: True = whole words are masked; False = single tokens.
        budget: maximum number of tokens in a chunk, padding included.
        seed: seed of the order and of the masks.
        context: the text that the decoder reads; None = there is no decoder.
    """

    source: RowSource
    vocabulary: Vocabulary
    _: KW_ONLY
    batch_size: int
    mask_rate: float | None
    whole_word: bool
    budget: int
    seed: int
    context: ContextMasking | None = None

    def steps_an_epoch(self) -> int:
        """Return the number of batches in one pass over the items of the source; the last batch may be short."""
        return -(-self.source.items // self.batch_size)

    def batch(self, step: int, share: Share = ALL) -> SpanBatch:
        """Return the batch of step ``step`` (from 0), or the part of the batch that ``share`` names."""
        epoch, items = items_of_step(step, self.batch_size, self.source.items, self.seed)
        chosen, replicated = share.of(items)
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
        return SpanBatch(
            chunks=parts,
            tokens=len(rows.flat),
            masked=0 if masked is None else len(masked),
            context_masked=read,
            replicated=replicated,
        )

    def _masked(self, rows: Rows, what: str, epoch: int, rate: float | None) -> tuple[Ids, Ids | None, Ids | None]:
        # Returns the token ids (N,) of all rows, the masked positions (m,) and the original ids at these positions (m,).
        if rate is None:
            return rows.flat, None, None
        how, keys = (self.vocabulary, rate, self.whole_word), (self.seed, what, epoch)
        return mask_spans(rows.flat, rows.starts, *how, *keys, span_ids=rows.names)

    def _context(self, rows: Rows, epoch: int) -> tuple[TokenRows, int]:
        """Return the decoder's input for ``rows``, and the number of tokens that the decoder predicts."""
        assert self.context is not None
        ids, masked, targets = self._masked(rows, "context mask", epoch, self.context.rate)
        if masked is None or targets is None:
            masked = np.flatnonzero(~self.vocabulary.is_special[ids])  # (m,)
            targets = ids[masked]  # (m,)
        return TokenRows(ids, rows.starts, masked, targets), len(masked)
