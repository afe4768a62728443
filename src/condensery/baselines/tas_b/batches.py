"""Stage ``finetune_tas_b``: fine-tuning on batches of one topic, with pairs balanced by margin (Hofstätter et al. 2021)."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from condensery.baselines.tas_b.clusters import clusters_of
from condensery.baselines.tas_b.config import FinetuneTasBConfig
from condensery.randomness import generator, uniforms
from condensery.stages.base import Context
from condensery.stages.finetuning.finetune import finetune
from condensery.training.data.steps import Ids
from condensery.training.data.teaching import taught
from condensery.training.data.triple_batches import TripleBatches


def finetune_tas_b(config: FinetuneTasBConfig, context: Context) -> dict[str, Any]:
    """Train the retriever as ``finetune`` does, but on batches of one topic."""
    return finetune(config, context, partial(_sampled, config, context))


def _sampled(config: FinetuneTasBConfig, context: Context, batches: TripleBatches) -> None:
    rows = batches.training.rows
    clusters = clusters_of(context.input("clusters"), rows, context.place("clusters"))
    batches.order = TopicOrder.of(clusters, config.batch_size, config.clusters_per_batch, config.seed)
    batches.pairs = BalancedPairs(batches, config.margin_bins) if config.margin_bins else None


@dataclass(frozen=True)
class TopicOrder:
    """An ``Order`` of batches whose queries come from few clusters.

    For each batch, clusters are drawn at random without replacement until the batch is full. Each cluster gives
    ``batch_size`` / ``clusters_per_batch`` random queries, or all its queries if it has fewer. So a batch has no query
    twice, but an epoch need not contain every query.

    Attributes:
        members: (q,) the training queries of cluster 0, then of cluster 1, ...
        starts: (c + 1,) the index in ``members`` of each cluster's first query; no cluster is empty.
        batch_size: queries of a batch.
        clusters_per_batch: clusters of a batch.
        seed: seed of the random clusters, queries and pairs.
    """

    members: Ids
    starts: Ids
    batch_size: int
    clusters_per_batch: int
    seed: int

    @classmethod
    def of(cls, clusters: NDArray[np.integer], batch_size: int, clusters_per_batch: int, seed: int) -> Self:
        """Create the order for queries 0 .. q - 1 whose clusters are ``clusters`` (q,)."""
        members = np.argsort(clusters, kind="stable")  # (q,)
        first = np.flatnonzero(np.diff(clusters[members], prepend=-1))  # (c,)
        return cls(members, np.append(first, len(members)), batch_size, clusters_per_batch, seed)

    def __call__(self, step: int) -> tuple[int, Ids]:
        """Return the step and its queries (b,). The step is used in place of the epoch, so each batch draws new passages."""
        random, found, room = generator(self.seed, "topics", step), [], self.batch_size
        for cluster in random.permutation(len(self.starts) - 1).tolist():
            queries = self.members[self.starts[cluster] : self.starts[cluster + 1]]
            number = min(len(queries), self.batch_size // self.clusters_per_batch, room)
            found.append(random.choice(queries, number, replace=False))
            room -= number
            if not room:
                break
        return step, np.concatenate(found)


@dataclass(frozen=True)
class BalancedPairs:
    """Draws pairs of a positive and a hard negative such that the teacher's margins of the pairs are spread evenly.

    The range of the teacher's margins t(q, p+) - t(q, p-) over all pairs of a query is divided into ``bins`` bins of equal
    width. First a non-empty bin is drawn, each with the same probability, and then a pair in this bin. Without bins, most
    drawn pairs would have a large margin and teach little. Further negatives are drawn in the same way from the query's other
    pairs with this positive. If the teacher has scored too few of these pairs, ``TripleBatches.draw_evenly`` draws the rest.

    Attributes:
        batches: the batches, which hold the queries, the passages and the teacher's scores.
        bins: number of bins.
    """

    batches: TripleBatches
    bins: int

    def __call__(self, epoch: int, chosen: Ids) -> tuple[Ids, Ids]:
        """Draw positives (b,) and hard negatives (b, negatives) for the queries ``chosen`` (b,)."""
        batches, training = self.batches, self.batches.training
        positive, hard = batches.draw_evenly(epoch, chosen)
        if not batches.negatives:
            return positive, hard
        pools, _ = batches.pools(chosen)  # (b, m)
        pairs, scores = taught(training, chosen)  # (s, 2), (s,)
        places, passages = pairs.T  # (s,) each
        draws = uniforms(batches.seed, "margin", epoch, index=chosen[:, None], second=np.arange(2 * batches.negatives))
        for row, query in enumerate(chosen.tolist()):
            here = np.flatnonzero(places == row)
            own = training.positives[training.starts[query] : training.starts[query + 1]]
            of_own = np.isin(passages[here], own)
            of_pool = np.isin(passages[here], pools[row][pools[row] >= 0])
            better, worse = here[of_own], here[of_pool]
            if not len(better) or not len(worse):
                continue
            margins = scores[better][:, None] - scores[worse]  # (positives, negatives)
            found = _drawn(margins, self.bins, draws[row].reshape(-1, 2))
            positive[row] = passages[better[found[0][0]]]
            drawn = [int(passages[worse[negative]]) for _, negative in found]
            others = [passage for passage in hard[row].tolist() if passage not in drawn]
            filled = [*drawn, *others, *[int(positive[row])] * batches.negatives]
            hard[row] = filled[: batches.negatives]
        return positive, hard


def _drawn(margins: NDArray[np.float32], bins: int, draws: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Draw pairs that have the same positive and different negatives: one per row of ``draws``, as long as negatives remain.

    Args:
        margins: (positives, negatives) the margin of each pair.
        bins: number of bins.
        draws: (pairs, 2) random numbers in [0, 1). The first chooses the bin of a pair, the second the pair within the bin.
    """
    low, width = margins.min(), (margins.max() - margins.min()) / bins
    of_pair = np.zeros(margins.shape, np.int64)
    if width > 0:
        of_pair = np.minimum((margins - low) / width, bins - 1).astype(np.int64)  # (positives, negatives)
    left, pairs = np.ones(margins.shape, bool), list[tuple[int, int]]()
    for for_bin, for_pair in draws.tolist():
        filled = np.unique(of_pair[left])
        if not len(filled):
            break
        here = np.argwhere(left & (of_pair == filled[int(for_bin * len(filled))]))
        best, worse = here[int(for_pair * len(here))].tolist()
        left[:, worse] = False
        left[np.arange(len(margins)) != best] = False
        pairs.append((best, worse))
    return pairs
