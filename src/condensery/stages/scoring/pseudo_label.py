"""Stage ``pseudo_label``: labels unjudged queries with cross-encoders (RocketQA's fourth step)."""

from typing import Any

from condensery.errors import number_of
from condensery.retrieval.denoising import write_labels
from condensery.retrieval.runs import Run
from condensery.stages.base import Context
from condensery.stages.scoring.config import PseudoLabelConfig
from condensery.stages.scoring.scoring import scored, searched
from condensery.stages.sharing import process_group
from condensery.text.collection import Collection


def several_shards(config: PseudoLabelConfig, context: Context) -> bool:

    return len(Collection(context.input("corpus")).unjudged()) > config.shard_size


def pseudo_label(config: PseudoLabelConfig, context: Context) -> dict[str, Any]:
    """Write labels.jsonl for the queries without judgements."""
    group, collection = process_group(context.runtime), Collection(context.input("corpus"))
    queries = collection.unjudged()
    candidates, found = searched(context, collection, queries, config.depth, group)
    scores = scored(config, context, queries, candidates, group)
    out = context.folder / "labels.jsonl"
    counts = write_labels(out, collection, Run(queries, candidates, scores), config.positive, config.negative)
    labelled = number_of(counts["queries"], f"of {len(queries):,} queries have")
    context.say(f"{labelled} a passage above {config.positive}; the others are left out")
    return {**counts, **found}
