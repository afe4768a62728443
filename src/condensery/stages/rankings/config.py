"""Configs of the stages that make a ranking from other rankings: fusion, reranking, another system's run file."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from condensery.evaluation.names import known_metric, split_metric
from condensery.ranges import Count, PositiveShare, Weight
from condensery.stages.base import FromRecipe, Input, NamedFile, Operational, StageConfig
from condensery.stages.checks import OneSplitConfig, Split, missing_split, not_encoded, of_another_split, unmeasurable
from condensery.stages.registry import stage
from condensery.stages.scoring.config import SEARCHED, ScoringStageConfig
from condensery.stages.workload import Read, Work, known, product, search, together
from condensery.text.hashes import content_hashes
from condensery.text.input_file import InputFile

POINTS = 2_000  # maximum points of a grid of weights: enough for steps of 0.1 and up to five retrievers


@stage("rerank", "rerank:rerank", version=2, makes="index", together="several_shards")
class RerankConfig(ScoringStageConfig, OneSplitConfig):
    """Rerank the best passages of a retriever by the scores of cross-encoders.

    The artifact is an index, so the stage can be a row of a table.
    """

    data_checks = {"corpus": ["measurable"]}
    retriever: Annotated[str, Input("index")]
    """the stage with an index, or with an encoder (the index is then built automatically)"""
    split: Annotated[Split, FromRecipe("table.split")]
    """the split whose queries are reranked; other queries cannot be searched for"""
    depth: Count = 100
    """passages reranked for each query; only these are returned, so a cutoff above ``depth`` does not raise a metric"""

    def work(self, read: Read) -> Work:
        """Estimate the work: the ``depth`` best passages of each query are retrieved, and every cross-encoder reads them."""
        return self.scoring(read, known(read).collection.queries.get(self.split), self.depth)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection lacks, or whose queries the retriever has not encoded."""
        missing = missing_split(self.split, inputs["corpus"])
        return missing or not_encoded(self.split, "retriever", inputs["retriever"])


@stage("read_run", "read_run:read_run", version=1, makes="index")
class ReadRunConfig(OneSplitConfig):
    """Read another system's rankings from a TREC run file, so that the system can be a row of a table.

    The artifact is an index that ranks only for the queries of one split. The stages fuse, rerank, mine and score_pairs
    can read it too.
    """

    file: Annotated[NamedFile, Operational()]  # the id depends on its content, not on its path
    """run file, plain or .gz: query_id Q0 passage_id rank score tag; unjudged queries in it need
    data.unlabelled_queries=unjudged"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    split: Annotated[Split, FromRecipe("table.split")]
    """the split whose rankings are used; lines of other splits' queries are ignored"""
    missing: Literal["error", "empty"] = "error"
    """a query of the split that the file lacks. error: the run stops; empty: its ranking is empty, so its metrics are 0"""

    def identity(self) -> list[str]:
        """Return the content hash of the file.

        Raises:
            UserError: the file is missing or unreadable; this is checked before anything is computed.
        """
        return content_hashes([InputFile("run file", self.file, " that stage.read_run.file names", exact=True).look()])

    def work(self, read: Read) -> Work:
        """Estimate the work of reading a thousand lines for each query."""
        sizes = known(read)
        lines = product(float(SEARCHED), sizes.collection.queries.get(self.split))
        return Work(replace(sizes, dimensions=0), seconds=product(2e-6, lines), disk=product(8.0, lines))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection lacks."""
        return missing_split(self.split, inputs["corpus"])


@stage("fuse", "fuse:fuse", version=2, makes="index")
class FuseConfig(StageConfig):
    """Fuse the rankings of several retrievers, for example of BM25 and a dense retriever.

    The artifact is an index. So the stage can be a row of a table, and the stages mine and rerank can read it.
    """

    data_checks = {"corpus": ["choosing"]}
    retrievers: Annotated[list[str], Input("index"), Field(min_length=2)]
    """two or more stages with an index, or with an encoder (the index is then built automatically)"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    method: Literal["weighted", "reciprocal_rank"] = "weighted"
    """weighted: weighted sum of scores, scaled to [0, 1] for each query and retriever; reciprocal_rank: sum of 1 /
    (``rank_constant`` + rank)"""
    rank_constant: Weight = 60
    """constant of reciprocal_rank; the larger it is, the less the first ranks dominate"""
    weights: list[Weight] | None = None
    """one weight for each retriever; null: weights that maximise ``metric`` on ``split`` (equal weights if ``split`` has no
    queries), or 1 with reciprocal_rank"""
    otherwise: list[Weight] | None = None
    """weights used if ``weights`` is null and ``split`` has fewer than ``least_queries`` queries; null: equal weights"""
    least_queries: Count = 1
    """minimum number of queries of ``split`` for choosing weights"""
    split: Split = "dev"
    """the split on whose queries the weights are chosen"""
    metric: Annotated[str, AfterValidator(known_metric)] = "MRR@10"
    """metric that the weights maximise: MRR@k, Recall@k, NDCG@k, Success@k, MAP, P@k; Hit@k if answers are known"""
    grid: PositiveShare = 0.1
    """step of the grid of weights that are tried; the weights of all retrievers sum to 1"""
    depth: Count = 1000
    """candidates of each retriever for each query; scores are scaled over these candidates"""

    @field_validator("weights", "otherwise")
    @classmethod
    def _one_for_each(cls, weights: list[float] | None, info: ValidationInfo) -> list[float] | None:
        retrievers = info.data.get("retrievers")
        if weights is not None and retrievers is not None and len(weights) != len(retrievers):
            raise ValueError(f"{len(weights)} weights for {len(retrievers)} retrievers; give one for each")
        if weights is not None and not any(weights):
            raise ValueError("all weights are 0; set at least one of them above 0")
        return weights

    @field_validator("grid")
    @classmethod
    def _divides_one(cls, grid: float, info: ValidationInfo) -> float:
        from math import comb

        steps, others = round(1 / grid), len(info.data.get("retrievers", [0])) - 1
        if abs(1 / grid - steps) > 1e-6 * steps:
            raise ValueError("must divide 1 without a remainder, as 0.1 and 0.05 do")
        if info.data.get("weights") is None and comb(steps + others, others) > POINTS:
            points = f"{comb(steps + others, others):,} combinations of {others + 1} weights"
            raise ValueError(f"{points} would be tried, more than {POINTS:,}; set a larger step, or set weights")
        return grid

    @field_validator("depth")
    @classmethod
    def _deep_enough(cls, depth: int, info: ValidationInfo) -> int:
        metric = info.data.get("metric")
        if metric is not None and depth < (split_metric(metric)[1] or 0):
            raise ValueError(f"{depth} passages are too few for {metric}, by which weights are chosen; raise it")
        return depth

    def by_content(self) -> set[str]:
        """Return ``otherwise`` and ``least_queries`` if both have their defaults.

        The keys were added later, so the ids of stages that do not use them stay valid.
        """
        return {"otherwise", "least_queries"} if self.otherwise is None and self.least_queries == 1 else set()

    def work(self, read: Read) -> Work:
        """Estimate the work: every retriever searches for the queries on which the weights are chosen."""
        queries = known(read).collection.queries.get(self.split) if self.chooses else 0.0
        looked = together(search(sizes, queries, self.depth) for sizes in read["retrievers"])
        joined = replace(known(read), members=tuple(read["retrievers"]))
        return Work(joined, products=looked.products, seconds=looked.seconds, disk=1e4)

    @property
    def chooses(self) -> bool:
        """Whether the weights are chosen on queries."""
        return self.method == "weighted" and self.weights is None

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a retriever that ranks another split, or an unmeasurable metric, if weights are to be chosen."""
        if not self.chooses:
            return None
        advice = f", so weights cannot be chosen on {self.split}; set weights, one for each retriever"
        if wrong := of_another_split(self.retrievers, inputs["retrievers"], self.split, advice):
            return wrong
        fault = unmeasurable([self.metric], self.split, inputs["corpus"])
        return ("metric", fault[1]) if fault and fault[0] == "metrics" else None  # a missing split: equal weights
