"""Stage ``denoise``: drops hard negatives that cross-encoders judge relevant (RocketQA's third step)."""

from dataclasses import replace
from typing import Any

from condensery.errors import number_of
from condensery.retrieval.denoising import write_denoised
from condensery.retrieval.negatives import open_negatives, open_relabelled
from condensery.stages.base import Context
from condensery.stages.negatives.config import DenoiseConfig
from condensery.stages.scoring.scoring import scored
from condensery.stages.sharing import process_group
from condensery.text.collection import Collection


def several_shards(config: DenoiseConfig, context: Context) -> bool:

    negatives = open_negatives(context.input("negatives"), Collection(context.input("corpus")))
    return len(negatives.query_rows) > config.shard_size


def denoise(config: DenoiseConfig, context: Context) -> dict[str, Any]:
    """Write negatives.jsonl as ``mine`` does; the manifest names the artifacts of the negatives and the cross-encoders."""
    group, collection = process_group(context.runtime), Collection(context.input("corpus"))
    negatives = open_negatives(context.input("negatives"), collection)
    scores = scored(config, context, negatives.query_rows, negatives.passage_rows, group)
    path = context.folder / "negatives.jsonl"
    relabelled = open_relabelled(context.input("negatives"), collection)
    counts = write_denoised(path, collection, replace(negatives, scores=scores), config.below, relabelled.no)
    counts |= relabelled.saved(context.folder, collection, context.stage_name)
    kept = f"{number_of(counts['negatives'], 'negatives are')} kept, {counts['left_out']:,} left out"
    without = number_of(counts["queries_without"], f"of {counts['queries']:,} queries have")
    context.say(f"{kept}; {without} none left, and training draws random ones there")
    return counts
