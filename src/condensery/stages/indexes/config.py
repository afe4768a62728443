"""Configs of the stages that build the index of one retriever."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from condensery.errors import UserError
from condensery.models.flops import Step
from condensery.ranges import Count, Share, Weight
from condensery.retrieval.indexes.terms import check_stemmer, check_stopwords
from condensery.stages.base import Input, Later, Operational, Precision, Seed, StageConfig
from condensery.stages.checks import Split
from condensery.stages.registry import stage
from condensery.stages.workload import QUESTION, Read, Work, known, product
from condensery.text.languages import check_language

BYTES = {"float32": 4.0, "float16": 2.0, "int8": 1.0, "binary": 0.125}  # bytes per vector dimension on disk


@stage("encode", "encode:encode", version=1, makes="index", adapts="model", together="several_shards")
class EncodeConfig(StageConfig):
    """Encode all passages and queries of a collection, with the input lengths of the retriever's training.

    If a key needs an index but names a stage with an encoder, a stage ``encode`` is added automatically.
    """

    model: Annotated[str, Input("encoder")]
    """the stage with the encoder"""
    passages: Annotated[str | None, Input("index"), Later()] = None
    """a stage with an index whose passage vectors are reused, if only the query tower differs; null: encode the passages"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the token ids of the collection"""
    precision: Precision
    """numeric precision: fp32, bf16 or fp16"""
    dtype: Literal["float32", "float16", "int8", "binary"] = "float32"
    """format of vectors on disk: float32, float16, int8 (a quarter of the size) or binary (a 32nd); the recall of int8
    and binary is reported"""
    chunk_tokens: Count = 4096
    """padded tokens that the encoder processes at once"""
    shard_size: Annotated[Count, Operational()] = 20000
    """passages per shard file; devices divide the shards among themselves, and a restart keeps complete shards"""
    windows: Count = 1
    """maximum number of windows of a long passage that are encoded; the best window's score is the passage's score"""
    query_splits: Annotated[Annotated[list[Split], Field(min_length=1)] | None, Later()] = None
    """splits whose queries are encoded, such as [dev, test]; other queries cannot be searched for; null: all"""

    def by_content(self) -> set[str]:
        """Also return ``windows``, which ``identity`` adds to the id if it is above 1."""
        return super().by_content() | {"windows"}

    def identity(self) -> list[str]:
        """Return the number of windows if it is above 1."""
        return [f"windows {self.windows}"] if self.windows > 1 else []

    def work(self, read: Read) -> Work:
        """Estimate the work of encoding the queries once, and the passages too unless their vectors are reused.

        A vector dimension takes 4, 2, 1 or 1/8 bytes.
        """
        sizes = known(read)
        texts, size, longest = sizes.collection, sizes.encoder, sizes.passage_length or 128
        if size is None or texts.passages is None or texts.passage_tokens is None:
            return Work(sizes)
        queries = sum(texts.queries.get(split) or 0 for split in (self.query_splits or texts.queries))
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
class AnnIndexConfig(StageConfig):
    """Build an approximate FAISS index over the vectors of a dense retriever, for collections where exact search is slow.

    The artifact is an index. So it can be a row of a table, and the stage ``mine`` can search it. If the ``factory``
    normalises vectors (L2norm) or subtracts their mean (PCA), the run prints a note. The run prints the recall against
    exact search, for all requested passages and for the ten best, and the manifest keeps it.
    """

    vectors: Annotated[str, Input("index")]
    """the stage with a dense retriever, whose vectors are computed first"""
    on_disk: Annotated[bool, Later()] = False
    """keep an IVF's inverted lists on disk during building and search, for indexes larger than memory; building takes twice
    the lists' disk space"""
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
        return "vectors", f"{self.vectors} has no vectors; name a trained encoder, or a stage of kind encode"


@stage("bm25", "build_bm25:bm25", version=2, makes="index")
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
    """how text is split into terms. auto: by the script of the passages; words: at spaces and punctuation in every
    script; further values: docs/howto/other-languages.md"""

    def work(self, read: Read) -> Work:
        """Estimate the work of splitting all passages into words and indexing them."""
        sizes = known(read)
        texts = product(sizes.collection.passages, sizes.collection.passage_tokens)
        return Work(replace(sizes, dimensions=0), seconds=product(1.1e-6, texts), disk=product(2.7, texts))
