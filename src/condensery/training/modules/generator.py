"""Training of a query generator (doc2query): a passage is read, a query that it answers is written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from condensery.distributed import share_of
from condensery.losses.contrast import Contrast
from condensery.losses.gradient_cache import ChunkEncoder, wide
from condensery.models.generator import check_room
from condensery.text.table import TextTable
from condensery.tokens.batches import Chunk
from condensery.training.batches.steps import ALL, Batch, Share, items_of_step
from condensery.training.modules.optimisation import TrainingModule

IGNORED = -100  # the label of padding


@dataclass(frozen=True)
class PairChunk(Chunk):
    """Passages and the queries to write.

    Shape:
        labels: (b, u) int64, the tokens of each query with the one that ends it; ``IGNORED`` behind.
    """

    labels: Tensor | None = None

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "PairChunk":
        """The same chunk on ``device``."""
        moved = super().to(device, non_blocking)
        assert self.labels is not None
        assert isinstance(moved, PairChunk)
        return replace(moved, labels=self.labels.to(device, non_blocking=non_blocking))


@dataclass(frozen=True, kw_only=True)
class PairBatch(Batch):
    """Pairs of a passage and a query; ``tokens`` are those read and those written.

    Attributes:
        targets: tokens to write in the whole batch.
    """

    targets: int


class GeneratorBatches:
    """Judged pairs, every one once an epoch; their text is tokenised as the batch is made.

    Args:
        pairs: (n, 2) row of the passage, row of the query.
        passages, queries: tables of the collection.
        tokenizer: of the generator; it writes the token that ends a text.
        prefix: before each passage; ``titles``: its title too.
        batch_size: pairs a step.
        max_input_tokens, max_tokens: longest passage and query; what is longer is cut.
        budget: padded tokens a chunk may hold, of passages and queries.
        seed: of the order.

    Raises:
        UserError: the prefix leaves a passage no token.
    """

    def __init__(
        self,
        pairs: NDArray[np.int64],
        passages: TextTable,
        queries: TextTable,
        tokenizer: Any,
        *,
        prefix: str,
        titles: bool,
        batch_size: int,
        max_input_tokens: int,
        max_tokens: int,
        budget: int,
        seed: int,
    ) -> None:
        check_room(tokenizer, prefix, max_input_tokens)
        self.pairs, self.passages, self.queries, self.tokenizer = pairs, passages, queries, tokenizer
        self.prefix, self.titles, self.batch_size = prefix, titles, batch_size
        self.max_input_tokens, self.max_tokens = max_input_tokens, max_tokens
        self.budget, self.seed = budget, seed

    def steps_an_epoch(self) -> int:
        """See ``Batches``."""
        return -(-len(self.pairs) // self.batch_size)

    def batch(self, step: int, share: Share = ALL) -> PairBatch:
        """See ``Batches``."""
        _, items = items_of_step(step, self.batch_size, len(self.pairs), self.seed)
        chosen, replicated = share.of(items)
        rows = self.pairs[chosen]
        texts = [self.prefix + text for text in self.passages.full_texts(rows[:, 0], self.titles)]
        read = self._ids(texts, self.max_input_tokens)
        written = self._ids(self.queries.column("text").take(rows[:, 1]), self.max_tokens)
        lengths = np.array([[len(a), len(b)] for a, b in zip(read, written, strict=True)])  # (n, 2)
        order = np.argsort(-lengths.sum(axis=1), kind="stable")
        parts, first = [], 0
        while first < len(order):
            last = first + max(1, self.budget // int(lengths[order[first]].sum()))
            parts.append(self._chunk(order[first:last], read, written))
            first = last
        targets, tokens = int(lengths[:, 1].sum()), int(lengths.sum())
        return PairBatch(chunks=parts, tokens=tokens, targets=targets, replicated=replicated)

    def _ids(self, texts: list[str], limit: int) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, truncation=True, max_length=limit)["input_ids"]
        return ids

    def _chunk(self, rows: NDArray[np.int64], read: list[list[int]], written: list[list[int]]) -> PairChunk:
        names = rows.tolist()
        return PairChunk(
            input_ids=_padded([read[row] for row in names], self.tokenizer.pad_token_id),
            lengths=torch.tensor([len(read[row]) for row in names]),
            rows=torch.from_numpy(rows.copy()),
            labels=_padded([written[row] for row in names], IGNORED),
        )


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    padded = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return torch.from_numpy(padded)


class _Writing:
    """The generator as the gradient cache sees it: no vectors, and a loss that adds up to the mean of the batch."""

    def __init__(self, model: nn.Module, targets: float) -> None:
        self.model, self.targets = model, targets

    def vectors(self, chunk: Chunk) -> Tensor:
        """Nothing is contrasted: (b, 1) zeros."""
        return torch.zeros(len(chunk), 1, device=chunk.input_ids.device)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """The cross-entropy of the chunk's tokens to write, over the number of them in the batch."""
        assert isinstance(chunk, PairChunk)
        assert chunk.labels is not None
        logits = self.model(
            input_ids=chunk.input_ids, attention_mask=chunk.attention_mask, labels=chunk.labels
        ).logits  # (b, u, V)
        loss = nn.functional.cross_entropy(
            wide(logits.flatten(0, 1)), chunk.labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return self.vectors(chunk), {"query": loss / (self.targets or 1)}


class GeneratorModule(TrainingModule):
    """Teacher forcing: the mean cross-entropy of every token of the query (Nogueira and Lin 2019)."""

    def objective(self, batch: PairBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """The loss of writing the queries."""
        return _Writing(self.model, share_of(batch.targets)), None
