"""Candidates of queries, and cross-encoders that score them, for the stages that score pairs of a query and a passage."""

from dataclasses import replace
from typing import Any

import numpy as np

from condensery.models.cross_encoder import CrossEncoder, load_reranker
from condensery.retrieval.cross_encoders import PairScorer, logits, score_in_shards, search_candidates
from condensery.retrieval.denoising import probabilities
from condensery.retrieval.indexes.interface import recall_of, unmatched_queries
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.indexes.own_passages import own_passages_left_out
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.stages.base import Artifact, Context
from condensery.stages.devices import on_device
from condensery.stages.scoring.config import ScoringStageConfig
from condensery.stages.sharing import searched_together
from condensery.system.files import load_array
from condensery.system.progress import SILENT
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Tokens, pair_reader
from condensery.tokens.store import TokenStore


def searched(
    context: Context, collection: Collection, query_rows: np.ndarray, depth: int, group: ProcessGroup
) -> tuple[np.ndarray, dict[str, Any]]:
    """Retrieve the candidates of queries with the stage's ``retriever``, and save them in candidates.npy.

    If the processes do not divide the search (``searched_together``), the first process searches alone, with the threads of
    all processes on its machine.

    Args:
        context: context of the stage.
        collection: collection with passages and queries.
        query_rows: rows of the queries, (n,).
        depth: candidates per query, k.
        group: processes that compute the stage.

    Returns:
        the candidates (n, k); and, for the manifest, the retriever's recall and warnings, and the number of queries that
        are themselves passages. Such a passage is left out of its query's candidates.
    """
    index, path = context.input("retriever"), context.folder / "candidates.npy"
    member, threads = context.runtime.distributed, context.runtime.threads

    def search(group: ProcessGroup, threads: int) -> dict[str, Any]:
        retriever = open_index(index, collection, threads, device=context.runtime.search_device)
        search_candidates(retriever, query_rows, depth, path, context.stage_name, group)
        own = own_passages_left_out(collection, query_rows, context.stage_name) if group.rank == 0 else {}
        return {**own, **recall_of(retriever, context.stage_name), **unmatched_queries(retriever, query_rows)}

    if searched_together(index, len(query_rows)):
        recall = search(group, threads)
    else:
        recall = group.from_rank_zero(
            lambda: search(SINGLE_PROCESS, threads * (member.local_processes if member else 1))
        )
    return load_array(path, mapped=True), recall


def scored(
    config: ScoringStageConfig, context: Context, query_rows: np.ndarray, candidates: np.ndarray, group: ProcessGroup
) -> np.ndarray:
    """Score the candidates (n, k) of queries (n,) by the mean logit of the cross-encoders; save the scores in scores.npy.

    Returns:
        the scores (n, k).
    """
    scorers = cross_encoders(config, context, Collection(context.input("corpus")))
    score = logits(scorers, config.chunk_tokens, context.stage_name)
    return score_in_shards(score, query_rows, candidates, **in_shards(config, context, group, len(scorers)))


def in_shards(config: ScoringStageConfig, context: Context, group: ProcessGroup, scorers: int) -> dict[str, Any]:
    """Return the further arguments of ``score_in_shards`` for a number of scorers; the scores are saved in scores.npy."""
    named = {"path": context.folder / "scores.npy", "label": context.stage_name}
    return {**named, "size": config.shard_size, "group": group, "each": scorers}


def cross_encoder(
    artifact: Artifact, collection: Collection, precision: str, context: Context, queries: TokenStore | None = None
) -> PairScorer:
    """Load a cross-encoder. It reads token ids of its own tokenizer, so the tokenizers of an ensemble may differ.

    Args:
        artifact: artifact of the cross-encoder.
        collection: the collection whose pairs are scored.
        precision: fp32, bf16 or fp16.
        context: context of the stage that scores.
        queries: token ids, from the same tokenizer, of queries that replace the collection's queries; None = no replacement.

    Raises:
        UserError: the cross-encoder was trained on another collection.
    """
    tokens, reranker = Tokens(artifact.input("tokens").path), load_reranker(artifact.path)
    if (len(tokens.queries), len(tokens.passages)) != (len(collection.queries), len(collection.passages)):
        raise context.error("cross_encoders", f"{artifact.reference} was trained on another collection")
    reader = pair_reader(tokens, reranker.query_length, reranker.length, reranker.separators)
    if queries is not None:
        reader = replace(reader, queries=queries)
    return PairScorer(reader, on_device(reranker.model, CrossEncoder.scores, context, precision))


def cross_encoders(config: ScoringStageConfig, context: Context, collection: Collection) -> list[PairScorer]:
    """Load the cross-encoders of a stage."""
    artifacts = context.artifacts("cross_encoders")
    return [cross_encoder(artifact, collection, config.precision, context) for artifact in artifacts]


class CrossEncoderScorer:
    """Scores pairs by the cross-encoders' probability of relevance, for the rules of ``retrieval.positive_aware``."""

    def __init__(self, config: ScoringStageConfig, context: Context, collection: Collection) -> None:
        self.logits = logits(cross_encoders(config, context, collection), config.chunk_tokens, context.stage_name)

    def score(self, query_rows: np.ndarray, passage_rows: np.ndarray) -> np.ndarray:
        """Return probabilities (n, k), from 0 to 1, for passages (n, k) of queries (n,); NaN for padding (row -1)."""
        chances = probabilities(self.logits(query_rows, passage_rows, SILENT))
        return np.where(passage_rows < 0, np.float32(np.nan), chances)
