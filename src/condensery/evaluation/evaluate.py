"""Evaluate a retriever from your own program on a data set."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from condensery.errors import UserError, shown
from condensery.evaluation.metrics import evaluate as evaluate_run
from condensery.evaluation.names import split_metric
from condensery.ranges import fault
from condensery.retrieval.indexes.own_passages import WithoutOwn, own_passages_left_out
from condensery.retrieval.runs import Run
from condensery.retrieval.searchers.base import Searcher, SearcherIndex
from condensery.text.collection import Collection
from condensery.text.to_collection import collection_of

Split = Literal["train", "dev", "test"]
DEPTH = 1000  # number of passages per query that a metric without a cutoff covers
METRICS = ("NDCG@10", "Recall@100")


def evaluate(
    retriever: Searcher, data: str | Path | Collection, metrics: str | Sequence[str] = METRICS, split: str = "test"
) -> dict[str, float]:
    """Return the mean of each metric over the judged queries of a data set, from 0 to 1, by trec_eval's definitions.

    All passages of the data set are indexed for the evaluation. The retriever's own index does not change. A passage with
    the same id and text as the query is excluded from the ranking, unless it is judged relevant. A printed line reports how
    many queries have such a passage.

    Args:
        retriever: a ``Retriever``, ``BM25``, or a combination of several retrievers (``Fused``).
        data: a folder in the BEIR layout, or a ``Collection``.
        metrics: name or names of metrics, such as NDCG@10, MRR@10, Recall@100, MAP or Success@5.
        split: a split of the collection. The splits of a folder are train, dev and test, with judgements in
            ``qrels/SPLIT.tsv``. Without dev.tsv, ``dev`` has the train queries that the data modules hold out.

    Returns:
        Name of a metric -> mean over the queries.

    Raises:
        UserError: a metric does not exist, the data cannot be read, or the split does not exist.
    """
    metrics = [metrics] if isinstance(metrics, str) or not isinstance(metrics, Iterable) else list(metrics)
    depth = max((split_metric(name)[1] or DEPTH for name in metrics), default=0)
    if not isinstance(retriever, Searcher) or not depth:
        raise UserError("evaluate: give a searcher, such as BM25() or Retriever(...), and at least one metric")
    if not isinstance(data, Collection) and (wanted := fault(Split, split)):  # a collection may have dl19, too
        raise UserError(f"evaluate: split must be {wanted}, not {shown(repr(split))}")
    collection = collection_of(data, None if split == "dev" else {split: split})
    index, queries = WithoutOwn(SearcherIndex.of(retriever, collection), collection), collection.questions(split)
    index.warn(queries)
    scores, rows = index.search(queries, min(len(index), depth))
    own_passages_left_out(collection, queries, "evaluate")
    return evaluate_run(Run(queries, rows, scores), collection, split, metrics).metrics
