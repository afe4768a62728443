"""Stage ``mine``: hard negatives from a retriever, for the second round.

Relevant passages are excluded, and what has their text or the query's; and, by a rule, what scores nearly as high as they do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from condensery.stages.base import Context, Input, StageConfig, retriever_name, stage
from condensery.stages.checks import missing_split, not_encoded
from condensery.stages.retrieval.relabel import RelabelConfig
from condensery.stages.retrieval.scoring import CrossEncoderScorer, ScoringStageConfig, no_probability
from condensery.stages.sharing import process_group, searched_together
from condensery.stages.work import Read, Work, known, product, search

if TYPE_CHECKING:
    from condensery.retrieval.positive_aware import Scorer
    from condensery.text.collection import Collection

RULES = ("below_share", "below_margin", "below_score")


class MineConfig(ScoringStageConfig, RelabelConfig):
    """``depth`` negatives a query of ``split``, after leaving out the ``skip_top`` best.

    ``below_share``, ``below_margin`` and ``below_score``: see ``retrieval.positive_aware.Below``. The scores are those of the
    retriever, of the index ``scorer``, or the probabilities that ``cross_encoders`` give. ``without_answers``: passages that
    hold an answer of the query are left out too.
    """

    retriever: Annotated[str, Input("index")]
    depth: Annotated[int, Field(gt=0)]
    skip_top: Annotated[int, Field(ge=0)]
    without_answers: bool
    below_share: Annotated[float, Field(gt=0, le=1)] | None
    below_margin: Annotated[float, Field(ge=0)] | None
    below_score: float | None
    scorer: Annotated[str | None, Input("index")]
    cross_encoders: Annotated[list[str], Input("cross_encoder")]

    @model_validator(mode="after")
    def _judged_by_one(self) -> Self:
        if self.scorer is not None and self.cross_encoders:
            raise ValueError("scorer and cross_encoders are both set; candidates are judged by one of them")
        for key in ("scorer", "cross_encoders"):
            if getattr(self, key) and not self._rules():
                raise ValueError(f"{key} judges nothing; set below_share, below_margin or below_score")
        return self

    def _rules(self) -> list[str]:
        """The rules that are set, with their values."""
        return [f"{key}={value}" for key in RULES if (value := getattr(self, key)) is not None]

    def by_content(self) -> set[str]:
        """Keys that came later: where they are null the ids are those of before."""
        scorers = {field for field in ("scorer", "cross_encoders") if not getattr(self, field)}
        return {*super().by_content(), *RULES, *scorers, "precision", "chunk_tokens"}

    def identity(self) -> list[str]:
        """The rules that are set, and how cross-encoders compute. ``UserError`` as ``RelabelConfig``."""
        how = [f"precision={self.precision}", f"chunk_tokens={self.chunk_tokens}"] if self.cross_encoders else []
        return [*super().identity(), *self._rules(), *how]

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split, or answers, that the collection does not have; or scores that are no probabilities."""
        missing = missing_split(self.split, inputs["corpus"]) or self._missing_answers(inputs["corpus"])
        return missing or not_encoded(self.split, "retriever", inputs["retriever"]) or no_probability(inputs)

    def work(self, read: Read) -> Work:
        """All queries of the split are searched; a negative takes four bytes, and twenty in negatives.jsonl."""
        sizes = known(read, "retriever", "corpus")
        queries = sizes.collection.queries.get(self.split)
        looked = search(sizes, queries, self.depth)
        sizes = replace(sizes, negatives=product(self.depth, queries))
        if self.cross_encoders:
            return replace(self.scoring(read, queries, self.depth), makes=sizes)
        return Work(sizes, products=looked.products, seconds=looked.seconds, disk=product(24.0 * self.depth, queries))

    def _missing_answers(self, corpus: Sequence[StageConfig]) -> tuple[str, str] | None:
        data = getattr(corpus[0], "data", None)
        if not self.without_answers or data is None or self.split in data.answered_splits():
            return None
        return "without_answers", f"the split {self.split} of the collection {data.name} has no answers"


def _together(config: MineConfig, context: Context) -> bool:
    from condensery.text.collection import Collection

    queries = Collection(context.input("corpus")).qrels(config.split).query_set
    return bool(config.cross_encoders) or searched_together(context.input("retriever"), len(queries))


@stage("mine", version=3, makes="negatives", together=_together)
def mine(config: MineConfig, context: Context) -> dict[str, Any]:
    """Write the negatives as arrays, negatives.jsonl, and negatives.json, which names the retriever."""
    from condensery.retrieval.index import open_index
    from condensery.retrieval.mining import mine as mine_negatives
    from condensery.retrieval.positive_aware import Below
    from condensery.retrieval.retriever import recall_of, unmatched_queries
    from condensery.retrieval.shards import SHARD
    from condensery.text.collection import Collection

    runtime, collection = context.runtime, Collection(context.input("corpus"))
    group = process_group(runtime)
    relabelled = config.relabelled(collection)
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
        size=config.shard_size if config.cross_encoders else SHARD,
        group=group,
        below=Below(config.below_share, config.below_margin, config.below_score),
        scorer=_scorer(config, context, collection),
        relabelled=relabelled,
    )
    queries = collection.qrels(config.split).query_set
    warnings = [*about.pop("warnings", []), *unmatched_queries(retriever, queries).get("warnings", [])]
    found = recall_of(retriever, context.stage_name)
    return {**about, **found, **({"warnings": warnings} if warnings else {})}


def _scorer(config: MineConfig, context: Context, collection: "Collection") -> "Scorer | None":
    """What judges the candidates besides the retriever."""
    from condensery.retrieval.index import open_index

    if config.cross_encoders:
        return CrossEncoderScorer(config, context, collection)
    if config.scorer is None:
        return None
    runtime = context.runtime
    return open_index(context.input("scorer"), collection, runtime.threads, device=runtime.search_device)
