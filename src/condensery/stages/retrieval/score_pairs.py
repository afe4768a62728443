"""Stage ``score_pairs``: how a teacher scores the passages that a retriever is trained with (distillation)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from condensery.errors import UserError
from condensery.stages.base import Context, Input, Operational, StageConfig, stage
from condensery.stages.checks import Split, missing_split, not_encoded
from condensery.stages.finetuning.training_queries import relevant_passages
from condensery.stages.pair_scorers import cross_encoder
from condensery.stages.retrieval.rerank import RerankConfig
from condensery.stages.retrieval.scoring import ScoringStageConfig
from condensery.stages.sharing import process_group
from condensery.stages.training import Count
from condensery.stages.work import Read, Work, known, product, search, together
from condensery.text.hashes import content_hashes
from condensery.text.source import InputFile

if TYPE_CHECKING:
    import numpy as np

    from condensery.retrieval.pair_scores import PairScores
    from condensery.retrieval.reranking import Score
    from condensery.sharing import ProcessGroup
    from condensery.text.collection import Collection

SEARCHED = 1000  # passages a query that a retriever is taken to rank: a fused one does, to bring its scores to [0, 1]


class ScorePairsConfig(ScoringStageConfig):
    """The positives of the queries of ``split``, and of those that ``labels`` adds, and the ``depth`` best of each source of
    ``negatives`` are scored by all ``cross_encoders`` and ``retrievers``, of which the weighted mean counts; or ``file`` has
    the pairs and their scores.
    """

    cross_encoders: Annotated[list[str], Input("cross_encoder")]
    retrievers: Annotated[list[str], Input("index")]
    file: Annotated[Path | None, Operational()]  # its content counts, not where it lies
    negatives: Annotated[list[str], Input("negatives")]
    labels: Annotated[list[str], Input("labels")]
    split: Split
    train_queries: Count | None
    depth: Count | None
    weights: list[Annotated[float, Field(gt=0)]] | None
    scaling: Literal["none", "min_max"]
    seed: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _somebody_scores(self) -> Self:
        scorers = [*self.cross_encoders, *self.retrievers]
        if self.file is not None and (scorers or self.negatives):
            raise ValueError("file has the pairs and their scores; leave out cross_encoders, retrievers and negatives")
        if self.file is None and not scorers:
            raise ValueError("nobody scores the pairs: set cross_encoders, retrievers, or file")
        if self.weights is not None and len(self.weights) != len(scorers):
            raise ValueError(
                f"{len(self.weights)} weights for {len(scorers)} scorers; give one for each, cross_encoders first"
            )
        if len(scorers) > 1 and self.retrievers and self.scaling == "none" and self.weights is None:
            raise ValueError(
                "scores of several scales would be averaged; set scaling to min_max, or weights that fit their scales"
            )
        return self

    def identity(self) -> list[str]:
        """The content of the file. Raises ``UserError`` where there is none to read, before anything is computed."""
        if self.file is None:
            return []
        named = InputFile("file with the scores of pairs", self.file, "; stage.score_pairs.file names it", exact=True)
        return content_hashes([named.look()])

    def work(self, read: Read) -> Work:
        """Every passage is read with its query by each cross-encoder (``ScoringStageConfig``), or each retriever searches."""
        sizes = known(read)
        queries = sizes.collection.queries.get(self.split) if self.train_queries is None else float(self.train_queries)
        pairs = (
            [product(queries, float(self.depth))] * len(self.negatives)
            if self.depth
            else [one.negatives for one in read.get("negatives", ())]
        )
        if self.retrievers and not self.cross_encoders:
            looked = together(search(index, queries, SEARCHED) for index in read.get("retrievers", ()))
            return Work(sizes, products=looked.products, seconds=looked.seconds)
        if not self.cross_encoders or queries is None or None in pairs:
            return Work(sizes)
        return self.scoring(read, queries + sum(one for one in pairs if one is not None), 1)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have, or a reranked index of other queries."""
        for name, config in zip(self.retrievers, inputs["retrievers"], strict=True):
            if isinstance(config, RerankConfig) and config.split != self.split:
                return "retrievers", f"{name} knows the queries of {config.split} alone; set its split to {self.split}"
        missing = missing_split(self.split, inputs["corpus"])
        return missing or not_encoded(self.split, "retrievers", inputs["retrievers"])


def _several_shards(config: ScorePairsConfig, context: Context) -> bool:
    from condensery.text.collection import Collection

    if not config.cross_encoders:
        return False
    return len(relevant_passages(config, context, Collection(context.input("corpus")))) > config.shard_size


@stage("score_pairs", version=1, makes="pair_scores", cost=5.0, together=_several_shards)
def score_pairs(config: ScorePairsConfig, context: Context) -> dict[str, Any]:
    """Write queries.npy, passages.npy, scores.npy and pair_scores.jsonl; whole shards of scores are kept on a restart."""
    from condensery.retrieval.pair_scores import save_pair_scores
    from condensery.retrieval.teachers import counts
    from condensery.text.collection import Collection

    group, collection = process_group(context.runtime), Collection(context.input("corpus"))
    positives = relevant_passages(config, context, collection)
    if config.file is None:
        pairs = _scored(config, context, collection, positives, group)
    else:
        pairs = _read(config.file, collection, positives, config.split)
    found = counts(pairs, positives)
    save_pair_scores(context.folder, pairs, collection)
    _tell(context.stage_name, found)
    return found


def _read(path: Path, collection: "Collection", positives: "Mapping[int, np.ndarray]", split: str) -> "PairScores":
    """The scores that a file has for the training queries. Raises ``UserError`` where none can be learned from."""
    import numpy as np

    from condensery.retrieval.pair_scores import read_pair_scores

    pairs = read_pair_scores(path, collection).of_queries(np.array(sorted(positives), np.int64))
    if not (pairs.filled.sum(axis=1) > 1).any():
        raise UserError(f"{path}: of no training query of the split {split!r} it scores two passages or more")
    return pairs


def _scored(
    config: ScorePairsConfig,
    context: Context,
    collection: "Collection",
    positives: "Mapping[int, np.ndarray]",
    group: "ProcessGroup",
) -> "PairScores":
    from condensery.retrieval.negatives import open_negatives
    from condensery.retrieval.pair_scores import PairScores
    from condensery.retrieval.reranking import score_in_shards
    from condensery.retrieval.teachers import pool_to_score, together

    negatives = [open_negatives(folder, collection) for folder in context.inputs("negatives")]
    queries, candidates = pool_to_score(positives, negatives, config.depth)
    scorers = _scorers(config, context, collection)
    scores = score_in_shards(
        together(scorers, config.weights, config.scaling),
        queries,
        candidates,
        context.folder / "scores.npy",
        shard_size=config.shard_size,
        label=context.stage_name,
        group=group,
        each=len(scorers),
    )
    return PairScores(queries, candidates, scores)


def _scorers(config: ScorePairsConfig, context: Context, collection: "Collection") -> "list[Score]":
    """Cross-encoders first."""
    from condensery.retrieval.index import open_index
    from condensery.retrieval.reranking import logits
    from condensery.retrieval.teachers import by_retriever

    runtime, found = context.runtime, []
    for artifact in context.artifacts("cross_encoders"):
        scorer = cross_encoder(artifact, collection, config.precision, context)
        found.append(logits([scorer], config.chunk_tokens, context.stage_name))
    for folder in context.inputs("retrievers"):
        index: Any = open_index(folder, collection, runtime.threads, device=runtime.search_device)
        found.append(by_retriever(index))
    return found


def _tell(label: str, found: Mapping[str, int]) -> None:
    """Say what was scored, and for how many queries too little was."""
    print(f"[{label}] {found['pairs']:,} pairs of {found['queries']:,} queries have a score", flush=True)
    if found["queries_without_positive"]:
        print(
            f"[{label}] for {found['queries_without_positive']:,} of them no positive has one: margin_mse learns nothing from"
            " these",
            flush=True,
        )
    if found["queries_without_scores"]:
        print(f"[{label}] for {found['queries_without_scores']:,} of them fewer than two passages have one", flush=True)
