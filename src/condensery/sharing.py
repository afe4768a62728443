"""Work that several processes share. It is cut into shards of consecutive rows; each shard is a file with its number.

A shard is written whole or not at all. A shard whose file exists is therefore done, and a restart keeps it.
Only the first process looks at the disk; it tells the others which shards are left. So all processes agree, even if one
is ahead or a shared file system shows a file late. The content of a shard does not depend on the process that writes it,
nor on the number of processes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")


class NotRankZero(BaseException):
    """Ends a stage in every process but the first, which alone does the rest: it writes the artifact."""


def _with_nobody(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True)
class ProcessGroup:
    """The view of one process on a group of processes that take the same steps in the same order.

    Attributes:
        rank: the number of this process, from 0.
        processes: the number of processes.
        exchange: sends a value to all processes, waits for theirs, and returns the values of all by rank.
    """

    rank: int = 0
    processes: int = 1
    exchange: Callable[[Any], list[Any]] = _with_nobody

    @contextmanager
    def shards(self, left: Callable[[], Sequence[int]]) -> Iterator[Sequence[int]]:
        """A block in which this process writes its share of the shards. It ends when all processes have written theirs.

        Args:
            left: prepares the folder and returns the numbers of the shards that do not exist yet. Only the first process
                calls it.

        Yields:
            the numbers of the shards that this process writes.
        """
        yield self.from_rank_zero(left)[self.rank :: self.processes]
        self.exchange(None)

    def from_rank_zero(self, work: Callable[[], Value]) -> Value:
        """Return the result of ``work``, which only the first process calls; the others wait for the result."""
        value: Value = self.exchange(work() if self.rank == 0 else None)[0]
        return value

    def leave_unless_rank_zero(self) -> None:
        """Raise ``NotRankZero`` in every process but the first, so that only the first process goes on."""
        if self.rank:
            raise NotRankZero


SINGLE_PROCESS = ProcessGroup()
