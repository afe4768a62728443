"""Exchange values between the processes of data-parallel training, which train one model together."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn

Value = TypeVar("Value")
_replicated: list[bool] = []  # argument ``whole`` of each active ``replicated`` block, innermost last


def processes() -> int:
    """Return the number of processes that share the batch of this step; 1 if ``torch.distributed`` is not used."""
    return 1 if any(_replicated) else _world()


def rank() -> int:
    """Return the rank of this process, from 0. Only the first process writes, logs and validates."""
    return distributed.get_rank() if _world() > 1 else 0


@contextmanager
def replicated(whole: bool) -> Iterator[None]:
    """Context manager. Inside it, if ``whole``, every process computes the whole batch by itself.

    ``gathered``, ``sum_of`` and ``share_of`` then exchange nothing.
    """
    _replicated.append(whole)
    try:
        yield
    finally:
        _replicated.pop()


def from_rank_zero(value: Value) -> Value:
    """Send the ``value`` of the first process to all processes, and return it."""
    values = [value]
    if _world() > 1:
        distributed.broadcast_object_list(values)
    return values[0]


def copy_first_weights(model: nn.Module) -> None:
    """Copy the weights of ``model`` from the first process to all other processes."""
    if _world() > 1:
        for weight in model.state_dict().values():
            distributed.broadcast(weight, 0)


def average(weights: Iterable[nn.Parameter], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Average the gradients of ``weights`` (in place) and the scalars ``values`` over the processes, in one reduction.

    A weight for which no process has a gradient gets no gradient.

    Returns:
        The mean of each value over the processes, by name.
    """
    if _world() == 1:
        return dict(values)
    weights = list(weights)
    present = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.int32)  # (weights,)
    present = present.to(_for_numbers())
    distributed.all_reduce(present)
    given = [weight for weight, number in zip(weights, present.tolist(), strict=True) if number]
    parts = [(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in given]
    flat = torch.cat([*parts, torch.stack(list(values.values())).to(parts[0].dtype)])  # (elements + values,)
    del parts
    distributed.all_reduce(flat)
    flat /= _world()
    *gradients, means = flat.split([*(weight.numel() for weight in given), len(values)])
    for weight, gradient in zip(given, gradients, strict=True):
        weight.grad = gradient.view_as(weight).to(weight.dtype)
    return dict(zip(values, means, strict=True))


def _world() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _for_numbers() -> torch.device:
    """Return the device on which single numbers are exchanged.

    The process group of a stage has one backend for the CPU and another for the GPU. The CPU is then returned, so that no
    process waits for its GPU. In Lightning's ``ddp`` on GPUs, NCCL is the only backend, so the GPU is returned.
    """
    gpus_alone = distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if gpus_alone else torch.device("cpu")


def gathered(rows: Tensor) -> Tensor:
    """Concatenate the tensors (n, ...) of all processes in the order of ranks into one tensor (sum of n, ...).

    The number of rows n may differ between processes. Gradients flow back only into the rows of this process. These
    gradients are multiplied by the number of processes, because training averages gradients over the processes.
    """
    if processes() == 1:
        return rows
    number = torch.tensor([len(rows)], device=_for_numbers())  # (1,)
    numbers = [torch.empty_like(number) for _ in range(processes())]
    distributed.all_gather(numbers, number)
    sizes = torch.cat(numbers).tolist()
    sent = rows.new_zeros((max(sizes), *rows.shape[1:]))  # (largest n, ...)
    sent[: len(rows)] = rows.detach()
    received = [torch.empty_like(sent) for _ in sizes]  # (largest n, ...) each
    distributed.all_gather(received, sent)
    parts = [part[:size] for part, size in zip(received, sizes, strict=True)]
    parts[distributed.get_rank()] = rows + (processes() - 1) * (rows - rows.detach()) if rows.requires_grad else rows
    return torch.cat(parts)


def sum_of(count: int) -> int:
    """Return the sum of a count over the processes."""
    return count if processes() == 1 else _total(count)


def any_of(flag: bool) -> bool:
    """Return whether ``flag`` is true in at least one process, including processes that do not share the batch."""
    return flag if _world() == 1 else bool(_total(int(flag)))


def _total(number: int) -> int:
    total = torch.tensor(number, device=_for_numbers())
    distributed.all_reduce(total)
    return int(total)


def share_of(count: int) -> float:
    """Return the mean of a count over the processes, as the denominator of a mean over all items.

    Each process divides the sum of its items by this mean count. The average of the quotients over the processes is then the
    mean over the items of all processes.
    """
    return sum_of(count) / processes()
