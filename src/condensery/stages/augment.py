"""Stage ``augment``: labels by a cross-encoder for queries that nobody has judged (RocketQA's fourth step)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from condensery.errors import UserError
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.scoring import ScoringStageConfig, no_probability, scored
from condensery.stages.training import Share


class AugmentConfig(ScoringStageConfig):
    """Of the ``depth`` best passages those above ``positive`` are positives, those below ``negative`` negatives."""

    retriever: Annotated[str, Input("index")]
    depth: Annotated[int, Field(gt=0)]
    positive: Share
    negative: Share

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.negative > self.positive:
            raise ValueError(f"negative={self.negative} is above positive={self.positive}: a passage would be both")
        return self

    def misfit(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Scores that are no probabilities; a collection in which every query is judged."""
        data = getattr(inputs["corpus"][0], "data", None) if inputs["corpus"] else None
        if data is not None and not data.unlabelled_queries:
            advice = "set data.unlabelled_queries to a number of training queries, or to unjudged"
            return "corpus", f"all queries of the collection {data.name} are judged; {advice}"
        return no_probability(inputs)


@stage("augment", version=1, makes="labels", cost=5.0)
def augment(config: AugmentConfig, context: Context) -> dict[str, Any]:
    """Write labels.jsonl for the queries of the collection that no split judges."""
    from condensery.retrieval.index import open_index, recall_of
    from condensery.retrieval.labelling import write_labels
    from condensery.retrieval.reranking import search_candidates
    from condensery.text.collection import Collection

    collection = Collection(context.input("corpus"))
    queries = collection.unjudged()
    if not len(queries):
        raise UserError(
            f"stages.{context.stage_name}: every query of the collection {collection.name} is judged; there is none to label"
        )
    retriever = open_index(context.input("retriever"), collection, context.runtime.threads)
    path = context.folder / "candidates.npy"
    candidates = search_candidates(retriever, queries, config.depth, path, context.stage_name)
    scores = scored(config, context, queries, candidates)
    out = context.folder / "labels.jsonl"
    counts = write_labels(out, collection, queries, candidates, scores, config.positive, config.negative)
    print(
        f"[{context.stage_name}] {counts['queries']:,} of {len(queries):,} queries have a passage above {config.positive};"
        " the others are left out",
        flush=True,
    )
    return {**counts, **recall_of(retriever, context.stage_name)}
