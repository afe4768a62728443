"""Metrics of a retriever of your own program on a data set."""

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from condensery.evaluation.names import split_metric

if TYPE_CHECKING:
    from condensery.retrieval.searchers import Searcher
    from condensery.text.collection import Collection

DEPTH = 1000  # passages that a metric without a cutoff looks at
METRICS = ("NDCG@10", "Recall@100")


def evaluate(
    retriever: "Searcher", data: "str | Path | Collection", metrics: Sequence[str] = METRICS, split: str = "test"
) -> dict[str, float]:
    """The mean of each metric over the judged queries of a data set, from 0 to 1, with trec_eval's definitions.

    All passages of the data set are indexed for it; the retriever's own index stays as it is.

    Args:
        retriever: a ``Retriever`` or ``BM25``.
        data: a folder in the BEIR layout, or a ``Collection``.
        metrics: such as NDCG@10, MRR@10, Recall@100, MAP or Success@5.
        split: train, dev or test; of a folder the file ``qrels/SPLIT.tsv``.

    Raises:
        UserError: a metric that does not exist, data that cannot be read, or a split that it does not have.
    """
    from condensery.text import read_collection
    from condensery.text.beir import BeirSource
    from condensery.text.collection import Collection

    for name in metrics:
        split_metric(name)
    if isinstance(data, Collection):
        return _measured(retriever, data, list(metrics), split)
    splits = {**dict.fromkeys(("train", "dev", "test")), split: split}
    source = BeirSource.model_validate(
        {"root": str(data), "name": None, "splits": splits, "documents": None}
        | {"empty_passages": "drop", "dev_queries": 0, "unlabelled_queries": 0}
    )
    with TemporaryDirectory(prefix="collection-") as folder:
        return _measured(retriever, read_collection(source, Path(folder)), list(metrics), split)


def _measured(retriever: "Searcher", collection: "Collection", metrics: list[str], split: str) -> dict[str, float]:
    from condensery.evaluation.metrics import evaluate as evaluate_run
    from condensery.retrieval.runs import Run

    columns = (collection.passages.column(name) for name in ("id", "title", "text"))
    passages = {name: {"title": title, "text": text} for name, title, text in zip(*columns, strict=True)}
    queries = collection.questions(split)
    depth = min(len(passages), max(split_metric(name)[1] or DEPTH for name in metrics))
    scores, rows = copy(retriever).index(passages).rank(collection.queries.column("text").take(queries), depth)
    return evaluate_run(Run(queries, rows, scores), collection, split, metrics).metrics
