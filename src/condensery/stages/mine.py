"""Stage ``mine``: hard negatives from a retriever (SPEC §4, round 2), judged positives excluded."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import Split, missing_split


class MineConfig(StageConfig):
    """``depth`` negatives a query of ``split``, after leaving out the ``skip_top`` best."""

    retriever: Annotated[str, Input("index")]
    corpus: Annotated[str, Input("corpus")]
    split: Split
    depth: Annotated[int, Field(gt=0)]
    skip_top: Annotated[int, Field(ge=0)]

    def misfit(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have."""
        return missing_split(self.split, inputs["corpus"])


@stage("mine", version=1, makes="negatives")
def mine(config: MineConfig, context: Context) -> dict[str, Any]:
    """Write negatives.jsonl."""
    from condensery.retrieval.index import open_index
    from condensery.retrieval.mining import mine as mine_negatives
    from condensery.text.collection import Collection

    collection = Collection(context.input("corpus"))
    retriever = open_index(context.input("retriever"), collection, context.runtime.threads)
    path = context.folder / "negatives.jsonl"
    return mine_negatives(retriever, collection, config.split, config.depth, path, config.skip_top)
