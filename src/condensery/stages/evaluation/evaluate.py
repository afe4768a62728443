"""Stage ``evaluate``: a retriever's run over one split, and its metrics per query."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationInfo, field_validator

from condensery.errors import UserError
from condensery.evaluation.names import split_metric
from condensery.stages.base import Context, Input, StageConfig, retriever_name, stage
from condensery.stages.checks import Split, not_encoded, unmeasurable
from condensery.stages.sharing import process_group, searched_together
from condensery.stages.work import Read, Work, known, product, search

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from condensery.retrieval.ranking import Ranking
    from condensery.retrieval.retriever import CollectionRetriever
    from condensery.system.progress import ProgressTask
    from condensery.text.collection import Collection


class EvaluateConfig(StageConfig):
    """``depth``: passages ranked for each query; at least the largest cutoff of ``metrics``.

    ``candidates``: whose ``candidates_depth`` best passages ``candidates_number`` are drawn from, to be ranked with one
    positive instead of all passages (Zhao et al., §4.1).
    A passage that is the query itself, by its id and its text, is not ranked (``own_passages``).
    ``ignore_identical_ids``: by its id alone, as in BEIR's own evaluation.
    """

    index: Annotated[str, Input("index")]
    corpus: Annotated[str, Input("corpus")]
    split: Split
    metrics: Annotated[list[str], Field(min_length=1)]
    depth: Annotated[int, Field(gt=0)]
    candidates: Annotated[str | None, Input("index")]
    candidates_number: Annotated[int, Field(gt=0)]
    candidates_depth: Annotated[int, Field(gt=0)]
    ignore_identical_ids: bool

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

    def work(self, read: Read) -> Work:
        """All queries of the split are searched; a line of the run takes ten bytes, packed."""
        sizes = known(read, "corpus", "index")
        queries = sizes.collection.queries.get(self.split)
        looked = search(sizes, queries, self.depth)
        return Work(sizes, products=looked.products, seconds=looked.seconds, disk=product(10.0 * self.depth, queries))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have, or metrics that it has not what it takes for."""
        missing = unmeasurable(self.metrics, self.split, inputs["corpus"])
        return missing or not_encoded(self.split, "index", inputs["index"])


def _together(config: EvaluateConfig, context: Context) -> bool:
    from condensery.text.collection import Collection

    queries = Collection(context.input("corpus")).questions(config.split)
    return config.candidates is None and searched_together(context.input("index"), len(queries))


@stage("evaluate", version=3, makes="evaluation", adapts="index", together=_together)
def evaluate(config: EvaluateConfig, context: Context) -> dict[str, Any]:
    """Write run.trec.gz, evaluation.npz (per query) and metrics.json; whole shards of queries are kept on a restart."""
    import shutil

    from condensery.evaluation.metrics import evaluate as evaluate_run
    from condensery.retrieval.own_passages import own_passages_left_out
    from condensery.retrieval.retriever import recall_of, unmatched_queries
    from condensery.retrieval.runs import write_run
    from condensery.retrieval.shards import open_ranking, rank_in_shards
    from condensery.system.files import write_json
    from condensery.text.collection import Collection

    runtime, collection = context.runtime, Collection(context.input("corpus"))
    group = process_group(runtime)
    queries = collection.questions(config.split)
    retriever = _opened("index", config, context, collection)
    if config.candidates is not None:
        retriever = _sampled(retriever, config, context, collection)
    depth, scratch = min(config.depth, len(retriever)), context.folder / "ranking"

    def rank(rows: "NDArray[np.int64]", task: "ProgressTask") -> "Ranking":
        return retriever.search(rows, depth, task)

    rank_in_shards(rank, queries, depth, scratch, context.stage_name, group=group)
    group.leave_unless_rank_zero()
    run = open_ranking(scratch)
    write_run(context.folder / "run.trec.gz", run, collection, retriever_name(context.artifact("index")))
    evaluation = evaluate_run(run, collection, config.split, config.metrics)
    evaluation.save(context.folder / "evaluation.npz")
    own = own_passages_left_out(collection, queries, context.stage_name, config.ignore_identical_ids)
    write_json(context.folder / "metrics.json", {"metrics": evaluation.metrics, **own})
    shutil.rmtree(scratch)
    found = {**recall_of(retriever, context.stage_name), **unmatched_queries(retriever, queries)}
    return {**evaluation.metrics, **own, **found}


def _opened(field: str, config: EvaluateConfig, context: Context, collection: "Collection") -> "CollectionRetriever":
    """The retriever of the index that a field of the config names."""
    from condensery.retrieval.index import open_index

    runtime, by_id = context.runtime, config.ignore_identical_ids
    index = context.input(field)
    return open_index(index, collection, runtime.threads, device=runtime.search_device, own_by_id=by_id)


def _sampled(
    ranker: "CollectionRetriever", config: EvaluateConfig, context: Context, collection: "Collection"
) -> "CollectionRetriever":
    """The retriever on a sample of candidates. ``UserError`` where it cannot score passages that it did not find."""
    from condensery.retrieval.sampling import SampledCandidates
    from condensery.system.files import read_json

    if read_json(context.input("index") / "index.json")["method"] in ("fused", "rerank"):
        raise UserError(f"stages.{context.stage_name}.candidates: {config.index} scores no passages but its own")
    pool, positives = _opened("candidates", config, context, collection), collection.qrels(config.split).positives()
    return SampledCandidates(ranker, pool, positives, config.candidates_number, config.candidates_depth)
