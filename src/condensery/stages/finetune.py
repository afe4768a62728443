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
    labels: Annotated[list[str], Input("labels")]
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
    """The queries of a split and those that ``labels`` adds, their positives, and the pooled negatives of all sources.

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
    labels = [artifact.path / "labels.jsonl" for artifact in context.made_from.get("labels", ())]
    labels = [path for path in labels if path.stat().st_size]  # it may be that nothing could be labelled
    for path in labels:
        found = read_negatives(path, collection, "positive_ids")
        kept = (passages[passages >= 0] for passages in found.passage_rows)
        positives = dict(zip(found.query_rows.tolist(), kept, strict=True)) | positives
    positives = dict(sorted(positives.items()))
    rows = np.fromiter(positives, np.int64)
    starts = np.concatenate([[0], np.cumsum([len(found) for found in positives.values()])]).astype(np.int64)
    pools = []
    for path in [*(folder / "negatives.jsonl" for folder in context.inputs("negatives")), *labels] if hard else ():
        found = read_negatives(path, collection)
        pool = np.full((len(rows), found.passage_rows.shape[1]), -1, np.int32)
        place = np.searchsorted(rows, found.query_rows)
        known = (place < len(rows)) & (rows[np.minimum(place, len(rows) - 1)] == found.query_rows)
        if not known.any():
            raise UserError(f"{path}: no query of the split {split!r} is in it")
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
