"""The processes that train one model together: how many there are, and what they exchange in a step."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn

Value = TypeVar("Value")
_replicated: list[bool] = []  # of the blocks ``replicated`` that we are in, the innermost last


def processes() -> int:
    """How many processes share the batch of this step; 1 without ``torch.distributed``."""
    return 1 if any(_replicated) else _world()


def rank() -> int:
    """Which of the processes this one is, from 0; the first alone writes, logs and validates."""
    return distributed.get_rank() if _world() > 1 else 0


@contextmanager
def replicated(whole: bool) -> Iterator[None]:
    """Where ``whole``, every process computes the whole batch for itself in this block, and asks no other for anything."""
    _replicated.append(whole)
    try:
        yield
    finally:
        _replicated.pop()


def from_rank_zero(value: Value) -> Value:
    """The value that the first process gives."""
    values = [value]
    if _world() > 1:
        distributed.broadcast_object_list(values)
    return values[0]


def copy_first_weights(model: nn.Module) -> None:
    """Give the weights of ``model`` the values that they have in the first process."""
    if _world() > 1:
        for weight in model.state_dict().values():
            distributed.broadcast(weight, 0)


def average(weights: Iterable[nn.Parameter], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Take the mean over the processes of the gradients of ``weights``, and of ``values`` (scalars), which are returned.

    All goes in one exchange. A weight that has no gradient in any process keeps none.
    """
    if _world() == 1:
        return dict(values)
    weights = list(weights)
    present = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.int32)
    present = present.to(_for_numbers())
    distributed.all_reduce(present)
    given = [weight for weight, number in zip(weights, present.tolist(), strict=True) if number]
    parts = [(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in given]
    flat = torch.cat([*parts, torch.stack(list(values.values())).to(parts[0].dtype)])
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
    """Where single numbers are exchanged: on the CPU, so that no GPU is waited for, unless the processes met on GPUs alone.

    Those of a stage have both; Lightning's ``ddp`` on GPUs has NCCL alone.
    """
    gpus_alone = distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if gpus_alone else torch.device("cpu")


def gathered(rows: Tensor) -> Tensor:
    """The rows of all processes one behind the other, by rank: (n, ...) of each -> (sum of n, ...).

    The number of rows may differ. A gradient reaches only a process's own rows, that many times larger as there are
    processes, over which training takes the mean.
    """
    if processes() == 1:
        return rows
    number = torch.tensor([len(rows)], device=_for_numbers())
    numbers = [torch.empty_like(number) for _ in range(processes())]
    distributed.all_gather(numbers, number)
    sizes = torch.cat(numbers).tolist()
    sent = rows.new_zeros((max(sizes), *rows.shape[1:]))
    sent[: len(rows)] = rows.detach()
    received = [torch.empty_like(sent) for _ in sizes]
    distributed.all_gather(received, sent)
    parts = [part[:size] for part, size in zip(received, sizes, strict=True)]
    parts[distributed.get_rank()] = rows + (processes() - 1) * (rows - rows.detach()) if rows.requires_grad else rows
    return torch.cat(parts)


def sum_of(count: int) -> int:
    """The sum of a count over the processes."""
    if processes() == 1:
        return count
    total = torch.tensor(count, device=_for_numbers())
    distributed.all_reduce(total)
    return int(total)


def any_of(flag: bool) -> bool:
    """Whether ``flag`` is true in one of the processes at least; also where they do not share the batch."""
    if _world() == 1:
        return flag
    number = torch.tensor(int(flag), device=_for_numbers())
    distributed.all_reduce(number)
    return bool(number)


def share_of(count: int) -> float:
    """The mean of a count over the processes: what a sum is divided by that is then averaged over them."""
    return sum_of(count) / processes()
