"""Stage ``finetune``: the bi-encoder on judged queries (SPEC §4), with hard negatives from any number of sources."""

import shutil
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from condensery.stages.base import Context, StageConfig, stage
from condensery.stages.training import TrainingStageConfig, initial_towers, run_training
from condensery.stages.training_queries import QueriesConfig, training_queries

if TYPE_CHECKING:
    from condensery.training.batches import Order
    from condensery.training.triple_batches import TrainingQueries


SCHEDULE = "schedule"  # what adaptive batches need meanwhile, in the stage's folder


class AdaptiveConfig(StageConfig):
    """How ``batching: adaptive`` finds pairs that are hard to tell apart (A §3.2); see ``Scheduler``."""

    similarity: Literal["bm25", "encoder", "bm25_then_encoder"]
    neighbours: Annotated[int, Field(ge=1)]
    beam: Annotated[int, Field(ge=1)]


class FinetuneConfig(QueriesConfig, TrainingStageConfig):
    """``batch_size`` counts queries; each brings one positive and ``negatives_per_query`` hard negatives."""

    towers: Literal["shared", "separate"]
    query_length: Annotated[int, Field(ge=4)]
    passage_length: Annotated[int, Field(ge=4)]
    mask_known_positives: bool
    temperature: Annotated[float, Field(gt=0)]
    loss: Literal["contrastive", "ltr"]
    batching: Literal["random", "sequential", "adaptive"]
    adaptive: AdaptiveConfig


@stage("finetune", version=3, makes="encoder", cost=10.0, together=True)
def finetune(config: FinetuneConfig, context: Context) -> dict[str, Any]:
    """Train the retriever and save it as a checkpoint; the last step's weights are the result."""
    from condensery.models.checkpoint import Retriever, save_retriever
    from condensery.stages.texts import Tokens
    from condensery.text.collection import Collection
    from condensery.training.adaptive import AdaptiveOrder
    from condensery.training.adaptive_batches import AdaptiveBatches
    from condensery.training.data import TripleDataModule
    from condensery.training.modules import BiEncoderModule
    from condensery.training.triple_batches import TripleBatches

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
        negatives=config.negatives_per_query if config.negatives or config.labels else 0,
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
        device=context.runtime.search_device,
        **config.adaptive.model_dump(),
    )
