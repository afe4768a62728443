"""Stage ``mine``: hard negatives from a retriever (SPEC §4, round 2), judged positives excluded."""

from typing import Annotated, Any

from pydantic import Field

from condensery.stages.base import Context, Input, StageConfig, stage


class MineConfig(StageConfig):
    """``depth`` negatives a query of ``split``, after leaving out the ``skip_top`` best."""

    retriever: Annotated[str, Input("index")]
    corpus: Annotated[str, Input("corpus")]
    split: str
    depth: Annotated[int, Field(gt=0)]
    skip_top: Annotated[int, Field(ge=0)]


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
