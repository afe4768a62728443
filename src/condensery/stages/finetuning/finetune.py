"""Stage ``finetune``: the bi-encoder on judged queries (Karpukhin et al. 2020), with hard negatives of any sources."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from condensery.errors import UserError
from condensery.losses.registry import check_loss, check_name, teaching
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.card import card_of, name_of_data
from condensery.stages.finetuning.training_queries import QueriesConfig, training_queries, training_work, with_teacher
from condensery.stages.frozen_passages import check_encoded_by, vectors_of
from condensery.stages.training import (
    Count,
    EncoderStageConfig,
    ValidatedConfig,
    initial_towers,
    run_training,
    validation_sample,
)
from condensery.stages.work import Read, Work, known, with_encoder

if TYPE_CHECKING:
    from condensery.models.biencoder import BiEncoder
    from condensery.retrieval.dense import DenseIndex
    from condensery.training.batches.base import Order
    from condensery.training.batches.text_queries import TextQueries
    from condensery.training.batches.triples import TrainingQueries


SCHEDULE = "schedule"  # what adaptive batches need meanwhile, in the stage's folder


class AdaptiveConfig(StageConfig):
    """How ``batching: adaptive`` finds pairs that are hard to tell apart (Zhao et al., §3.2); see ``Scheduler``."""

    similarity: Literal["bm25", "encoder", "bm25_then_encoder"]
    neighbours: Annotated[int, Field(ge=1)]
    beam: Annotated[int, Field(ge=1)]


class FinetuneConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """``batch_size`` counts queries; each brings one positive and ``negatives_per_query`` hard negatives.

    ``passages``: an index whose vectors of the passages are frozen; queries get a tower of their own, which alone is trained.
    ``text_queries``: made of the passages; ``text_batch_size`` of them are in a step besides, each with its own passage.
    ``teacher``: of a pair that several of these stages have scored the first counts.
    """

    teacher: Annotated[list[str], Input("pair_scores")]
    passages: Annotated[str | None, Input("index")]
    text_queries: Annotated[str | None, Input("queries")]
    text_batch_size: Count
    shared_negatives: Annotated[int, Field(ge=0)]
    towers: Literal["shared", "separate"]
    query_length: Annotated[int, Field(ge=4)]
    passage_length: Annotated[int, Field(ge=4)]
    mask_known_positives: bool
    temperature: Annotated[float, Field(gt=0)]
    loss: str | dict[str, Any]
    batching: Literal["random", "sequential", "adaptive"]
    adaptive: AdaptiveConfig

    def lengths(self) -> dict[str, int]:
        """None that a retriever could be too short for where its passages are frozen: its own count."""
        return super().lengths() if self.passages is None else {}

    def work(self, read: Read) -> Work:
        """Steps of queries, their positives and their hard negatives."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.passage_length)
        each = 1 + (self.negatives_per_query if self.negatives or self.labels else 0)
        if self.passages is not None:
            sizes, each = replace(sizes, same_passages=True), 0
        texts = self.text_batch_size if self.text_queries else 0
        return training_work(self, sizes, each, self.passage_length, contrast=True, texts=texts)

    def by_content(self) -> set[str]:
        """Keys that came later: where they name nothing the ids are those of before."""
        later = {key for key in ("teacher", "passages", "text_queries") if not getattr(self, key)}
        later |= {"text_batch_size"} if not self.text_queries else set()
        return super().by_content() | later | ({"shared_negatives"} if not self.shared_negatives else set())

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Also a loss that needs a teacher and has none, or has one that it cannot take."""
        if self.shared_negatives and self.passages is None:
            return (
                "shared_negatives",
                "so many passages would be encoded in each step; set passages to an index, or it to 0",
            )
        takes, needs = teaching(self.loss)
        if needs and not self.teacher:
            advice = "set teacher to the stages that made them (score_pairs)"
            return "loss", f"{check_name(self.loss)} learns from a teacher's scores, and there are none; {advice}"
        if self.teacher and not takes:
            return (
                "teacher",
                f"the loss {check_name(self.loss)} takes no teacher's scores; set loss to margin_mse or kl",
            )
        return super().input_error(inputs)

    @field_validator("loss")
    @classmethod
    def _is_known(cls, loss: str | dict[str, Any]) -> str | dict[str, Any]:
        check_loss(loss)
        return loss


@stage("finetune", version=4, makes="encoder", cost=10.0, together=True)
def finetune(config: FinetuneConfig, context: Context) -> dict[str, Any]:
    """Train the retriever and save it as a checkpoint; the last step's weights are the result."""
    from condensery.retrieval.no_negatives import left_out_by_text
    from condensery.text.collection import Collection
    from condensery.tokens.artifacts import Tokens
    from condensery.training.adaptive_batches import AdaptiveBatches
    from condensery.training.batches.adaptive import AdaptiveOrder
    from condensery.training.batches.triples import TripleBatches
    from condensery.training.datamodules.triples import TripleDataModule
    from condensery.training.modules.biencoder import BiEncoderModule

    collection, tokens = Collection(context.input("corpus")), Tokens(context.input("tokens"))
    training = with_teacher(training_queries(config, context, collection), context)
    by_text = left_out_by_text(training.by_text, context.stage_name)
    separate = config.towers == "separate" or config.passages is not None
    towers = initial_towers(config, context, tokens.vocabulary, separate)
    index, lengths = _frozen(config, context, towers)
    data = TripleDataModule(
        tokens,
        context.input("tokenizer"),
        training=training,
        negatives_per_query=config.negatives_per_query if config.negatives or config.labels else 0,
        batch_size=config.batch_size,
        query_length=config.query_length if lengths is None else min(config.query_length, lengths[0]),
        passage_length=config.passage_length if lengths is None else lengths[1],
        chunk_tokens=config.budget,
        seed=config.seed,
        workers=context.runtime.workers,
        query_prefix=towers.settings.query_prefix,
        passage_prefix=towers.settings.passage_prefix,
    )
    data.setup()
    assert isinstance(data.batches, TripleBatches)
    data.batches.vectors = index.passage_vectors if index else None
    data.batches.shared_negatives = config.shared_negatives
    data.batches.text_queries = _text_queries(config, context, len(tokens.passages))
    settings = config.loop(
        data.batches
    )  # before the true order, which may need a process that runs beside the training
    module = BiEncoderModule(
        towers,
        loss=config.loss,
        mask_known_positives=config.mask_known_positives,
        temperature=config.temperature,
        train_passages=index is None,
        **config.optimiser(),
    )
    data.batches.order = order = _order(config, context, training) or data.batches.order
    callbacks = [AdaptiveBatches(order, data.batches)] if isinstance(order, AdaptiveOrder) else []
    sample = validation_sample(config, module, context, data.lengths)
    values = run_training(module, data, settings, config, context, sample, callbacks)
    shutil.rmtree(context.folder / SCHEDULE, ignore_errors=True)
    card = card_of(type(config), config.model_dump(mode="json"), name_of_data(context.input("corpus")), values)
    module.save_pretrained(context.folder, context.input("tokenizer"), lengths or data.lengths, card)
    return {"queries": len(training.rows), **by_text, **values}


def _frozen(
    config: FinetuneConfig, context: Context, towers: "BiEncoder"
) -> "tuple[DenseIndex | None, tuple[int, int] | None]":
    """The index whose vectors of the passages are frozen, and the lengths in tokens that its retriever is searched with.

    Those stay; queries of the training are shortened to ``query_length``.
    """
    from condensery.models.checkpoint import load_retriever

    if config.passages is None:
        return None, None
    index, encoder = vectors_of(context, "passages", config.passages)
    first = load_retriever(encoder)
    named = f"stages.{context.stage_name}.passages: {config.passages}"
    check_encoded_by(towers, first.passage_length, first, named)
    return index, (first.query_length, first.passage_length)


def _text_queries(config: FinetuneConfig, context: Context, passages: int) -> "TextQueries | None":
    """Those of passages that are not held out (``training.held_out``), so that there is something to choose by."""
    import numpy as np

    from condensery.tokens.artifacts import Queries
    from condensery.training.batches.text_queries import TextQueries
    from condensery.training.held_out import chosen_queries

    if config.text_queries is None:
        return None
    queries, key = Queries(context.input("text_queries")), f"stages.{context.stage_name}.text_queries"
    if len(queries.counts) != passages:
        raise UserError(
            f"{key}: {config.text_queries} was made of {len(queries.counts):,} passages, and {passages:,} are searched;"
            " make it of these (stage.passages.grouping=collection)"
        )
    rows = chosen_queries(queries, len(queries.store), config.seed)
    if not len(rows):
        raise UserError(f"{key}: all passages with a query are held out; give more text, or set it to null")
    owners = np.repeat(np.arange(passages), queries.counts)[rows]
    return TextQueries(queries.store, rows, owners, config.text_batch_size)


def _order(config: FinetuneConfig, context: Context, training: "TrainingQueries") -> "Order | None":
    """Which queries a step is of; None = in random order."""
    from condensery.stages.finetuning.batching import adaptive_order
    from condensery.training.batches.base import items_in_sequence

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
