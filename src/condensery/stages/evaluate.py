"""Stage ``evaluate``: a retriever's run over one split, and its metrics per query."""

from typing import Annotated, Any

from pydantic import Field

from condensery.stages.base import Context, Input, StageConfig, stage


class EvaluateConfig(StageConfig):
    """``depth``: passages ranked for each query; at least the largest cutoff of ``metrics``."""

    index: Annotated[str, Input("index")]
    corpus: Annotated[str, Input("corpus")]
    split: str
    metrics: Annotated[list[str], Field(min_length=1)]
    depth: Annotated[int, Field(gt=0)]


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
    queries = collection.qrels(config.split).query_set
    retriever = open_index(context.input("index"), collection, context.runtime.threads)
    with progress(context.stage_name, len(queries), "queries") as task:
        scores, rows = retriever.search(queries, min(config.depth, len(retriever)), task)
    run = Run(queries, rows, scores)
    write_run(context.folder / "run.trec.gz", run, collection)
    evaluation = evaluate_run(run, collection, config.split, config.metrics)
    evaluation.save(context.folder / "evaluation.npz")
    write_json(context.folder / "metrics.json", {"metrics": evaluation.metrics})
    return evaluation.metrics
