"""Configs of the stages that encode, search, mine, fuse and rerank."""

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
from condensery.retrieval.indexes.terms import check_stemmer, check_stopwords
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

BYTES = {"float32": 4.0, "float16": 2.0, "int8": 1.0, "binary": 0.125}  # bytes of a number on disk


SEARCHED = 1000  # passages that a retriever is assumed to rank per query, as a fused one does to scale scores to [0, 1]

POINTS = 2_000  # most points of a grid of weights: enough for steps of 0.1 and up to five retrievers

RULES = ("below_share", "below_margin", "below_score")

Length = Annotated[int, Field(ge=4)]


class ScoringStageConfig(StageConfig):
    """Shared keys of the stages that score pairs of a query and a passage with cross-encoders.

    Attributes:
        cross_encoders: stages with cross-encoders. Several are an ensemble: a pair's score is the mean of their scores.
        chunk_tokens: padded tokens that go through a cross-encoder together.
        shard_size: queries per file of finished work; a restart keeps whole files.
    """

    cross_encoders: Annotated[list[str], Input("cross_encoder"), Field(min_length=1)]
    corpus: Annotated[str, Input("corpus")]
    precision: Literal["fp32", "bf16", "fp16"]
    chunk_tokens: Annotated[int, Field(gt=0)]
    shard_size: Annotated[int, Field(gt=0), Operational()]

    def scoring(self, read: Read, queries: float | None, depth: int) -> Work:
        """Return the work of searching the ``depth`` best passages of ``queries`` queries and scoring them.

        Every cross-encoder reads each of these passages with its query. ``queries`` is None where the number is unknown.
        """
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
    """Put the best passages of a retriever into the order that cross-encoders give them.

    Attributes:
        retriever: the stage with the index, or an encoder, which is encoded first.
        split: the split whose queries are reranked; no other query can be searched for.
        depth: passages reranked per query. A passage that the retriever ranks deeper is not found any more.
    """

    retriever: Annotated[str, Input("index")]
    split: Split
    depth: Annotated[int, Field(gt=0)]

    def work(self, read: Read) -> Work:
        """Estimate the work: the ``depth`` best passages of each query are searched and read by every cross-encoder."""
        return self.scoring(read, known(read).collection.queries.get(self.split), self.depth)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection does not have, or whose queries the retriever has not encoded."""
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
    """Score the passages of training queries as a teacher, for the losses ``margin_mse`` and ``kl`` of finetune.

    The scored passages are the positives of each query and the best of each source of ``negatives``. A pair's score is the
    weighted mean over all ``cross_encoders`` and ``retrievers``. ``file`` replaces them: it has the pairs and their scores.

    Attributes:
        cross_encoders: stages with cross-encoders, whose logits count.
        retrievers: stages with an index, or with an encoder, which is encoded first.
        file: a TREC run, or .jsonl with query_id, passage_ids and scores; plain or .gz.
        negatives: stages with negatives, which are scored besides the positives.
        labels: stages with labels; their queries and positives are scored besides the judged ones.
        split: the split whose queries are scored.
        train_queries: how many queries are drawn, as finetune draws them with the same seed; null takes all.
        depth: how many of a query's best negatives of each source are scored; null takes all.
        weights: the share of each scorer in the mean, cross-encoders first; null weighs all alike.
        scaling: ``none`` keeps the scores. ``min_max`` scales a scorer's scores of a query to [0, 1] before the mean.
    """

    cross_encoders: Annotated[list[str], Input("cross_encoder")]
    retrievers: Annotated[list[str], Input("index")]
    file: Annotated[Path | None, Operational()]  # its content enters the id, its path does not
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
        """Return the content hash of the file, if there is one.

        Raises:
            UserError: the file is missing or unreadable; this is found before anything is computed.
        """
        if self.file is None:
            return []
        named = InputFile("file with the scores of pairs", self.file, "; stage.score_pairs.file names it", exact=True)
        return content_hashes([named.look()])

    def work(self, read: Read) -> Work:
        """Estimate the work: each cross-encoder reads every passage with its query, or each retriever searches."""
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
        """Report a split that the collection or an index does not have, or a reranked index of another split."""
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
    """Encode all passages and queries of a collection; inputs are as long as the retriever was trained with.

    Attributes:
        model: the stage with the retriever's checkpoint.
        passages: an index whose passage vectors are taken over, where only the tower of queries has changed since. Null
            encodes the passages.
        dtype: type of the vectors on disk. int8 and binary apply to passage vectors alone
            (``retrieval.indexes.quantisation_loss``).
        chunk_tokens: padded tokens that go through the encoder together.
        shard_size: passages per file of finished work; a restart keeps whole files.
        windows: how many windows of a long passage are encoded, at most. The passage is ranked by its best window
            (``retrieval.indexes.windows``).
        query_splits: the splits whose queries are encoded; the queries of other splits cannot be searched. Null encodes all.
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
        """Return ``windows``, and ``passages`` and ``query_splits`` where they are null.

        These keys were added later; ids of stages that do not use them stay valid.
        """
        return {"windows", *(name for name in ("passages", "query_splits") if getattr(self, name) is None)}

    def identity(self) -> list[str]:
        """Return the number of windows, where there is more than one."""
        return [f"windows {self.windows}"] if self.windows > 1 else []

    def work(self, read: Read) -> Work:
        """Estimate the work of encoding the queries, and the passages whose vectors are not taken over, once each.

        A number of a vector takes 4, 2, 1 or 1/8 bytes.
        """
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
        of_query = 2 if self.dtype == "float16" else 4  # in an int8 or binary index query vectors stay float32
        disk = size.hidden * (passages * BYTES[self.dtype] + queries * of_query)
        return Work(replace(sizes, dimensions=size.hidden), 1, step, seconds=0.0, disk=disk)


@stage("ann_index", "ann_index:ann_index", version=1, makes="index")
class ApproximateConfig(StageConfig):
    """Build one of FAISS's approximate indexes over the vectors of a dense retriever.

    Attributes:
        vectors: the stage with the dense retriever, which is encoded first.
        factory: FAISS's index factory, by inner product, such as ``IVF1024,Flat``.
        sample: vectors, drawn at random, that the index is trained on.
        nprobe: lists that an IVF index looks through for each query.
        ef_search: candidates that an HNSW index keeps for each query (efSearch).
        compared: queries of each use that are also searched exactly, to measure the recall.
    """

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
        from condensery.retrieval.indexes.faiss_descriptions import check_factory  # with FAISS, which takes .3 s

        try:
            check_factory(value)
        except UserError as error:
            raise ValueError(str(error).removeprefix("factory: ")) from None
        return value

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report an index without vectors, or with several vectors per passage."""
        encoded = inputs["vectors"][0]
        if isinstance(encoded, EncodeConfig):
            if encoded.windows == 1:
                return None
            return "vectors", f"{self.vectors} has up to {encoded.windows} windows of a passage; set its windows to 1"
        return "vectors", f"{self.vectors} is no index of vectors; name a trained encoder, or a stage of kind encode"


@stage("audit_negatives", "audit_negatives:audit_negatives", version=1, makes="suspects")
class AuditNegativesConfig(StageConfig):
    """List suspected false negatives on a sheet, for a person to judge.

    The suspects are the candidates that mining left out for their scores, if there are any. Otherwise they are the first
    negatives of each query, by the scores of ``scorer`` or of the retriever that mined them.

    Attributes:
        negatives: the stage with the negatives.
        scorer: the stage with an index or an encoder whose scores count; null takes the default above.
        depth: suspects of each query, at most.
        rows: the most suspicious pairs of all queries, which are put on the sheet.
    """

    negatives: Annotated[str, Input("negatives")]
    corpus: Annotated[str, Input("corpus")]
    scorer: Annotated[str | None, Input("index")]
    depth: Count
    rows: Count

    def work(self, read: Read) -> Work:
        """Estimate the work of a few scores for each query."""
        return Work(known(read), seconds=5.0, disk=4e3 * self.rows)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report that no retriever is known that could score the negatives."""
        if self.scorer is not None or getattr(inputs["negatives"][0], "retriever", None) is not None:
            return None
        return "scorer", f"the stage {self.negatives!r} has no retriever of its own; name one whose scores count"


@stage("bm25", "bm25:bm25", version=2, makes="index")
class Bm25Config(StageConfig):
    """Build a BM25 index of all passages.

    Attributes:
        k1: saturation of the term frequency (Robertson's parameter).
        b: strength of the length normalisation, from 0 to 1 (Robertson's parameter).
        stopwords: ``english`` or ``none``.
        stemmer: a Snowball algorithm, or ``none``.
        language: decides how text is split into words; ``auto`` guesses from the letters of the passages.
    """

    corpus: Annotated[str, Input("corpus")]
    k1: Annotated[float, Field(ge=0)]
    b: Annotated[float, Field(ge=0, le=1)]
    stopwords: Annotated[str, AfterValidator(check_stopwords)]
    stemmer: Annotated[str, AfterValidator(check_stemmer)]
    language: Annotated[str, AfterValidator(check_language)]

    def work(self, read: Read) -> Work:
        """Estimate the work of splitting all passages into words and indexing them."""
        sizes = known(read)
        texts = product(sizes.collection.passages, sizes.collection.passage_tokens)
        return Work(replace(sizes, dimensions=0), seconds=product(1.1e-6, texts), disk=product(2.7, texts))


def content_of_checkpoint(named: str | Path, key: str, what: str) -> list[str]:
    """Return the strings that stand for a checkpoint in a stage's id: the hashes of its files, or its name on the hub.

    Args:
        named: the folder or the hub name.
        key: the config key that names the checkpoint, for the message.
        what: the kind of checkpoint that the key should name, for the message.

    Raises:
        UserError: there is no such folder, and the text is no hub name.
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
    """Take a cross-encoder that was trained elsewhere, as it is.

    Attributes:
        folder: folder or hub name of a checkpoint for sequence classification with one label.
        revision: commit, tag or branch on the hub.
        tokenizer: the stage with the checkpoint's own tokenizer.
        tokens: the stage with the tokens of that tokenizer.
        query_length: tokens of the longest query, [CLS] and [SEP] included.
        length: tokens of the longest pair; the passage is cut to the room that the query leaves.
    """

    folder: str | Path  # text as it was given: ./name is a folder, but name may be on the hub
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
        """Estimate the work of reading and writing the weights."""
        sizes = replace(known(read, "tokens"), encoder=released_size(self.folder), passage_length=self.length)
        return Work(sizes, seconds=None if sizes.encoder is None else 3.0, disk=checkpoint_bytes(sizes))

    def by_content(self) -> set[str]:
        """Return ``folder``, and ``revision`` where it is null."""
        return {"folder", *([] if self.revision else ["revision"])}

    def identity(self) -> list[str]:
        """Return the hashes of the weights and of the files that describe them; of a checkpoint on the hub its name.

        Raises:
            UserError: there is no such folder.
        """
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
    """Keep the hard negatives that cross-encoders judge irrelevant; the others are likely unjudged positives.

    Attributes:
        negatives: the stage with the negatives.
        below: a negative is kept where its probability of relevance, the sigmoid of the score, is lower than this.
    """

    negatives: Annotated[str, Input("negatives")]
    below: Share

    def work(self, read: Read) -> Work:
        """Estimate the work: every cross-encoder reads each negative with its query."""
        return self.scoring(read, known(read, "negatives").negatives, 1)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a cross-encoder whose scores are no probabilities."""
        return no_probability(inputs)


@stage("fuse", "fuse:fuse", version=2, makes="index")
class FuseConfig(StageConfig):
    """Join the rankings of several retrievers, for example of BM25 and a dense one.

    Attributes:
        retrievers: two or more stages with an index, or with an encoder, which is encoded first.
        method: ``weighted`` sums each retriever's scores, scaled to [0, 1] per query. ``reciprocal_rank`` sums
            1 / (``rank_constant`` + rank).
        rank_constant: of ``reciprocal_rank``; the larger it is, the less the first ranks count.
        weights: one for each retriever. Null, with ``weighted``, takes the best weights of the ``grid``, by ``metric`` on
            ``split``. Null, with ``reciprocal_rank``, weighs all retrievers by 1.
        otherwise: the weights where ``split`` has fewer than ``least_queries`` queries; null gives equal weights.
        grid: step of the weights that are tried; the weights of all retrievers sum to 1.
        depth: candidates of each retriever for each query.
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
        """Return ``otherwise`` and ``least_queries`` where both have their defaults.

        The keys were added later; ids of stages that do not use them stay valid.
        """
        return {"otherwise", "least_queries"} if self.otherwise is None and self.least_queries == 1 else set()

    def work(self, read: Read) -> Work:
        """Estimate the work: every retriever searches the queries that choose the weights."""
        queries = known(read).collection.queries.get(self.split) if self.chooses else 0.0
        looked = together(search(sizes, queries, self.depth) for sizes in read["retrievers"])
        joined = replace(known(read), members=tuple(read["retrievers"]))
        return Work(joined, products=looked.products, seconds=looked.seconds, disk=1e4)

    @property
    def chooses(self) -> bool:
        """Whether queries choose the weights."""
        return self.method == "weighted" and self.weights is None

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report queries that cannot choose the weights: a retriever does not know them, or they cannot be measured."""
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
    """Shared keys of the stages that take the judgements of filled sheets.

    Attributes:
        split: the split of the queries.
        relabel: filled sheets of ``audit_negatives``, as files or a folder. Their content enters the id, their path does not.
    """

    split: Split
    relabel: Path | Annotated[list[Path], Field(min_length=1)] | None

    def by_content(self) -> set[str]:
        """Return ``relabel``: its sheets count by content, and ids without sheets stay as they were."""
        return {"relabel"}

    def identity(self) -> list[str]:
        """Return the content hashes of the sheets, sorted, so that their order does not matter.

        Raises:
            UserError: the sheets are missing.
        """
        return sorted(content_hashes(self.filled()))

    def filled(self) -> list[Path]:
        """Return the paths of the sheets. Raises ``UserError`` where they are missing."""
        return [] if self.relabel is None else filled_sheets(self.relabel, "relabel")


@stage("mine", "mine:mine", version=3, makes="negatives", together="shared_search")
class MineConfig(ScoringStageConfig, RelabelConfig):
    """Mine hard negatives: the passages that a retriever ranks highest and that are not relevant.

    Rules may also leave out candidates that score nearly as high as the query's positive (``retrieval.positive_aware``).
    Of several positives the lowest counts. The scores are the retriever's own, those of the index ``scorer``, or the
    probabilities that ``cross_encoders`` give.

    Attributes:
        retriever: the stage with the index that is searched.
        depth: negatives kept per query.
        skip_top: how many of the best candidates are left out first, since they may be unjudged positives.
        without_answers: whether passages that hold an answer of the query are left out too.
        below_share: keeps candidates that score below this share of the positive's score, above 0 and at most 1.
        below_margin: keeps candidates that score below the positive's score less this margin.
        below_score: keeps candidates that score below this score.
        scorer: another index or encoder whose scores the rules use.
        cross_encoders: stages with cross-encoders whose probabilities the rules use.
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
        """Return the rules that are set, with their values."""
        return [f"{key}={value}" for key in RULES if (value := getattr(self, key)) is not None]

    def by_content(self) -> set[str]:
        """Return the keys that were added later and are not used, so that older ids stay valid."""
        scorers = {field for field in ("scorer", "cross_encoders") if not getattr(self, field)}
        return {*super().by_content(), *RULES, *scorers, "precision", "chunk_tokens"}

    def identity(self) -> list[str]:
        """Return the sheets' hashes, the rules that are set, and how cross-encoders compute.

        Raises:
            UserError: the sheets are missing.
        """
        how = [f"precision={self.precision}", f"chunk_tokens={self.chunk_tokens}"] if self.cross_encoders else []
        return [*super().identity(), *self._rules(), *how]

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split or answers that the collection does not have, or scores that are no probabilities.

        Also reports a split whose queries the retriever has not encoded.
        """
        missing = missing_split(self.split, inputs["corpus"]) or self._missing_answers(inputs["corpus"])
        return missing or not_encoded(self.split, "retriever", inputs["retriever"]) or no_probability(inputs)

    def work(self, read: Read) -> Work:
        """Estimate the work of searching all queries of the split.

        A negative takes four bytes in the arrays and twenty in negatives.jsonl.
        """
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
    """Label the queries that no split judges, by the probabilities of cross-encoders.

    Attributes:
        retriever: the stage with the index that gives the candidates.
        depth: candidates per query, the best of the retriever.
        positive: a candidate with a higher probability is a positive; a query without positives is left out.
        negative: a candidate with a lower probability is a negative. Candidates between the two limits are neither.
    """

    retriever: Annotated[str, Input("index")]
    depth: Annotated[int, Field(gt=0)]
    positive: Share
    negative: Share

    def work(self, read: Read) -> Work:
        """Estimate the work: the candidates of each unjudged query are searched and read by every cross-encoder."""
        return self.scoring(read, known(read, "corpus").collection.unjudged, self.depth)

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.negative > self.positive:
            raise ValueError(f"negative={self.negative} is above positive={self.positive}: a passage would be both")
        return self

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report scores that are no probabilities, or a collection in which every query is judged.

        Also reports a retriever that has not encoded the unjudged queries.
        """
        data = getattr(inputs["corpus"][0], "data", None) if inputs["corpus"] else None
        if data is not None and not data.unlabelled_queries:
            advice = "set data.unlabelled_queries to a number of training queries, or to unjudged"
            return "corpus", f"all queries of the collection {data.name} are judged; {advice}"
        return not_encoded("unjudged", "retriever", inputs["retriever"]) or no_probability(inputs)


@stage("read_negatives", "read_negatives:read_negatives", version=3, makes="negatives")
class TriplesConfig(RelabelConfig):
    """Read negatives that others published.

    Attributes:
        file: lines of query, positive and negative id, or .jsonl with lists of systems. Null takes the negatives of the
            collection's own files (DPR, Tevatron, triples of texts).
        depth: negatives kept per query, the first ones.
        systems: the systems whose lists are taken from a .jsonl file; null takes all.
        per_system: how many negatives of each list are taken, the first ones; null takes all.
    """

    corpus: Annotated[str, Input("corpus")]
    file: Annotated[Path | None, Operational()]  # its content enters the id, its path does not
    depth: Annotated[int, Field(gt=0)]
    systems: Annotated[list[str], Field(min_length=1)] | None
    per_system: Annotated[int, Field(gt=0)] | None

    @property
    def has_lists(self) -> bool:
        """Whether the file has lists of systems."""
        return self.file is not None and self.file.name.endswith((".jsonl", ".jsonl.gz"))

    @model_validator(mode="after")
    def _systems_have_lists(self) -> Self:
        for key in ("systems", "per_system"):
            if getattr(self, key) is not None and not self.has_lists:
                raise ValueError(f"{key} chooses among the lists of a .jsonl file; file is {self.file}")
        return self

    def by_content(self) -> set[str]:
        """Return ``relabel``, ``systems`` and ``per_system``: where these are null, older ids stay valid."""
        return {*super().by_content(), "systems", "per_system"}

    def identity(self) -> list[str]:
        """Return the content hashes of the file and of the sheets, and the chosen systems.

        Raises:
            UserError: a file is missing or unreadable; this is found before anything is computed.
        """
        if self.file is None:
            return super().identity()
        named = InputFile("file of negatives", self.file, "; stage.read_negatives.file names it", exact=True)
        chosen = [f"{key}={value}" for key in ("systems", "per_system") if (value := getattr(self, key)) is not None]
        return content_hashes([named.look()]) + chosen + super().identity()

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection does not have, or a collection without negatives of its own."""
        data = getattr(inputs["corpus"][0], "data", None)
        if self.file is None and data is not None and not data.gives_negatives():
            return "file", f"needs a file of negatives; the files of the collection {data.name} give no negatives"
        return missing_split(self.split, inputs["corpus"])


@stage("retriever", "retriever:retriever", version=1, makes="encoder")
class RetrieverConfig(VectorConfig, StageConfig):
    """Take a retriever that was trained elsewhere, as it is.

    Attributes:
        folder: folder or hub name of a checkpoint of this project, of sentence-transformers, or of the BERT family.
        revision: commit, tag or branch on the hub.
        query_length: tokens of the longest query, [CLS] and [SEP] included. Null takes the length of the training, where
            the folder tells it.
        passage_length: tokens of the longest passage; null as for ``query_length``.
    """

    folder: str | Path  # text as it was given: ./name is a folder, but name may be on the hub
    revision: str | None = None
    query_length: Length | None
    passage_length: Length | None

    def work(self, read: Read) -> Work:
        """Estimate the work of reading and writing the weights."""
        folder = expanded(self.folder)
        _, longest = (longest_inputs(folder) if folder.is_dir() else None) or (None, None)
        encoder, passage_length = released_size(self.folder), self.passage_length or longest
        sizes = replace(known(read), encoder=encoder, passage_length=passage_length)
        return Work(sizes, seconds=None if sizes.encoder is None else 3.0, disk=checkpoint_bytes(sizes))

    def by_content(self) -> set[str]:
        """Return ``folder``, and the keys that leave their value to the checkpoint."""
        return {"folder", *self.not_given(), *([] if self.revision else ["revision"])}

    def identity(self) -> list[str]:
        """Return the hashes of the weights and of the files that describe them; of a checkpoint on the hub its name.

        Raises:
            UserError: there is no such folder, or the checkpoint makes vectors in an unknown way.
        """
        found = content_of_checkpoint(self.folder, "stage.retriever.folder", "a trained retriever")
        if (folder := expanded(self.folder)).is_dir():
            vector_settings(folder)  # raises before anything is computed
        return found


def no_probability(inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
    """Return the complaint about a cross-encoder whose scores are no probabilities: the field and the text, or None."""
    if all(getattr(config, "loss", "pointwise") == "pointwise" for config in inputs["cross_encoders"]):
        return None
    return "cross_encoders", (
        "thresholds need probabilities, which a cross-encoder trained listwise does not give; set its loss to pointwise"
    )
