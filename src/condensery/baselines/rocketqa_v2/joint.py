"""Dynamic listwise distillation (RocketQAv2, Ren et al. 2021): the batches, the loss and the module.

Symbols in shapes: l lists in a batch, one per query, of s passages each; p distinct passages; d dimensions of a vector.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from condensery.baselines.rocketqa_v2.config import Divergence
from condensery.distributed import share_of
from condensery.losses.contrast import Contrast
from condensery.losses.gradient_cache import ChunkEncoder, wide
from condensery.models.biencoder import PASSAGE, QUERY, BiEncoder
from condensery.models.cross_encoder import CrossEncoder
from condensery.ranges import Positive, check_values
from condensery.tokens.batches import Chunk
from condensery.tokens.pairs import PairReader
from condensery.training.data.steps import ALL, Batch, Share
from condensery.training.data.triple_batches import TripleBatches
from condensery.training.modules.encoders import TowersModule

PAIR = 2  # value of Chunk.tower for pairs; the other values are QUERY and PASSAGE


def joint_loss(retriever: Tensor, reranker: Tensor, divergence: Divergence = "of_retriever") -> Tensor:
    """Return the loss of RocketQAv2, summed over the lists: KL plus the re-ranker's listwise cross-entropy.

    With S the softmax over a list, the loss of a query is

        sum over p of S_de(q, p) log (S_de(q, p) / S_ce(q, p)) - log S_ce(q, p+),

    where de is the dual encoder (the retriever), ce the cross-encoder (the re-ranker), and p+ the positive. Both models get
    the gradient of both terms, so each model teaches the other.

    Args:
        retriever: (l, s) inner products; column 0 holds the positives.
        reranker: (l, s) logits of the same passages.
        divergence: of_retriever = KL(retriever || re-ranker), as above; of_reranker = KL(re-ranker || retriever).
    """
    of_retriever = nn.functional.log_softmax(retriever, dim=1)  # (l, s)
    of_reranker = nn.functional.log_softmax(reranker, dim=1)  # (l, s)
    first, second = (of_retriever, of_reranker) if divergence == "of_retriever" else (of_reranker, of_retriever)
    return (first.exp() * (first - second)).sum() - of_reranker[:, 0].sum()


@dataclass(frozen=True, kw_only=True)
class JointBatch(Batch):
    """A batch of l lists. Rows 0 .. l - 1 are queries, the next p are passages, the last l * s are pairs, list by list.

    Attributes:
        listed: (l, s) the index of each list's passages among the p passages; the positive comes first.
    """

    listed: Tensor


class JointBatches:
    """Makes lists for both models from the queries, positives and hard negatives of the bi-encoder's batches.

    Args:
        triples: batches that draw the positives and the hard negatives.
        reader: converts pairs to token ids.
    """

    def __init__(self, triples: TripleBatches, reader: PairReader) -> None:
        self.triples, self.reader, self.budget = triples, reader, triples.budget

    def steps_an_epoch(self) -> int:
        """Return the number of batches in one pass over the training queries; the last batch may be short."""
        return self.triples.steps_an_epoch()

    def batch(self, step: int, share: Share = ALL) -> JointBatch:
        """Return the batch of step ``step`` (from 0), or the part of the batch that ``share`` names."""
        triples = self.triples
        epoch, items = triples.order(step)
        chosen, replicated = share.of(items)
        queries = triples.training.rows[chosen]  # (l,)
        lists = np.column_stack(triples.draw(epoch, chosen))  # (l, s)
        passages, listed = np.unique(lists, return_inverse=True)  # (p,)
        parts, first = list[Chunk](), 0
        for tower, rows in ((QUERY, queries), (PASSAGE, passages)):
            read = triples.readers[tower].chunks(rows, self.budget, tower)
            parts += [replace(chunk, rows=chunk.rows + first) for chunk in read]
            first += len(rows)
        pairs = self.reader.chunks(np.repeat(queries, lists.shape[1]), lists.reshape(-1), self.budget)
        parts += [replace(chunk, tower=PAIR, rows=chunk.rows + first) for chunk in pairs]
        return JointBatch(
            chunks=parts,
            tokens=sum(int(chunk.lengths.sum()) for chunk in parts),
            replicated=replicated,
            listed=torch.from_numpy(listed.reshape(lists.shape)),
        )


class Together:
    """Wraps both models as a ``ChunkEncoder``; a pair's vector is its logit, followed by zeros."""

    def __init__(self, retriever: BiEncoder, reranker: CrossEncoder) -> None:
        self.retriever, self.reranker = retriever, reranker

    def vectors(self, chunk: Chunk) -> Tensor:
        """Return the vectors (b, d) of queries or passages, or the logits of pairs in column 0 (b, d)."""
        if chunk.tower != PAIR:
            return self.retriever.vectors(chunk)
        logits = wide(self.reranker.scores(chunk))[:, None]  # (b, 1)
        return nn.functional.pad(logits, (0, self.retriever.hidden_size - 1))

    def encode(self, chunk: Chunk) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the result of ``vectors``, and an empty mapping, because a chunk has no loss of its own."""
        return self.vectors(chunk), {}


class JointModule(TowersModule):
    """Trains a retriever and a re-ranker together (Ren et al. 2021). ``save_pretrained`` saves the retriever.

    Args:
        model: the retriever.
        reranker: the re-ranker.
        divergence: see ``joint_loss``.
        temperature: divisor of the retriever's inner products.
        others: further arguments of ``TowersModule``.
    """

    usual_rate = 1e-5

    def __init__(
        self,
        model: BiEncoder,
        reranker: CrossEncoder,
        *,
        divergence: Divergence = "of_retriever",
        temperature: Positive = 1.0,
        **others: Any,
    ) -> None:
        check_values(type(self), locals())
        super().__init__(model, **others)
        self.reranker, self.divergence, self.temperature = reranker, divergence, temperature
        self._remember(locals())

    def objective(self, batch: JointBatch) -> tuple[ChunkEncoder, Contrast | None]:
        """Return both models as one encoder, and the mean loss over the lists of all processes."""
        lists, size = batch.listed.shape
        number = share_of(lists)

        def contrast(vectors: Tensor) -> Tensor:
            queries, passages = vectors[:lists], vectors[lists : -lists * size]  # (l, d), (p, d)
            logits = vectors[-lists * size :, 0].view(lists, size)  # (l, s)
            products = torch.einsum("ld,lsd->ls", queries, passages[batch.listed]) / self.temperature  # (l, s)
            return joint_loss(products, logits, self.divergence) / number

        return Together(self.model, self.reranker), contrast
