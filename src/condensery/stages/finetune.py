"""Stage ``finetune``: the bi-encoder on judged queries (SPEC §4), with hard negatives from any number of sources."""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from condensery.errors import UserError
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import Split, missing_split
from condensery.stages.training import TrainingStageConfig, initial_towers, run_training

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
    split: Split
    towers: Literal["shared", "separate"]
    negatives_per_query: Annotated[int, Field(ge=0)]
    query_length: Annotated[int, Field(ge=4)]
    passage_length: Annotated[int, Field(ge=4)]
    mask_known_positives: bool
    temperature: Annotated[float, Field(gt=0)]
    loss: Literal["contrastive", "ltr"]
    batching: Literal["random", "sequential", "adaptive"]
    adaptive: AdaptiveConfig

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
    training = training_queries(collection, config.split, context, bool(config.negatives_per_query))
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


def training_queries(collection: "Collection", split: str, context: Context, hard: bool) -> "TrainingQueries":
    """The judged queries of a split, their positives, and the pooled negatives of all sources.

    Raises:
        UserError: a judged query has no positive, or no query of the split has negatives.
    """
    from condensery.retrieval.negatives import read_negatives
    from condensery.training.batches import TrainingQueries

    qrels = collection.qrels(split)
    positives = qrels.positives()
    without = [row for row in qrels.query_set.tolist() if row not in positives]
    if without:
        name = collection.queries.column("id")[without[0]]
        raise UserError(
            f"qrels of the split {split!r}: query {name!r} has no positive (no judgement above 0), nor have"
            f" {len(without) - 1} others; remove them from the qrels"
        )
    rows = np.fromiter(positives, np.int64)
    starts = np.concatenate([[0], np.cumsum([len(found) for found in positives.values()])]).astype(np.int64)
    pools = []
    for folder in context.inputs("negatives") if hard else ():
        found = read_negatives(folder / "negatives.jsonl", collection)
        pool = np.full((len(rows), found.passage_rows.shape[1]), -1, np.int32)
        place = np.searchsorted(rows, found.query_rows)
        known = (place < len(rows)) & (rows[np.minimum(place, len(rows) - 1)] == found.query_rows)
        if not known.any():
            raise UserError(f"{folder / 'negatives.jsonl'}: no query of the split {split!r} is in it")
        pool[place[known]] = found.passage_rows[known]
        pools.append(pool)
    negatives = _without_repeats(np.concatenate(pools, axis=1)) if pools else np.empty((len(rows), 0), np.int32)
    return TrainingQueries(rows, np.concatenate(list(positives.values())).astype(np.int64), starts, negatives)


def _without_repeats(pool: np.ndarray) -> np.ndarray:
    """(q, m) with each passage at most once a row: a later occurrence becomes -1."""
    order = np.argsort(pool, axis=1, kind="stable")
    ascending = np.take_along_axis(pool, order, axis=1)
    repeated = np.zeros(pool.shape, dtype=bool)
    np.put_along_axis(repeated, order[:, 1:], ascending[:, 1:] == ascending[:, :-1], axis=1)
    return np.where(repeated, -1, pool)
