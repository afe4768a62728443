"""Work that several processes share, split into shards of consecutive rows. Each shard is one file, named by its number.

A shard is written atomically. A shard whose file exists is therefore complete, and a restart reuses it.

Only the first process looks at the disk, and it sends the numbers of the missing shards to the others. All processes thus
agree, even if one is ahead, or if a shared file system shows a file late. The content of a shard depends neither on the
process that writes it nor on the number of processes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")


class NotRankZero(BaseException):
    """Ends a stage in every process except the first. The first process continues and writes the artifact."""


def _with_nobody(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True)
class ProcessGroup:
    """A group of processes that take the same steps in the same order, as seen by one of them.

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
        """Open a context in which this process writes its share of the shards. It closes when all shards are written.

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
