"""What stages train on that learn from judged queries: the queries, their positives, and pools of hard negatives."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from condensery.errors import UserError
from condensery.retrieval.negatives import open_negatives, open_relabelled, read_negatives
from condensery.retrieval.no_negatives import NoNegatives
from condensery.retrieval.pair_scores import TeacherScores, open_pair_scores
from condensery.retrieval.pool import NegativePool, NegativeWeights
from condensery.stages.base import Context
from condensery.stages.finetuning.config import QueriesConfig
from condensery.text.collection import Collection
from condensery.training.batches.teaching import coverage
from condensery.training.batches.training_queries import TrainingQueries, judged_queries
from condensery.training.dev_passages import apart_from_dev


class QuerySubset(Protocol):
    """The keys that choose judged queries, of any stage that has them: a split, and how many of it (None = all)."""

    @property
    def split(self) -> str: ...
    @property
    def train_queries(self) -> int | None: ...
    @property
    def seed(self) -> int: ...


def training_queries(config: QueriesConfig, context: Context, collection: Collection) -> TrainingQueries:
    """The judged queries of a split, or a subset of them, and those that ``labels`` adds; their positives and negatives.

    What people relabelled as relevant, which the sources of negatives tell, is a positive too.

    Raises:
        UserError: a judged query has no positive, there are fewer queries than asked for, or a source has none of them.
    """
    relevant = relevant_passages(config, context, collection)
    if config.leave_out_dev_passages:
        relevant = apart_from_dev(relevant, collection, f"stages.{context.stage_name}.leave_out_dev_passages")
    pool, weights = _pooled(config, context, collection, np.fromiter(relevant, np.int64), _labels(context))
    return TrainingQueries.of(relevant, pool, weights, NoNegatives.of(collection, relevant))


def with_teacher(training: TrainingQueries, context: Context) -> TrainingQueries:
    """The same with the scores that the stages ``teacher`` have made; a line says how many passages have one.

    Raises ``UserError`` where none has.
    """
    folders = [artifact.path for artifact in context.made_from.get("teacher", ())]
    if not folders:
        return training
    teacher = TeacherScores([open_pair_scores(folder) for folder in folders], training.rows)
    training = replace(training, teacher=teacher)
    scored, total = coverage(training)
    if not scored:
        raise UserError(
            f"stages.{context.stage_name}.teacher: no passage that is trained on has a score; give score_pairs the queries"
            " (split, train_queries, labels) and the negatives of this stage"
        )
    share = 100 * scored / total
    print(
        f"[{context.stage_name}] {share:.1f} % of the positives and hard negatives have a teacher's score", flush=True
    )
    return training


def relevant_passages(config: QuerySubset, context: Context, collection: Collection) -> dict[int, np.ndarray]:
    """The relevant passages of the judged queries of a split, or a subset of them, and of those that ``labels`` adds.

    By query row, ascending. Raises ``UserError`` as ``training_queries``.
    """
    key = f"stages.{context.stage_name}.train_queries"
    judged = judged_queries(collection, config.split, config.train_queries, config.seed, key)
    relevant = dict(sorted((_labelled(_labels(context), collection) | judged).items()))
    for artifact in context.made_from.get("negatives", ()):
        relevant = open_relabelled(artifact.path, collection).added_to(relevant)
    return relevant


def _labels(context: Context) -> list[Path]:
    """The files of labels that hold any: it may be that nothing could be labelled."""
    paths = (artifact.path / "labels.jsonl" for artifact in context.made_from.get("labels", ()))
    return [path for path in paths if path.stat().st_size]


def _labelled(labels: Sequence[Path], collection: Collection) -> dict[int, np.ndarray]:
    """The passages that were labelled positive, by query."""
    positives: dict[int, np.ndarray] = {}
    for path in labels:
        labelled = read_negatives(path, collection, "positive_ids")
        kept = (passages[passages >= 0] for passages in labelled.passage_rows)
        positives |= dict(zip(labelled.query_rows.tolist(), kept, strict=True))
    return positives


def _pooled(
    config: QueriesConfig, context: Context, collection: Collection, rows: np.ndarray, labels: Sequence[Path]
) -> tuple[NegativePool, NegativeWeights | None]:
    """The negatives of the queries ``rows`` (q,), those of the labels too, and their weights where they have any."""
    if not config.negatives_per_query:
        return NegativePool([], rows), None
    sources = [
        (folder / "negatives.jsonl", open_negatives(folder, collection)) for folder in context.inputs("negatives")
    ]
    sources += [(path, read_negatives(path, collection)) for path in labels]
    for path, negatives in sources:
        if not np.isin(negatives.query_rows, rows).any():
            raise UserError(f"{path}: no query of the split {config.split!r} is in it")
    depths: list[int | None] = [None] * len(sources)
    depths[: len(config.negatives)] = config.negative_depths or depths[: len(config.negatives)]
    pool = NegativePool([negatives for _, negatives in sources], rows, depths)
    if not config.negative_weights:
        return pool, None
    return pool, NegativeWeights(pool, [*config.negative_weights, *(1.0 for _ in labels)])
