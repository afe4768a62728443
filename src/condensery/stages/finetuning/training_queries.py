"""What stages train on that learn from judged queries: the queries, their positives, and pools of hard negatives."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from condensery.errors import UserError
from condensery.models.flops import Step
from condensery.stages.base import Context, Input, StageConfig
from condensery.stages.checks import Split, missing_split
from condensery.stages.training import Count
from condensery.stages.work import QUESTION, Sizes, Work

if TYPE_CHECKING:
    import numpy as np

    from condensery.retrieval.pool import NegativePool, NegativeWeights
    from condensery.stages.finetuning.finetune import FinetuneConfig
    from condensery.stages.finetuning.train_cross_encoder import TrainCrossEncoderConfig
    from condensery.stages.retrieval.score_pairs import ScorePairsConfig
    from condensery.text.collection import Collection
    from condensery.training.batches.triples import TrainingQueries


class QueriesConfig(StageConfig):
    """Which queries are trained on, and where their negatives come from.

    ``leave_out_dev_passages``: no query is trained on that shares a relevant passage with a dev query.
    """

    negatives: Annotated[list[str], Input("negatives")]
    negative_depths: list[Count] | None
    negative_weights: list[Annotated[float, Field(gt=0)]] | None
    labels: Annotated[list[str], Input("labels")]
    split: Split
    train_queries: Count | None
    leave_out_dev_passages: bool
    negatives_per_query: Annotated[int, Field(ge=0)]
    seed: Annotated[int, Field(ge=0)]

    @field_validator("negative_depths", "negative_weights")
    @classmethod
    def _one_a_source(cls, values: list[Any] | None, info: ValidationInfo) -> list[Any] | None:
        sources = info.data.get("negatives", [])
        if values is not None and len(values) != len(sources):
            raise ValueError(
                f"{len(values)} numbers for {len(sources)} sources of negatives; give one for each, or null"
            )
        return values

    def by_content(self) -> set[str]:
        """``leave_out_dev_passages`` came later: where it is false the ids are those of before."""
        return super().by_content() | (set() if self.leave_out_dev_passages else {"leave_out_dev_passages"})

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have."""
        return missing_split(self.split, inputs["corpus"])


def training_work(
    config: "FinetuneConfig | TrainCrossEncoderConfig",
    sizes: Sizes,
    passages: int,
    longest: int,
    contrast: bool,
    texts: int = 0,
) -> Work:
    """Steps of ``batch_size`` queries with so many ``passages`` each of ``longest`` tokens at most.

    Where there is no ``contrast`` query and passage are read together. ``texts``: queries of the text a step, each with its
    passage where passages are encoded.
    """
    queries, text, step = sizes.collection.queries.get(config.split), sizes.collection.passage_tokens, None
    if config.train_queries is not None:
        queries = float(config.train_queries)
    if sizes.encoder is not None and text is not None:
        question = min(QUESTION, config.query_length)
        each = min(text + 2, longest) if contrast else min(text + 1 + question, longest)
        rows = config.batch_size * (passages + contrast) + texts * (1 + min(passages, 1))
        length = (passages * each + contrast * question) / (passages + contrast)
        step = Step(sizes.encoder, rows, length, config.budget, contrast=contrast, precision=config.precision)
    return config.training(sizes, step, queries)


def training_queries(config: QueriesConfig, context: Context, collection: "Collection") -> "TrainingQueries":
    """The judged queries of a split, or a subset of them, and those that ``labels`` adds; their positives and negatives.

    What people relabelled as relevant, which the sources of negatives tell, is a positive too.

    Raises:
        UserError: a judged query has no positive, there are fewer queries than asked for, or a source has none of them.
    """
    import numpy as np

    from condensery.retrieval.no_negatives import NoNegatives
    from condensery.training.batches.triples import TrainingQueries
    from condensery.training.dev_passages import apart_from_dev

    relevant = relevant_passages(config, context, collection)
    if config.leave_out_dev_passages:
        relevant = apart_from_dev(relevant, collection, f"stages.{context.stage_name}.leave_out_dev_passages")
    pool, weights = _pooled(config, context, collection, np.fromiter(relevant, np.int64), _labels(context))
    return TrainingQueries.of(relevant, pool, weights, NoNegatives.of(collection, relevant))


def with_teacher(training: "TrainingQueries", context: Context) -> "TrainingQueries":
    """The same with the scores that the stages ``teacher`` have made; a line says how many passages have one.

    Raises ``UserError`` where none has.
    """
    from dataclasses import replace

    from condensery.retrieval.pair_scores import TeacherScores, open_pair_scores
    from condensery.training.batches.teaching import coverage

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


def relevant_passages(
    config: "QueriesConfig | ScorePairsConfig", context: Context, collection: "Collection"
) -> "dict[int, np.ndarray]":
    """The relevant passages of the judged queries of a split, or a subset of them, and of those that ``labels`` adds.

    By query row, ascending. Raises ``UserError`` as ``training_queries``.
    """
    from condensery.retrieval.negatives import open_relabelled
    from condensery.training.batches.triples import judged_queries

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


def _labelled(labels: Sequence[Path], collection: "Collection") -> "dict[int, np.ndarray]":
    """The passages that were labelled positive, by query."""
    from condensery.retrieval.negatives import read_negatives

    positives: dict[int, np.ndarray] = {}
    for path in labels:
        labelled = read_negatives(path, collection, "positive_ids")
        kept = (passages[passages >= 0] for passages in labelled.passage_rows)
        positives |= dict(zip(labelled.query_rows.tolist(), kept, strict=True))
    return positives


def _pooled(
    config: QueriesConfig, context: Context, collection: "Collection", rows: "np.ndarray", labels: Sequence[Path]
) -> "tuple[NegativePool, NegativeWeights | None]":
    """The negatives of the queries ``rows`` (q,), those of the labels too, and their weights where they have any."""
    import numpy as np

    from condensery.retrieval.negatives import open_negatives, read_negatives
    from condensery.retrieval.pool import NegativePool, NegativeWeights

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
