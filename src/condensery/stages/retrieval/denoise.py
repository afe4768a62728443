"""Stage ``denoise``: hard negatives without those that a cross-encoder takes for relevant (RocketQA's third step)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.retrieval.scoring import ScoringStageConfig, no_probability, scored
from condensery.stages.sharing import process_group
from condensery.stages.training import Share
from condensery.stages.work import Read, Work, known


class DenoiseConfig(ScoringStageConfig):
    """Negatives whose probability of relevance is lower than ``below`` are kept."""

    negatives: Annotated[str, Input("negatives")]
    below: Share

    def work(self, read: Read) -> Work:
        """Every negative is read with its query; see ``ScoringStageConfig``."""
        return self.scoring(read, known(read, "negatives").negatives, 1)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Scores that are no probabilities."""
        return no_probability(inputs)


def _several_shards(config: DenoiseConfig, context: Context) -> bool:
    from condensery.retrieval.negatives import open_negatives
    from condensery.text.collection import Collection

    negatives = open_negatives(context.input("negatives"), Collection(context.input("corpus")))
    return len(negatives.query_rows) > config.shard_size


@stage("denoise", version=1, makes="negatives", cost=5.0, together=_several_shards)
def denoise(config: DenoiseConfig, context: Context) -> dict[str, Any]:
    """Write negatives.jsonl as ``mine`` does; the manifest names the negatives' artifact and the cross-encoders'."""
    from condensery.retrieval.labelling import write_denoised
    from condensery.retrieval.negatives import open_negatives, open_relabelled
    from condensery.text.collection import Collection

    group, collection = process_group(context.runtime), Collection(context.input("corpus"))
    negatives = open_negatives(context.input("negatives"), collection)
    scores = scored(config, context, negatives.query_rows, negatives.passage_rows, group)
    path = context.folder / "negatives.jsonl"
    relabelled = open_relabelled(context.input("negatives"), collection)
    given = (negatives.query_rows, negatives.passage_rows)
    counts = write_denoised(path, collection, *given, scores, config.below, kept=relabelled.no)
    counts |= relabelled.saved(context.folder, collection, context.stage_name)
    print(
        f"[{context.stage_name}] {counts['negatives']:,} negatives are kept, {counts['left_out']:,} left out;"
        f" {counts['queries_without']:,} of {counts['queries']:,} queries have none left and get passages drawn at random",
        flush=True,
    )
    return counts
