"""Computes batches as a function of the step. No state is kept, so a resumed run gets the batches of an unbroken run."""

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, DistributedSampler

from condensery.randomness import generator
from condensery.system.children import Parent
from condensery.tokens.batches import Chunk
from condensery.training.data.transport import packed, unpacked

Ids = NDArray[np.int64]
Order = Callable[[int], tuple[int, Ids]]  # step -> its epoch and the items of its batch
PassageVectors = Callable[[Ids], NDArray[np.float32]]  # rows of passages (c,), ascending -> their vectors (c, d)
_COUNTED = 1_000_000  # number of tokens that ``steps_of_tokens`` counts before it extrapolates


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The batch of one step, or one process's share of that batch.

    Attributes:
        chunks: the chunks, which together hold the rows 0 .. n - 1 of the batch.
        tokens: number of tokens in ``chunks`` that the encoder reads, padding not counted.
        replicated: True = every process has the whole batch, because there are more processes than items in the batch.
    """

    chunks: Sequence[Chunk]
    tokens: int
    replicated: bool = False

    def to(self, device: torch.device) -> Self:
        """Return the same batch on ``device``. All tensors are moved in one copy operation."""
        if self.chunks and self.chunks[0].input_ids.device == device:
            return self
        pack = packed(self)
        return cast(Self, unpacked(replace(pack, block=pack.block.to(device, non_blocking=True))))

    def pin_memory(self) -> Self:
        """Return the same batch in pinned memory, from which a GPU copies asynchronously. PyTorch's loader calls this."""
        pack = packed(self)
        return cast(Self, unpacked(replace(pack, block=pack.block.pin_memory())))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the batch as one block of memory. Loader workers send batches to the training process in this form."""
        return unpacked, (packed(self),)


@dataclass(frozen=True)
class Share:
    """Which part of each batch a process makes: the whole batch, or its own part if several processes train together."""

    rank: int = 0
    processes: int = 1

    def of(self, items: Ids) -> tuple[Ids, bool]:
        """Return this process's part of the ``items`` (n,) of a batch, and the value for ``Batch.replicated``.

        The numbers of items of two processes differ by one at most.
        """
        if len(items) < self.processes:
            return items, True
        return np.array_split(items, self.processes)[self.rank], False


ALL = Share()


class Batches(Protocol):
    """Makes the batch of a step."""

    def steps_an_epoch(self) -> int:
        """Return the number of batches in one pass over the items; the last batch may be short."""

    def batch(self, step: int, share: Share = ALL) -> Batch:
        """Return the batch of step ``step`` (from 0), or the part of the batch that ``share`` names."""


def steps_of_epochs(batches: Batches, epochs: float) -> int:
    """Return the number of optimisation steps in ``epochs`` passes over the items, at least one."""
    return max(1, round(epochs * batches.steps_an_epoch()))


def steps_of_tokens(batches: Batches, tokens: int) -> int:
    """Return the number of optimisation steps that read about ``tokens`` tokens in all, at least one.

    The first million tokens are counted, batch by batch. Later batches are assumed to have the same mean number of tokens.
    """
    steps = counted = 0
    while counted < min(tokens, _COUNTED):
        counted += batches.batch(steps).tokens
        steps += 1
    return max(1, round(steps * tokens / counted))


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, items: int) -> Ids:
    """Return the order of the items in an epoch: a permutation (items,)."""
    return generator(seed, "order", epoch).permutation(items)


def items_of_step(step: int, batch_size: int, items: int, seed: int) -> tuple[int, Ids]:
    """Return the epoch of a step, and the items (b,) of the step's batch, in a new random order each epoch."""
    epoch, position = divmod(step, -(-items // batch_size))
    return epoch, _order(seed, epoch, items)[position * batch_size : (position + 1) * batch_size]


def items_in_sequence(step: int, batch_size: int, items: int) -> tuple[int, Ids]:
    """Return the epoch of a step, and the items (b,) of the step's batch, in ascending order in every epoch."""
    epoch, position = divmod(step, -(-items // batch_size))
    return epoch, np.arange(position * batch_size, min((position + 1) * batch_size, items))


class StepDataset(Dataset[Batch]):
    """The dataset of PyTorch's loader and its workers: item k is the batch of step k, or this process's share of it."""

    def __init__(self, batches: Batches, share: Share = ALL) -> None:
        self.batches, self.share = batches, share

    def __len__(self) -> int:
        return self.batches.steps_an_epoch()

    def __getitem__(self, step: int) -> Batch:
        return self.batches.batch(step, self.share)


def begin_worker(parent: Parent, number: int) -> None:
    """Prepare a worker of the loader. The function is in this module so that a worker does not have to import Lightning."""
    # SLURM sends its warning signals to all processes of a job. A worker ignores them, because training ends the worker.
    for warning in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(warning, signal.SIG_IGN)
    parent.end_with()


class StepSampler(DistributedSampler[int]):
    """Yields the steps from the trainer's current step to the end of the current epoch.

    The sampler's length is the number of steps in a whole epoch. Lightning needs this length for ``limit_train_batches``, and
    because a resumed run also counts the batches before the interruption. The class derives from ``DistributedSampler``,
    because Lightning replaces any other sampler with its own.

    Args:
        first: function that returns the trainer's current step.
        epoch: number of steps in an epoch.
        length: number of steps in an epoch without ``limit_train_batches``; 0 = there is no such limit.
    """

    def __init__(self, first: Callable[[], int], epoch: int, length: int = 0) -> None:
        self.first, self.epoch_steps, self.length = first, epoch, length or epoch

    def __iter__(self) -> Iterator[int]:
        first = self.first()  # read at the first request; Lightning may create the iterator before it resumes
        yield from range(first, (first // self.epoch_steps + 1) * self.epoch_steps)

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: Lightning passes the epoch, but the step already determines it."""
