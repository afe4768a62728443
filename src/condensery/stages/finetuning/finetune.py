"""Stage ``finetune``: trains a bi-encoder on judged queries (Karpukhin et al. 2020), with hard negatives from any sources."""

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoints.retrievers import load_retriever
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.no_negatives import left_out_by_text
from condensery.stages.base import Context
from condensery.stages.finetuning.batching import SCHEDULE, adaptive_order, scores_of
from condensery.stages.finetuning.config import FinetuneConfig
from condensery.stages.finetuning.training_queries import text_queries, training_queries, triple_data, with_teacher
from condensery.stages.frozen_passages import check_encoded_by, vectors_of
from condensery.stages.training import initial_towers, lengths_of_start, loop_settings, train_and_save
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Tokens
from condensery.training.adaptive.callback import AdaptiveBatches
from condensery.training.adaptive.order import AdaptiveOrder
from condensery.training.data.steps import Order, items_in_sequence
from condensery.training.data.training_queries import TrainingQueries
from condensery.training.data.triple_batches import TripleBatches
from condensery.training.modules.biencoder import BiEncoderModule


def finetune(
    config: FinetuneConfig, context: Context, sampling: Callable[[TripleBatches], None] | None = None
) -> dict[str, Any]:
    """Train the retriever and save the last step's weights as a checkpoint; return the metrics for the manifest.

    Args:
        config: config of the stage.
        context: context of the stage.
        sampling: function that replaces the ``order`` or the ``pairs`` of the batches, for stages that sample
            differently.
    """
    collection, tokens = Collection(context.input("corpus")), Tokens(context.input("tokens"))
    training = with_teacher(training_queries(config, context, collection), context)
    by_text = left_out_by_text(training.by_text, context.stage_name)
    separate = config.towers == "separate" or config.passages is not None
    towers = initial_towers(config, context, tokens.vocabulary, separate)
    index, frozen = _frozen(config, context, towers)
    data = triple_data(config, context, training, _lengths(config, context, frozen), towers.settings)
    assert isinstance(data.batches, TripleBatches)
    data.batches.vectors = index.passage_vectors if index else None
    data.batches.shared_negatives = config.shared_negatives
    data.batches.text_queries = text_queries(config, context, collection)
    for folder in context.inputs("in_batch_teacher"):
        scores = scores_of(folder, context.input("corpus"), context.runtime.threads, context.stage_name)
        data.batches.in_batch_teacher = scores
    # computed before the final order is set, because that order may need a process that runs during the training
    settings = loop_settings(config, data.batches)
    own = config.values_of("loss", "mask_known_positives", "temperature")
    module = BiEncoderModule(towers, train_passages=index is None, **own, **config.optimiser())
    data.batches.order = order = _order(config, context, training) or data.batches.order
    if sampling is not None:
        sampling(data.batches)
    callbacks = [AdaptiveBatches(order, data.batches)] if isinstance(order, AdaptiveOrder) else []
    how: dict[str, Any] = {"saved": frozen, "settings": settings, "callbacks": callbacks}
    values = train_and_save(module, data, config, context, data.lengths, **how)
    shutil.rmtree(context.folder / SCHEDULE, ignore_errors=True)
    return {"queries": len(training.rows), **by_text, **values}


def _lengths(config: FinetuneConfig, context: Context, frozen: tuple[int, int] | None) -> tuple[int, int]:
    """Return the maximum tokens of a query and of a passage in training.

    Args:
        config: config of the stage; if it leaves a length null, the initial retriever's length is used.
        context: context of the stage.
        frozen: the lengths of the retriever whose passage vectors are frozen; None if passages are encoded.

    Raises:
        UserError: a length is null, and the initial checkpoint does not record its lengths.
    """
    if frozen is not None:
        return min(config.query_length or frozen[0], frozen[0]), frozen[1]
    own = lengths_of_start(config, context) or (None, None)
    query, passage = config.query_length or own[0], config.passage_length or own[1]
    if query is None or passage is None:
        key = "query_length" if query is None else "passage_length"
        null = "null means the length of the checkpoint in init, which does not record it"
        raise context.error(key, f"{null}; give a number")
    return query, passage


def _frozen(
    config: FinetuneConfig, context: Context, towers: BiEncoder
) -> tuple[DenseIndex | None, tuple[int, int] | None]:
    """Return the index with the frozen passage vectors, and its retriever's maximum query and passage length in tokens.

    The trained retriever keeps these lengths. Training queries are truncated to ``query_length``. Both return values are
    None if passages are not frozen.

    Raises:
        UserError: the initial towers encode passages differently from the index.
    """
    if config.passages is None:
        return None, None
    index, encoder = vectors_of(context, "passages", config.passages)
    first = load_retriever(encoder)
    check_encoded_by(towers, first.passage_length, first, f"{context.place('passages')}: {config.passages}")
    return index, (first.query_length, first.passage_length)


def _order(config: FinetuneConfig, context: Context, training: TrainingQueries) -> Order | None:
    """Return the order in which queries form batches; None = random order."""
    if config.batching == "random":
        return None
    if config.batching == "sequential":
        return partial(items_in_sequence, batch_size=config.batch_size, items=len(training.rows))
    return adaptive_order(config, context, training)
