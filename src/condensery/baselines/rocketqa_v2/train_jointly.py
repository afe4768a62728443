"""Stages ``train_jointly`` and ``joint_reranker``: a retriever and a re-ranker trained together (Ren et al. 2021)."""

import shutil
from typing import Any

from condensery.baselines.rocketqa_v2.config import JointRerankerConfig, TrainJointlyConfig
from condensery.baselines.rocketqa_v2.joint import JointBatches, JointModule
from condensery.models.checkpoints.backbone import check_words
from condensery.models.cross_encoder import Reranker, load_reranker, save_cross_encoder
from condensery.retrieval.no_negatives import left_out_by_text
from condensery.stages.base import Context
from condensery.stages.finetuning.training_queries import check_enough_passages, training_queries, triple_data
from condensery.stages.training import initial_towers, train_and_save
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Tokens, pair_reader
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.triple_batches import TripleBatches

RERANKER = "reranker"  # subfolder of the artifact with the re-ranker


def train_jointly(config: TrainJointlyConfig, context: Context) -> dict[str, Any]:
    """Train both models; save the retriever, and the re-ranker in a subfolder.

    Raises:
        UserError: the collection has too few passages for a list, or the re-ranker has another tokenizer than the
            retriever.
    """
    collection, tokens = Collection(context.input("corpus")), Tokens(context.input("tokens"))
    training = training_queries(config, context, collection)
    by_text = left_out_by_text(training.by_text, context.stage_name)
    check_enough_passages(config, context, training, collection)
    towers = initial_towers(config, context, tokens.vocabulary, config.towers == "separate")
    first = load_reranker(context.input("init_reranker"))
    check_words(first.model.classifier, f"{context.place('init_reranker')}: {config.init_reranker}", tokens.vocabulary)
    lengths, own = (config.query_length, config.passage_length), {"negatives_per_query": config.negatives_per_query}
    triples = triple_data(config, context, training, lengths, towers.settings, **own).batches
    assert isinstance(triples, TripleBatches)
    batches = JointBatches(triples, pair_reader(tokens, config.query_length, config.length, first.separators))
    module = JointModule(
        towers, first.model, divergence=config.divergence, temperature=config.temperature, **config.optimiser()
    )
    values = train_and_save(module, StepDataModule(batches, context.runtime.workers), config, context, lengths)
    reranker = Reranker(module.reranker, config.query_length, config.length, first.separators)
    save_cross_encoder(reranker, context.folder / RERANKER, context.input("tokenizer"))
    return {"queries": len(training.rows), **by_text, **values}


def joint_reranker(config: JointRerankerConfig, context: Context) -> None:
    """Copy the re-ranker out of the artifact of ``train_jointly``."""
    shutil.copytree(context.input("trained") / RERANKER, context.folder, dirs_exist_ok=True)
