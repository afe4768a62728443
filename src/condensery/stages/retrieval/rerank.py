"""Stage ``rerank``: the best passages of a retriever in the order of cross-encoders (Gao and Callan 2021b, §4.3).

An index of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import Split, missing_split, not_encoded
from condensery.stages.retrieval.scoring import ScoringStageConfig, scored, searched
from condensery.stages.sharing import process_group
from condensery.stages.work import Read, Work, known


class RerankConfig(ScoringStageConfig):
    """The ``depth`` best passages for each query of ``split``; what lies deeper is not found any more."""

    retriever: Annotated[str, Input("index")]
    split: Split
    depth: Annotated[int, Field(gt=0)]

    def work(self, read: Read) -> Work:
        """See ``ScoringStageConfig``."""
        return self.scoring(read, known(read).collection.queries.get(self.split), self.depth)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have."""
        missing = missing_split(self.split, inputs["corpus"])
        return missing or not_encoded(self.split, "retriever", inputs["retriever"])


def _several_shards(config: RerankConfig, context: Context) -> bool:
    from condensery.text.collection import Collection

    return len(Collection(context.input("corpus")).questions(config.split)) > config.shard_size


@stage("rerank", version=2, makes="index", cost=5.0, together=_several_shards)
def rerank(config: RerankConfig, context: Context) -> dict[str, Any]:
    """Write queries.npy, candidates.npy, scores.npy and index.json; whole shards of scores are kept on a restart."""
    from condensery.retrieval.reranking import write_reranked
    from condensery.text.collection import Collection

    group, collection = process_group(context.runtime), Collection(context.input("corpus"))
    queries = collection.questions(config.split)
    candidates, found = searched(context, collection, queries, config.depth, group)
    scored(config, context, queries, candidates, group)
    about = write_reranked(context.folder, collection, queries, config.depth, config.split)
    return {**{key: about[key] for key in ("queries", "depth")}, **found}
