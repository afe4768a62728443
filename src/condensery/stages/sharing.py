"""Divides the shards of a stage among several processes (``condensery.sharing``). Training is not divided here.

Division saves time if there are several shards, and a GPU for each process. Work that already uses all threads of a CPU,
such as BM25 and approximate search, stays in one process.
"""

from pathlib import Path
from typing import Any

from torch import distributed

from condensery.retrieval.indexes.divided import shared_search
from condensery.sharing import SINGLE_PROCESS, ProcessGroup, TaskGroup
from condensery.stages.base import Runtime
from condensery.stages.devices import init_process_group
from condensery.system.files import read_json


def process_group(runtime: Runtime) -> ProcessGroup:
    """Return the group of processes that compute this stage; several processes are first joined into a group."""
    if runtime.task is not None:
        return TaskGroup.of(runtime.task)
    member = runtime.distributed
    if member is None:
        return SINGLE_PROCESS

    def exchange(value: Any) -> list[Any]:
        values: list[Any] = [None] * member.processes
        distributed.all_gather_object(values, value)
        return values

    init_process_group(runtime)
    return ProcessGroup(member.rank, member.processes, exchange)


def searched_together(index: Path, queries: int) -> bool:
    """Return whether several processes divide a search: an exact vector search of many queries or of many passages."""
    return shared_search(read_json(index / "index.json"), queries)
