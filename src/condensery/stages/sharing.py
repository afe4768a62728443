"""Which stages several processes share, besides those that train, and how they come together; see ``condensery.sharing``.

Sharing pays where there is more than one shard, and a GPU for each process to compute it on. What threads of a CPU do
all together anyway, such as BM25 and approximate search, stays in one process.
"""

from pathlib import Path
from typing import Any

from torch import distributed

from condensery.retrieval.shards import SHARD
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.stages.base import Runtime
from condensery.stages.devices import init_process_group
from condensery.system.files import read_json


def process_group(runtime: Runtime) -> ProcessGroup:
    """The processes that compute this stage, as this one sees them; initialised first, where there are several."""
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
    """Whether several processes share the search of so many queries: exact search by vectors, in more than one shard."""
    return queries > SHARD and read_json(index / "index.json").get("method") == "dense"
