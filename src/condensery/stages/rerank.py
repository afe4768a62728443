"""Stage ``rerank``: the best passages of a retriever in the order of cross-encoders (CO §4.3). An index of its own."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import Split, missing_split
from condensery.stages.scoring import ScoringStageConfig, scored


class RerankConfig(ScoringStageConfig):
    """The ``depth`` best passages for each query of ``split``; what lies deeper is not found any more."""

    retriever: Annotated[str, Input("index")]
    split: Split
    depth: Annotated[int, Field(gt=0)]

    def misfit(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have."""
        return missing_split(self.split, inputs["corpus"])


@stage("rerank", version=1, makes="index", cost=5.0)
def rerank(config: RerankConfig, context: Context) -> dict[str, Any]:
    """Write queries.npy, candidates.npy, scores.npy and index.json; whole shards of scores are kept on a restart."""
    from condensery.retrieval.index import open_index, recall_of
    from condensery.retrieval.reranking import search_candidates, write_reranked
    from condensery.text.collection import Collection

    collection = Collection(context.input("corpus"))
    queries = collection.questions(config.split)
    retriever = open_index(context.input("retriever"), collection, context.runtime.threads)
    path = context.folder / "candidates.npy"
    candidates = search_candidates(retriever, queries, config.depth, path, context.stage_name)
    scored(config, context, queries, candidates)
    about = write_reranked(context.folder, collection, queries, config.depth, config.split)
    return {**{key: about[key] for key in ("queries", "depth")}, **recall_of(retriever, context.stage_name)}
