"""Stage ``mine``: mines hard negatives with a retriever, for the second round of training.

Relevant passages, and passages with the text of a relevant passage or of the query, are excluded as negatives. A rule may
also exclude passages that score nearly as high as the relevant passages.
"""

from typing import Any

from condensery.retrieval.indexes.interface import recall_of, unmatched_queries
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.mining import mine as mine_negatives
from condensery.retrieval.positive_aware import Below, Scorer
from condensery.retrieval.relabelled import read_relabelled
from condensery.retrieval.shards import SHARD
from condensery.stages.base import Context, retriever_name
from condensery.stages.negatives.config import MineConfig
from condensery.stages.scoring.scoring import CrossEncoderScorer
from condensery.stages.sharing import process_group, searched_together
from condensery.text.collection import Collection


def shared_search(config: MineConfig, context: Context) -> bool:

    queries = Collection(context.input("corpus")).qrels(config.split).query_set
    return bool(config.cross_encoders) or searched_together(context.input("retriever"), len(queries))


def mine(config: MineConfig, context: Context) -> dict[str, Any]:
    """Write the negatives as arrays and negatives.jsonl, and negatives.json, which names the retriever."""
    runtime, collection = context.runtime, Collection(context.input("corpus"))
    group = process_group(runtime)
    relabelled = read_relabelled(config.filled(), collection, config.split)
    retriever = open_index(context.input("retriever"), collection, runtime.threads, device=runtime.search_device)
    about = mine_negatives(
        retriever,
        collection,
        config.split,
        config.depth,
        context.folder,
        config.skip_top,
        config.without_answers,
        made_by=retriever_name(context.artifact("retriever")),
        size=config.shard_size if config.cross_encoders else SHARD,
        group=group,
        below=Below(config.below_share, config.below_margin, config.below_score),
        scorer=_scorer(config, context, collection),
        relabelled=relabelled,
    )
    queries = collection.qrels(config.split).query_set
    warnings = [*about.pop("warnings", []), *unmatched_queries(retriever, queries).get("warnings", [])]
    return about | recall_of(retriever, context.stage_name) | ({"warnings": warnings} if warnings else {})


def _scorer(config: MineConfig, context: Context, collection: Collection) -> Scorer | None:
    """Return the scorer whose scores the rules use in place of the retriever's; None = the retriever's own scores."""
    if config.cross_encoders:
        return CrossEncoderScorer(config, context, collection)
    if config.scorer is None:
        return None
    runtime = context.runtime
    return open_index(context.input("scorer"), collection, runtime.threads, device=runtime.search_device)
