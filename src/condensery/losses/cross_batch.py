"""Cross-batch negatives (RocketQA §4.1, Qu et al. 2021): a contrast over the vectors of all processes.

Each process computes the loss of the joined batch from everybody's vectors, of which its own alone have a graph. The
mean over the processes of what they back-propagate is the gradient of the joined batch: that of the vectors is multiplied
by the number of processes, since each row has its graph in one of them; that of weights which the loss itself reads is
whole in every process.
"""

import torch
from torch import Tensor, distributed

from condensery.distributed import gathered, processes, sum_of
from condensery.losses.contrast import Contrast, known_positives, teacher_scores


def across_processes(contrast: Contrast) -> Contrast:
    """``contrast`` over the vectors of all processes; for losses whose rows stand in any order of the processes."""
    return lambda vectors: contrast(gathered(vectors))


def joined_passages(passages: Tensor, names: Tensor, positive: Tensor, judged: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The passages of all processes, and what the queries of all processes, in the order of ``gathered``, have there.

    A passage that several processes have is one passage, with the vector of the first, as in a batch of one process.

    Args:
        passages: (p, d) vectors of this process.
        names: (p,) the passages' rows in the collection.
        positive: (q,) the row in ``passages`` of each query's positive.
        judged: (j, 2) query of this process, from 0, and row in the collection of a passage judged relevant to it.

    Returns:
        the P passages (P, d), each query's positive among them (Q,), and where one is judged relevant (Q, P).
    """
    distinct, place = torch.unique(gathered(names), return_inverse=True)
    order = torch.arange(len(place), device=place.device)
    first = order.new_full((len(distinct),), len(place)).scatter_reduce(0, place, order, "amin")
    positives = torch.searchsorted(distinct, gathered(names[positive]))
    pairs = gathered(_of_all_queries(judged, len(positive)))
    return gathered(passages)[first], positives, known_positives(pairs, distinct, len(positives))


def joined_teacher(names: Tensor, queries: int, scored: Tensor, scores: Tensor) -> Tensor:
    """How a teacher scores the queries and passages of all processes, as ``joined_passages`` orders them: (Q, P).

    Args:
        names: (p,) the rows in the collection of this process's passages.
        queries: how many this process has.
        scored: (s, 2) query of this process, from 0, and row in the collection of a passage that is scored for it.
        scores: (s,).
    """
    distinct = torch.unique(gathered(names))
    here = torch.isin(scored[:, 1], distinct)  # most of what is scored for a query is in nobody's batch
    pairs = gathered(_of_all_queries(scored[here], queries))
    return teacher_scores(pairs, gathered(scores[here]), distinct, sum_of(queries))


def _of_all_queries(pairs: Tensor, queries: int) -> Tensor:
    """Pairs (n, 2) of a query and a passage, the queries numbered through all processes; this one has so many."""
    numbers = gathered(torch.tensor([queries], device=pairs.device))
    before = numbers[: distributed.get_rank() if processes() > 1 else 0].sum()
    return torch.stack([pairs[:, 0] + before, pairs[:, 1]], dim=1)
