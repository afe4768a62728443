"""Configs of the stages that encode, search, mine, fuse and rerank, and of those that load trained models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from condensery.errors import UserError
from condensery.evaluation.names import split_metric
from condensery.models.checkpoints.metadata import check_files, described, longest_inputs
from condensery.models.flops import Step
from condensery.models.vectors import Pooling, VectorConfig
from condensery.ranges import Count, CountOrZero, Finite, Positive, PositiveShare, Share, Weight, no_room
from condensery.retrieval.indexes.terms import check_stemmer, check_stopwords
from condensery.stages.base import (
    FromRecipe,
    Input,
    Later,
    Operational,
    Precision,
    RowLength,
    Seed,
    StageConfig,
    TextLength,
)
from condensery.stages.checks import Split, missing_split, not_encoded, unmeasurable
from condensery.stages.registry import stage
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
    total,
)
from condensery.system.files import expanded, is_hub_name
from condensery.text.hashes import content_hashes
from condensery.text.input_file import InputFile
from condensery.text.languages import check_language
from condensery.text.sheets import filled_sheets

BYTES = {"float32": 4.0, "float16": 2.0, "int8": 1.0, "binary": 0.125}  # bytes per vector dimension on disk


SEARCHED = 1000  # passages that a retriever is assumed to rank per query, as fusion needs to scale scores to [0, 1]

POINTS = 2_000  # maximum points of a grid of weights: enough for steps of 0.1 and up to five retrievers

RULES = ("below_share", "below_margin", "below_score")


class ScoringStageConfig(StageConfig):
    """Shared keys of the stages that score pairs of a query and a passage with cross-encoders."""

    cross_encoders: Annotated[list[str], Input("cross_encoder"), Field(min_length=1)]
    """stages with cross-encoders (train_cross_encoder); the logits of several are averaged"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    precision: Precision
    """numeric precision of cross-encoders: fp32, bf16 or fp16"""
    chunk_tokens: Count = 8192
    """padded tokens that a cross-encoder processes at once"""
    shard_size: Annotated[Count, Operational()] = 200
    """queries per shard file of cross-encoder scores; devices divide the shards among themselves, and a restart keeps
    complete shards"""

    def scoring(self, read: Read, queries: float | None, depth: int) -> Work:
        """Return the work of retrieving the ``depth`` best passages of ``queries`` queries and scoring them.

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


@stage("rerank", "rerank:rerank", version=2, makes="index", together="several_shards")
class RerankConfig(ScoringStageConfig):
    """Rerank the best passages of a retriever by the scores of cross-encoders.

    The stage makes an index, so it may be a row of the table.
    """

    data_checks = {"corpus": ["measurable"]}
    retriever: Annotated[str, Input("index")]
    """the stage with an index, or with an encoder, whose index is built first"""
    split: Annotated[Split, FromRecipe("table.split")]
    """the split whose queries are reranked; other queries cannot be searched for"""
    depth: Count = 100
    """passages reranked for each query; only these are returned, so metrics with a larger cutoff do not rise"""

    def work(self, read: Read) -> Work:
        """Estimate the work: the ``depth`` best passages of each query are retrieved, and every cross-encoder reads them."""
        return self.scoring(read, known(read).collection.queries.get(self.split), self.depth)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection lacks, or whose queries the retriever has not encoded."""
        missing = missing_split(self.split, inputs["corpus"])
        return missing or not_encoded(self.split, "retriever", inputs["retriever"])


@stage("read_run", "read_run:read_run", version=1, makes="index")
class ReadRunConfig(StageConfig):
    """Read another system's rankings from a TREC run file, so that the system is a row of the table.

    The stage makes an index of the queries of one split. The stages fuse, rerank, mine and score_pairs can read it too.
    """

    file: Annotated[Path, Operational()]  # its content enters the id, its path does not
    """run file, plain or .gz: query_id Q0 passage_id rank score tag; its unjudged queries need
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
        named = InputFile("run file", self.file, "; stage.read_run.file names it", exact=True)
        return content_hashes([named.look()])

    def work(self, read: Read) -> Work:
        """Estimate the work of reading a thousand lines for each query."""
        sizes = known(read)
        lines = product(float(SEARCHED), sizes.collection.queries.get(self.split))
        return Work(replace(sizes, dimensions=0), seconds=product(2e-6, lines), disk=product(8.0, lines))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection lacks."""
        return missing_split(self.split, inputs["corpus"])


def only_split(config: StageConfig) -> str | None:
    """Return the only split whose queries an index has rankings for; None for an index that searches for any query."""
    return config.split if isinstance(config, RerankConfig | ReadRunConfig) else None


@stage("score_pairs", "score_pairs:score_pairs", version=1, makes="pair_scores", together="several_shards")
class ScorePairsConfig(ScoringStageConfig):
    """Score the passages of training queries as a teacher, for the losses ``margin_mse`` and ``kl`` of finetune.

    The scored passages are the positives of each query and the best of each source of ``negatives``. A pair's score is the
    weighted mean over all ``cross_encoders`` and ``retrievers``. A ``file`` of pairs with their scores replaces all of these.
    """

    data_checks = {"corpus": ["judged"]}
    cross_encoders: Annotated[list[str], Input("cross_encoder")] = []
    """stages with cross-encoders (train_cross_encoder), whose logits are the scores"""
    retrievers: Annotated[list[str], Input("index")] = []
    """stages with an index (bm25, encode, ann_index, fuse, rerank), or with an encoder, whose index is built first"""
    file: Annotated[Path | None, Operational()] = None  # its content enters the id, its path does not
    """in place of scorers: a file of scored pairs, as a TREC run or .jsonl with query_id, passage_ids and scores; plain
    or .gz"""
    negatives: Annotated[list[str], Input("negatives")] = []
    """stages with hard negatives (mine, read_negatives), which are scored in addition to the positives"""
    labels: Annotated[list[str], Input("labels")] = []
    """stages with labels (pseudo_label), whose queries and positives are scored in addition to the judged ones"""
    split: Split = "train"
    """the split whose queries are scored"""
    train_queries: Count | None = None
    """number of queries, drawn as finetune draws them with the same seed; null: all"""
    depth: Count | None = None
    """number of highest-ranked negatives that are scored for each query and source; null: all"""
    weights: list[Positive] | None = None
    """weight of each scorer in the mean, cross-encoders first; null: equal weights"""
    scaling: Literal["none", "min_max"] = "none"
    """none: raw scores; min_max: each scorer's scores of a query are scaled to [0, 1] before the mean"""
    seed: Seed
    """random seed that draws the queries where ``train_queries`` is set"""

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
            UserError: the file is missing or unreadable; this is checked before anything is computed.
        """
        if self.file is None:
            return []
        named = InputFile("file with the scores of pairs", self.file, "; stage.score_pairs.file names it", exact=True)
        return content_hashes([named.look()])

    def work(self, read: Read) -> Work:
        """Estimate the work: each cross-encoder reads every pair, or each retriever searches for all queries.

        A pair takes eight bytes in the arrays and some twenty in pair_scores.jsonl.
        """
        sizes = known(read)
        queries = sizes.collection.queries.get(self.split) if self.train_queries is None else float(self.train_queries)
        pairs = (
            [product(queries, float(self.depth))] * len(self.negatives)
            if self.depth
            else [one.negatives for one in read.get("negatives", ())]
        )
        number = total([queries, *pairs])
        disk = product(28.0, number)
        if self.retrievers and not self.cross_encoders:
            looked = together(search(index, queries, SEARCHED) for index in read.get("retrievers", ()))
            return Work(sizes, products=looked.products, seconds=looked.seconds, disk=disk)
        if not self.cross_encoders or number is None:
            return Work(sizes)
        return replace(self.scoring(read, number, 1), disk=disk)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection or an index does not have, or a reranked index of another split."""
        for name, config in zip(self.retrievers, inputs["retrievers"], strict=True):
            if only_split(config) not in (None, self.split):
                return (
                    "retrievers",
                    f"{name} knows the queries of {only_split(config)} alone; set its split to {self.split}",
                )
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
    """Encode all passages and queries of a collection, with the input lengths of the retriever's training.

    If a key that needs an index names a stage with an encoder, this stage is added automatically to build the index.
    """

    model: Annotated[str, Input("encoder")]
    """the stage with the encoder"""
    passages: Annotated[str | None, Input("index"), Later()] = None
    """a stage with an index whose passage vectors are reused, where only the query tower differs; null: encode the
    passages"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the token ids of the collection"""
    precision: Precision
    """numeric precision: fp32, bf16 or fp16"""
    dtype: Literal["float32", "float16", "int8", "binary"] = "float32"
    """format of the vectors on disk: float32, float16, int8 (a quarter of the size) or binary (a 32nd); the loss of int8
    and binary is reported"""
    chunk_tokens: Count = 4096
    """padded tokens that the encoder processes at once"""
    shard_size: Annotated[Count, Operational()] = 20000
    """passages per shard file; devices divide the shards among themselves, and a restart keeps complete shards"""
    windows: Count = 1
    """maximum number of windows of a long passage that are encoded; the passage's score is that of its best window"""
    query_splits: Annotated[Annotated[list[Split], Field(min_length=1)] | None, Later()] = None
    """splits whose queries are encoded, such as [dev, test]; other queries cannot be searched for; null: all"""

    def by_content(self) -> set[str]:
        """Also return ``windows``, which enters the id through ``identity`` where it is above 1."""
        return super().by_content() | {"windows"}

    def identity(self) -> list[str]:
        """Return the number of windows where it is above 1."""
        return [f"windows {self.windows}"] if self.windows > 1 else []

    def work(self, read: Read) -> Work:
        """Estimate the work of encoding the queries once, and the passages too unless their vectors are reused.

        A vector dimension takes 4, 2, 1 or 1/8 bytes.
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
        of_query = 2 if self.dtype == "float16" else 4  # the query vectors of an int8 or binary index stay float32
        disk = size.hidden * (passages * BYTES[self.dtype] + queries * of_query)
        return Work(replace(sizes, dimensions=size.hidden), 1, step, seconds=0.0, disk=disk)


@stage("ann_index", "ann_index:ann_index", version=1, makes="index", together="several_shards")
class ApproximateConfig(StageConfig):
    """Build an approximate FAISS index over the vectors of a dense retriever, for collections where exact search is slow.

    The stage makes an index. So it can be a row of the table, and mine can read it. If a ``factory`` normalises vectors
    (L2norm) or subtracts their mean (PCA), the run prints a note. Recall against exact search is printed and kept in
    the manifest, for all requested passages and for the ten best.
    """

    vectors: Annotated[str, Input("index")]
    """the stage with a dense retriever, whose vectors are computed first"""
    on_disk: Annotated[bool, Later()] = False
    """keep the inverted lists of an IVF on disk, while the index is built and searched, for indexes larger than memory;
    building takes twice their space"""
    factory: Annotated[str, Field(min_length=1)] = "IVF1024,Flat"
    """FAISS index factory string, for inner product: IVF1024,Flat; IVF4096,PQ64; HNSW32; IVF4096,PQ64,RFlat; ... An
    index that ranks by distance is refused"""
    sample: Count = 200000
    """number of random vectors that the index is trained on"""
    nprobe: Count = 32
    """inverted lists that an IVF index searches for each query"""
    ef_search: Count = 64
    """candidates that an HNSW index keeps during the search for a query (efSearch)"""
    compared: Count = 100
    """number of queries that are also searched exactly at each use of the index, to measure recall"""
    seed: Seed
    """random seed of the training vectors and the compared queries"""

    @field_validator("factory")
    @classmethod
    def _known_to_faiss(cls, value: str, info: ValidationInfo) -> str:
        from condensery.retrieval.indexes.faiss_descriptions import check_factory  # imports FAISS, which takes .3 s

        try:
            check_factory(value, info.data.get("on_disk", False))
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

    The suspects are the candidates that mining excluded because of their scores, if there are any. Otherwise they are the
    highest scoring negatives of each query, by ``scorer`` or by the retriever that mined them.
    """

    negatives: Annotated[str, Input("negatives")]
    """the stage with negatives (mine, denoise, read_negatives)"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    scorer: Annotated[str | None, Input("index")] = None
    """the stage with an index or an encoder that ranks suspects; null: candidates that mining excluded, or scores of the
    mining retriever"""
    depth: Count = 3
    """maximum number of suspects per query"""
    rows: Count = 500
    """number of the most suspicious pairs, over all queries, on the sheet to be filled in"""

    def work(self, read: Read) -> Work:
        """Estimate the work of a few scores for each query."""
        return Work(known(read), seconds=5.0, disk=4e3 * self.rows)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report negatives that no known retriever could score."""
        if self.scorer is not None or getattr(inputs["negatives"][0], "retriever", None) is not None:
            return None
        return "scorer", f"the stage {self.negatives!r} has no retriever of its own; name one whose scores count"


@stage("bm25", "bm25:bm25", version=2, makes="index")
class Bm25Config(StageConfig):
    """Build a BM25 index of all passages: the baseline, and the source of the first hard negatives."""

    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    k1: Weight = 0.9
    """saturation of the term frequency (Robertson's parameter; Anserini's default)"""
    b: Share = 0.4
    """strength of the length normalisation, 0 to 1 (Robertson's parameter; Anserini's default)"""
    stopwords: Annotated[str, AfterValidator(check_stopwords)] = "english"
    """stop words that are removed: english or none"""
    stemmer: Annotated[str, AfterValidator(check_stemmer)] = "porter"
    """stemmer: a Snowball algorithm (Lucene uses porter), or none"""
    language: Annotated[str, AfterValidator(check_language)] = "auto"
    """how text is split into terms. auto: by the script of the passages; words: at blanks and punctuation in every
    script; further values: docs/howto/other-languages.md"""

    def work(self, read: Read) -> Work:
        """Estimate the work of splitting all passages into words and indexing them."""
        sizes = known(read)
        texts = product(sizes.collection.passages, sizes.collection.passage_tokens)
        return Work(replace(sizes, dimensions=0), seconds=product(1.1e-6, texts), disk=product(2.7, texts))


def content_of_checkpoint(named: str | Path, key: str, what: str) -> list[str]:
    """Return the strings that represent a checkpoint in a stage's id: the hashes of its files, or its name on the hub.

    Args:
        named: folder or hub name.
        key: config key that names the checkpoint, for the error message.
        what: kind of checkpoint that the key should name, for the error message.

    Raises:
        UserError: there is no such folder, and ``named`` is not a hub name.
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
    """Load a cross-encoder that was trained elsewhere, unchanged.

    The stages rerank, score_pairs and distil_ranking score pairs with it.
    """

    folder: str | Path  # string as given: ./name is a folder, but name may be on the hub
    """folder or hub name, such as cross-encoder/ms-marco-MiniLM-L6-v2; a model of the BERT family with one output"""
    revision: Annotated[str | None, Later()] = None
    """commit, tag or branch of the model on the Hugging Face hub"""
    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the cross-encoder's tokenizer; if the retriever's differs, add a further stage with
    backbone.tokenizer"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the token ids of that tokenizer"""
    query_length: TextLength = 64
    """maximum tokens of a query, including [CLS] and [SEP]"""
    length: RowLength = 256
    """maximum tokens of query and passage together; the passage is truncated to what the query leaves"""

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
        """Also return ``folder``, whose content enters the id instead of its path."""
        return super().by_content() | {"folder"}

    def identity(self) -> list[str]:
        """Return the hashes of the weights and of the files that describe them, or a hub checkpoint's name.

        Raises:
            UserError: there is no such folder.
        """
        return content_of_checkpoint(self.folder, "stage.cross_encoder.folder", "a trained cross-encoder")


@stage("denoise", "denoise:denoise", version=1, makes="negatives", together="several_shards")
class DenoiseConfig(ScoringStageConfig):
    """Keep only hard negatives that cross-encoders judge irrelevant, because the others are probably unjudged positives."""

    negatives: Annotated[str, Input("negatives")]
    """the stage with negatives (mine, read_negatives)"""
    below: Share = 0.1
    """a negative is kept if its probability of relevance (the sigmoid of the score) is below this"""

    def work(self, read: Read) -> Work:
        """Estimate the work: every cross-encoder reads each negative with its query."""
        return self.scoring(read, known(read, "negatives").negatives, 1)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a cross-encoder whose scores are not probabilities."""
        return no_probability(inputs)


@stage("fuse", "fuse:fuse", version=2, makes="index")
class FuseConfig(StageConfig):
    """Fuse the rankings of several retrievers, for example of BM25 and a dense retriever.

    The stage makes an index. So it can be a row of the table, and the stages mine and rerank can read it.
    """

    data_checks = {"corpus": ["choosing"]}
    retrievers: Annotated[list[str], Input("index"), Field(min_length=2)]
    """two or more stages with an index, or with an encoder, whose index is built first"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    method: Literal["weighted", "reciprocal_rank"] = "weighted"
    """weighted: weighted sum of scores, scaled to [0, 1] for each query and retriever; reciprocal_rank: sum of 1 /
    (``rank_constant`` + rank)"""
    rank_constant: Weight = 60
    """constant of reciprocal_rank; the larger it is, the less the first ranks dominate"""
    weights: list[Weight] | None = None
    """one weight for each retriever. null: chosen to maximise ``metric`` on ``split``, or equal where the split has no
    queries; with reciprocal_rank, 1 each"""
    otherwise: list[Weight] | None = None
    """weights for the case that ``split`` has fewer than ``least_queries`` queries and ``weights`` is null; null: equal"""
    least_queries: Count = 1
    """minimum number of queries of ``split`` for choosing weights"""
    split: Split = "dev"
    """the split whose queries choose the weights"""
    metric: str = "MRR@10"
    """metric that the weights maximise: MRR@k, Recall@k, NDCG@k, Success@k, MAP, P@k; Hit@k where answers are known"""
    grid: PositiveShare = 0.1
    """step of the grid of weights that are tried; the weights of all retrievers sum to 1"""
    depth: Count = 1000
    """candidates of each retriever for each query; scores are scaled over these candidates"""

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

        The keys were added later, so the ids of stages that do not use them stay valid.
        """
        return {"otherwise", "least_queries"} if self.otherwise is None and self.least_queries == 1 else set()

    def work(self, read: Read) -> Work:
        """Estimate the work: every retriever searches for the queries that choose the weights."""
        queries = known(read).collection.queries.get(self.split) if self.chooses else 0.0
        looked = together(search(sizes, queries, self.depth) for sizes in read["retrievers"])
        joined = replace(known(read), members=tuple(read["retrievers"]))
        return Work(joined, products=looked.products, seconds=looked.seconds, disk=1e4)

    @property
    def chooses(self) -> bool:
        """Whether queries choose the weights."""
        return self.method == "weighted" and self.weights is None

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report queries that cannot choose the weights: a retriever lacks them, or the metric cannot be measured on them."""
        if not self.chooses:
            return None
        for name, config in zip(self.retrievers, inputs["retrievers"], strict=True):
            if only_split(config) not in (None, self.split):
                return "retrievers", (
                    f"{name} knows the queries of {only_split(config)} alone, so weights cannot be chosen on {self.split};"
                    " set weights, one for each retriever"
                )
        fault = unmeasurable([self.metric], self.split, inputs["corpus"])
        return ("metric", fault[1]) if fault and fault[0] == "metrics" else None  # without the split: equal weights


class RelabelConfig(StageConfig):
    """Shared keys of the stages that use the judgements of filled-in audit sheets."""

    split: Split = "train"
    """the split whose queries get negatives; its judgements define the positives"""
    relabel: Path | Annotated[list[Path], Field(min_length=1)] | None = None
    """filled-in sheets of audit_negatives, as a folder or list of files: yes makes a positive; in mine, no makes a
    certain negative"""

    def by_content(self) -> set[str]:
        """Also return ``relabel``: the content of its sheets enters the id; without sheets it adds nothing."""
        return super().by_content() | {"relabel"}

    def identity(self) -> list[str]:
        """Return the sorted content hashes of the sheets, so that their order does not matter.

        Raises:
            UserError: the sheets are missing.
        """
        return sorted(content_hashes(self.filled()))

    def filled(self) -> list[Path]:
        """Return the paths of the sheets. Raises ``UserError`` where they are missing."""
        return [] if self.relabel is None else filled_sheets(self.relabel, "relabel")


@stage("mine", "mine:mine", version=3, makes="negatives", together="shared_search")
class MineConfig(ScoringStageConfig, RelabelConfig):
    """Mine hard negatives: the passages that a retriever ranks highest and that are not relevant, by judgement or by text.

    Rules may also exclude candidates that score nearly as high as the query's positive (positive-aware mining:
    NV-Retriever). If a query has several positives, the lowest of their scores is used. The scores are the retriever's own,
    those of the index ``scorer``, or the probabilities of ``cross_encoders``.
    """

    data_checks = {"corpus": ["judged", "answers", "sheets"]}
    retriever: Annotated[str, Input("index")]
    """the stage with an index, or with an encoder, whose index is built first"""
    depth: Count = 200
    """negatives kept for each query"""
    skip_top: CountOrZero = 0
    """number of highest-ranked passages that are skipped, because they may be unjudged positives"""
    without_answers: bool = False
    """also exclude passages that contain an answer to the query, where answers are known"""
    below_share: PositiveShare | None = None
    """keep candidates that score below this share of the positive's score, such as 0.95; null: no such rule"""
    below_margin: Weight | None = None
    """keep candidates that score below the positive's score minus this margin; null: no such rule"""
    below_score: Finite | None = None
    """keep candidates that score below this; null: no such rule"""
    scorer: Annotated[str | None, Input("index"), Later()] = None
    """another stage with an index or an encoder, whose scores the rules use; null: scores of ``retriever``"""
    cross_encoders: Annotated[list[str], Input("cross_encoder"), Later()] = []
    """stages with cross-encoders whose probabilities the rules use; the logits of several are averaged"""

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
        """Also return the rules and the cross-encoders' settings, which enter the id through ``identity`` where used."""
        return super().by_content() | {*RULES, "precision", "chunk_tokens"}

    def identity(self) -> list[str]:
        """Return the sheets' hashes, the rules that are set, and the cross-encoders' precision and chunk size.

        Raises:
            UserError: the sheets are missing.
        """
        how = [f"precision={self.precision}", f"chunk_tokens={self.chunk_tokens}"] if self.cross_encoders else []
        return [*super().identity(), *self._rules(), *how]

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split or answers that the collection lacks, or scores that are not probabilities.

        Also report a split whose queries the retriever has not encoded.
        """
        missing = missing_split(self.split, inputs["corpus"]) or self._missing_answers(inputs["corpus"])
        return missing or not_encoded(self.split, "retriever", inputs["retriever"]) or no_probability(inputs)

    def work(self, read: Read) -> Work:
        """Estimate the work of searching for all queries of the split.

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


@stage("pseudo_label", "pseudo_label:pseudo_label", version=2, makes="labels", together="several_shards")
class AugmentConfig(ScoringStageConfig):
    """Label queries without judgements (data.unlabelled_queries) by the probabilities of cross-encoders."""

    data_checks = {"corpus": ["unjudged"]}
    retriever: Annotated[str, Input("index")]
    """the stage with an index that supplies the candidates, or with an encoder, whose index is built first"""
    depth: Count = 50
    """number of candidates per query, the best of the retriever"""
    positive: Share = 0.9
    """probability above which a candidate is a positive; a query without a positive is left out"""
    negative: Share = 0.1
    """probability below which a candidate is a negative; candidates in between are neither"""

    def work(self, read: Read) -> Work:
        """Estimate the work: the candidates of each unjudged query are retrieved, and every cross-encoder reads them."""
        return self.scoring(read, known(read, "corpus").collection.unjudged, self.depth)

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.negative > self.positive:
            raise ValueError(f"negative={self.negative} is above positive={self.positive}: a passage would be both")
        return self

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report scores that are not probabilities, or a collection in which every query is judged.

        Also report a retriever that has not encoded the unjudged queries.
        """
        data = getattr(inputs["corpus"][0], "data", None) if inputs["corpus"] else None
        if data is not None and not data.unlabelled_queries:
            advice = "set data.unlabelled_queries to a number of training queries, or to unjudged"
            return "corpus", f"all queries of the collection {data.name} are judged; {advice}"
        return not_encoded("unjudged", "retriever", inputs["retriever"]) or no_probability(inputs)


@stage("read_negatives", "read_negatives:read_negatives", version=3, makes="negatives")
class TriplesConfig(RelabelConfig):
    """Read published negatives.

    The sources are MS MARCO's triples of ids, sentence-transformers' msmarco-hard-negatives, or the collection's own files
    (DPR, Tevatron, triples of texts).
    """

    data_checks = {"corpus": ["judged", "own_negatives", "sheets"]}
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    file: Annotated[Path | None, Operational()] = None  # its content enters the id, its path does not
    """file of triples (query, positive and negative id), or .jsonl with a list for each system; plain or .gz; null: the
    collection's own negatives"""
    depth: Count = 200
    """number of negatives kept for each query, from the beginning of its list"""
    systems: Annotated[list[str], Field(min_length=1)] | None = None
    """systems of a .jsonl file whose lists are used, such as [bm25, msmarco-distilbert-base-tas-b]; null: all"""
    per_system: Count | None = None
    """number of negatives used from the beginning of each list; null: all"""

    @property
    def has_lists(self) -> bool:
        """Whether the file has a list of negatives for each system."""
        return self.file is not None and self.file.name.endswith((".jsonl", ".jsonl.gz"))

    @model_validator(mode="after")
    def _systems_have_lists(self) -> Self:
        for key in ("systems", "per_system"):
            if getattr(self, key) is not None and not self.has_lists:
                raise ValueError(f"{key} chooses among the lists of a .jsonl file; file is {self.file}")
        return self

    def by_content(self) -> set[str]:
        """Return ``relabel``, ``systems`` and ``per_system``, so that older ids stay valid where these are null."""
        return super().by_content() | {"systems", "per_system"}

    def identity(self) -> list[str]:
        """Return the content hashes of the file and of the sheets, and the chosen systems.

        Raises:
            UserError: a file is missing or unreadable; this is checked before anything is computed.
        """
        if self.file is None:
            return super().identity()
        named = InputFile("file of negatives", self.file, "; stage.read_negatives.file names it", exact=True)
        chosen = [f"{key}={value}" for key in ("systems", "per_system") if (value := getattr(self, key)) is not None]
        return content_hashes([named.look()]) + chosen + super().identity()

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection lacks, or a collection without negatives of its own where no file is given."""
        data = getattr(inputs["corpus"][0], "data", None)
        if self.file is None and data is not None and not data.gives_negatives():
            return "file", f"needs a file of negatives; the files of the collection {data.name} give no negatives"
        return missing_split(self.split, inputs["corpus"])


@stage("retriever", "retriever:retriever", version=1, makes="encoder")
class RetrieverConfig(VectorConfig, StageConfig):
    """Load a retriever that was trained elsewhere, unchanged."""

    folder: Annotated[
        str | Path, FromRecipe("backbone.name")
    ]  # string as given: ./name is a folder, but name may be on the hub
    """folder or hub name of a checkpoint of this project, of sentence-transformers, or of the BERT family"""
    revision: Annotated[str | None, FromRecipe("backbone.revision"), Later()] = None
    """commit, tag or branch of the model on the Hugging Face hub"""
    query_length: TextLength | None = None
    """maximum tokens of a query, including [CLS] and [SEP]; null: as in the retriever's training"""
    passage_length: TextLength | None = None
    """maximum tokens of a passage; null: as in the retriever's training"""
    pooling: Annotated[Pooling | None, FromRecipe("backbone.pooling")] = None
    """pooling of the token states. cls: the state of [CLS]; mean, max, last, weighted_mean, mean_sqrt_len: over all
    tokens; null: the checkpoint's"""
    normalise: Annotated[bool | None, FromRecipe("backbone.normalise")] = None
    """true: normalise vectors, so that scores are cosines; null: the checkpoint's setting"""
    truncate_dim: Annotated[Count | None, FromRecipe("backbone.truncate_dim")] = None
    """number of leading dimensions that vectors keep; null: the checkpoint's setting"""
    query_prefix: Annotated[str | None, FromRecipe("backbone.query_prefix")] = None
    """string put before each query, such as "query: " for E5; null: the checkpoint's"""
    passage_prefix: Annotated[str | None, FromRecipe("backbone.passage_prefix")] = None
    """string put before each passage, such as "passage: " for E5; null: the checkpoint's"""

    def work(self, read: Read) -> Work:
        """Estimate the work of reading and writing the weights."""
        folder = expanded(self.folder)
        _, longest = (longest_inputs(folder) if folder.is_dir() else None) or (None, None)
        encoder, passage_length = released_size(self.folder), self.passage_length or longest
        sizes = replace(known(read), encoder=encoder, passage_length=passage_length)
        return Work(sizes, seconds=None if sizes.encoder is None else 3.0, disk=checkpoint_bytes(sizes))

    def by_content(self) -> set[str]:
        """Also return ``folder`` and the keys that leave their value to the checkpoint."""
        return super().by_content() | {"folder", *self.not_given()}

    def identity(self) -> list[str]:
        """Return the hashes of the weights and of the files that describe them, or a hub checkpoint's name.

        Raises:
            UserError: there is no such folder, or the checkpoint computes vectors in an unknown way.
        """
        found = content_of_checkpoint(self.folder, "stage.retriever.folder", "a trained retriever")
        if (folder := expanded(self.folder)).is_dir():
            check_files(folder)  # raises before anything is computed
        return found

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a length that neither the config nor the checkpoint gives."""
        folder, given = expanded(self.folder), (self.query_length, self.passage_length)
        if folder.is_dir():
            check_files(folder)  # another family is the greater fault
        if None in given and described(folder) and longest_inputs(folder) is None:
            key = ("query_length", "passage_length")[given.index(None)]
            return key, f"{self.folder} does not say how many tokens it reads; set query_length and passage_length"
        return None


def no_probability(inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
    """Return the field and the error message for a cross-encoder whose scores are not probabilities, or None."""
    if all(getattr(config, "loss", "pointwise") == "pointwise" for config in inputs["cross_encoders"]):
        return None
    return "cross_encoders", (
        "thresholds need probabilities, which a cross-encoder trained listwise does not give; set its loss to pointwise"
    )
