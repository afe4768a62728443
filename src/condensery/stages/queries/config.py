"""Configs of the stages that make queries for passages, or train a query generator."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Ge, Le, Lt
from pydantic import model_validator

from condensery.models.flops import T5_BASE, EncoderSize, Step
from condensery.ranges import Count, CountOrZero, Positive, PositiveShare
from condensery.stages.base import Input, Operational, Precision, Seed, SentenceLanguage, StageConfig
from condensery.stages.checks import Split, content_of_model, missing_split, model_folder
from condensery.stages.registry import stage
from condensery.stages.training_config import OptimisedStageConfig
from condensery.stages.warm_start.config import other_dimensions
from condensery.stages.workload import QUESTION, Read, Sizes, Work, known, product
from condensery.text.hashes import input_hashes

WRITTEN = 12.0  # mean tokens of a generated query


SIZES = ("layers", "hidden", "heads", "intermediate")


class QueryStageConfig(StageConfig):
    """Shared keys of the stages that make queries for passages."""

    passages: Annotated[str, Input("passages")] = "passages"
    """the stage with the passages"""
    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer of the passages, which also tokenises the queries"""

    def work(self, read: Read) -> Work:
        """Estimate the work of reading a few queries per passage from files, or of extracting them from the passage."""
        sizes = known(read)
        passages = sizes.collection.passages
        return Work(sizes, seconds=product(1e-4, passages), disk=product(100.0, passages))


@stage("extract_queries", "extract_queries:extract_queries", version=1, makes="queries")
class ExtractQueriesConfig(QueryStageConfig):
    """Extract the queries of each passage from the passage itself, without a model: the baseline for generated queries.

    With ``remove``, a passage of a single sentence has no query. The same holds for a passage whose token ids do not show
    where a sentence ends.
    """

    kind: Literal["sentence", "title", "both"] = "sentence"
    """sentence: sentences with the highest mean idf of their words; title: the passage's title; both: these sentences,
    and a title that no other passage has"""
    number: Count = 1
    """maximum number of sentences per passage (kind: sentence or both)"""
    minimum_words: Count = 4
    """minimum words of a sentence that becomes a query (kind: sentence or both)"""
    maximum_words: Count = 40
    """maximum words of a sentence that becomes a query (kind: sentence or both)"""
    remove: bool = False
    """remove the sentence from its passage in training; a passage of a single sentence then has no query"""
    sentence_language: SentenceLanguage = "en"
    """language code; abbreviations and ordinals of this language do not end a sentence"""

    @model_validator(mode="after")
    def _some_length_fits(self) -> Self:
        if self.minimum_words > self.maximum_words:
            raise ValueError("minimum_words is more than maximum_words; lower it")
        return self


@stage("generate_queries", "generate_queries:generate_queries", version=1, makes="queries", together="several_shards")
class GenerateQueriesConfig(QueryStageConfig):
    """Generate queries for each passage with a sequence-to-sequence model, by top-k and nucleus sampling (doc2query)."""

    model: str | None = "doc2query/all-with_prefix-t5-base-v1"
    """hub name or folder of the generator; null: the model of the stage ``generator``"""
    revision: str | None = None
    """commit, tag or branch of the model on the Hugging Face hub"""
    generator: Annotated[str | None, Input("generator")] = None
    """the stage that trains the generator (finetune_generator); null: use ``model``"""
    prefix: str = "text2query: "
    """string put before each passage; must equal the prefix in the generator's training; '' for castorini's doc2query models,
    which read the passage without a prefix"""
    titles: bool = True
    """the generator reads a passage's title, if there is one, before the text"""
    number: Annotated[int, Ge(1), Le(1 << 20)] = 5
    """queries per passage; if the number is raised, the first queries of a passage stay the same"""
    top_k: CountOrZero = 25
    """top-k sampling: number of most probable tokens that are sampled from; 0: all"""
    top_p: PositiveShare = 0.95
    """nucleus sampling: cumulative probability of the tokens that are sampled from"""
    max_tokens: Count = 64
    """maximum tokens of a query"""
    max_input_tokens: Annotated[int, Ge(8)] = 384
    """maximum tokens of prefix, title and passage; a longer input is truncated"""
    batch_size: Count = 32
    """passages per batch; another batch size may change a query, because logits are rounded differently"""
    precision: Precision
    """numeric precision of the weights and of computation: fp32, bf16 or fp16"""
    seed: Seed
    """random seed of sampling"""
    shard_size: Annotated[Count, Operational()] = 512
    """approximate passages per shard file; devices divide the shards among themselves, and a restart keeps complete shards"""

    @model_validator(mode="after")
    def _one_generator(self) -> Self:
        if (self.model is None) == (self.generator is None):
            raise ValueError("give either model or generator, and set the other to null")
        return self

    def work(self, read: Read) -> Work:
        """Estimate the work: each passage is read once, and each query is generated token by token.

        A ``model`` is assumed to have the size of T5-base. Token-by-token generation stays far below a GPU's throughput for
        large matrix products, so the time shown is a lower bound.
        """
        sizes = known(read, "passages", "tokenizer")
        generator = known(read, "generator").encoder or T5_BASE
        texts, number = sizes.collection, self.number
        if texts.passages is None or texts.passage_tokens is None:
            return Work(sizes)
        length = min(texts.passage_tokens, self.max_input_tokens)
        rows = texts.passages * (1 + number * min(WRITTEN, self.max_tokens) / length)
        step = Step(generator, rows, length, 8192, trained=False, precision=self.precision)
        return Work(sizes, 1, step, seconds=1e-4 * texts.passages, disk=60.0 * number * texts.passages)

    def by_content(self) -> set[str]:
        """Return the key ``model`` if it names a folder. The id then depends on the folder's content, not on its path."""
        return {"model"} if model_folder(self.model) else set()

    def identity(self) -> list[str]:
        """Return the content hashes of a model in a folder, so that the id does not depend on the folder's path.

        Raises:
            UserError: the folder does not exist, or holds no checkpoint.
        """
        return content_of_model(self.model, "stage.generate_queries.model")


@stage("read_queries", "read_queries:read_queries", version=1, makes="queries")
class ReadQueriesConfig(QueryStageConfig):
    """Read existing queries for the passages from files (plain or .gz)."""

    path: Annotated[str, Operational()]  # the id depends on the content, not on the path
    """a file, a folder of files, or a glob pattern such as queries/*.jsonl.gz"""
    format: Literal["auto", "jsonl", "tsv", "lines"] = "auto"
    """jsonl: {"id", "queries"}; tsv: passage id, tab, query; lines: line i of every file is for passage i; auto:
    detected from the files"""
    missing: Literal["error", "skip"] = "error"
    """a passage without a query: error raises an error; skip leaves the passage out of training"""

    def files(self) -> Sequence[Path]:
        """Return the paths of the files, sorted. Raises ``UserError`` if there are none."""
        from condensery.text.queries import query_files  # imports Arrow, which takes .3 s

        return query_files(self.path)

    def identity(self) -> list[str]:
        """Return the content hashes of the files.

        Raises:
            UserError: a file is missing or unreadable; this is checked before anything is computed.
        """
        return input_hashes([*self.files()])


class GeneratorConfig(OptimisedStageConfig):
    """Shared keys of the stages that train a sequence-to-sequence model."""

    kind: ClassVar[str]  # kind of the stage
    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer of a model that is trained from scratch"""
    vectors: Annotated[str | None, Input("token_vectors")] = None
    """the stage with the initial token embeddings of a T5 from scratch: token_vectors, or tokens (token_vectors is then
    added); null: random"""
    model: str | None = None
    """hub name or folder of the initial sequence-to-sequence checkpoint; null: a T5 from scratch with the sizes below"""
    revision: str | None = None
    """commit, tag or branch of the model on the Hugging Face hub"""
    layers: Count = 4
    """number of encoder layers, and of decoder layers (model: null)"""
    hidden: Annotated[int, Ge(8)] = 256
    """width of the hidden states (model: null)"""
    heads: Count = 4
    """attention heads per layer (model: null)"""
    intermediate: Annotated[int, Ge(8)] = 1024
    """width of the feed-forward layers (model: null)"""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """dropout of hidden states and attention"""
    batch_size: Count = 32
    """pairs per step"""
    chunk_tokens: Count | Literal["auto"] = 4096
    """padded tokens of inputs and outputs in memory at once"""
    epochs: Positive | None = 3
    """passes over the pairs"""
    learning_rate: Positive = 1e-4
    """peak learning rate of AdamW"""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.model is None and self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        if self.model is not None and self.vectors is not None:
            raise ValueError(f"vectors is {self.vectors}, but model has token vectors already; set one of them to null")
        return self

    def writing(self, sizes: Sizes, read: float | None, written: float, pairs: float | None) -> Work:
        """Estimate the work of the training steps. A step reads ``batch_size`` texts and predicts ``batch_size`` texts.

        If ``model`` names a checkpoint, it is assumed to have the size of T5-base.

        Args:
            sizes: known sizes of the inputs.
            read, written: mean tokens of an input text, and of a predicted text; None = not known.
            pairs: number of pairs; None = not known.
        """
        words, step = sizes.vocabulary or T5_BASE.vocabulary, None
        own = EncoderSize(self.layers, self.hidden, self.intermediate, self.heads, words, self.dropout)
        sizes = replace(sizes, encoder=T5_BASE if self.model else own)
        if read is not None and sizes.encoder:
            length, predicted, rows = (read + written) / 2, written / (read + written), 2.0 * self.batch_size
            step = Step(sizes.encoder, rows, length, self.budget, predicted=predicted, precision=self.precision)
        return self.training(sizes, step, pairs)

    def by_content(self) -> set[str]:
        """Also return ``model`` if it names a folder, and the unused size keys if ``model`` names a checkpoint."""
        own = ({"model"} if model_folder(self.model) else set()) | (set(SIZES) if self.model else set())
        return super().by_content() | own

    def identity(self) -> list[str]:
        """Return the content hashes of a model in a folder, so that the id does not depend on the folder's path.

        Raises:
            UserError: the folder does not exist, or holds no checkpoint.
        """
        return [*super().identity(), *content_of_model(self.model, f"stage.{self.kind}.model")]


@stage("finetune_generator", "finetune_generator:finetune_generator", version=1, makes="generator", together=True)
class FinetuneGeneratorConfig(GeneratorConfig):
    """Train a model that generates queries for passages, on the collection's own judged pairs."""

    kind = "finetune_generator"
    data_checks = {"corpus": ["judged"]}
    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    split: Split = "train"
    """the split whose judged pairs are trained on"""
    prefix: str = "text2query: "
    """string put before each passage, in training and in generation; '' to continue training castorini's doc2query models,
    which read no prefix"""
    titles: bool = True
    """the model reads a passage's title, if there is one, before the text"""
    max_input_tokens: Annotated[int, Ge(8)] = 384
    """maximum tokens of prefix, title and passage; a longer input is truncated"""
    max_tokens: Annotated[int, Ge(2)] = 64
    """maximum tokens of a query; a longer query is truncated"""

    def work(self, read: Read) -> Work:
        """Estimate the work: each step reads ``batch_size`` passages and predicts ``batch_size`` queries."""
        sizes = known(read)
        text, written = sizes.collection.passage_tokens, min(QUESTION, self.max_tokens)
        passage = None if text is None else min(text, self.max_input_tokens)
        return self.writing(sizes, passage, written, sizes.collection.queries.get(self.split))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection lacks, or token vectors whose dimension differs from the model's."""
        return missing_split(self.split, inputs["corpus"]) or other_dimensions(
            self.vectors, inputs["vectors"], self.hidden
        )
