"""Keys of the stages that encode, search, mine, fuse and rerank."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from condensery.arguments import no_room
from condensery.errors import UserError
from condensery.evaluation.names import split_metric
from condensery.models.checkpoints.metadata import longest_inputs, vector_settings
from condensery.models.flops import Step
from condensery.models.vectors import VectorConfig
from condensery.retrieval.analyser import check_stemmer, check_stopwords
from condensery.stages.base import Input, Operational, StageConfig
from condensery.stages.checks import Split, missing_split, not_encoded, unmeasurable
from condensery.stages.registry import stage
from condensery.stages.training_config import Count, Share
from condensery.stages.workload import (
    QUESTION,
    Read,
    Search,
    Work,
    checkpoint_bytes,
    known,
    product,
    released_size,
    search,
    together,
)
from condensery.system.files import expanded, is_hub_name
from condensery.text.hashes import content_hashes
from condensery.text.input_file import InputFile
from condensery.text.languages import check_language
from condensery.text.sheets import filled_sheets

BYTES = {"float32": 4.0, "float16": 2.0, "int8": 1.0, "binary": 0.125}  # of a number on disk


SEARCHED = 1000  # passages a query that a retriever is taken to rank: a fused one does, to bring its scores to [0, 1]

POINTS = 2_000  # of a grid, at most: 0.1 for up to five retrievers

RULES = ("below_share", "below_margin", "below_score")

Length = Annotated[int, Field(ge=4)]


class ScoringStageConfig(StageConfig):
    """Several ``cross_encoders`` are an ensemble: a pair's score is the mean of theirs."""

    cross_encoders: Annotated[list[str], Input("cross_encoder"), Field(min_length=1)]
    corpus: Annotated[str, Input("corpus")]
    precision: Literal["fp32", "bf16", "fp16"]
    chunk_tokens: Annotated[int, Field(gt=0)]
    shard_size: Annotated[int, Field(gt=0), Operational()]

    def scoring(self, read: Read, queries: float | None, depth: int) -> Work:
        """The ``depth`` best passages of so many queries are searched, and read with them by every cross-encoder."""
        sizes, scorers = known(read), read["cross_encoders"]
        size, text = known(read, "cross_encoders").encoder, sizes.collection.passage_tokens
        looked = search(known(read, "corpus", "retriever"), queries, depth) if "retriever" in read else Search(0.0, 0.0)
        if size is None or text is None or queries is None:
            return Work(sizes)
        pairs = queries * depth
        length = min(text + QUESTION, known(read, "cross_encoders").passage_length or 512)
        step = Step(size, len(scorers) * pairs, length, self.chunk_tokens, trained=False, precision=self.precision)
        return Work(replace(sizes, dimensions=0), 1, step, looked.products, looked.seconds, disk=8.0 * pairs)


@stage("rerank", "rerank:rerank", version=2, makes="index", cost=5.0, together="several_shards")
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


@stage(
    "score_pairs",
    "score_pairs:score_pairs",
    version=1,
    makes="pair_scores",
    cost=5.0,
    together="several_shards",
)
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


@stage(
    "encode",
    "encode:encode",
    version=1,
    makes="index",
    adapts="model",
    together="several_shards",
)
class EncodeConfig(StageConfig):
    """``model`` is the retriever's checkpoint; lengths are those that it was trained with.

    ``dtype``: of the vectors on disk; in int8 and binary of those of passages (``retrieval.quantising``).
    ``passages``: an index whose passage vectors are taken, where only the tower of the queries has changed since.
    ``query_splits``: those whose queries are encoded; others cannot be searched.
    ``windows``: stretches of a long passage that are encoded at most; it is ranked by its best (``retrieval.windows``).
    """

    model: Annotated[str, Input("encoder")]
    passages: Annotated[str | None, Input("index")]
    tokens: Annotated[str, Input("tokens")]
    precision: Literal["fp32", "bf16", "fp16"]
    dtype: Literal["float32", "float16", "int8", "binary"]
    chunk_tokens: Annotated[int, Field(gt=0)]
    shard_size: Annotated[int, Field(gt=0), Operational()]
    windows: Annotated[int, Field(ge=1)]
    query_splits: Annotated[list[Split], Field(min_length=1)] | None

    def by_content(self) -> set[str]:
        """Windows, the index of the passages, the splits: where none is set, the id is that of before there were."""
        return {"windows", *(name for name in ("passages", "query_splits") if getattr(self, name) is None)}

    def identity(self) -> list[str]:
        """The windows, where there is more than one."""
        return [f"windows {self.windows}"] if self.windows > 1 else []

    def work(self, read: Read) -> Work:
        """Queries, and passages whose vectors are not taken over, once. A number takes four bytes, two, one, or an eighth."""
        sizes = known(read)
        texts, size, longest = sizes.collection, sizes.encoder, sizes.passage_length or 128
        if size is None or texts.passages is None or texts.passage_tokens is None:
            return Work(sizes)
        splits = self.query_splits or texts.queries
        queries = sum(texts.queries.get(split) or 0 for split in splits)
        of_each = min(self.windows, max(1.0, texts.passage_tokens / longest))
        passages = texts.passages * of_each
        encoded = 0.0 if self.passages else passages
        rows = max(1.0, encoded + queries)
        length = max(QUESTION, (encoded * min(texts.passage_tokens / of_each + 2, longest) + queries * QUESTION) / rows)
        step = Step(size, rows, length, self.chunk_tokens, trained=False, precision=self.precision)
        of_query = 2 if self.dtype == "float16" else 4  # in an index of fewer bits they stay whole
        disk = size.hidden * (passages * BYTES[self.dtype] + queries * of_query)
        return Work(replace(sizes, dimensions=size.hidden), 1, step, seconds=0.0, disk=disk)


@stage("ann_index", "ann_index:ann_index", version=1, makes="index")
class ApproximateConfig(StageConfig):
    """``factory`` and ``sample``: what is built, and of how many vectors it learns; ``nprobe`` and ``ef_search``: how long it
    searches. ``compared`` queries of each use are searched exactly as well."""

    vectors: Annotated[str, Input("index")]
    factory: Annotated[str, Field(min_length=1)]
    sample: Annotated[int, Field(gt=0)]
    nprobe: Annotated[int, Field(gt=0)]
    ef_search: Annotated[int, Field(gt=0)]
    compared: Annotated[int, Field(gt=0)]
    seed: Annotated[int, Field(ge=0)]

    @field_validator("factory")
    @classmethod
    def _known_to_faiss(cls, value: str) -> str:
        from condensery.retrieval.factory import check_factory  # with FAISS, which takes .3 s

        try:
            check_factory(value)
        except UserError as error:
            raise ValueError(str(error).removeprefix("factory: ")) from None
        return value

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """An index without vectors, or with several of a passage."""
        encoded = inputs["vectors"][0]
        if isinstance(encoded, EncodeConfig):
            if encoded.windows == 1:
                return None
            return "vectors", f"{self.vectors} has up to {encoded.windows} windows of a passage; set its windows to 1"
        return "vectors", f"{self.vectors} is no index of vectors; name a trained encoder, or a stage of kind encode"


@stage("audit_negatives", "audit_negatives:audit_negatives", version=1, makes="suspects")
class AuditNegativesConfig(StageConfig):
    """``depth`` suspects of each query, and the ``rows`` most suspicious of all on the sheet.

    Where mining left candidates out for their scores, these are they; otherwise the first negatives of each query, by the
    scores of ``scorer`` or of the retriever that mined them.
    """

    negatives: Annotated[str, Input("negatives")]
    corpus: Annotated[str, Input("corpus")]
    scorer: Annotated[str | None, Input("index")]
    depth: Count
    rows: Count

    def work(self, read: Read) -> Work:
        """A few scores of each query."""
        return Work(known(read), seconds=5.0, disk=4e3 * self.rows)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """No retriever that could say how negatives score."""
        if self.scorer is not None or getattr(inputs["negatives"][0], "retriever", None) is not None:
            return None
        return "scorer", f"the stage {self.negatives!r} has no retriever of its own; name one whose scores count"


@stage("bm25", "bm25:bm25", version=2, makes="index")
class Bm25Config(StageConfig):
    """Robertson's parameters and the analysis of text."""

    corpus: Annotated[str, Input("corpus")]
    k1: Annotated[float, Field(ge=0)]
    b: Annotated[float, Field(ge=0, le=1)]
    stopwords: Annotated[str, AfterValidator(check_stopwords)]
    stemmer: Annotated[str, AfterValidator(check_stemmer)]
    language: Annotated[str, AfterValidator(check_language)]

    def work(self, read: Read) -> Work:
        """All passages are taken apart into words and indexed."""
        sizes = known(read)
        texts = product(sizes.collection.passages, sizes.collection.passage_tokens)
        return Work(replace(sizes, dimensions=0), seconds=product(1.1e-6, texts), disk=product(2.7, texts))


def content_of_checkpoint(named: str | Path, key: str, what: str) -> list[str]:
    """For the id of a stage that takes a checkpoint as it is: the hashes of its files, or its name on the hub.

    Raises ``UserError``, which names ``key`` and ``what`` it should be, where there is no such folder.
    """
    folder = expanded(named)
    if not folder.is_dir():
        if not is_hub_name(str(named)):
            raise UserError(f"{key}: {named}: no such folder; it names {what}")
        return [f"hub {named}"]
    endings = {".json", ".txt", ".model", ".safetensors", ".bin"}
    files = sorted(path for path in folder.rglob("*") if path.suffix in endings and path.name != "manifest.json")
    return content_hashes([path for path in files if "logs" not in path.parts])


@stage("cross_encoder", "cross_encoder:cross_encoder", version=1, makes="cross_encoder")
class CrossEncoderConfig(StageConfig):
    """``folder`` holds the checkpoint, or is its hub name: one for sequence classification with one label."""

    folder: str | Path  # text as it was given: ./name is a folder, name may be on the hub
    revision: str | None
    tokenizer: Annotated[str, Input("tokenizer")]
    tokens: Annotated[str, Input("tokens")]
    query_length: Annotated[int, Field(ge=4)]
    length: Annotated[int, Field(ge=8)]

    @model_validator(mode="after")
    def _room_for_a_passage(self) -> Self:
        if wrong := no_room(self.query_length, self.length):
            raise ValueError(wrong)
        return self

    def work(self, read: Read) -> Work:
        """The weights are read and written."""
        sizes = replace(known(read, "tokens"), encoder=released_size(self.folder), passage_length=self.length)
        return Work(sizes, seconds=None if sizes.encoder is None else 3.0, disk=checkpoint_bytes(sizes))

    def by_content(self) -> set[str]:
        """The folder, and what is left to it."""
        return {"folder", *([] if self.revision else ["revision"])}

    def identity(self) -> list[str]:
        """The weights and what describes them; of a hub name the name. ``UserError`` where there is no such folder."""
        return content_of_checkpoint(self.folder, "stage.cross_encoder.folder", "a trained cross-encoder")


@stage(
    "denoise",
    "denoise:denoise",
    version=1,
    makes="negatives",
    cost=5.0,
    together="several_shards",
)
class DenoiseConfig(ScoringStageConfig):
    """Negatives whose probability of relevance is lower than ``below`` are kept."""

    negatives: Annotated[str, Input("negatives")]
    below: Share

    def work(self, read: Read) -> Work:
        """Every negative is read with its query; see ``ScoringStageConfig``."""
        return self.scoring(read, known(read, "negatives").negatives, 1)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Scores that are no probabilities."""
        return no_probability(inputs)


@stage("fuse", "fuse:fuse", version=2, makes="index")
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


class RelabelConfig(StageConfig):
    """``relabel``: filled sheets of ``audit_negatives``, files or a folder; their content counts, not where they lie."""

    split: Split
    relabel: Path | Annotated[list[Path], Field(min_length=1)] | None

    def by_content(self) -> set[str]:
        """The sheets: without any the id is that of before there were some."""
        return {"relabel"}

    def identity(self) -> list[str]:
        """What the sheets hold, in any order. ``UserError`` where they are missing."""
        return sorted(content_hashes(self.filled()))

    def filled(self) -> list[Path]:
        """The sheets. Raises ``UserError`` where they are missing."""
        return [] if self.relabel is None else filled_sheets(self.relabel, "relabel")


@stage("mine", "mine:mine", version=3, makes="negatives", together="shared_search")
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


@stage(
    "pseudo_label",
    "pseudo_label:pseudo_label",
    version=2,
    makes="labels",
    cost=5.0,
    together="several_shards",
)
class AugmentConfig(ScoringStageConfig):
    """Of the ``depth`` best passages those above ``positive`` are positives, those below ``negative`` negatives."""

    retriever: Annotated[str, Input("index")]
    depth: Annotated[int, Field(gt=0)]
    positive: Share
    negative: Share

    def work(self, read: Read) -> Work:
        """See ``ScoringStageConfig``."""
        return self.scoring(read, known(read, "corpus").collection.unjudged, self.depth)

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.negative > self.positive:
            raise ValueError(f"negative={self.negative} is above positive={self.positive}: a passage would be both")
        return self

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Scores that are no probabilities; a collection in which every query is judged."""
        data = getattr(inputs["corpus"][0], "data", None) if inputs["corpus"] else None
        if data is not None and not data.unlabelled_queries:
            advice = "set data.unlabelled_queries to a number of training queries, or to unjudged"
            return "corpus", f"all queries of the collection {data.name} are judged; {advice}"
        return not_encoded("unjudged", "retriever", inputs["retriever"]) or no_probability(inputs)


@stage("read_negatives", "read_negatives:read_negatives", version=3, makes="negatives")
class TriplesConfig(RelabelConfig):
    """``file``: lines of query, positive and negative id, or .jsonl with lists of systems; ``None``: what the collection's
    files give (DPR, Tevatron, triples of texts).

    The first ``depth`` negatives of each query are kept. Of lists, those of ``systems`` are taken, the first ``per_system``
    of each; ``None``: all.
    """

    corpus: Annotated[str, Input("corpus")]
    file: Annotated[Path | None, Operational()]  # its content counts, not where it lies
    depth: Annotated[int, Field(gt=0)]
    systems: Annotated[list[str], Field(min_length=1)] | None
    per_system: Annotated[int, Field(gt=0)] | None

    @property
    def has_lists(self) -> bool:
        """Whether the file has the lists of systems."""
        return self.file is not None and self.file.name.endswith((".jsonl", ".jsonl.gz"))

    @model_validator(mode="after")
    def _systems_have_lists(self) -> Self:
        for key in ("systems", "per_system"):
            if getattr(self, key) is not None and not self.has_lists:
                raise ValueError(f"{key} chooses among the lists of a .jsonl file; file is {self.file}")
        return self

    def by_content(self) -> set[str]:
        """Keys that came later: where they are null the ids are those of before."""
        return {*super().by_content(), "systems", "per_system"}

    def identity(self) -> list[str]:
        """The content of the file. Raises ``UserError`` where there is none to read, before anything is computed."""
        if self.file is None:
            return super().identity()
        named = InputFile("file of negatives", self.file, "; stage.read_negatives.file names it", exact=True)
        chosen = [f"{key}={value}" for key in ("systems", "per_system") if (value := getattr(self, key)) is not None]
        return content_hashes([named.look()]) + chosen + super().identity()

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have, or no negatives."""
        data = getattr(inputs["corpus"][0], "data", None)
        if self.file is None and data is not None and not data.gives_negatives():
            return "file", f"needs a file of negatives; the files of the collection {data.name} give no negatives"
        return missing_split(self.split, inputs["corpus"])


@stage("retriever", "retriever:retriever", version=1, makes="encoder")
class RetrieverConfig(VectorConfig, StageConfig):
    """``folder`` holds the checkpoint, or is its hub name: of this project, of sentence-transformers, or of the BERT family.

    The lengths are in tokens; ``None`` takes those that it was trained with, where the folder says so.
    """

    folder: str | Path  # text as it was given: ./name is a folder, name may be on the hub
    revision: str | None = None
    query_length: Length | None
    passage_length: Length | None

    def work(self, read: Read) -> Work:
        """The weights are read and written."""
        folder = expanded(self.folder)
        _, longest = (longest_inputs(folder) if folder.is_dir() else None) or (None, None)
        encoder, passage_length = released_size(self.folder), self.passage_length or longest
        sizes = replace(known(read), encoder=encoder, passage_length=passage_length)
        return Work(sizes, seconds=None if sizes.encoder is None else 3.0, disk=checkpoint_bytes(sizes))

    def by_content(self) -> set[str]:
        """The folder, and what is left to it."""
        return {"folder", *self.not_given(), *([] if self.revision else ["revision"])}

    def identity(self) -> list[str]:
        """The weights and what describes them, wherever they lie; of a hub name the name.

        ``UserError`` where there is no such folder, or it makes vectors in a way that is not known.
        """
        found = content_of_checkpoint(self.folder, "stage.retriever.folder", "a trained retriever")
        if (folder := expanded(self.folder)).is_dir():
            vector_settings(folder)  # said before anything is computed
        return found


def no_probability(inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
    """What ``StageConfig.input_error`` says of a cross-encoder whose scores are no probabilities."""
    if all(getattr(config, "loss", "pointwise") == "pointwise" for config in inputs["cross_encoders"]):
        return None
    return "cross_encoders", (
        "thresholds need probabilities, which a cross-encoder trained listwise does not give; set its loss to pointwise"
    )
