"""Stage ``read_negatives``: reads published negatives, from MS MARCO's triples of ids, lists of systems, or a collection."""

from typing import Any

from condensery.retrieval.negatives import save_negatives
from condensery.retrieval.no_negatives import left_out_by_text
from condensery.retrieval.published_negatives import from_collection, from_systems, from_triples
from condensery.retrieval.relabelled import read_relabelled
from condensery.stages.base import Context
from condensery.stages.negatives.config import ReadNegativesConfig
from condensery.text.collection import Collection


def read_negatives(config: ReadNegativesConfig, context: Context) -> dict[str, Any]:
    """Write the negatives as arrays and negatives.jsonl."""
    collection = Collection(context.input("corpus"))
    relabelled = read_relabelled(config.filled(), collection, config.split)
    how = (collection, config.depth, config.split)
    if config.file is None:
        negatives, counts = from_collection(*how, relabelled=relabelled)
    elif config.has_lists:
        negatives, counts = from_systems(config.file, *how, config.systems, config.per_system, relabelled)
    else:
        negatives, counts = from_triples(config.file, *how, relabelled=relabelled)
    made_by = {"made_by": config.file.name if config.file else collection.name}
    left_out_by_text(counts.get("left_out_by_text", 0), context.stage_name)
    counts |= relabelled.saved(context.folder, collection, context.stage_name)
    save_negatives(context.folder, negatives, collection, {**counts, "split": config.split, **made_by})
    return counts
