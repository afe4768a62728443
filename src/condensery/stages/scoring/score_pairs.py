"""Stage ``score_pairs``: computes a teacher's scores of a retriever's training passages (distillation)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from condensery.errors import UserError, number_of
from condensery.retrieval.cross_encoders import Score, logits, score_in_shards
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.negatives import open_negatives
from condensery.retrieval.pair_scores import PairScores, read_pair_scores, save_pair_scores
from condensery.retrieval.teachers import by_retriever, counts, pool_to_score, together
from condensery.stages.base import Context
from condensery.stages.finetuning.training_queries import relevant_passages
from condensery.stages.scoring.config import ScorePairsConfig
from condensery.stages.scoring.scoring import cross_encoders, in_shards
from condensery.stages.sharing import process_group
from condensery.text.collection import Collection


def several_shards(config: ScorePairsConfig, context: Context) -> bool:

    if not config.cross_encoders:
        return False
    return len(relevant_passages(config, context, Collection(context.input("corpus")))) > config.shard_size


def score_pairs(config: ScorePairsConfig, context: Context) -> dict[str, Any]:
    """Write queries.npy, passages.npy, scores.npy and pair_scores.jsonl; a restart keeps complete shards of scores."""
    group, collection = process_group(context.runtime), Collection(context.input("corpus"))
    positives = relevant_passages(config, context, collection)
    if config.file is None:
        negatives = [open_negatives(folder, collection) for folder in context.inputs("negatives")]
        queries, candidates = pool_to_score(positives, negatives, config.depth)
        scorers = _scorers(config, context, collection)
        score, how = together(scorers, config.weights, config.scaling), in_shards(config, context, group, len(scorers))
        pairs = PairScores(queries, candidates, score_in_shards(score, queries, candidates, **how))
    else:
        pairs = _read(config.file, collection, positives, config.split)
    found = counts(pairs, positives)
    save_pair_scores(context.folder, pairs, collection)
    _tell(context, found)
    return found


def _read(path: Path, collection: Collection, positives: Mapping[int, np.ndarray], split: str) -> PairScores:
    """Read the scores of the training queries from a file.

    Raises:
        UserError: no training query has two or more scored passages in the file, so nothing can be learned from it.
    """
    pairs = read_pair_scores(path, collection).of_queries(np.array(sorted(positives), np.int64))
    if not (pairs.filled.sum(axis=1) > 1).any():
        raise UserError(f"{path}: no training query of the split {split!r} has two scored passages; add scores")
    return pairs


def _scorers(config: ScorePairsConfig, context: Context, collection: Collection) -> list[Score]:
    """Return the scorers, cross-encoders first."""
    runtime, encoders = context.runtime, cross_encoders(config, context, collection)
    found: list[Score] = [logits([one], config.chunk_tokens, context.stage_name) for one in encoders]
    for folder in context.inputs("retrievers"):
        index: Any = open_index(folder, collection, runtime.threads, device=runtime.search_device)
        found.append(by_retriever(index))
    return found


def _tell(context: Context, found: Mapping[str, int]) -> None:
    """Print how many pairs have a score, and how many queries have too few scored passages."""
    pairs = f"pairs of {number_of(found['queries'], 'queries')} have"
    context.say(f"{number_of(found['pairs'], pairs)} a score")
    if without := found["queries_without_positive"]:
        context.say(f"{without:,} queries have no scored positive: margin_mse learns nothing from them")
    if found["queries_without_scores"]:
        context.say(f"{found['queries_without_scores']:,} queries have fewer than two scored passages")
