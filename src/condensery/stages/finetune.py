"""Stage ``finetune``: the bi-encoder on judged queries (SPEC §4), with hard negatives from any number of sources."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from condensery.errors import UserError
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import Split, missing_split
from condensery.stages.training import TrainingStageConfig, initial_towers, run_training

if TYPE_CHECKING:
    from condensery.text.collection import Collection
    from condensery.training.batches import TrainingQueries


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

    def misfit(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have."""
        return missing_split(self.split, inputs["corpus"])


@stage("finetune", version=3, makes="encoder", cost=10.0)
def finetune(config: FinetuneConfig, context: Context) -> dict[str, Any]:
    """Train the retriever and save it as a checkpoint; the last step's weights are the result."""
    from condensery.models.checkpoint import Retriever, save_retriever
    from condensery.stages.texts import Tokens
    from condensery.text.collection import Collection
    from condensery.training.batches import TripleBatches
    from condensery.training.data import TripleDataModule
    from condensery.training.modules import BiEncoderModule

    collection, tokens = Collection(context.input("corpus")), Tokens(context.input("tokens"))
    training = training_queries(collection, config.split, context, bool(config.negatives_per_query))
    batches = TripleBatches(
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
    settings = config.settings(batches.steps_an_epoch(), context.stage_name)
    model = initial_towers(config, context, tokens.vocabulary, config.towers == "separate")
    module = BiEncoderModule(model, settings, config.mask_known_positives, config.temperature)
    data = TripleDataModule(batches, settings.steps, context.runtime.workers)
    values = run_training(module, data, config, context, (config.query_length, config.passage_length))
    retriever = Retriever(model, config.query_length, config.passage_length)
    save_retriever(retriever, context.folder, context.input("tokenizer"))
    return {"queries": len(training.rows), **values}


def training_queries(collection: "Collection", split: str, context: Context, hard: bool) -> "TrainingQueries":
    """The judged queries of a split, their positives, and the pooled negatives of all sources.

    Raises:
        UserError: a judged query has no positive, or no query of the split has negatives.
    """
    from condensery.retrieval.negatives import open_negatives
    from condensery.retrieval.pool import NegativePool
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
    sources = []
    for folder in context.inputs("negatives") if hard else ():
        sources.append(open_negatives(folder, collection))
        if not np.isin(sources[-1].query_rows, rows).any():
            raise UserError(f"{folder / 'negatives.jsonl'}: no query of the split {split!r} is in it")
    pool = NegativePool(sources, rows)
    return TrainingQueries(rows, np.concatenate(list(positives.values())).astype(np.int64), starts, pool)
