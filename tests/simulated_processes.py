"""Simulate a group of processes by threads: each thread does the work of one process."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from condensery.sharing import NotRankZero, ProcessGroup

Value = TypeVar("Value")
PATIENCE = 60.0  # seconds


def in_parts(processes: int, work: Callable[[ProcessGroup], Value]) -> list[Value | None]:
    """Return the result of ``work`` by rank; None for a rank that leaves the result to rank 0. Raises its exceptions."""
    barrier, values = threading.Barrier(processes), [None] * processes
    found: list[Value | None] = [None] * processes
    failed: list[BaseException] = []

    def exchange(rank: int, value: Any) -> list[Any]:
        values[rank] = value
        barrier.wait(PATIENCE)
        given = list(values)
        barrier.wait(PATIENCE)
        return given

    def run(rank: int) -> None:
        try:
            found[rank] = work(ProcessGroup(rank, processes, lambda value: exchange(rank, value)))
        except NotRankZero:
            assert rank
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    assert not barrier.broken, "a part waited for others that did not come"
    return found
