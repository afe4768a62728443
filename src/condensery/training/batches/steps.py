"""Batches as a function of the step: nothing is remembered, so a resumed run sees what an uninterrupted one sees."""

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, DistributedSampler

from condensery.randomness import generator
from condensery.system.children import Parent
from condensery.tokens.batches import Chunk
from condensery.training.batches.transport import packed, unpacked

Ids = NDArray[np.int64]
Order = Callable[[int], tuple[int, Ids]]  # step -> its epoch and the items of its batch
PassageVectors = Callable[[Ids], NDArray[np.float32]]  # rows (c,), ascending, to vectors (c, d)
_COUNTED = 1_000_000  # tokens of the first batches, to say how many steps a larger number is


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a process trains on in one step: the batch, or its share of it.

    Attributes:
        chunks: together they hold the rows 0 .. n - 1 of the batch.
        tokens: that the encoder reads in the batch of all processes, padding not counted.
        replicated: every process has the whole batch, because there are more processes than items to share.
    """

    chunks: Sequence[Chunk]
    tokens: int
    replicated: bool = False

    def to(self, device: torch.device) -> Self:
        """The same batch on ``device``, which all of it reaches in one copy."""
        if self.chunks and self.chunks[0].input_ids.device == device:
            return self
        block, parts = packed(self)
        return cast(Self, unpacked(block.to(device, non_blocking=True), parts))

    def pin_memory(self) -> Self:
        """The same batch in memory that a GPU copies from by itself; PyTorch's loader calls it."""
        block, parts = packed(self)
        return cast(Self, unpacked(block.pin_memory(), parts))

    def __reduce__(self) -> tuple[Any, ...]:
        """From a worker of the loader to the training all of it goes in one block."""
        return unpacked, packed(self)


@dataclass(frozen=True)
class Share:
    """Which part of each batch is made: all of it, or that of one of several processes that train together."""

    rank: int = 0
    processes: int = 1

    def of(self, items: Ids) -> tuple[Ids, bool]:
        """The items (n,) from among a batch's, as many as others get or one less, and ``Batch.replicated``."""
        if len(items) < self.processes:
            return items, True
        return np.array_split(items, self.processes)[self.rank], False


ALL = Share()


class Batches(Protocol):
    """Makes the batch of a step."""

    def steps_an_epoch(self) -> int:
        """Batches until every item was seen once; the last may be short."""

    def batch(self, step: int, share: Share = ALL) -> Batch:
        """The batch of step ``step``, from 0, or a share of it."""


def steps_of_epochs(batches: Batches, epochs: float) -> int:
    """Optimisation steps in so many passes over the items, one at least."""
    return max(1, round(epochs * batches.steps_an_epoch()))


def steps_of_tokens(batches: Batches, tokens: int) -> int:
    """Optimisation steps that read about ``tokens`` tokens in all, one at least.

    The first million is counted, batch by batch; what is beyond it is taken to be alike.
    """
    steps = counted = 0
    while counted < min(tokens, _COUNTED):
        counted += batches.batch(steps).tokens
        steps += 1
    return max(1, round(steps * tokens / counted))


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, items: int) -> Ids:
    """The order of the items in an epoch: a permutation, (items,)."""
    return generator(seed, "order", epoch).permutation(items)


def items_of_step(step: int, batch_size: int, items: int, seed: int) -> tuple[int, Ids]:
    """The epoch of a step and the items of its batch."""
    epoch, position = divmod(step, -(-items // batch_size))
    return epoch, _order(seed, epoch, items)[position * batch_size : (position + 1) * batch_size]


def items_in_sequence(step: int, batch_size: int, items: int) -> tuple[int, Ids]:
    """As ``items_of_step``, in the order in which the items stand."""
    epoch, position = divmod(step, -(-items // batch_size))
    return epoch, np.arange(position * batch_size, min((position + 1) * batch_size, items))


class StepDataset(Dataset[Batch]):
    """The batches of a training run by step, or this process's share; what PyTorch's loader and its workers read."""

    def __init__(self, batches: Batches, share: Share = ALL) -> None:
        self.batches, self.share = batches, share

    def __len__(self) -> int:
        return self.batches.steps_an_epoch()

    def __getitem__(self, step: int) -> Batch:
        return self.batches.batch(step, self.share)


def begin_worker(parent: Parent, number: int) -> None:
    """What each worker of the loader begins with. It stands here because a worker need not import Lightning."""
    for warning in (signal.SIGUSR1, signal.SIGUSR2):  # SLURM's, to all processes of a job; the training ends this one
        signal.signal(warning, signal.SIG_IGN)
    parent.end_with()


class StepSampler(DistributedSampler[int]):
    """The steps from the one at which the trainer stands to the end of the epoch that it is in.

    Its length is that of a whole epoch: Lightning counts the batches of the interrupted part when it resumes. It is a
    ``DistributedSampler``, because in the place of any other Lightning puts one of its own.

    Args:
        first: gives the step at which the trainer stands.
        epoch: steps of an epoch.
    """

    def __init__(self, first: Callable[[], int], epoch: int) -> None:
        self.first, self.epoch_steps = first, epoch

    def __iter__(self) -> Iterator[int]:
        first = self.first()  # asked when the first step is wanted: Lightning may make the iterator before it resumes
        yield from range(first, (first // self.epoch_steps + 1) * self.epoch_steps)

    def __len__(self) -> int:
        return self.epoch_steps

    def set_epoch(self, epoch: int) -> None:
        """Lightning says which epoch it is; the step says it already."""
