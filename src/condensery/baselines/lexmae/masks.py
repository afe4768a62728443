"""LexMAE's masks: all tokens that are masked for the encoder are also masked for the decoder."""

from dataclasses import dataclass

import numpy as np

from condensery.errors import UserError
from condensery.tokens.batches import TokenRows
from condensery.training.data.sources import Rows
from condensery.training.data.span_batches import SpanBatches
from condensery.training.data.spans import SpanPairDataModule


@dataclass(eq=False)
class NestedBatches(SpanBatches):
    """Makes batches in which the decoder reads the encoder's text with more tokens masked.

    ``context.rate`` is the share of the tokens that are masked for the decoder, including those that are masked for the
    encoder. Each of these tokens is replaced by [MASK], a random token or itself, drawn independently of the encoder's draw.

    Raises:
        UserError: the decoder reads another text than the encoder, or does not have a larger share of masked tokens.
    """

    def __post_init__(self) -> None:
        own, context = self.mask_rate, self.context
        if own is None or context is None or context.context != "same" or not context.both:
            raise UserError(
                "LexMAE's decoder reads the encoder's text: give decoder=ContextMasking(\"same\", True, rate)"
            )
        if context.rate is None or context.rate <= own:
            raise UserError(
                f"ContextMasking: rate={context.rate} must be above mask_rate={own}, whose tokens it includes"
            )

    def _context(self, rows: Rows, epoch: int) -> tuple[TokenRows, int]:
        assert self.mask_rate is not None
        assert self.context is not None
        assert self.context.rate is not None
        further = (self.context.rate - self.mask_rate) / (1 - self.mask_rate)  # of all tokens; some are the encoder's
        drawn = (("mask", self.mask_rate), ("context mask", further))
        masked = np.unique(np.concatenate([self._masked(rows, what, epoch, rate)[1] for what, rate in drawn]))  # (m,)
        ids, every = rows.flat.copy(), self._masked(rows, "context mask", epoch, 1.0)[0]
        ids[masked] = every[masked]
        return TokenRows(ids, rows.starts, masked, rows.flat[masked]), len(masked)


class NestedDataModule(SpanPairDataModule):
    """The data of LexMAE: single spans, each in two versions. Arguments are those of ``SpanPairDataModule``.

    Give ``pairs=None``, ``mask_rate`` for the encoder, and ``decoder=ContextMasking("same", True, rate)`` with a higher rate.

    Raises:
        UserError: as ``SpanPairDataModule`` and ``NestedBatches``.
    """

    def make_batches(self) -> NestedBatches:
        """Return the object that makes the batches of masked texts."""
        return self.masked_batches(NestedBatches)
