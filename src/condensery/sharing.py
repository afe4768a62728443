"""Share work between several processes. The work is split into shards of consecutive rows, and each shard is one file.

A shard is written atomically. A shard whose file exists is therefore complete, and a restart reuses it.

Only the first process reads which shards exist, and it sends the indices of the missing shards to the other processes. All
processes therefore agree, even if one process is ahead of another, or if a shared file system shows a file late. The content
of a shard depends neither on the process that writes it nor on the number of processes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

Value = TypeVar("Value")
LATE = 90.0  # longest time, in seconds, until a shared file system shows the files of another machine


class NotRankZero(BaseException):
    """Exception that ends a stage in every process except the first, which continues and writes the artifact."""


def _with_nobody(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True)
class ProcessGroup:
    """A group of processes that execute the same steps in the same order. The object belongs to one of the processes.

    Attributes:
        rank: rank of this process, from 0.
        processes: number of processes.
        exchange: sends a value to all processes, waits for their values, and returns the values of all processes by rank.
    """

    rank: int = 0
    processes: int = 1
    exchange: Callable[[Any], list[Any]] = _with_nobody

    @contextmanager
    def shards(self, left: Callable[[], Sequence[int]]) -> Iterator[Sequence[int]]:
        """Context manager. Inside it, this process writes its share of the shards. On leaving it, all shards are written.

        Args:
            left: function that prepares the folder and returns the indices of the missing shards. Only the first process
                calls it.

        Yields:
            The indices of the shards that this process writes.
        """
        yield self.from_rank_zero(left)[self.rank :: self.processes]
        self.exchange(None)

    def from_rank_zero(self, work: Callable[[], Value]) -> Value:
        """Return the result of ``work``, which only the first process calls; the other processes wait for the result."""
        return self.exchange(work() if self.rank == 0 else None)[0]

    def leave_unless_rank_zero(self) -> None:
        """Raise ``NotRankZero`` in every process except the first, so that only the first process continues."""
        if self.rank:
            raise NotRankZero


SINGLE_PROCESS = ProcessGroup()


class ShardsLeft(BaseException):
    """Exception that ends a stage in the first task, because other tasks must compute the missing shards (``ShardTask``).

    Attributes:
        agreed: the values that the other tasks get as ``ShardTask.agreed``.
    """

    def __init__(self, agreed: list[Any]) -> None:
        super().__init__()
        self.agreed = agreed


@dataclass(frozen=True)
class ShardTask:
    """The part of a stage that one task computes. A task is a run of the stage on any machine and at any time.

    The first task runs the stage until it reaches a set of shards of which several are missing, and ends there with
    ``ShardsLeft``. Each other task runs the stage up to the same set, computes only its own shards, and ends. Then the first
    task is run again. It finds these shards, continues, and writes the artifact. So a lost task costs only its own shards.

    Attributes:
        agreed: the results of ``from_rank_zero`` in the first task, in order. A task cannot receive them while it runs, so it
            gets them at its start. The last result is the list of the missing shards. When the first task is run again, the
            last entry is instead the list of the shards that the other tasks have computed.
        shards: the shards that this task computes; None = the first task.
    """

    agreed: Sequence[Any] = ()
    shards: Sequence[int] | None = None


@dataclass(frozen=True)
class TaskGroup(ProcessGroup):
    """The group of a task (``ShardTask``). Tasks may run at different times, so they exchange nothing while they run."""

    task: ShardTask = ShardTask()
    agreed: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, task: ShardTask) -> "TaskGroup":
        """Return the group of ``task``."""
        first = task.shards is None
        return cls(0 if first else 1, task=task, agreed=[] if first else list(task.agreed))

    def from_rank_zero(self, work: Callable[[], Value]) -> Value:
        """Return the result of ``work``. The first task calls ``work``; the others take its result from ``agreed``."""
        if self.rank:
            return self.agreed.pop(0)
        self.agreed.append(value := work())
        return value

    @contextmanager
    def shards(self, left: Callable[[], Sequence[int]]) -> Iterator[Sequence[int]]:
        """Context manager. Inside it, the task computes its shards.

        The first task computes a missing shard only if no other shard is missing.

        Raises:
            ShardsLeft: in the first task, if several shards are missing.
            NotRankZero: in another task, as soon as its shards are written.
        """
        missing = self.from_rank_zero(lambda: self._left(left))
        if not self.rank:
            if len(missing) > 1:
                raise ShardsLeft(self.agreed)
            yield missing
        elif self.agreed:  # an earlier set, whose shards are complete
            yield []
        else:
            yield self.task.shards or []
            raise NotRankZero

    def _left(self, left: Callable[[], Sequence[int]]) -> Sequence[int]:
        """Return the missing shards; wait for the files of shards that are known to be written."""
        here = len(self.agreed) == len(self.task.agreed) - 1
        written = set(self.task.agreed[-1]) if here else set()
        until = time.monotonic() + LATE
        while written.intersection(missing := left()) and time.monotonic() < until:
            time.sleep(1)
        return missing
