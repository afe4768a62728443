"""Configs of the stages that encode, search, mine, fuse and rerank."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from condensery.errors import UserError
from condensery.evaluation.names import split_metric
from condensery.models.checkpoints.metadata import longest_inputs, vector_settings
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


class ScoringStageConfig(StageConfig):
    """Shared keys of the stages that score pairs of a query and a passage with cross-encoders."""

    cross_encoders: Annotated[list[str], Input("cross_encoder"), Field(min_length=1)]
    """stages with cross-encoders (train_cross_encoder); of several the mean of their logits counts"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    precision: Precision
    """of cross-encoders: fp32, bf16 or fp16"""
    chunk_tokens: Count = 8192
    """padded tokens that go through a cross-encoder together"""
    shard_size: Annotated[Count, Operational()] = 200
    """queries of a file of what cross-encoders have scored; devices share the files, and a restart keeps whole ones"""

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


@stage("rerank", "rerank:rerank", version=2, makes="index", together="several_shards")
class RerankConfig(ScoringStageConfig):
    """Put the best passages of a retriever into the order that cross-encoders give them.

    It makes an index, so it may be a row of the table.
    """

    retriever: Annotated[str, Input("index")]
    """the stage with an index, or with an encoder, which is encoded first"""
    split: Annotated[Split, FromRecipe("table.split")]
    """whose queries are reranked; no others can be searched for"""
    depth: Count = 100
    """passages reranked for each query; no deeper one is found, so metrics beyond it do not rise"""

    def work(self, read: Read) -> Work:
        """Estimate the work: the ``depth`` best passages of each query are searched and read by every cross-encoder."""
        return self.scoring(read, known(read).collection.queries.get(self.split), self.depth)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection does not have, or whose queries the retriever has not encoded."""
        missing = missing_split(self.split, inputs["corpus"])
        return missing or not_encoded(self.split, "retriever", inputs["retriever"])


@stage("score_pairs", "score_pairs:score_pairs", version=1, makes="pair_scores", together="several_shards")
class ScorePairsConfig(ScoringStageConfig):
    """Score the passages of training queries as a teacher, for the losses ``margin_mse`` and ``kl`` of finetune.

    The scored passages are the positives of each query and the best of each source of ``negatives``. A pair's score is the
    weighted mean over all ``cross_encoders`` and ``retrievers``. ``file`` replaces them: it has the pairs and their scores.
    """

    cross_encoders: Annotated[list[str], Input("cross_encoder")] = []
    """stages with cross-encoders (train_cross_encoder), whose logits count"""
    retrievers: Annotated[list[str], Input("index")] = []
    """stages with an index, or with an encoder, which is encoded first: bm25, encode, ann_index, fuse, rerank"""
    file: Annotated[Path | None, Operational()] = None  # its content enters the id, its path does not
    """in place of both, the pairs and their scores: a TREC run, or .jsonl with query_id, passage_ids and scores; plain
    or .gz"""
    negatives: Annotated[list[str], Input("negatives")] = []
    """stages with negatives (mine, read_negatives); they are scored besides the positives"""
    labels: Annotated[list[str], Input("labels")] = []
    """stages with labels (pseudo_label); their queries and positives are scored besides the judged ones"""
    split: Split = "train"
    """whose queries are scored"""
    train_queries: Count | None = None
    """so many queries, as finetune draws them with the same seed; null: all"""
    depth: Count | None = None
    """how many of a query's best of each source of negatives; null: all"""
    weights: list[Positive] | None = None
    """share of each scorer in the mean, cross-encoders first; null: all alike"""
    scaling: Literal["none", "min_max"] = "none"
    """none: scores as they are; min_max: a scorer's scores of a query are scaled to [0, 1] before the mean"""
    seed: Seed
    """draws the queries where ``train_queries`` is set"""

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

    The stage is added by itself where a retriever is named and an index is needed.
    """

    model: Annotated[str, Input("encoder")]
    """the stage with the encoder"""
    passages: Annotated[str | None, Input("index"), Later()] = None
    """an index of a stage whose passage vectors are taken, where only the tower of queries differs from its encoder;
    null: encode them"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the tokens"""
    precision: Precision
    """fp32, bf16 or fp16"""
    dtype: Literal["float32", "float16", "int8", "binary"] = "float32"
    """of the vectors on disk: float32, float16, int8 (a quarter) or binary (a 32nd); what the last two lose is measured
    and said"""
    chunk_tokens: Count = 4096
    """padded tokens that go through the encoder together"""
    shard_size: Annotated[Count, Operational()] = 20000
    """passages of a file of finished work; devices share the files, and a restart keeps whole ones"""
    windows: Count = 1
    """windows of a long passage that are encoded, at most; it ranks by its best"""
    query_splits: Annotated[Annotated[list[Split], Field(min_length=1)] | None, Later()] = None
    """splits whose queries are encoded, such as [dev, test]; no others can be searched for; null: all"""

    def by_content(self) -> set[str]:
        """Return, besides, ``windows``, which counts where there are several."""
        return super().by_content() | {"windows"}

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
    """Build one of FAISS's approximate indexes over the vectors of a dense retriever, where exact search takes too long.

    It makes an index, so it may be a row of the table, and be mined from. A ``factory`` that takes lengths (L2norm) or
    the mean (PCA) off vectors says so. The recall of all that is asked for, and of the ten best, is printed and kept in
    the manifest.
    """

    vectors: Annotated[str, Input("index")]
    """the stage with a dense retriever, which is encoded first"""
    factory: Annotated[str, Field(min_length=1)] = "IVF1024,Flat"
    """FAISS's index factory, by inner product: IVF1024,Flat; IVF4096,PQ64; HNSW32; IVF4096,PQ64,RFlat; ... One that
    ranks by distance is refused"""
    sample: Count = 200000
    """vectors, drawn at random, that the index is trained on"""
    nprobe: Count = 32
    """lists that an IVF looks through for each query"""
    ef_search: Count = 64
    """candidates that an HNSW keeps in sight for each query (efSearch)"""
    compared: Count = 100
    """queries of each use that are also searched exactly, to measure the recall"""
    seed: Seed
    """of what is drawn"""

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
    """

    negatives: Annotated[str, Input("negatives")]
    """the stage with negatives (mine, denoise, read_negatives)"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    scorer: Annotated[str | None, Input("index")] = None
    """the stage with an index or an encoder whose scores count; null: what mining left out, or the retriever that mined"""
    depth: Count = 3
    """suspects of each query, at most"""
    rows: Count = 500
    """the most suspicious pairs of all queries, which are on the sheet to be filled in"""

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
    """Build a BM25 index of all passages: the baseline, and the first miner of negatives."""

    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    k1: Weight = 0.9
    """saturation of term frequency (Robertson's parameter; Anserini's default)"""
    b: Share = 0.4
    """strength of the length normalisation, 0 to 1 (Robertson's parameter; Anserini's default)"""
    stopwords: Annotated[str, AfterValidator(check_stopwords)] = "english"
    """english or none"""
    stemmer: Annotated[str, AfterValidator(check_stemmer)] = "porter"
    """a Snowball algorithm (Lucene stems with porter), or none"""
    language: Annotated[str, AfterValidator(check_language)] = "auto"
    """how text is split into words. auto: guessed from the passages' letters; words: words alone; others:
    docs/howto/other-languages.md"""

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

    Stages that score pairs use it: rerank, score_pairs, distil_ranking.
    """

    folder: str | Path  # text as it was given: ./name is a folder, but name may be on the hub
    """folder or hub name, such as cross-encoder/ms-marco-MiniLM-L6-v2: of the BERT family, with one score of a pair"""
    revision: Annotated[str | None, Later()] = None
    """commit, tag or branch on the hub"""
    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with its tokenizer; where the retriever has another, a stage of its own with backbone.tokenizer"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the tokens of that tokenizer"""
    query_length: TextLength = 64
    """tokens of the longest query, [CLS] and [SEP] included"""
    length: RowLength = 256
    """tokens of the longest row, query and passage; the passage is cut to the room that the query leaves"""

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
        """Return, besides, ``folder``, which counts by content."""
        return super().by_content() | {"folder"}

    def identity(self) -> list[str]:
        """Return the hashes of the weights and of the files that describe them; of a checkpoint on the hub its name.

        Raises:
            UserError: there is no such folder.
        """
        return content_of_checkpoint(self.folder, "stage.cross_encoder.folder", "a trained cross-encoder")


@stage("denoise", "denoise:denoise", version=1, makes="negatives", together="several_shards")
class DenoiseConfig(ScoringStageConfig):
    """Keep the hard negatives that cross-encoders judge irrelevant; the others are likely unjudged positives."""

    negatives: Annotated[str, Input("negatives")]
    """the stage with negatives (mine, read_negatives)"""
    below: Share = 0.1
    """a negative is kept where its probability of relevance, the sigmoid of the score, is lower"""

    def work(self, read: Read) -> Work:
        """Estimate the work: every cross-encoder reads each negative with its query."""
        return self.scoring(read, known(read, "negatives").negatives, 1)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a cross-encoder whose scores are no probabilities."""
        return no_probability(inputs)


@stage("fuse", "fuse:fuse", version=2, makes="index")
class FuseConfig(StageConfig):
    """Join the rankings of several retrievers, for example of BM25 and a dense one.

    It makes an index, so it may be a row of the table, be mined from, and be reranked.
    """

    retrievers: Annotated[list[str], Input("index"), Field(min_length=2)]
    """two or more stages with an index, or with an encoder, which is encoded first"""
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    method: Literal["weighted", "reciprocal_rank"] = "weighted"
    """weighted: sum of each one's scores, scaled to [0, 1] for a query; reciprocal_rank: sum of 1 / (``rank_constant``
    + rank)"""
    rank_constant: Weight = 60
    """of reciprocal_rank: the larger, the less the first ranks count"""
    weights: list[Weight] | None = None
    """one for each retriever. null: the best on ``split`` by ``metric`` (weighted; equal where it has no queries), or
    all 1 (reciprocal_rank)"""
    otherwise: list[Weight] | None = None
    """the weights where ``split`` has fewer than ``least_queries`` queries, and ``weights`` is null; null: equal"""
    least_queries: Count = 1
    """queries of ``split`` that are needed to choose weights by"""
    split: Split = "dev"
    """whose queries the weights are chosen by"""
    metric: str = "MRR@10"
    """what the weights are to raise: MRR@k, Recall@k, NDCG@k, Success@k, MAP, P@k; Hit@k where answers are known"""
    grid: PositiveShare = 0.1
    """step of the weights that are tried; those of all retrievers sum to 1"""
    depth: Count = 1000
    """candidates of each retriever for each query; scores are scaled over these"""

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
    """Shared keys of the stages that take the judgements of filled sheets."""

    split: Split = "train"
    """whose queries have negatives; its judgements say what is a positive"""
    relabel: Path | Annotated[list[Path], Field(min_length=1)] | None = None
    """filled sheets of audit_negatives, a folder or a list of files: yes makes a positive; in mine, no makes a
    negative for certain"""

    def by_content(self) -> set[str]:
        """Return ``relabel``: its sheets count by content, and ids without sheets stay as they were."""
        return super().by_content() | {"relabel"}

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
    """Mine hard negatives: the passages that a retriever ranks highest and that are not relevant, by judgement or by text.

    Rules may also leave out candidates that score nearly as high as the query's positive, of several positives the lowest
    (positive-aware mining: NV-Retriever). The scores are the retriever's own, those of the index ``scorer``, or the
    probabilities that ``cross_encoders`` give.
    """

    retriever: Annotated[str, Input("index")]
    """the stage with an index, or with an encoder, which is encoded first"""
    depth: Count = 200
    """negatives kept for each query"""
    skip_top: CountOrZero = 0
    """so many of the best are left out, which may be unjudged positives"""
    without_answers: bool = False
    """also leave out passages that hold an answer of the query, where answers are known"""
    below_share: PositiveShare | None = None
    """keep what scores below this share of the positive's score, such as 0.95; null: whatever its share"""
    below_margin: Weight | None = None
    """keep what scores below the positive's score less this; null: whatever the difference"""
    below_score: Finite | None = None
    """keep what scores below this; null: whatever its score"""
    scorer: Annotated[str | None, Input("index"), Later()] = None
    """another stage with an index or an encoder, whose scores count for the rules; null: the retriever's own"""
    cross_encoders: Annotated[list[str], Input("cross_encoder"), Later()] = []
    """stages with cross-encoders whose probabilities count for the rules, of several that of the mean logit"""

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
        """Return, besides, the rules and how cross-encoders compute, which count where they are used."""
        return super().by_content() | {*RULES, "precision", "chunk_tokens"}

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


@stage("pseudo_label", "pseudo_label:pseudo_label", version=2, makes="labels", together="several_shards")
class AugmentConfig(ScoringStageConfig):
    """Label the queries that no split judges (data.unlabelled_queries), by the probabilities of cross-encoders."""

    retriever: Annotated[str, Input("index")]
    """the stage with an index, or with an encoder, which is encoded first; it gives the candidates"""
    depth: Count = 50
    """candidates of each query, the best of the retriever"""
    positive: Share = 0.9
    """a candidate whose probability is higher is a positive; a query without any is left out"""
    negative: Share = 0.1
    """a candidate whose probability is lower is a negative; what lies between is neither"""

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

    These are MS MARCO's triples of ids, sentence-transformers' msmarco-hard-negatives, or those that the files of the
    collection give (DPR, Tevatron, triples of texts).
    """

    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    file: Annotated[Path | None, Operational()] = None  # its content enters the id, its path does not
    """triples of query, positive and negative id, or .jsonl with lists of systems; plain or .gz; null: the collection's
    own"""
    depth: Count = 200
    """negatives kept for each query, the first ones"""
    systems: Annotated[list[str], Field(min_length=1)] | None = None
    """of a .jsonl file the systems whose lists are taken ([bm25, msmarco-distilbert-base-tas-b]); null: all"""
    per_system: Count | None = None
    """how many of each list are taken, the first ones; null: all"""

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
        return super().by_content() | {"systems", "per_system"}

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
    """Take a retriever that was trained elsewhere, as it is."""

    folder: Annotated[
        str | Path, FromRecipe("backbone.name")
    ]  # text as it was given: ./name is a folder, but name may be on the hub
    """folder or hub name of a checkpoint of this project, of sentence-transformers, or of the BERT family"""
    revision: Annotated[str | None, FromRecipe("backbone.revision"), Later()] = None
    """commit, tag or branch on the hub"""
    query_length: TextLength | None = None
    """tokens of the longest query, [CLS] and [SEP] included; null: as it was trained"""
    passage_length: TextLength | None = None
    """tokens of the longest passage; null: as it was trained"""
    pooling: Annotated[Pooling | None, FromRecipe("backbone.pooling")] = None
    """cls: the state of [CLS]; mean, max, last, weighted_mean, mean_sqrt_len: of all tokens; null: as the checkpoint
    says"""
    normalise: Annotated[bool | None, FromRecipe("backbone.normalise")] = None
    """true: compare by cosine; null: as the checkpoint says"""
    truncate_dim: Annotated[Count | None, FromRecipe("backbone.truncate_dim")] = None
    """how many of its first numbers a vector keeps; null: as the checkpoint says"""
    query_prefix: Annotated[str | None, FromRecipe("backbone.query_prefix")] = None
    """text before a query, as "query: " for E5; null: as the checkpoint says"""
    passage_prefix: Annotated[str | None, FromRecipe("backbone.passage_prefix")] = None
    """text before a passage, as "passage: "; null: as the checkpoint says"""

    def work(self, read: Read) -> Work:
        """Estimate the work of reading and writing the weights."""
        folder = expanded(self.folder)
        _, longest = (longest_inputs(folder) if folder.is_dir() else None) or (None, None)
        encoder, passage_length = released_size(self.folder), self.passage_length or longest
        sizes = replace(known(read), encoder=encoder, passage_length=passage_length)
        return Work(sizes, seconds=None if sizes.encoder is None else 3.0, disk=checkpoint_bytes(sizes))

    def by_content(self) -> set[str]:
        """Return ``folder``, and the keys that leave their value to the checkpoint."""
        return super().by_content() | {"folder", *self.not_given()}

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
