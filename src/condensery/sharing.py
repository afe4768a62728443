"""Share work between several processes. The work is split into shards of consecutive rows, and each shard is one file.

A shard is written atomically. A shard whose file exists is therefore complete, and a restart reuses it.

Only the first process reads which shards exist, and it sends the numbers of the missing shards to the other processes. All
processes therefore agree, even if one is ahead, or if a shared file system shows a file late. The content of a shard depends
neither on the process that writes it nor on the number of processes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")


class NotRankZero(BaseException):
    """Exception that ends a stage in every process except the first, which continues and writes the artifact."""


def _with_nobody(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True)
class ProcessGroup:
    """A group of processes that execute the same steps in the same order. The object belongs to one of the processes.

    Attributes:
        rank: number of this process, from 0.
        processes: number of processes.
        exchange: sends a value to all processes, waits for their values, and returns the values of all processes by rank.
    """

    rank: int = 0
    processes: int = 1
    exchange: Callable[[Any], list[Any]] = _with_nobody

    @contextmanager
    def shards(self, left: Callable[[], Sequence[int]]) -> Iterator[Sequence[int]]:
        """Context manager. Inside it, this process writes its share of the shards. It ends when all shards are written.

        Args:
            left: function that prepares the folder and returns the numbers of the missing shards. Only the first process
                calls it.

        Yields:
            The numbers of the shards that this process writes.
        """
        yield self.from_rank_zero(left)[self.rank :: self.processes]
        self.exchange(None)

    def from_rank_zero(self, work: Callable[[], Value]) -> Value:
        """Return the result of ``work``, which only the first process calls; the other processes wait for the result."""
        value: Value = self.exchange(work() if self.rank == 0 else None)[0]
        return value

    def leave_unless_rank_zero(self) -> None:
        """Raise ``NotRankZero`` in every process except the first, so that only the first process continues."""
        if self.rank:
            raise NotRankZero


SINGLE_PROCESS = ProcessGroup()
