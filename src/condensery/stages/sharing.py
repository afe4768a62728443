"""Which stages several processes share, besides those that train, and how they come together; see ``condensery.sharing``.

Sharing pays where there is more than one shard, and a GPU for each process to compute it on. What threads of a CPU do
all together anyway, such as BM25 and approximate search, stays in one process.
"""

from pathlib import Path
from typing import Any

from condensery.sharing import ALONE, Part
from condensery.stages.base import Runtime
from condensery.system.files import read_json


def part_of(runtime: Runtime) -> Part:
    """The part of this process in its stage. Brings the processes together first, where there are several (``meet``)."""
    member = runtime.member
    if member is None:
        return ALONE
    from torch import distributed

    from condensery.stages.devices import meet

    def exchange(value: Any) -> list[Any]:
        values: list[Any] = [None] * member.processes
        distributed.all_gather_object(values, value)
        return values

    meet(runtime)
    return Part(member.rank, member.processes, exchange)


def searched_together(index: Path, queries: int) -> bool:
    """Whether several processes share the search of so many queries: exact search by vectors, in more than one shard."""
    from condensery.retrieval.shards import SHARD

    return queries > SHARD and read_json(index / "index.json").get("method") == "dense"
