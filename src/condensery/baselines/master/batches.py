"""MASTER's batches: each passage with the texts that its decoders recover.

Symbols in shapes: b items of a batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from condensery.errors import UserError
from condensery.tokens.batches import Chunk, TokenRows, chunks
from condensery.training.data.passage_queries import PassageQueryDataModule
from condensery.training.data.sources import MixedPairs, PassageQueries, Rows
from condensery.training.data.span_batches import ContextMasking, SpanBatch, SpanBatches
from condensery.training.data.steps import ALL, Share, items_of_step

TASKS = ("itself", "related", "query")  # the texts that the decoders recover, in the order of a chunk's contexts


class Contexts(TokenRows):
    """Several texts of each row, one for each decoder.

    Args:
        parts: the texts, n rows each.
    """

    def __init__(self, parts: Sequence[TokenRows]) -> None:
        self.parts, self.lengths = parts, np.maximum.reduce([part.lengths for part in parts])

    def chunks(self, *how: Any, **named: Any) -> list[Chunk]:
        """Return the chunks of the first text; their contexts are the chunks of the second text, and so on."""
        *earlier, found = [part.chunks(*how, **named) for part in self.parts]
        for made in reversed(earlier):
            found = [replace(chunk, context=its) for chunk, its in zip(made, found, strict=True)]
        return found


def contexts(chunk: Chunk) -> Iterator[Chunk]:
    """Yield the chunk's texts for decoders, in the order of ``TASKS``."""
    while chunk.context is not None:
        chunk = chunk.context
        yield chunk


@dataclass(eq=False)
class MasterBatches(SpanBatches):
    """Makes batches of masked passages. The decoders read each passage, another passage of its document, and its query.

    ``context.rate`` is the share of the tokens that is masked for a decoder. A passage that is alone in its document has its
    query in place of the other passage. With ``remove``, the query's sentence is removed only from the passage itself.

    Raises:
        UserError: the source does not give passages with queries, no text is masked, or both texts of a pair are encoded.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.source, PassageQueries):
            raise UserError(
                "MASTER reads a query and another passage in every step: set mixed_context=0, and no prefixes"
            )
        given = self.context or ContextMasking("same", False, None)
        if given.context != "partner" or given.both or given.rate is None or self.mask_rate is None:
            raise UserError(
                'MASTER encodes the passages: give mask_rate, and decoder=ContextMasking("partner", False, rate)'
            )

    def batch(self, step: int, share: Share = ALL) -> SpanBatch:
        """Return the batch of step ``step`` (from 0), or the part of the batch that ``share`` names."""
        assert isinstance(self.source, PassageQueries)
        assert self.context is not None
        epoch, items = items_of_step(step, self.batch_size, self.source.items, self.seed)
        chosen, replicated = share.of(items)
        passages, queries = _parted(self.source.rows(step, epoch, chosen))
        _, related = _parted(MixedPairs(self.source, 1.0, self.seed).rows(step, epoch, chosen))
        ids, masked, targets = self._masked(passages, "mask", epoch, self.mask_rate)
        parts = []
        for task, rows in zip(TASKS, (passages, related, queries), strict=True):
            changed, predicted, originals = self._masked(rows, f"mask of {task}", epoch, self.context.rate)
            parts.append(TokenRows(changed, rows.starts, predicted, originals))
        own: dict[str, Any] = {"masked": masked, "targets": targets, "context": Contexts(parts)}
        made = chunks(ids, passages.starts, self.budget, self.vocabulary.pad, **own)
        return SpanBatch(
            chunks=made,
            tokens=len(passages.flat),
            masked=0 if masked is None else len(masked),
            context_masked=sum(len(part.targets) for part in parts),
            replicated=replicated,
        )


def _parted(pairs: Rows) -> tuple[Rows, Rows]:
    """Return the first and the second texts, (b,) each, of b pairs."""
    places = np.arange(len(pairs))
    return pairs.take(places[::2]), pairs.take(places[1::2])


class MasterDataModule(PassageQueryDataModule):
    """The data of MASTER: passages with their queries. Arguments are those of ``PassageQueryDataModule``.

    Give ``mask_rate`` for the encoder, and ``decoder=ContextMasking("partner", False, rate)`` for the decoders.

    Raises:
        UserError: as ``PassageQueryDataModule`` and ``MasterBatches``.
    """

    def make_batches(self) -> MasterBatches:
        """Return the object that makes the batches of masked texts."""
        return self.masked_batches(MasterBatches)
