"""Stage ``fuse``: the rankings of several retrievers, such as BM25 and a dense one, joined. An index of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from condensery.errors import UserError
from condensery.evaluation.names import HIT, split_metric
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import Split, unmeasurable
from condensery.stages.retrieval.rerank import RerankConfig
from condensery.stages.work import Read, Work, known, search, together

if TYPE_CHECKING:
    import numpy as np

    from condensery.retrieval.fusion import FusedIndex, Measure
    from condensery.text.collection import Collection

POINTS = 2_000  # of a grid, at most: 0.1 for up to five retrievers
FEW = 30  # queries to choose weights by


class FuseConfig(StageConfig):
    """``weights``: one for each of ``retrievers``; null: of those on the ``grid`` the best by ``metric`` on ``split``.

    ``otherwise``: the weights where ``split`` has fewer than ``least_queries``; null: equal ones.
    ``depth``: candidates of each retriever for each query.
    """

    retrievers: Annotated[list[str], Input("index"), Field(min_length=2)]
    corpus: Annotated[str, Input("corpus")]
    method: Literal["weighted", "reciprocal_rank"]
    rank_constant: Annotated[float, Field(ge=0)]
    weights: list[Annotated[float, Field(ge=0)]] | None
    otherwise: list[Annotated[float, Field(ge=0)]] | None
    least_queries: Annotated[int, Field(ge=1)]
    split: Split
    metric: str
    grid: Annotated[float, Field(gt=0, le=1)]
    depth: Annotated[int, Field(gt=0)]

    @field_validator("weights", "otherwise")
    @classmethod
    def _one_for_each(cls, weights: list[float] | None, info: ValidationInfo) -> list[float] | None:
        retrievers = info.data.get("retrievers")
        if weights is not None and retrievers is not None and len(weights) != len(retrievers):
            raise ValueError(f"{len(weights)} weights for {len(retrievers)} retrievers; give each of them one")
        if weights is not None and not any(weights):
            raise ValueError("all weights are 0, so nothing would be found")
        return weights

    @field_validator("metric")
    @classmethod
    def _known(cls, metric: str) -> str:
        try:
            split_metric(metric)
        except UserError as error:
            raise ValueError(str(error)) from None
        return metric

    @field_validator("grid")
    @classmethod
    def _divides_one(cls, grid: float, info: ValidationInfo) -> float:
        from math import comb

        steps, others = round(1 / grid), len(info.data.get("retrievers", [0])) - 1
        if abs(1 / grid - steps) > 1e-6 * steps:
            raise ValueError("must go into 1 without a remainder, as 0.1 or 0.05 do")
        if info.data.get("weights") is None and comb(steps + others, others) > POINTS:
            points = f"{comb(steps + others, others):,} weights of {others + 1} retrievers to try"
            raise ValueError(f"{points}, more than {POINTS:,}; take a larger step, or set weights")
        return grid

    @field_validator("depth")
    @classmethod
    def _deep_enough(cls, depth: int, info: ValidationInfo) -> int:
        metric = info.data.get("metric")
        if metric is not None and depth < (split_metric(metric)[1] or 0):
            raise ValueError(f"{depth} is too few to choose weights by {metric}")
        return depth

    def by_content(self) -> set[str]:
        """What says when nothing is chosen: as it is by default, the id is that of before it was there."""
        return {"otherwise", "least_queries"} if self.otherwise is None and self.least_queries == 1 else set()

    def work(self, read: Read) -> Work:
        """The queries that choose the weights are searched by every retriever."""
        queries = known(read).collection.queries.get(self.split) if self.chooses else 0.0
        looked = together(search(sizes, queries, self.depth) for sizes in read["retrievers"])
        joined = replace(known(read), members=tuple(read["retrievers"]))
        return Work(joined, products=looked.products, seconds=looked.seconds, disk=1e4)

    @property
    def chooses(self) -> bool:
        """Whether the weights are chosen by queries."""
        return self.method == "weighted" and self.weights is None

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Queries that the weights are to be chosen by, but which a retriever does not know or cannot be measured."""
        if not self.chooses:
            return None
        for name, config in zip(self.retrievers, inputs["retrievers"], strict=True):
            if isinstance(config, RerankConfig) and config.split != self.split:
                return "retrievers", (
                    f"{name} knows the queries of {config.split} alone, so weights cannot be chosen on {self.split};"
                    " set weights, one for each retriever"
                )
        fault = unmeasurable([self.metric], self.split, inputs["corpus"])
        return ("metric", fault[1]) if fault and fault[0] == "metrics" else None  # without the split: equal weights


@stage("fuse", version=2, makes="index")
def fuse(config: FuseConfig, context: Context) -> dict[str, Any]:
    """Write index.json, which names the retrievers and how they are joined."""
    import numpy as np

    from condensery.retrieval.fusion import FusedIndex, write_fused
    from condensery.retrieval.index import open_index
    from condensery.retrieval.own_passages import own_passages_left_out
    from condensery.retrieval.retriever import recall_of, unmatched_queries
    from condensery.text.collection import Collection

    runtime, collection = context.runtime, Collection(context.input("corpus"))
    artifacts = context.artifacts("retrievers")
    members = [
        open_index(artifact.path, collection, runtime.threads, device=runtime.search_device) for artifact in artifacts
    ]
    equal = [1.0 if config.method == "reciprocal_rank" else 1 / len(members)] * len(members)
    weights = config.weights or config.otherwise or equal
    index = FusedIndex(members, weights, config.depth, config.method, config.rank_constant)
    chosen = _choose(config, context.stage_name, index, collection) if config.chooses else None
    write_fused(context.folder, index, [f"{artifact.kind}/{artifact.id}" for artifact in artifacts], chosen)
    asked = collection.questions(config.split) if chosen else np.empty(0, np.int64)
    found = {**recall_of(index, context.stage_name), **unmatched_queries(index, asked)}
    return {
        "weights": index.weights.tolist(),
        "chosen": chosen,
        **own_passages_left_out(collection, asked, context.stage_name),
        **found,
    }


def _choose(config: FuseConfig, label: str, index: "FusedIndex", collection: "Collection") -> dict[str, Any] | None:
    """Give the index the best weights of the grid. Returns the metric at every point; None without queries to ask."""
    import numpy as np

    from condensery.retrieval.fusion import best_point, measure_grid, weight_grid
    from condensery.system.progress import progress

    there = config.split in collection.description["splits"]
    queries = collection.questions(config.split) if there else np.empty(0, np.int64)
    if len(queries) < config.least_queries:
        print(
            f"[{label}] the collection {collection.name} has {len(queries) or 'no'} {config.split} queries to choose weights"
            f" by: they are {_named(index.weights, config)}; stages.{label}.weights sets others",
            flush=True,
        )
        return None
    grid = weight_grid(len(index.members), round(1 / config.grid))
    k = split_metric(config.metric)[1] or len(index.members) * config.depth
    with progress(label, len(queries), "queries") as task:
        values = measure_grid(index, queries, grid, _measure(config, collection), k, task)
    best = best_point(grid, values)
    index.weights = grid[best]
    joined = _named(grid[best], config)
    single = [values[(grid[:, member] == 1).argmax()] for member in range(len(index.members))]
    alone = ", ".join(f"{name} {100 * value:.1f}" for value, name in zip(single, config.retrievers, strict=True))
    print(
        f"[{label}] {config.metric} of {len(queries):,} {config.split} queries {100 * values[best]:.1f} with {joined}"
        f" (alone: {alone})",
        flush=True,
    )
    if len(queries) < FEW:
        print(f"[{label}] so few queries choose by chance; stages.{label}.weights sets weights", flush=True)
    points = [{"weights": one, "value": value} for one, value in zip(grid.tolist(), values.tolist(), strict=True)]
    return {"split": config.split, "metric": config.metric, "queries": len(queries), "grid": points}


def _named(weights: "np.ndarray", config: FuseConfig) -> str:
    return ", ".join(f"{weight:.2g} {name}" for weight, name in zip(weights, config.retrievers, strict=True))


def _measure(config: FuseConfig, collection: "Collection") -> "Measure":
    """The metric of each of some queries of the split, ascending, by their passages."""
    import numpy as np

    from condensery.evaluation.metrics import score, score_answers
    from condensery.retrieval.runs import Run

    metric = config.metric

    def by_answers(rows: "np.ndarray", passages: "np.ndarray") -> "np.ndarray":
        run = Run(rows, passages, np.zeros(passages.shape, np.float32))
        return score_answers(run, collection, rows, [metric])[metric]

    def by_judgements(rows: "np.ndarray", passages: "np.ndarray") -> "np.ndarray":
        return score(rows, passages, qrels.of(rows), [metric])[metric]

    if split_metric(metric)[0] == HIT:
        return by_answers
    qrels = collection.qrels(config.split)
    return by_judgements
