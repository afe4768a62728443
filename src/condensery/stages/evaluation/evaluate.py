"""Stage ``evaluate``: runs a retriever on the queries of one split, and computes the metrics of each query."""

import shutil
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.evaluation.metrics import evaluate as evaluate_run
from condensery.evaluation.names import split_metric
from condensery.retrieval.indexes.divided import divide
from condensery.retrieval.indexes.interface import CollectionRetriever, recall_of, unmatched_queries
from condensery.retrieval.indexes.opening import open_index, search_of_texts
from condensery.retrieval.indexes.own_passages import own_passages_left_out
from condensery.retrieval.indexes.sampled import SampledCandidates
from condensery.retrieval.query_encoder import query_encoder
from condensery.retrieval.ranking import Ranking
from condensery.retrieval.runs import Run, write_run
from condensery.retrieval.shards import rank_in_shards
from condensery.stages.base import Artifact, Context, retriever_name
from condensery.stages.evaluation.config import EvaluateConfig
from condensery.stages.sharing import process_group, searched_together
from condensery.system.files import read_json, write_json
from condensery.system.progress import ProgressTask
from condensery.text.collection import Collection

STORED = ("rerank", "run")  # methods whose index is a stored ranking of the queries


def shared_search(config: EvaluateConfig, context: Context) -> bool:

    queries = Collection(context.input("corpus")).questions(config.split)
    return config.candidates is None and searched_together(context.input("index"), len(queries))


def evaluate(config: EvaluateConfig, context: Context) -> dict[str, Any]:
    """Write run.trec.gz, evaluation.npz (per query) and metrics.json; return the metrics and warnings for the manifest.

    A restarted stage keeps complete shards of queries.
    """
    runtime, collection = context.runtime, Collection(context.input("corpus"))
    group = process_group(runtime)
    queries = collection.questions(config.split)
    retriever = _opened("index", config, context, collection)
    if config.candidates is not None:
        retriever = _sampled(retriever, config, context, collection)
    depth, scratch = min(config.depth, len(retriever)), context.folder / "ranking"

    def rank(rows: NDArray[np.int64], task: ProgressTask) -> Ranking:
        return retriever.search(rows, depth, task)

    divide(retriever, queries, depth, scratch / "queries.npy", context.stage_name, group)
    rank_in_shards(rank, queries, scratch, context.stage_name, group=group)
    group.leave_unless_rank_zero()
    run = Run.mapped(scratch)
    write_run(context.folder / "run.trec.gz", run, collection, retriever_name(context.artifact("index")))
    evaluation = evaluate_run(run, collection, config.split, config.metrics)
    evaluation.save(context.folder / "evaluation.npz")
    own = own_passages_left_out(collection, queries, context.stage_name, config.ignore_identical_ids)
    write_json(context.folder / "metrics.json", {"metrics": evaluation.metrics, **own})
    shutil.rmtree(scratch)
    found = {**recall_of(retriever, context.stage_name), **unmatched_queries(retriever, queries)}
    found |= _too_shallow(config, context, len(retriever))
    found |= _timed(retriever, config, context, collection)
    return {**evaluation.metrics, **own, **found}


def _opened(field: str, config: EvaluateConfig, context: Context, collection: Collection) -> CollectionRetriever:
    """Open the index that a field of the config names."""
    runtime, by_id = context.runtime, config.ignore_identical_ids
    index = context.input(field)
    return open_index(index, collection, runtime.threads, device=runtime.search_device, own_by_id=by_id)


def _sampled(
    ranker: CollectionRetriever, config: EvaluateConfig, context: Context, collection: Collection
) -> CollectionRetriever:
    """Restrict the retriever to a sample of candidates.

    Raises:
        UserError: the retriever cannot score given passages, only passages that it retrieves itself.
    """
    if read_json(context.input("index") / "index.json")["method"] in ("fused", *STORED):
        raise context.error("candidates", f"{config.index} scores only what it finds; set null")
    pool, positives = _opened("candidates", config, context, collection), collection.qrels(config.split).positives()
    return SampledCandidates(ranker, pool, positives, config.candidates_number, config.candidates_depth)


def _too_shallow(config: EvaluateConfig, context: Context, passages: int) -> dict[str, list[str]]:
    """Return the ``warnings`` of a manifest if stored rankings have fewer passages per query than a metric counts."""
    about = read_json(context.input("index") / "index.json")
    depth = about["depth"] if about["method"] in STORED else passages
    if deeper := [name for name in config.metrics if min(split_metric(name)[1] or 0, passages) > depth]:
        return {
            "warnings": [f"{config.index} ranks {depth:,} passages of a query, so {', '.join(deeper)} counts no more"]
        }
    return {}


def _timed(
    retriever: CollectionRetriever, config: EvaluateConfig, context: Context, collection: Collection
) -> dict[str, float]:
    """Return the mean milliseconds of a query, for the manifest. Queries are encoded and searched one at a time.

    The result is {} without ``timed``, with ``candidates``, and for stored rankings, which take no new queries.
    """
    method = read_json(context.input("index") / "index.json")["method"]
    if not config.timed or config.candidates is not None or method in STORED:
        return {}
    rows = collection.questions(config.split)[: config.timed]
    texts, depth = list(collection.queries.column("text").take(rows)), min(config.depth, len(retriever))
    search = search_of_texts(retriever, lambda vectors: query_encoder(Artifact(vectors).input("model").path))
    search(texts[:1], depth)  # loads the encoder
    began = time.perf_counter()
    for text in texts:
        search([text], depth)
    return {"milliseconds_per_query": 1000 * (time.perf_counter() - began) / len(texts)}
