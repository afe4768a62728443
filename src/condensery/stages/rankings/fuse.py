"""Stage ``fuse``: makes an index that fuses the rankings of several retrievers, such as BM25 and a dense retriever."""

from typing import Any

import numpy as np

from condensery.errors import number_of
from condensery.evaluation.metrics import score, score_answers
from condensery.evaluation.names import HIT, split_metric
from condensery.evaluation.significance import FEW
from condensery.retrieval.indexes.fusion import FusedIndex, Measure, best_point, measure_grid, weight_grid, write_fused
from condensery.retrieval.indexes.interface import recall_of, unmatched_queries
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.indexes.own_passages import own_passages_left_out
from condensery.retrieval.runs import Run
from condensery.stages.base import Context
from condensery.stages.rankings.config import FuseConfig
from condensery.system.progress import progress
from condensery.text.collection import Collection


def fuse(config: FuseConfig, context: Context) -> dict[str, Any]:
    """Write index.json with the retrievers and the method of fusion; return the weights for the manifest."""
    runtime, collection = context.runtime, Collection(context.input("corpus"))
    artifacts = context.artifacts("retrievers")
    members = [open_index(one.path, collection, runtime.threads, device=runtime.search_device) for one in artifacts]
    equal = [1.0 if config.method == "reciprocal_rank" else 1 / len(members)] * len(members)
    weights = config.weights or config.otherwise or equal
    index = FusedIndex(members, weights, config.depth, config.method, config.rank_constant)
    chosen = _choose(config, context, index, collection) if config.chooses else None
    write_fused(context.folder, index, [artifact.reference for artifact in artifacts], chosen)
    asked = collection.questions(config.split) if chosen else np.empty(0, np.int64)
    found = {**recall_of(index, context.stage_name), **unmatched_queries(index, asked)}
    return {
        "weights": index.weights.tolist(),
        "chosen": chosen,
        **own_passages_left_out(collection, asked, context.stage_name),
        **found,
    }


def _choose(config: FuseConfig, context: Context, index: FusedIndex, collection: Collection) -> dict[str, Any] | None:
    """Set the index's weights to the best grid point; return the metric at every point, or None if queries are too few."""
    there = config.split in collection.description["splits"]
    queries = collection.questions(config.split) if there else np.empty(0, np.int64)
    if len(queries) < config.least_queries:
        some = f"only {number_of(len(queries), f'{config.split} queries')}"
        few = f"the collection {collection.name} has {some if len(queries) else f'no {config.split} queries'}"
        weights = f"the weights are {_named(index.weights, config)}; to set others, use {context.place('weights')}"
        context.say(f"{few} to choose weights by, so {weights}")
        return None
    grid = weight_grid(len(index.members), round(1 / config.grid))
    k = split_metric(config.metric)[1] or len(index.members) * config.depth
    with progress(context.stage_name, len(queries), "queries") as task:
        values = measure_grid(index, queries, grid, _measure(config, collection), k, task)
    best = best_point(grid, values)
    index.weights = grid[best]
    joined = _named(grid[best], config)
    single = [values[(grid[:, member] == 1).argmax()] for member in range(len(index.members))]
    alone = ", ".join(f"{name} {100 * value:.1f}" for value, name in zip(single, config.retrievers, strict=True))
    measured = f"{config.metric} of {len(queries):,} {config.split} queries: {100 * values[best]:.1f}"
    context.say(f"{measured} with the weights {joined} (alone: {alone})")
    if len(queries) < FEW:
        context.say(f"with so few queries, chance decides; to set weights: {context.place('weights')}")
    points = [{"weights": one, "value": value} for one, value in zip(grid.tolist(), values.tolist(), strict=True)]
    return {"split": config.split, "metric": config.metric, "queries": len(queries), "grid": points}


def _named(weights: np.ndarray, config: FuseConfig) -> str:
    return ", ".join(f"{weight:.2g} {name}" for weight, name in zip(weights, config.retrievers, strict=True))


def _measure(config: FuseConfig, collection: Collection) -> Measure:
    """Return the function that computes the metric of queries, whose rows are ascending, from their ranked passages."""
    metric = config.metric

    def by_answers(rows: np.ndarray, passages: np.ndarray) -> np.ndarray:
        run = Run(rows, passages, np.zeros(passages.shape, np.float32))
        return score_answers(run, collection, rows, [metric])[metric]

    def by_judgements(rows: np.ndarray, passages: np.ndarray) -> np.ndarray:
        return score(rows, passages, qrels.of(rows), [metric])[metric]

    if split_metric(metric)[0] == HIT:
        return by_answers
    qrels = collection.qrels(config.split)
    return by_judgements
