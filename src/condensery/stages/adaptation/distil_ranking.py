"""Stage ``distil_ranking``: trains a retriever's query tower to follow a better ranking, without judgements."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from condensery.errors import UserError, number_of
from condensery.evaluation.significance import FEW
from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoints.retrievers import load_retriever, save_retriever
from condensery.retrieval.cross_encoders import PairScorer, logits, score_in_shards
from condensery.retrieval.indexes.opening import Encode, open_index, ranked, search_of_texts
from condensery.retrieval.ranking import Ranking, ordered
from condensery.retrieval.searchers.retriever import Retriever
from condensery.sharing import SINGLE_PROCESS
from condensery.stages.adaptation.config import DistilRankingConfig
from condensery.stages.base import Artifact, Context
from condensery.stages.frozen_passages import vectors_of
from condensery.stages.scoring.scoring import cross_encoder
from condensery.stages.training import train_and_save
from condensery.system.files import load_array, save_array
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Passages, Queries, Tokens
from condensery.tokens.prefixes import Prefixes
from condensery.tokens.text_reader import TextReader
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.ranking_batches import RankingBatches
from condensery.training.held_out import chosen_queries, held_out_queries
from condensery.training.modules.query_tower import QueryTowerModule

TOO_FEW = "(dev queries, or sentences of held-out passages) could measure a gain"
SHARD = 200  # queries per shard of cross-encoder scores; a restart keeps complete shards


def distil_ranking(config: DistilRankingConfig, context: Context) -> dict[str, Any]:
    """Train a separate query tower and save the retriever; the passage tower and the passage vectors stay the same.

    If fewer than ``FEW`` queries can measure the gain, the student is saved untrained, unless ``train_unmeasured`` is set.

    Raises:
        UserError: every passage that has a query is held out, or a passage has no vector in the student's index.
    """
    collection, queries = Collection(context.input("corpus")), Queries(context.input("queries"))
    index, encoder = vectors_of(context, "student", config.student)
    saved = load_retriever(encoder)
    texts, dev = Passages(context.artifact("queries").input("passages").path), "dev" in collection.splits
    measured = len(collection.questions("dev")) if dev else 0
    measured += len(held_out_queries(queries, texts, np.random.default_rng()))
    if measured < FEW and not config.train_unmeasured:
        why, key = f"only {number_of(measured, 'queries')} {TOO_FEW}", context.place("train_unmeasured")
        context.say(f"not trained, because {why}; to train anyway, set {key}=true")
        save_retriever(saved, context.folder, encoder)
        return {"queries": 0}
    rows = chosen_queries(queries, config.number, config.seed)
    if not len(rows):
        raise context.error("queries", "all passages with a query are held out; add documents")
    ranking = _ranked(config, context, collection, queries, rows)
    lengths = min(config.query_length, saved.query_length), saved.passage_length
    prefix = Prefixes.of(encoder, saved.model.settings.query_prefix, "", lengths).query
    reader = TextReader(queries.store, Tokens(context.input("tokens")).vocabulary, lengths[0], prefix=prefix)
    sizes = config.values_of("batch_size", "budget", "seed")
    batches = RankingBatches(reader, rows, ranking, index.passage_vectors, **sizes)
    towers = saved.model if not saved.model.shared else BiEncoder.from_encoder(saved.model.passage, separate=True)
    temperatures = config.values_of("temperature", "teacher_temperature")
    module = QueryTowerModule(towers.train(), **temperatures, **config.optimiser())
    data = StepDataModule(batches, context.runtime.workers)
    longest = saved.query_length, saved.passage_length
    return {"queries": len(rows), **train_and_save(module, data, config, context, longest, tokenizer=encoder)}


def _ranked(
    config: DistilRankingConfig, context: Context, collection: Collection, queries: Queries, rows: np.ndarray
) -> Ranking:
    """Return the teacher's ranking for queries (n,): scores and passages (n, depth), saved in the stage's folder.

    If the config names cross-encoders, their scores replace the teacher's scores and order the passages.
    """
    files = [context.folder / f"teacher-{name}.npy" for name in ("scores", "passages")]
    if not all(file.exists() for file in files):
        teacher = open_index(context.input("teacher"), collection, context.runtime.threads)
        ask = search_of_texts(teacher, _encoder_of(context))
        depth, label = min(config.depth, len(teacher)), f"{context.stage_name}: teacher"
        found: list[np.ndarray] = [*ranked(ask, queries.texts_at(rows), depth, label)]
        for file, part in zip(files, found, strict=True):
            save_array(file, part)
    scores, passages = (load_array(file) for file in files)
    if not config.cross_encoders:
        return scores, passages
    scorers = [_scorer(one, config, context, collection, queries) for one in context.artifacts("cross_encoders")]
    label = f"{context.stage_name}: cross-encoders"
    score, path = logits(scorers, config.budget, label), context.folder / "cross-encoder-scores.npy"
    scores = score_in_shards(score, rows, passages, path, SHARD, label, SINGLE_PROCESS, len(scorers))
    return ordered(scores, passages, passages.shape[1])


def _scorer(
    artifact: Artifact, config: DistilRankingConfig, context: Context, collection: Collection, queries: Queries
) -> PairScorer:
    """Load a cross-encoder for queries made from the text. Raises ``UserError`` if it reads token ids of another stage."""
    if artifact.input("tokens").id != context.artifact("tokens").id:
        other = f"{artifact.reference} was made with other token ids than those of {config.tokens}"
        raise context.error("cross_encoders", f"{other}; give both stages the same stage as `tokens`")
    return cross_encoder(artifact, collection, config.precision, context, queries.store)


def _encoder_of(context: Context) -> Callable[[Path], Encode]:
    """Return a function that maps a folder of vectors to the query encoder of the retriever that made them."""

    def encoder_of(vectors: Path) -> Encode:
        encoder = Artifact(vectors).ancestor("encoder")
        if encoder is None:
            raise UserError(f"{vectors} does not record which encoder made it; compute its stage again (force=[STAGE])")
        return Retriever(encoder.path, device=context.runtime.search_device, precision="fp32").encode_queries

    return encoder_of
