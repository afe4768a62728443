"""Stage ``mine``: hard negatives from a retriever, for the second round.

Relevant passages are excluded, and what has their text or the query's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from condensery.stages.base import Context, Input, StageConfig, retriever_name, stage
from condensery.stages.checks import Split, missing_split
from condensery.stages.sharing import process_group, searched_together
from condensery.stages.work import Read, Work, known, product, search


class MineConfig(StageConfig):
    """``depth`` negatives a query of ``split``, after leaving out the ``skip_top`` best.

    ``without_answers``: passages that hold an answer of the query are left out too.
    """

    retriever: Annotated[str, Input("index")]
    corpus: Annotated[str, Input("corpus")]
    split: Split
    depth: Annotated[int, Field(gt=0)]
    skip_top: Annotated[int, Field(ge=0)]
    without_answers: bool

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split, or answers, that the collection does not have."""
        return missing_split(self.split, inputs["corpus"]) or self._missing_answers(inputs["corpus"])

    def work(self, read: Read) -> Work:
        """All queries of the split are searched; a negative takes four bytes, and twenty in negatives.jsonl."""
        sizes = known(read)
        queries = sizes.collection.queries.get(self.split)
        looked = search(sizes, queries, self.depth)
        sizes = replace(sizes, negatives=product(self.depth, queries))
        return Work(sizes, products=looked.products, seconds=looked.seconds, disk=product(24.0 * self.depth, queries))

    def _missing_answers(self, corpus: Sequence[StageConfig]) -> tuple[str, str] | None:
        data = getattr(corpus[0], "data", None)
        if not self.without_answers or data is None or self.split in data.answered_splits():
            return None
        return "without_answers", f"the split {self.split} of the collection {data.name} has no answers"


def _together(config: MineConfig, context: Context) -> bool:
    from condensery.text.collection import Collection

    queries = Collection(context.input("corpus")).qrels(config.split).query_set
    return searched_together(context.input("retriever"), len(queries))


@stage("mine", version=3, makes="negatives", together=_together)
def mine(config: MineConfig, context: Context) -> dict[str, Any]:
    """Write the negatives as arrays, negatives.jsonl, and negatives.json, which names the retriever."""
    from condensery.retrieval.index import open_index
    from condensery.retrieval.mining import mine as mine_negatives
    from condensery.retrieval.retriever import recall_of, unmatched_queries
    from condensery.text.collection import Collection

    runtime, collection = context.runtime, Collection(context.input("corpus"))
    group = process_group(runtime)
    retriever = open_index(context.input("retriever"), collection, runtime.threads, device=runtime.search_device)
    about = mine_negatives(
        retriever,
        collection,
        config.split,
        config.depth,
        context.folder,
        config.skip_top,
        config.without_answers,
        made_by=retriever_name(context.artifact("retriever")),
        group=group,
    )
    queries = collection.qrels(config.split).query_set
    return {**about, **recall_of(retriever, context.stage_name), **unmatched_queries(retriever, queries)}
