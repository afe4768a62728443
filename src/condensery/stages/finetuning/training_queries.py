"""Training data from judged queries and from passages: queries, positives, and pools of hard negatives."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from condensery.errors import UserError, number_of
from condensery.models.vectors import VectorSettings
from condensery.retrieval.negative_pool import NegativePool, NegativeWeights
from condensery.retrieval.negatives import open_negatives, open_relabelled, read_negatives
from condensery.retrieval.no_negatives import NoNegatives
from condensery.retrieval.pair_scores import PairScores, TeacherScores
from condensery.stages.base import Context
from condensery.stages.checks import Split
from condensery.stages.finetuning.config import FinetuneConfig, QueriesConfig
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Queries, Tokens
from condensery.training.data.teaching import coverage
from condensery.training.data.training_queries import TextQueries, TrainingQueries, judged_queries, rows_of
from condensery.training.data.triples import TripleDataModule
from condensery.training.dev_passages import apart_from_dev
from condensery.training.held_out import chosen_queries


class QuerySubset(Protocol):
    """The config keys that select judged queries: a split, the number of queries (None = all), and the seed."""

    split: Split
    train_queries: int | None
    seed: int


def training_queries(config: QueriesConfig, context: Context, collection: Collection) -> TrainingQueries:
    """Return the training queries with their positives and negatives. Print a note if they fill no batch.

    The queries are the judged queries of a split (or a subset of them) and the queries of ``labels``. A passage is also a
    positive if an annotator found it relevant. The artifacts of ``negatives`` hold these judgements.

    Raises:
        UserError: a judged query has no positive, there are fewer queries than requested, or a source has negatives for
            none of the queries.
    """
    relevant = relevant_passages(config, context, collection)
    if config.leave_out_dev_passages:
        relevant = apart_from_dev(relevant, collection, context.place("leave_out_dev_passages"))
    each = config.positives == "each"
    pool, weights = _pooled(config, context, collection, rows_of(relevant, each), _labels(context))
    training = TrainingQueries.of(relevant, pool, weights, NoNegatives.of(collection, relevant), each=each)
    asked, there = getattr(config, "batch_size", 0), number_of(len(training.rows), "pairs" if each else "queries")
    if asked > len(training.rows):
        context.say(f"a batch has {there}, as there are no more (batch_size: {asked:,})")
    return training


def triple_data(
    config: Any,
    context: Context,
    training: TrainingQueries,
    lengths: tuple[int, int],
    settings: VectorSettings | None = None,
    **own: Any,
) -> TripleDataModule:
    """Return the data module of a stage that trains on judged queries; ``setup`` has been called.

    Args:
        config: config of the stage: a ``QueriesConfig`` with the keys of every training stage.
        context: context of the stage.
        training: the queries with their positives and negatives.
        lengths: maximum query length and passage length in tokens.
        settings: settings of the retriever, whose prefixes the texts get; None = no prefixes.
        own: further arguments of ``TripleDataModule``; they take precedence over the config's values.
    """
    given = config.values_of("batch_size", "seed")
    given |= dict(zip(("query_length", "passage_length"), lengths, strict=True))
    given |= {"chunk_tokens": config.budget, "workers": context.runtime.workers}
    given["negatives_per_query"] = config.negatives_per_query if config.negatives or config.labels else 0
    if settings is not None:
        given |= {"query_prefix": settings.query_prefix, "passage_prefix": settings.passage_prefix}
    tokens, tokenizer = Tokens(context.input("tokens")), context.input("tokenizer")
    data = TripleDataModule(tokens, tokenizer, training=training, **{**given, **own})
    data.setup()
    return data


def check_enough_passages(
    config: QueriesConfig, context: Context, training: TrainingQueries, collection: Collection
) -> None:
    """Raise ``UserError`` if the collection has too few passages for the negatives of a query."""
    each, there = config.negatives_per_query, len(collection.passages)
    needed = each + int(training.no_negative_numbers().max())
    if there < needed:
        few = f"the collection has {there} passages, and a query needs {needed}"
        raise context.error("", f"negatives_per_query={each}, but {few}; lower it")


def with_teacher(training: TrainingQueries, context: Context) -> TrainingQueries:
    """Return the training queries with the scores of the stages in ``teacher``, and print how many passages have a score.

    Raises:
        UserError: no passage has a score.
    """
    folders = [artifact.path for artifact in context.made_from.get("teacher", ())]
    if not folders:
        return training
    teacher = TeacherScores([PairScores.mapped(folder) for folder in folders], training.rows)
    training = replace(training, teacher=teacher)
    scored, total = coverage(training)
    if not scored:
        advice = "give score_pairs the queries (split, train_queries, labels) and the negatives of this stage"
        raise context.error("teacher", f"no passage that is trained on has a score; {advice}")
    share = 100 * scored / total
    context.say(f"{share:.1f} % of positives and hard negatives have a teacher's score")
    return training


def text_queries(config: FinetuneConfig, context: Context, collection: Collection) -> TextQueries | None:
    """Return the queries of passages that are not held out (``training.held_out``); None if the config names none.

    Queries of held-out passages are reserved for choosing checkpoints.

    Raises:
        UserError: every passage that has a query is held out.
    """
    if config.text_queries is None:
        return None
    queries = Queries(context.input("text_queries"))
    rows = chosen_queries(queries, len(queries.store), config.seed)
    if not len(rows):
        message = "all passages with a query are held out; add documents, or set it to null"
        raise context.error("text_queries", message)
    texts, own = queries.texts_at(rows), queries.owners[rows]
    return TextQueries.of(texts, queries.store, rows, own, collection, config.text_batch_size)


def relevant_passages(config: QuerySubset, context: Context, collection: Collection) -> dict[int, np.ndarray]:
    """Return the relevant passages of the training queries, by query row, ascending.

    The queries are the judged queries of a split (or a subset of them) and the queries of ``labels``.

    Raises:
        UserError: a judged query has no positive, or there are fewer queries than requested.
    """
    drawn = config.split, config.train_queries, config.seed
    judged = judged_queries(collection, *drawn, context.place("train_queries"))
    relevant = dict(sorted((_labelled(_labels(context), collection) | judged).items()))
    for artifact in context.made_from.get("negatives", ()):
        relevant = open_relabelled(artifact.path, collection).added_to(relevant)
    return relevant


def _labels(context: Context) -> list[Path]:
    """Return the non-empty files of labels; a file is empty if no query could be labelled."""
    paths = (artifact.path / "labels.jsonl" for artifact in context.made_from.get("labels", ()))
    return [path for path in paths if path.stat().st_size]


def _labelled(labels: Sequence[Path], collection: Collection) -> dict[int, np.ndarray]:
    """Return the passages that are labelled positive, by query row."""
    positives: dict[int, np.ndarray] = {}
    for path in labels:
        labelled = read_negatives(path, collection, "positive_ids")
        kept = (passages[passages >= 0] for passages in labelled.passage_rows)
        positives |= dict(zip(labelled.query_rows.tolist(), kept, strict=True))
    return positives


def _pooled(
    config: QueriesConfig, context: Context, collection: Collection, rows: np.ndarray, labels: Sequence[Path]
) -> tuple[NegativePool, NegativeWeights | None]:
    """Return the pool of negatives of the queries ``rows`` (q,), from all sources and label files, and its weights or None.

    Raises:
        UserError: a source has negatives for none of the queries.
    """
    if not config.negatives_per_query:
        return NegativePool([], rows), None
    sources = [(one / "negatives.jsonl", open_negatives(one, collection)) for one in context.inputs("negatives")]
    sources += [(path, read_negatives(path, collection)) for path in labels]
    for path, negatives in sources:
        if not np.isin(negatives.query_rows, rows).any():
            raise UserError(f"{path}: the file has no query of the split {config.split!r}; name another stage")
    depths: list[int | None] = [None] * len(sources)
    depths[: len(config.negatives)] = config.negative_depths or depths[: len(config.negatives)]
    pool = NegativePool([negatives for _, negatives in sources], rows, depths)
    if not config.negative_weights:
        return pool, None
    return pool, NegativeWeights(pool, [*config.negative_weights, *(1.0 for _ in labels)])
