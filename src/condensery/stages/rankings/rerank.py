"""Stage ``rerank``: reranks a retriever's best passages by cross-encoders (Gao and Callan 2021b, §4.3).

The stage makes an index.
"""

from typing import Any

from condensery.retrieval.indexes.reranked import write_reranked
from condensery.stages.base import Context
from condensery.stages.rankings.config import RerankConfig
from condensery.stages.scoring.scoring import scored, searched
from condensery.stages.sharing import process_group
from condensery.text.collection import Collection


def several_shards(config: RerankConfig, context: Context) -> bool:

    return len(Collection(context.input("corpus")).questions(config.split)) > config.shard_size


def rerank(config: RerankConfig, context: Context) -> dict[str, Any]:
    """Write queries.npy, candidates.npy, scores.npy and index.json; a restart keeps complete shards of scores."""
    group, collection = process_group(context.runtime), Collection(context.input("corpus"))
    queries = collection.questions(config.split)
    candidates, found = searched(context, collection, queries, config.depth, group)
    scored(config, context, queries, candidates, group)
    about = write_reranked(context.folder, collection, queries, config.depth, config.split)
    return {**{key: about[key] for key in ("queries", "depth")}, **found}
