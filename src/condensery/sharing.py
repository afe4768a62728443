"""Work that several processes share: cut into shards, contiguous in row order, each a file of its own under its number.

A shard is written whole or not at all, so the file that is there is the mark that it is done, and a restart keeps it.
What lies on disk is asked by the first process alone, which tells the others: all act on one answer, whoever is ahead
and however late a shared file system shows a file. No shard depends on who writes it, nor on how many do.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

Value = TypeVar("Value")


class NotRankZero(BaseException):
    """Ends a stage in all processes but the first, whose part alone the rest is: to write the artifact."""


def _with_nobody(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True)
class ProcessGroup:
    """The part of one process in the work of several, which take the same steps in the same order.

    Attributes:
        rank: which process this is, from 0.
        processes: how many there are.
        exchange: gives a value to all; returns those of all by rank, when all have given theirs.
    """

    rank: int = 0
    processes: int = 1
    exchange: Callable[[Any], list[Any]] = _with_nobody

    @contextmanager
    def shards(self, left: Callable[[], Sequence[int]]) -> Iterator[Sequence[int]]:
        """The numbers of the shards that this process is to write in the block; at its end those of all are written.

        ``left`` prepares the folder and gives the shards that are not there yet. The first process alone calls it.
        """
        yield self.from_rank_zero(left)[self.rank :: self.processes]
        self.exchange(None)

    def from_rank_zero(self, work: Callable[[], Value]) -> Value:
        """What ``work`` gives in the first process, which alone does it; the others wait for it."""
        value: Value = self.exchange(work() if self.rank == 0 else None)[0]
        return value

    def leave_unless_rank_zero(self) -> None:
        """What follows is for the first process alone: the others leave the stage, by ``NotRankZero``."""
        if self.rank:
            raise NotRankZero


SINGLE_PROCESS = ProcessGroup()
