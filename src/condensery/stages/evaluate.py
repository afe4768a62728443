"""Stage ``evaluate``: a retriever's run over one split, and its metrics per query."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from condensery.errors import UserError
from condensery.evaluation.names import split_metric
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import Split, unmeasurable


class EvaluateConfig(StageConfig):
    """``depth``: passages ranked for each query; at least the largest cutoff of ``metrics``."""

    index: Annotated[str, Input("index")]
    corpus: Annotated[str, Input("corpus")]
    split: Split
    metrics: Annotated[list[str], Field(min_length=1)]
    depth: Annotated[int, Field(gt=0)]

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: list[str]) -> list[str]:
        try:
            for name in metrics:
                split_metric(name)
        except UserError as error:
            raise ValueError(str(error)) from None
        return metrics

    @field_validator("depth")
    @classmethod
    def _deep_enough(cls, depth: int, info: ValidationInfo) -> int:
        cutoff = max((split_metric(name)[1] or 0 for name in info.data.get("metrics", [])), default=0)
        if depth < cutoff:
            raise ValueError(f"{depth} is too few to measure the metrics, which look at {cutoff} passages")
        return depth

    def misfit(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have, or metrics that it has not what it takes for."""
        return unmeasurable(self.metrics, self.split, inputs["corpus"])


@stage("evaluate", version=1, makes="evaluation", adapts="index")
def evaluate(config: EvaluateConfig, context: Context) -> dict[str, Any]:
    """Write run.trec.gz, evaluation.npz (per query) and metrics.json."""
    from condensery.evaluation.metrics import evaluate as evaluate_run
    from condensery.files import write_json
    from condensery.progress import progress
    from condensery.retrieval.index import open_index
    from condensery.retrieval.runs import Run, write_run
    from condensery.text.collection import Collection

    collection = Collection(context.input("corpus"))
    queries = collection.questions(config.split)
    retriever = open_index(context.input("index"), collection, context.runtime.threads)
    with progress(context.stage_name, len(queries), "queries") as task:
        scores, rows = retriever.search(queries, min(config.depth, len(retriever)), task)
    run = Run(queries, rows, scores)
    write_run(context.folder / "run.trec.gz", run, collection)
    evaluation = evaluate_run(run, collection, config.split, config.metrics)
    evaluation.save(context.folder / "evaluation.npz")
    write_json(context.folder / "metrics.json", {"metrics": evaluation.metrics})
    return evaluation.metrics
