"""Stage ``finetune``: the bi-encoder on judged queries (SPEC §4), with hard negatives from any number of sources."""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from condensery.errors import UserError
from condensery.randomness import nested_subset
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import Split, check_subset, missing_split
from condensery.stages.training import Count, TrainingStageConfig, initial_towers, run_training

if TYPE_CHECKING:
    from condensery.text.collection import Collection
    from condensery.training.batches import Order, TrainingQueries


SCHEDULE = "schedule"  # what adaptive batches need meanwhile, in the stage's folder


class AdaptiveConfig(StageConfig):
    """How ``batching: adaptive`` finds pairs that are hard to tell apart (A §3.2); see ``Scheduler``."""

    similarity: Literal["bm25", "encoder", "bm25_then_encoder"]
    neighbours: Annotated[int, Field(ge=1)]
    beam: Annotated[int, Field(ge=1)]


class FinetuneConfig(TrainingStageConfig):
    """``batch_size`` counts queries; each brings one positive and ``negatives_per_query`` hard negatives."""

    negatives: Annotated[list[str], Input("negatives")]
    negative_depths: list[Count] | None
    negative_weights: list[Annotated[float, Field(gt=0)]] | None
    split: Split
    train_queries: Count | None
    towers: Literal["shared", "separate"]
    negatives_per_query: Annotated[int, Field(ge=0)]
    query_length: Annotated[int, Field(ge=4)]
    passage_length: Annotated[int, Field(ge=4)]
    mask_known_positives: bool
    temperature: Annotated[float, Field(gt=0)]
    loss: Literal["contrastive", "ltr"]
    batching: Literal["random", "sequential", "adaptive"]
    adaptive: AdaptiveConfig

    @field_validator("negative_depths", "negative_weights")
    @classmethod
    def _one_a_source(cls, values: list[Any] | None, info: ValidationInfo) -> list[Any] | None:
        sources = info.data.get("negatives", [])
        if values is not None and len(values) != len(sources):
            raise ValueError(
                f"{len(values)} numbers for {len(sources)} sources of negatives; give one for each, or null"
            )
        return values

    def misfit(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have."""
        return missing_split(self.split, inputs["corpus"])


@stage("finetune", version=3, makes="encoder", cost=10.0)
def finetune(config: FinetuneConfig, context: Context) -> dict[str, Any]:
    """Train the retriever and save it as a checkpoint; the last step's weights are the result."""
    from condensery.models.checkpoint import Retriever, save_retriever
    from condensery.stages.texts import Tokens
    from condensery.text.collection import Collection
    from condensery.training.adaptive import AdaptiveOrder
    from condensery.training.adaptive_batches import AdaptiveBatches
    from condensery.training.batches import TripleBatches
    from condensery.training.data import TripleDataModule
    from condensery.training.modules import BiEncoderModule

    collection, tokens = Collection(context.input("corpus")), Tokens(context.input("tokens"))
    training = training_queries(config, context, collection)
    make = partial(
        TripleBatches,
        tokens.queries,
        tokens.passages,
        tokens.titles,
        tokens.vocabulary,
        training,
        batch_size=config.batch_size,
        negatives=config.negatives_per_query if config.negatives else 0,
        query_length=config.query_length,
        passage_length=config.passage_length,
        budget=config.chunk_tokens,
        seed=config.seed,
    )
    settings = config.settings(make())  # in any order: the true one may need a process that runs beside the training
    order = _order(config, context, training)
    batches = make(order=order)
    model = initial_towers(config, context, tokens.vocabulary, config.towers == "separate")
    module = BiEncoderModule(model, settings, config.mask_known_positives, config.temperature, config.loss == "ltr")
    data = TripleDataModule(batches, settings.steps, context.runtime.workers)
    callbacks = [AdaptiveBatches(order, batches, settings.steps)] if isinstance(order, AdaptiveOrder) else []
    values = run_training(module, data, config, context, (config.query_length, config.passage_length), callbacks)
    shutil.rmtree(context.folder / SCHEDULE, ignore_errors=True)
    retriever = Retriever(model, config.query_length, config.passage_length)
    save_retriever(retriever, context.folder, context.input("tokenizer"))
    return {"queries": len(training.rows), **values}


def _order(config: FinetuneConfig, context: Context, training: "TrainingQueries") -> "Order | None":
    """Which queries a step is of; None = in random order."""
    from condensery.stages.batching import adaptive_order
    from condensery.training.batches import items_in_sequence

    if config.batching == "random":
        return None
    if config.batching == "sequential":
        return partial(items_in_sequence, batch_size=config.batch_size, items=len(training.rows))
    return adaptive_order(
        context.folder / SCHEDULE,
        context.input("corpus"),
        training,
        batch_size=config.batch_size,
        seed=config.seed,
        threads=context.runtime.threads,
        **config.adaptive.model_dump(),
    )


def training_queries(config: FinetuneConfig, context: Context, collection: "Collection") -> "TrainingQueries":
    """The judged queries of a split, or a subset of them, their positives, and the pooled negatives of all sources.

    Raises:
        UserError: a judged query has no positive, there are fewer queries than asked for, or a source has none of them.
    """
    from condensery.training.batches import TrainingQueries

    qrels = collection.qrels(config.split)
    positives = qrels.positives()
    without = [row for row in qrels.query_set.tolist() if row not in positives]
    if without:
        name = collection.queries.column("id")[without[0]]
        raise UserError(
            f"qrels of the split {config.split!r}: query {name!r} has no positive (no judgement above 0), nor have"
            f" {len(without) - 1} others; remove them from the qrels"
        )
    what = f"judged queries in the split {config.split!r}"
    check_subset(config.train_queries, len(positives), f"stages.{context.stage_name}.train_queries", what)
    rows = np.fromiter(positives, np.int64)
    rows = rows[nested_subset(config.seed, len(rows), config.train_queries)]
    relevant = [positives[row] for row in rows.tolist()]
    starts = np.concatenate([[0], np.cumsum([len(found) for found in relevant])]).astype(np.int64)
    pool, weights = _pooled(config, context, collection, rows)
    return TrainingQueries(rows, np.concatenate(relevant).astype(np.int64), starts, pool, weights)


def _pooled(
    config: FinetuneConfig, context: Context, collection: "Collection", rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """The negatives of the queries ``rows`` (q,), and their weights where they have any: (q, m) each, -1 = none."""
    folders = context.inputs("negatives") if config.negatives_per_query else []
    if not folders:
        return np.empty((len(rows), 0), np.int32), None
    pools = [_pool(folder, config, collection, rows) for folder in folders]
    if config.negative_depths:
        pools = [pool[:, :depth] for pool, depth in zip(pools, config.negative_depths, strict=True)]
    pool = np.concatenate(pools, axis=1)
    weights = None
    if config.negative_weights:
        shares = [
            np.broadcast_to(weight / np.maximum((one >= 0).sum(axis=1, keepdims=True), 1), one.shape)
            for one, weight in zip(pools, config.negative_weights, strict=True)
        ]
        weights = _added_up(pool, np.concatenate(shares, axis=1))
    return _without_repeats(pool), weights


def _pool(folder: Path, config: FinetuneConfig, collection: "Collection", rows: np.ndarray) -> np.ndarray:
    """The negatives of one source for the queries ``rows``: (q, m), best first, padded with -1."""
    from condensery.retrieval.negatives import read_negatives

    found = read_negatives(folder / "negatives.jsonl", collection)
    pool = np.full((len(rows), found.passage_rows.shape[1]), -1, np.int32)
    place = np.searchsorted(rows, found.query_rows)
    known = (place < len(rows)) & (rows[np.minimum(place, len(rows) - 1)] == found.query_rows)
    if not known.any():
        raise UserError(f"{folder / 'negatives.jsonl'}: no query of the split {config.split!r} is in it")
    pool[place[known]] = found.passage_rows[known]
    return pool


def _without_repeats(pool: np.ndarray) -> np.ndarray:
    """(q, m) with each passage at most once a row: a later occurrence becomes -1."""
    order = np.argsort(pool, axis=1, kind="stable")
    ascending = np.take_along_axis(pool, order, axis=1)
    repeated = np.zeros(pool.shape, dtype=bool)
    np.put_along_axis(repeated, order[:, 1:], ascending[:, 1:] == ascending[:, :-1], axis=1)
    return np.where(repeated, -1, pool)


def _added_up(pool: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(q, m) the sum of a passage's weights in its row, wherever it stands there."""
    total = np.empty(pool.shape)
    for row, (passages, own) in enumerate(zip(pool, weights, strict=True)):
        _, place = np.unique(passages, return_inverse=True)
        total[row] = np.bincount(place, own)[place]
    return total
