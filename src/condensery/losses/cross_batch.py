"""Cross-batch negatives (RocketQA §4.1, Qu et al. 2021): a contrastive loss over the vectors of all processes.

Each process gathers the vectors of all processes and computes the loss of the joined batch. A process has an autograd graph
only for the vectors that it encoded itself. The gradients of the processes are averaged afterwards, and the average must
equal the gradient of the joined batch. Each row has a graph in one process only, so averaging would divide its gradient by
the number of processes. Hence the gradient at the vectors is multiplied by this number. The gradient of the loss's own
weights is complete in every process and is not multiplied.
"""

import torch
from torch import Tensor, distributed

from condensery.distributed import gathered, processes, sum_of
from condensery.losses.contrast import Contrast, known_positives, teacher_scores


def across_processes(contrast: Contrast) -> Contrast:
    """Return ``contrast`` over the vectors of all processes. This loss must not depend on the order of the processes."""
    return lambda vectors: contrast(gathered(vectors))


def joined_passages(passages: Tensor, names: Tensor, positive: Tensor, judged: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Join the passages of all processes, and the positives and judgements of all queries, in the order of ``gathered``.

    If several processes have the same passage, it occurs once in the result, with the vector from the first of these
    processes. The result equals the batch that a single process would have.

    Args:
        passages: (p, d) the vectors of this process's passages.
        names: (p,) the collection rows of this process's passages.
        positive: (q,) the row of each query's positive in ``passages``.
        judged: (j, 2) pairs of a query of this process, numbered from 0, and the collection row of a passage that is judged
            relevant to the query.

    Returns:
        the vectors of the P distinct passages (P, d), the index of each query's positive among these passages (Q,), and
        the matrix of judged pairs, bool (Q, P).
    """
    distinct, place = torch.unique(gathered(names), return_inverse=True)  # (P,), (sum of p,)
    order = torch.arange(len(place), device=place.device)  # (sum of p,)
    first = order.new_full((len(distinct),), len(place)).scatter_reduce(0, place, order, "amin")  # (P,)
    positives = torch.searchsorted(distinct, gathered(names[positive]))  # (Q,)
    pairs = gathered(_of_all_queries(judged, len(positive)))  # (sum of j, 2)
    return gathered(passages)[first], positives, known_positives(pairs, distinct, len(positives))


def joined_teacher(names: Tensor, queries: int, scored: Tensor, scores: Tensor) -> Tensor:
    """Return the teacher's scores (Q, P) of the queries and passages of all processes, ordered as in ``joined_passages``.

    Args:
        names: (p,) the collection rows of this process's passages.
        queries: the number of this process's queries.
        scored: (s, 2) pairs of a query of this process, numbered from 0, and the collection row of a passage that the
            teacher scored for the query.
        scores: (s,) the score of each pair.
    """
    distinct = torch.unique(gathered(names))  # (P,)
    here = torch.isin(scored[:, 1], distinct)  # (s,); most of the scored passages are in no process's batch
    pairs = gathered(_of_all_queries(scored[here], queries))  # (pairs of all processes, 2)
    return teacher_scores(pairs, gathered(scores[here]), distinct, sum_of(queries))


def _of_all_queries(pairs: Tensor, queries: int) -> Tensor:
    """Renumber the queries of ``pairs`` (n, 2) over all processes. ``queries``: the number of this process's queries."""
    numbers = gathered(torch.tensor([queries], device=pairs.device))  # (processes,)
    before = numbers[: distributed.get_rank() if processes() > 1 else 0].sum()
    return torch.stack([pairs[:, 0] + before, pairs[:, 1]], dim=1)
