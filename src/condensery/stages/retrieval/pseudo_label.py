"""Stage ``pseudo_label``: labels by a cross-encoder for queries that nobody has judged (RocketQA's fourth step)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from condensery.errors import UserError
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import not_encoded
from condensery.stages.retrieval.scoring import ScoringStageConfig, no_probability, scored, searched
from condensery.stages.sharing import process_group
from condensery.stages.training import Share
from condensery.stages.work import Read, Work, known


class AugmentConfig(ScoringStageConfig):
    """Of the ``depth`` best passages those above ``positive`` are positives, those below ``negative`` negatives."""

    retriever: Annotated[str, Input("index")]
    depth: Annotated[int, Field(gt=0)]
    positive: Share
    negative: Share

    def work(self, read: Read) -> Work:
        """See ``ScoringStageConfig``."""
        return self.scoring(read, known(read, "corpus").collection.unjudged, self.depth)

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.negative > self.positive:
            raise ValueError(f"negative={self.negative} is above positive={self.positive}: a passage would be both")
        return self

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Scores that are no probabilities; a collection in which every query is judged."""
        data = getattr(inputs["corpus"][0], "data", None) if inputs["corpus"] else None
        if data is not None and not data.unlabelled_queries:
            advice = "set data.unlabelled_queries to a number of training queries, or to unjudged"
            return "corpus", f"all queries of the collection {data.name} are judged; {advice}"
        return not_encoded("unjudged", "retriever", inputs["retriever"]) or no_probability(inputs)


def _several_shards(config: AugmentConfig, context: Context) -> bool:
    from condensery.text.collection import Collection

    return len(Collection(context.input("corpus")).unjudged()) > config.shard_size


@stage("pseudo_label", version=2, makes="labels", cost=5.0, together=_several_shards)
def pseudo_label(config: AugmentConfig, context: Context) -> dict[str, Any]:
    """Write labels.jsonl for the queries of the collection that no split judges."""
    from condensery.retrieval.labelling import write_labels
    from condensery.text.collection import Collection

    group, collection = process_group(context.runtime), Collection(context.input("corpus"))
    queries = collection.unjudged()
    if not len(queries):
        raise UserError(
            f"stages.{context.stage_name}: every query of the collection {collection.name} is judged; there is none to label"
        )
    candidates, found = searched(context, collection, queries, config.depth, group)
    scores = scored(config, context, queries, candidates, group)
    out = context.folder / "labels.jsonl"
    counts = write_labels(out, collection, queries, candidates, scores, config.positive, config.negative)
    print(
        f"[{context.stage_name}] {counts['queries']:,} of {len(queries):,} queries have a passage above {config.positive};"
        " the others are left out",
        flush=True,
    )
    return {**counts, **found}
