"""Stage ``filter_queries``: keeps the generated queries most relevant to their passages (doc2query--).

Gospodinov, MacAvaney and Macdonald 2023, "Doc2Query--: When Less is More": a relevance model scores each generated query
against its passage. A query is kept if its score is above a percentile of the scores of all queries of the collection.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.baselines.expansion.config import FilterQueriesConfig
from condensery.baselines.expansion.made_for import check_made_for
from condensery.errors import number_of
from condensery.retrieval.cross_encoders import PairScorer, logits, score_in_shards
from condensery.stages.base import Artifact, Context
from condensery.stages.queries.writing import write_queries
from condensery.stages.scoring.scoring import cross_encoder
from condensery.stages.sharing import process_group
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Queries

BLOCK = 4096  # queries that are read at a time


def several_shards(config: FilterQueriesConfig, context: Context) -> bool:
    """Return whether there are enough queries for several processes to save time."""
    return len(Queries(context.input("queries")).store) > config.shard_size


def filter_queries(config: FilterQueriesConfig, context: Context) -> dict[str, Any]:
    """Write the kept queries, in the format of generated queries, and scores.npy with the scores of all queries.

    Raises:
        UserError: the queries were made for other passages, or a cross-encoder has another tokenizer.
    """
    check_made_for(context)
    group, queries = process_group(context.runtime), Queries(context.input("queries"))
    collection = Collection(context.input("corpus"))
    scorers = [
        _scorer(artifact, config, context, collection, queries) for artifact in context.artifacts("cross_encoders")
    ]
    label, path, rows = context.stage_name, context.folder / "scores.npy", np.arange(len(queries.owners))
    score, passages = logits(scorers, config.chunk_tokens, label), queries.owners[:, None]
    scores = score_in_shards(score, rows, passages, path, config.shard_size, label, group, len(scorers))[:, 0]
    kept = best_share(scores, config.share)
    counts = write_queries(_pairs(queries, np.flatnonzero(kept)), context)
    context.say(f"{number_of(counts['queries'], f'of {len(kept):,} queries are')} kept")
    return {"scored": len(kept), "lowest_score": float(scores[kept].min()), **counts}


def best_share(scores: NDArray[np.floating], share: float) -> NDArray[np.bool_]:
    """Return a mask (Q,) of the scores (Q,) that are at or above their quantile at 1 - ``share``.

    Equal scores at the threshold are all kept.
    """
    kept: NDArray[np.bool_] = scores >= np.quantile(scores, 1 - share)
    return kept


def _pairs(queries: Queries, rows: NDArray[np.int64]) -> Iterator[tuple[int, str]]:
    """Yield (passage row, query) for the queries at ``rows``."""
    for first in range(0, len(rows), BLOCK):
        block = rows[first : first + BLOCK]
        yield from zip(queries.owners[block].tolist(), queries.texts_at(block), strict=True)


def _scorer(
    artifact: Artifact, config: FilterQueriesConfig, context: Context, collection: Collection, queries: Queries
) -> PairScorer:
    if artifact.input("tokens").input("tokenizer").id != context.artifact("queries").input("tokenizer").id:
        other = f"{artifact.reference} has another tokenizer than the queries of {config.queries}"
        raise context.error("cross_encoders", other)
    return cross_encoder(artifact, collection, config.precision, context, queries.store)
