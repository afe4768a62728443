"""Cross-batch negatives (RocketQA §4.1, Qu et al. 2021; SPEC §6): a contrast over the vectors of all processes.

Each process computes the loss of the joined batch from everybody's vectors, of which its own alone have a graph. The
sum over the processes of what they back-propagate is the gradient of the joined batch.
"""

import torch
from torch import Tensor, distributed

from condensery.objectives.contrast import Contrast, known_positives


def processes() -> int:
    """How many processes train together; 1 without ``torch.distributed``."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def gathered(rows: Tensor) -> Tensor:
    """The rows of all processes one behind the other, by rank: (n, ...) of each -> (sum of n, ...).

    The number of rows may differ. A gradient reaches only a process's own rows.
    """
    if processes() == 1:
        return rows
    number = torch.tensor([len(rows)], device=rows.device)
    numbers = [torch.empty_like(number) for _ in range(processes())]
    distributed.all_gather(numbers, number)
    sizes = torch.cat(numbers).tolist()
    sent = rows.new_zeros((max(sizes), *rows.shape[1:]))
    sent[: len(rows)] = rows.detach()
    received = [torch.empty_like(sent) for _ in sizes]
    distributed.all_gather(received, sent)
    parts = [part[:size] for part, size in zip(received, sizes, strict=True)]
    parts[distributed.get_rank()] = rows
    return torch.cat(parts)


def share_of(total: int, device: torch.device) -> float:
    """The mean of a count over the processes: what a sum is divided by that is then averaged over them."""
    if processes() == 1:
        return total
    count = torch.tensor(float(total), dtype=torch.float64, device=device)
    distributed.all_reduce(count)
    return float(count) / processes()


def to_be_averaged(loss: Tensor) -> Tensor:
    """``loss`` with a gradient that many times larger as there are processes, over which training takes the mean."""
    others = processes() - 1
    return loss + others * (loss - loss.detach()) if others else loss


def across_processes(contrast: Contrast) -> Contrast:
    """``contrast`` over the vectors of all processes; for losses whose rows stand in any order of the processes."""
    return lambda vectors: to_be_averaged(contrast(gathered(vectors)))


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
    before = gathered(torch.tensor([len(positive)], device=place.device)).cumsum(0) - len(positive)
    offset = before[distributed.get_rank() if processes() > 1 else 0]
    pairs = gathered(torch.stack([judged[:, 0] + offset, judged[:, 1]], dim=1))
    return gathered(passages)[first], positives, known_positives(pairs, distinct, len(positives))
