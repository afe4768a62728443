"""Configs of the stages that train on judged queries and on examples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Lt
from pydantic import Field, ValidationInfo, field_validator, model_validator

from condensery.losses.registry import check_loss, check_name, teaching
from condensery.models.flops import T5_BASE, EncoderSize, Step
from condensery.ranges import Count, CountOrZero, Positive, PositiveShare, Share, Weight, no_room
from condensery.stages.base import Input, Later, Operational, Precision, RowLength, Seed, StageConfig, TextLength
from condensery.stages.checks import Split, check_checkpoint, missing_split
from condensery.stages.pretraining.config import other_dimensions
from condensery.stages.registry import stage
from condensery.stages.training_config import (
    AROUND,
    CollectionConfig,
    EncoderStageConfig,
    OptimisedStageConfig,
    ValidatedConfig,
)
from condensery.stages.workload import QUESTION, Read, Sizes, Work, checkpoint_bytes, known, with_encoder
from condensery.system.files import expanded
from condensery.text.hashes import content_hashes

SIZES = ("layers", "hidden", "heads", "intermediate")


class AdaptiveConfig(StageConfig):
    """Keys of ``batching: adaptive``, which puts pairs into a batch that are hard to tell apart (Zhao et al., §3.2).

    ``Scheduler`` makes the batches: it starts from random pairs and swaps pairs as long as that makes the batch harder.
    """

    similarity: Literal["bm25", "encoder", "bm25_then_encoder"] = "bm25_then_encoder"
    """what is hard, by bm25, by the encoder at the start of each epoch, or bm25_then_encoder: BM25 in the first epoch"""
    neighbours: Count = 100
    """passages of each query, and queries of each passage, that are looked at; all others count as usual"""
    beam: Count = 1
    """1: greedy search; more: beam search, the best of so many swaps in a step"""


class QueriesConfig(StageConfig):
    """Shared keys: the queries that are trained on, and the sources of their negatives."""

    negatives: Annotated[list[str], Input("negatives")] = []
    """stages with negatives (mine, read_negatives); their lists are pooled"""
    negative_depths: list[Count] | None = None
    """for each source of negatives, how many of a query's best are in the pool; null: all"""
    negative_weights: list[Positive] | None = None
    """for each source its share of the draws, however deep it is; null: every passage counts alike"""
    labels: Annotated[list[str], Input("labels")] = []
    """stages with labels (pseudo_label); their queries are trained on besides the judged ones"""
    split: Split = "train"
    """whose queries are trained on"""
    train_queries: Count | None = None
    """so many queries, drawn with the seed, a smaller set inside every larger one; null: all"""
    leave_out_dev_passages: Annotated[bool, Later()] = False
    """leave out each training query that shares a relevant passage with a dev query; dev then measures passages without
    training queries"""
    negatives_per_query: CountOrZero = 7
    """hard negatives drawn from the pool each time a query is seen"""
    seed: Seed
    """of weights, dropout, order, masks and whatever else is drawn"""

    @field_validator("negative_depths", "negative_weights")
    @classmethod
    def _one_a_source(cls, values: list[Any] | None, info: ValidationInfo) -> list[Any] | None:
        sources = info.data.get("negatives", [])
        if values is not None and len(values) != len(sources):
            raise ValueError(
                f"{len(values)} numbers for {len(sources)} sources of negatives; give one for each, or null"
            )
        return values

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection does not have."""
        return missing_split(self.split, inputs["corpus"])


@stage("finetune", "finetune:finetune", version=4, makes="encoder", together=True)
class FinetuneConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """Train a bi-encoder on judged queries.

    Each query brings one positive and ``negatives_per_query`` hard negatives. With ``passages`` no passage is encoded,
    and a hard negative costs an inner product; ``init`` must be the retriever of that index, or its tower of queries
    trained before. Without ``text_queries`` most passages are positives of no query, and are learned to rank low.
    """

    teacher: Annotated[list[str], Input("pair_scores"), Later()] = []
    """stages with a teacher's scores (score_pairs), for losses that learn from one; of a pair's scores the first counts"""
    passages: Annotated[str | None, Input("index"), Later()] = None
    """a stage with an index, or an encoder, whose passage vectors are frozen: only a tower of queries is trained
    (ADORE). null: both are trained"""
    text_queries: Annotated[str | None, Input("queries"), Later()] = None
    """a stage that made queries of the passages; they are trained on too, each with its passage as positive. null:
    judged queries alone"""
    text_batch_size: Count = 48
    """queries of ``text_queries`` in a step, besides ``batch_size``"""
    shared_negatives: Annotated[CountOrZero, Later()] = 0
    """with ``passages``: passages of the whole collection, drawn anew each step, that are negatives of all queries"""
    towers: Literal["shared", "separate"] = "shared"
    """one encoder for queries and passages, or separate"""
    query_length: TextLength = 32
    """tokens of the longest query, [CLS] and [SEP] included"""
    passage_length: TextLength = 128
    """tokens of the longest passage; with ``passages`` that index's own length counts"""
    mask_known_positives: bool = True
    """another relevant passage in the batch, by judgement or by its text, is no negative; false: it is, as in the
    papers' code"""
    temperature: Positive = 1.0
    """divides the inner products"""
    loss: str | dict[str, Any] = "info_nce"
    """info_nce; margin_mse or kl, with a teacher; learning_to_rank (Zhao et al.), not for retrieval; matryoshka. With
    options: {name: kl, teacher_temperature: 2.0, contrast_weight: 0.5}"""
    batching: Literal["random", "sequential", "adaptive"] = "random"
    """which queries come together: random, sequential (as they stand) or adaptive (hard to tell apart, Zhao et al.)"""
    adaptive: AdaptiveConfig = AdaptiveConfig()
    """of ``batching``: adaptive"""
    batch_size: Count = 8
    """queries a step"""
    epochs: Positive | None = 3
    """passes over the queries"""
    learning_rate: Positive = 5e-6
    """the peak, of AdamW"""

    def lengths(self) -> dict[str, int]:
        """Return no lengths where the passages are frozen: the retriever's own lengths then count."""
        return super().lengths() if self.passages is None else {}

    def work(self, read: Read) -> Work:
        """Estimate the work of steps of queries, their positives and their hard negatives."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.passage_length)
        each = 1 + (self.negatives_per_query if self.negatives or self.labels else 0)
        if self.passages is not None:
            sizes, each = replace(sizes, same_passages=True), 0
        texts = self.text_batch_size if self.text_queries else 0
        return training_work(self, sizes, each, self.passage_length, contrast=True, texts=texts)

    def by_content(self) -> set[str]:
        """Return, besides, ``text_batch_size`` where there are no ``text_queries``."""
        return super().by_content() | (set() if self.text_queries else {"text_batch_size"})

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a loss that lacks the teacher it needs, or has a teacher it cannot use.

        Also reports a missing split, and ``shared_negatives`` without frozen passages.
        """
        if self.shared_negatives and self.passages is None:
            return (
                "shared_negatives",
                "so many passages would be encoded in each step; set passages to an index, or it to 0",
            )
        takes, needs = teaching(self.loss)
        if needs and not self.teacher:
            advice = "set teacher to the stages that made them (score_pairs)"
            return "loss", f"{check_name(self.loss)} learns from a teacher's scores, and there are none; {advice}"
        if self.teacher and not takes:
            return (
                "teacher",
                f"the loss {check_name(self.loss)} takes no teacher's scores; set loss to margin_mse or kl",
            )
        return super().input_error(inputs)

    @field_validator("loss")
    @classmethod
    def _is_known(cls, loss: str | dict[str, Any]) -> str | dict[str, Any]:
        check_loss(loss)
        return loss


@stage("finetune_generator", "finetune_generator:finetune_generator", version=1, makes="generator", together=True)
class FinetuneGeneratorConfig(OptimisedStageConfig):
    """Train a model that writes queries for passages, on the collection's own judged pairs."""

    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer, which a model from scratch reads and writes with"""
    vectors: Annotated[str | None, Input("token_vectors")] = None
    """the stage token_vectors (or tokens: it is added), which a T5 from scratch begins with; null: with noise"""
    split: Split = "train"
    """whose positives are learnt"""
    model: str | None = None
    """hub name or folder of a sequence-to-sequence model to start from; null: a T5 from scratch of the sizes below"""
    revision: str | None = None
    """commit, tag or branch on the hub"""
    layers: Count = 4
    """layers of the encoder, and of the decoder (model: null)"""
    hidden: Annotated[int, Ge(8)] = 256
    """width of the hidden states (model: null)"""
    heads: Count = 4
    """attention heads of a layer (model: null)"""
    intermediate: Annotated[int, Ge(8)] = 1024
    """width of the feed-forward layers (model: null)"""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """of hidden states and attention"""
    prefix: str = "text2query: "
    """text before each passage, here and when queries are generated"""
    titles: bool = True
    """the title is read before the text, where passages have titles"""
    max_input_tokens: Annotated[int, Ge(8)] = 384
    """tokens of prefix, title and passage; a longer input is cut"""
    max_tokens: Annotated[int, Ge(2)] = 64
    """tokens of a query; a longer query is cut"""
    batch_size: Count = 32
    """pairs a step"""
    chunk_tokens: Count | Literal["auto"] = 4096
    """padded tokens, of passages and queries, that are in memory together"""
    epochs: Positive | None = 3
    """passes over the pairs"""
    learning_rate: Positive = 1e-4
    """the peak, of AdamW"""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.model is None and self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        if self.model is not None and self.vectors is not None:
            raise ValueError(f"vectors is {self.vectors}, but model knows its tokens already; set one of them to null")
        return self

    def work(self, read: Read) -> Work:
        """Estimate the work: each step reads ``batch_size`` passages and writes as many queries.

        A given ``model`` counts as T5-base.
        """
        sizes, step = known(read), None
        words = sizes.vocabulary or T5_BASE.vocabulary
        own = EncoderSize(self.layers, self.hidden, self.intermediate, self.heads, words, self.dropout)
        generator = T5_BASE if self.model else own
        sizes, text = replace(sizes, encoder=generator), sizes.collection.passage_tokens
        if text is not None:
            passage, query = min(text, self.max_input_tokens), min(QUESTION, self.max_tokens)
            length, predicted = (passage + query) / 2, query / (passage + query)
            rows = 2.0 * self.batch_size
            step = Step(generator, rows, length, self.budget, predicted=predicted, precision=self.precision)
        return self.training(sizes, step, sizes.collection.queries.get(self.split))

    def folder(self) -> Path | None:
        """Return the folder that ``model`` names; None for a hub name or no model."""
        folder = expanded(self.model) if self.model else None
        return folder if folder is not None and folder.is_dir() else None

    def by_content(self) -> set[str]:
        """Return ``model`` where it names a folder, and the sizes where a model is given, which has sizes of its own."""
        own = ({"model"} if self.folder() else set()) | (set(SIZES) if self.model else set())
        return super().by_content() | own

    def identity(self) -> list[str]:
        """Return the content hashes of a model in a folder, so that the place of the folder does not matter.

        Raises:
            UserError: the folder does not exist, or holds no checkpoint.
        """
        check_checkpoint(self.model, "stage.finetune_generator.model")
        folder = self.folder()
        content = content_hashes(sorted(path for path in folder.iterdir() if path.is_file())) if folder else []
        return [*super().identity(), *content]

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection does not have, or token vectors whose size is not the model's."""
        return missing_split(self.split, inputs["corpus"]) or other_dimensions(
            self.vectors, inputs["vectors"], self.hidden
        )


@stage("finetune_sentences", "finetune_sentences:finetune_sentences", version=1, makes="encoder", together=True)
class FinetuneSentencesConfig(EncoderStageConfig):
    """Train a bi-encoder on a sentence task: pairs by regression on the cosine, triplets by a margin between distances."""

    sentences: Annotated[str, Input("sentences")] = "sentences"
    """the stage with the examples (read_sts, read_triplets, section_triplets)"""
    examples: Count | None = None
    """so many examples, drawn with the seed, a smaller set inside every larger one; null: all"""
    length: TextLength = 128
    """tokens of the longest sentence, [CLS] and [SEP] included"""
    margin: Positive = 1.0
    """how much nearer than the negative the positive of a triplet shall be"""
    batch_size: Count = 16
    """pairs or triplets a step"""
    epochs: Positive | None = 4
    """passes over the examples"""
    learning_rate: Positive = 2e-5
    """the peak, of AdamW (Adam, where ``weight_decay`` is 0)"""
    weight_decay: Weight = 0.0
    """of AdamW; biases and LayerNorm weights are not decayed"""

    def work(self, read: Read) -> Work:
        """Estimate the work of steps of ``batch_size`` examples, whose sentences are read one by one."""
        sizes = with_encoder(known(read), self.backbone, self.length)
        texts, step = sizes.sentences, None
        examples = None if self.examples is None else float(self.examples)
        if texts is not None and sizes.encoder is not None:
            length = min(texts.tokens + 2, self.length)
            rows = self.batch_size * texts.each
            step = Step(sizes.encoder, rows, length, self.budget, precision=self.precision)
            examples = texts.examples["train"] if examples is None else examples
        return self.training(sizes, step, examples)


class SampleConfig(CollectionConfig):
    """Shared keys of the stages that measure retrievers by MRR@10 on a sample of queries and passages."""

    queries: Annotated[str | None, Input("queries")] = None
    """a stage that made queries of the text, to measure on held-out passages; a sentence is cut out of its passage"""
    by: Literal["dev", "queries"] | None = None
    """dev, or queries; null: both, where the collection has them"""
    bm25_weight: Annotated[float, Ge(0), Lt(1)] = 0.0
    """weight of BM25, which each retriever is joined with before it is measured; 0: alone"""
    number: Count = 1000
    """queries of each kind, at most"""
    passages: CountOrZero = 500
    """passages of each kind besides the relevant ones"""
    precision: Precision
    """fp32, bf16 or fp16"""
    chunk_tokens: Count = 4096
    """padded tokens that go through the encoder together"""

    def work(self, read: Read) -> Work:
        """Estimate the work of encoding the sample's passages; its queries are few in comparison."""
        return self.encoding(known(read), 1)

    def encoding(self, sizes: Sizes, times: int) -> Work:
        """Return the work of encoding the sample's passages ``times`` times."""
        texts = sizes.collection
        if sizes.encoder is None or texts.passages is None or texts.passage_tokens is None:
            return Work(sizes)
        length = min(texts.passage_tokens, sizes.passage_length or 512)
        kinds = 1 if self.by or not texts.queries.get("dev") else 2
        rows = min(texts.passages, kinds * (self.passages + self.number))
        step = Step(sizes.encoder, rows, length, self.chunk_tokens, trained=False, precision=self.precision)
        return Work(sizes, times, step, seconds=AROUND, disk=checkpoint_bytes(sizes))


@stage("keep_best", "keep_best:keep_best", version=3, makes="encoder")
class KeepBestConfig(SampleConfig):
    """Keep the better of a start and the encoders trained from it, blended in several shares (WiSE-FT), by MRR@10.

    The best trained candidate is kept if it is better than the start with p below ``level``, on dev queries and on
    queries of held-out passages, and not worse on dev queries. Otherwise the start is kept.
    """

    start: Annotated[str, Input("encoder")]
    """the stage with the encoder that the training began with"""
    trained: Annotated[list[str], Input("encoder"), Field(min_length=1)]
    """stages with encoders that were trained from it"""
    shares: Annotated[list[Share], Field(min_length=1)] = [0.25, 0.5, 0.75, 1.0]
    """shares of the trained weights that are tried; the rest is the start's"""
    level: PositiveShare = 0.05
    """p of the best against the start (paired randomisation test) below which it is kept, if it is not lower on dev; 1:
    no test"""
    add_left_out_queries: Annotated[bool, Later()] = False
    """with fewer dev queries than ``number``, add the training queries that leave_out_dev_passages has left out of
    training"""

    @field_validator("shares")
    @classmethod
    def _of_the_trained(cls, shares: list[float]) -> list[float]:
        if 0 in shares or len(set(shares)) < len(shares):
            raise ValueError("each share is above 0 and stands once; the start itself is always tried")
        return sorted(shares)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report ``add_left_out_queries`` where a stage of ``trained`` has read these queries: they cannot choose then."""
        left_out = (getattr(config, "leave_out_dev_passages", True) for config in inputs["trained"])
        if self.add_left_out_queries and not all(left_out):
            wanted = "set leave_out_dev_passages to true where they are trained, or this to false"
            return "add_left_out_queries", f"true, but a stage of `trained` has read these queries; {wanted}"
        return super().input_error(inputs)

    def work(self, read: Read) -> Work:
        """Estimate the work of encoding the sample's passages.

        The start encodes them, and so does each candidate whose tower of passages differs from the start's.
        """
        others = sum(not sizes.same_passages for sizes in read.get("trained", ()))
        return self.encoding(known(read), 1 + others * len(self.shares))


@stage(
    "train_cross_encoder",
    "train_cross_encoder:train_cross_encoder",
    version=2,
    makes="cross_encoder",
    together=True,
)
class TrainCrossEncoderConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """Train a cross-encoder, which reads a query and a passage together and gives the pair one score.

    Each query brings one positive and ``negatives_per_query`` negatives; without ``negatives`` these are drawn from the
    collection. Validation is MRR@10 among a positive and nine passages that BM25 finds in the sample. The stages rerank,
    denoise and pseudo_label use the cross-encoder.
    """

    negatives_per_query: Count = 4
    """negatives drawn each time a query is seen"""
    query_length: TextLength = 32
    """tokens of the longest query, [CLS] and [SEP] included"""
    length: RowLength = 160
    """tokens of the longest row, query and passage; the passage is cut to the room that the query leaves"""
    loss: Literal["pointwise", "listwise"] = "pointwise"
    """pointwise: every pair for itself, as denoise and pseudo_label need it; listwise: the positive among the query's
    passages"""
    batch_size: Count = 16
    """queries a step"""
    chunk_tokens: Count | Literal["auto"] = 4096
    """padded tokens that are in memory together, whole queries; a larger batch is accumulated"""
    validation_queries: Annotated[CountOrZero, Operational()] = 100
    """dev queries in the sample; 0: no validation"""
    epochs: Positive | None = 2
    """passes over the queries"""
    learning_rate: Positive = 2e-5
    """the peak, of AdamW"""

    def work(self, read: Read) -> Work:
        """Estimate the work of steps of pairs, each a query and a passage that are read together."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.length)
        return training_work(self, sizes, 1 + self.negatives_per_query, self.length, contrast=False)

    @model_validator(mode="after")
    def _room_for_a_passage(self) -> Self:
        if wrong := no_room(self.query_length, self.length):
            raise ValueError(wrong)
        return self


@stage("validate", "validate:validate", version=1, makes="validation")
class ValidateConfig(SampleConfig):
    """Measure one retriever by MRR@10, on dev queries and on queries of passages that are held out.

    Of several checkpoints one is chosen by it (``choose``).
    """

    retriever: Annotated[str, Input("encoder")]
    """the stage with the encoder"""


def training_work(
    config: FinetuneConfig | TrainCrossEncoderConfig,
    sizes: Sizes,
    passages: int,
    longest: int,
    contrast: bool,
    texts: int = 0,
) -> Work:
    """Return the work of training in steps of ``batch_size`` queries.

    Args:
        config: the stage that trains.
        sizes: of the stage's inputs.
        passages: passages per query.
        longest: tokens of the longest passage, or of the longest pair.
        contrast: whether queries and passages are read apart; otherwise each pair is read together.
        texts: queries of the text per step, each with its own passage where passages are encoded.
    """
    queries, text, step = sizes.collection.queries.get(config.split), sizes.collection.passage_tokens, None
    if config.train_queries is not None:
        queries = float(config.train_queries)
    if sizes.encoder is not None and text is not None:
        question = min(QUESTION, config.query_length)
        each = min(text + 2, longest) if contrast else min(text + 1 + question, longest)
        rows = config.batch_size * (passages + contrast) + texts * (1 + min(passages, 1))
        length = (passages * each + contrast * question) / (passages + contrast)
        step = Step(sizes.encoder, rows, length, config.budget, contrast=contrast, precision=config.precision)
    return config.training(sizes, step, queries)
