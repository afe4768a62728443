"""Training of a query generator (doc2query): the model reads a passage and generates a query that the passage answers."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from condensery.distributed import share_of
from condensery.losses.contrast import Contrast
from condensery.losses.gradient_cache import ChunkEncoder, wide
from condensery.models.generator import check_room
from condensery.text.table import TextTable
from condensery.tokens.batches import Chunk
from condensery.training.data.steps import ALL, Batch, Share, items_of_step
from condensery.training.modules.optimisation import TrainingModule

IGNORED = -100  # the label of padding


@dataclass(frozen=True)
class PairChunk(Chunk):
    """A chunk of passages, with the queries that the generator learns to generate from them.

    Shape:
        labels: (b, u) int64, the token ids of each query with its end token, padded with ``IGNORED``.
    """

    labels: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class PairBatch(Batch):
    """A batch of pairs of a passage and a query. Its ``tokens`` is the number of tokens in passages and queries together.

    Attributes:
        targets: number of query tokens in all chunks.
    """

    targets: int


@dataclass(eq=False)
class GeneratorBatches:
    """Makes batches of judged pairs of passage and query, every pair once per epoch. Tokenises the texts of each batch.

    Attributes:
        pairs: (n, 2) row of the passage and row of the query of each pair.
        passages, queries: text tables of the collection.
        tokenizer: tokenizer of the generator; it adds the end token of a text.
        prefix: string put before each passage.
        titles: True = passages are read with their titles.
        batch_size: number of pairs per step.
        max_input_tokens, max_tokens: maximum passage length and query length in tokens; longer texts are truncated.
        budget: largest number of tokens of passages and queries in a chunk, padding included.
        seed: seed of the order.

    Raises:
        UserError: the prefix leaves no room for a passage.
    """

    pairs: NDArray[np.int64]
    passages: TextTable
    queries: TextTable
    tokenizer: Any
    _: KW_ONLY
    prefix: str
    titles: bool
    batch_size: int
    max_input_tokens: int
    max_tokens: int
    budget: int
    seed: int

    def __post_init__(self) -> None:
        check_room(self.tokenizer, self.prefix, self.max_input_tokens)

    def steps_an_epoch(self) -> int:
        """Return the number of batches in one pass over the pairs; the last batch may be short."""
        return -(-len(self.pairs) // self.batch_size)

    def batch(self, step: int, share: Share = ALL) -> PairBatch:
        """Return the batch of step ``step`` (from 0), or the part of the batch that ``share`` names."""
        _, items = items_of_step(step, self.batch_size, len(self.pairs), self.seed)
        chosen, replicated = share.of(items)
        rows = self.pairs[chosen]  # (n, 2)
        texts = [self.prefix + text for text in self.passages.full_texts(rows[:, 0], self.titles)]
        read = self._ids(texts, self.max_input_tokens)
        written = self._ids(self.queries.column("text").take(rows[:, 1]), self.max_tokens)
        lengths = np.array([[len(a), len(b)] for a, b in zip(read, written, strict=True)])  # (n, 2)
        order = np.argsort(-lengths.sum(axis=1), kind="stable")  # (n,)
        parts, first = [], 0
        while first < len(order):
            last = first + max(1, self.budget // int(lengths[order[first]].sum()))
            parts.append(self._chunk(order[first:last], read, written))
            first = last
        targets, tokens = int(lengths[:, 1].sum()), int(lengths.sum())
        return PairBatch(chunks=parts, tokens=tokens, targets=targets, replicated=replicated)

    def _ids(self, texts: list[str], limit: int) -> list[list[int]]:
        return self.tokenizer(texts, truncation=True, max_length=limit)["input_ids"]

    def _chunk(self, rows: NDArray[np.int64], read: list[list[int]], written: list[list[int]]) -> PairChunk:
        names = rows.tolist()
        return PairChunk(
            input_ids=_padded([read[row] for row in names], self.tokenizer.pad_token_id),
            lengths=torch.tensor([len(read[row]) for row in names]),
            rows=torch.from_numpy(rows.copy()),
            labels=_padded([written[row] for row in names], IGNORED),
        )


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=filler)


class _Writing:
    """Wraps the generator as a ``ChunkEncoder`` without vectors. The chunks' losses add up to the batch's mean loss."""

    def __init__(self, model: nn.Module, targets: float) -> None:
        self.model, self.targets = model, targets

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return zeros (b, 1), because no loss compares vectors."""
        return torch.zeros(len(chunk), 1, device=chunk.input_ids.device)

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return zeros (b, 1), and the chunk's summed cross-entropy divided by the number of query tokens in the batch."""
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
    """Trains a query generator by teacher forcing: the mean cross-entropy of query tokens (Nogueira and Lin 2019)."""

    def objective(self, batch: PairBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return the encoder with the cross-entropy of the queries; there is no contrastive loss."""
        return _Writing(self.model, share_of(batch.targets)), None
