"""Configs of the stages that index passages with their generated queries, and that filter these queries."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from condensery.ranges import PositiveShare
from condensery.stages.base import Input, StageConfig
from condensery.stages.indexes.config import Bm25Config
from condensery.stages.queries.config import QueryStageConfig
from condensery.stages.registry import stage
from condensery.stages.scoring.config import ScoringStageConfig
from condensery.stages.workload import Read, Work, known


@stage("expanded_bm25", "expanded_bm25:expanded_bm25", version=1, makes="index")
class ExpandedBm25Config(Bm25Config):
    """Build a BM25 index of all passages, each with its generated queries appended (docT5query: Nogueira and Lin 2019)."""

    passages: Annotated[str, Input("passages")] = "passages"
    """the stage (of kind passages, with ``grouping: collection``) for whose passages the queries were made"""
    queries: Annotated[str, Input("queries")]
    """the stage with the queries (generate_queries, read_queries, filter_queries)"""

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report passages that are not the passages of the collection."""
        return not_of_the_collection(self.passages, self.corpus, inputs)


@stage("filter_queries", "filter_queries:filter_queries", version=1, makes="queries", together="several_shards")
class FilterQueriesConfig(ScoringStageConfig, QueryStageConfig):
    """Keep the generated queries that cross-encoders judge most relevant to their passages (doc2query--).

    The method is by Gospodinov et al. 2023. One threshold holds for all passages: the quantile above which the share
    ``share`` of all scores lies. So a passage may keep all of its queries, or none.
    """

    queries: Annotated[str, Input("queries")]
    """the stage with the queries of the collection's own passages (generate_queries, read_queries)"""
    share: PositiveShare = 0.3
    """share of all queries that is kept; queries with the highest scores are kept; .3 in the paper"""

    def work(self, read: Read) -> Work:
        """Return an unknown estimate, because the number of queries is not known before they are generated."""
        return Work(known(read, "passages", "tokenizer"))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report passages that are not the passages of the collection."""
        return not_of_the_collection(self.passages, self.corpus, inputs)


def not_of_the_collection(
    name: str, corpus: str, inputs: Mapping[str, Sequence[StageConfig]]
) -> tuple[str, str] | None:
    """Report passages that are not the passages of the searched collection.

    The error is either that a stage has split the documents again, or that the passages come from another collection.
    """
    config = inputs["passages"][0]
    if getattr(config, "grouping", "collection") != "collection":
        return "passages", f"{name} splits the documents in its own way; set its grouping to collection"
    if getattr(config, "corpus", corpus) != corpus:
        return "passages", f"{name} has the passages of {config.corpus}, but {corpus} is searched"  # type: ignore[attr-defined]
    return None
