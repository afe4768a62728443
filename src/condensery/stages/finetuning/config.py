"""Configs of the stages that train on judged queries and on examples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from condensery.arguments import no_room
from condensery.losses.registry import check_loss, check_name, teaching
from condensery.models.flops import T5_BASE, EncoderSize, Step
from condensery.stages.base import Input, StageConfig
from condensery.stages.checks import Split, check_checkpoint, missing_split
from condensery.stages.pretraining.config import other_dimensions
from condensery.stages.registry import stage
from condensery.stages.training_config import (
    AROUND,
    CollectionConfig,
    Count,
    EncoderStageConfig,
    OptimisedStageConfig,
    Share,
    ValidatedConfig,
)
from condensery.stages.workload import QUESTION, Read, Sizes, Work, checkpoint_bytes, known, with_encoder
from condensery.system.files import expanded
from condensery.text.hashes import content_hashes

SIZES = ("layers", "hidden", "heads", "intermediate")


class AdaptiveConfig(StageConfig):
    """Keys of ``batching: adaptive``, which puts pairs into a batch that are hard to tell apart (Zhao et al., §3.2).

    ``Scheduler`` makes the batches: it starts from random pairs and swaps pairs as long as that makes the batch harder.

    Attributes:
        similarity: the measure of hardness: ``bm25``, or ``encoder`` as it is at the start of each epoch.
            ``bm25_then_encoder`` takes BM25 in the first epoch and the encoder afterwards.
        neighbours: passages of each query, and queries of each passage, that are looked at.
        beam: 1 is the greedy search; a larger number takes the best of that many swaps in each step.
    """

    similarity: Literal["bm25", "encoder", "bm25_then_encoder"]
    neighbours: Annotated[int, Field(ge=1)]
    beam: Annotated[int, Field(ge=1)]


class QueriesConfig(StageConfig):
    """Shared keys: the queries that are trained on, and the sources of their negatives.

    Attributes:
        negatives: stages with negatives, whose lists are pooled.
        negative_depths: for each source, how many of a query's best negatives enter the pool; null takes all.
        negative_weights: for each source, its share of the draws, however deep it is; null treats every passage alike.
        labels: stages with labels, whose queries are trained on besides the judged queries.
        train_queries: how many queries are drawn with the seed; a smaller set lies inside every larger one. Null takes all.
        leave_out_dev_passages: whether to leave out every training query that shares a relevant passage with a dev query.
        negatives_per_query: hard negatives that are drawn from the pool each time a query is seen.
    """

    negatives: Annotated[list[str], Input("negatives")]
    negative_depths: list[Count] | None
    negative_weights: list[Annotated[float, Field(gt=0)]] | None
    labels: Annotated[list[str], Input("labels")]
    split: Split
    train_queries: Count | None
    leave_out_dev_passages: bool
    negatives_per_query: Annotated[int, Field(ge=0)]
    seed: Annotated[int, Field(ge=0)]

    @field_validator("negative_depths", "negative_weights")
    @classmethod
    def _one_a_source(cls, values: list[Any] | None, info: ValidationInfo) -> list[Any] | None:
        sources = info.data.get("negatives", [])
        if values is not None and len(values) != len(sources):
            raise ValueError(
                f"{len(values)} numbers for {len(sources)} sources of negatives; give one for each, or null"
            )
        return values

    def by_content(self) -> set[str]:
        """Return ``leave_out_dev_passages`` where it is false: the key was added later, and older ids stay valid."""
        return super().by_content() | (set() if self.leave_out_dev_passages else {"leave_out_dev_passages"})

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection does not have."""
        return missing_split(self.split, inputs["corpus"])


@stage("finetune", "finetune:finetune", version=4, makes="encoder", together=True)
class FinetuneConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """Train a bi-encoder on judged queries.

    ``batch_size`` counts queries. Each query brings one positive and ``negatives_per_query`` hard negatives.

    Attributes:
        teacher: stages with the scores of a teacher. Of a pair that several of them have scored, the first score counts.
        passages: an index whose passage vectors are frozen. Queries then get a tower of their own, the only part that is
            trained. Null trains queries and passages.
        text_queries: a stage with queries that were made from the passages. They are trained on besides the judged
            queries, each with its own passage as positive.
        text_batch_size: queries of ``text_queries`` per step, besides ``batch_size``.
        shared_negatives: with ``passages``, how many passages of the whole collection are drawn anew in each step as
            negatives of all queries.
        mask_known_positives: whether another relevant passage in the batch, by judgement or by its text, is no negative.
        temperature: divides the inner products.
    """

    teacher: Annotated[list[str], Input("pair_scores")]
    passages: Annotated[str | None, Input("index")]
    text_queries: Annotated[str | None, Input("queries")]
    text_batch_size: Count
    shared_negatives: Annotated[int, Field(ge=0)]
    towers: Literal["shared", "separate"]
    query_length: Annotated[int, Field(ge=4)]
    passage_length: Annotated[int, Field(ge=4)]
    mask_known_positives: bool
    temperature: Annotated[float, Field(gt=0)]
    loss: str | dict[str, Any]
    batching: Literal["random", "sequential", "adaptive"]
    adaptive: AdaptiveConfig

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
        """Return the keys that were added later and are not used, so that older ids stay valid."""
        later = {key for key in ("teacher", "passages", "text_queries") if not getattr(self, key)}
        later |= {"text_batch_size"} if not self.text_queries else set()
        return super().by_content() | later | ({"shared_negatives"} if not self.shared_negatives else set())

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
    """Train a model that writes queries for passages, on the collection's own judged pairs.

    ``batch_size`` counts pairs.

    Attributes:
        vectors: the stage whose token vectors initialise the token embeddings of a T5 from scratch; null draws noise.
        model: hub name or folder of the sequence-to-sequence model to start from; null trains a T5 from scratch.
        layers, hidden, heads, intermediate: sizes of a T5 from scratch.
        prefix: text before each passage, here and when queries are generated.
        max_input_tokens: tokens of prefix, title and passage; a longer input is cut.
        max_tokens: tokens of a query; a longer query is cut.
    """

    corpus: Annotated[str, Input("corpus")]
    tokenizer: Annotated[str, Input("tokenizer")]
    vectors: Annotated[str | None, Input("token_vectors")]
    split: Split
    model: str | None
    revision: str | None
    layers: Count
    hidden: Annotated[int, Field(ge=8)]
    heads: Count
    intermediate: Annotated[int, Field(ge=8)]
    dropout: Annotated[float, Field(ge=0, lt=1)]
    prefix: str
    titles: bool
    max_input_tokens: Annotated[int, Field(ge=8)]
    max_tokens: Annotated[int, Field(ge=2)]

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
    """Train a bi-encoder on a sentence task: pairs by regression on the cosine, triplets by a margin between distances.

    ``batch_size`` counts pairs or triplets.

    Attributes:
        examples: how many pairs or triplets of the training set are trained on; null takes all.
        length: tokens of the longest sentence, [CLS] and [SEP] included.
        margin: how much nearer than the negative the positive of a triplet shall be.
    """

    sentences: Annotated[str, Input("sentences")]
    examples: Count | None
    length: Annotated[int, Field(ge=4)]
    margin: Annotated[float, Field(gt=0)]

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
    """Shared keys of the stages that measure retrievers by MRR@10 on a sample of queries and passages.

    Attributes:
        queries: the stage with queries that were made from the text. The sample takes those of held-out passages.
        by: the kind of queries: ``dev`` queries, or those of ``queries``; null takes both kinds.
        bm25_weight: weight of BM25, which each retriever is joined with before it is measured; 0 measures it alone.
        number: queries of each kind, at most.
        passages: passages of each kind besides the relevant ones.
    """

    queries: Annotated[str | None, Input("queries")]
    by: Literal["dev", "queries"] | None
    bm25_weight: Annotated[float, Field(ge=0, lt=1)]
    number: Count
    passages: Annotated[int, Field(ge=0)]
    precision: Literal["fp32", "bf16", "fp16"]
    chunk_tokens: Count

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

    The best trained candidate is kept if it is better than the start with p below ``level`` and not worse on dev queries.
    Otherwise the start is kept.

    Attributes:
        start: the stage with the encoder that the training began with.
        trained: the stages with encoders that were trained from it.
        shares: shares of the trained weights that are tried; the rest of each candidate is the start's weights.
        level: p of the best candidate against the start (paired randomisation test) below which it is kept; 1 = no test.
        add_left_out_queries: whether fewer than ``number`` dev queries are filled up with training queries. These are the
            queries that no stage of ``trained`` has read (``leave_out_dev_passages``).
    """

    start: Annotated[str, Input("encoder")]
    trained: Annotated[list[str], Input("encoder"), Field(min_length=1)]
    shares: Annotated[list[Share], Field(min_length=1)]
    level: Annotated[float, Field(gt=0, le=1)]
    add_left_out_queries: bool

    @field_validator("shares")
    @classmethod
    def _of_the_trained(cls, shares: list[float]) -> list[float]:
        if 0 in shares or len(set(shares)) < len(shares):
            raise ValueError("each share is above 0 and stands once; the start itself is always tried")
        return sorted(shares)

    def by_content(self) -> set[str]:
        """Return ``add_left_out_queries`` where it is false: the key was added later, and older ids stay valid."""
        return super().by_content() | (set() if self.add_left_out_queries else {"add_left_out_queries"})

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

    ``batch_size`` counts queries. Each query brings one positive and ``negatives_per_query`` negatives.

    Attributes:
        query_length: tokens of the longest query, [CLS] and [SEP] included.
        length: tokens of the longest pair; the passage is cut to the room that the query leaves.
        loss: ``pointwise`` judges every pair by itself, as denoise and pseudo_label need. ``listwise`` tells the positive
            among the query's passages.
    """

    negatives_per_query: Annotated[int, Field(gt=0)]
    query_length: Annotated[int, Field(ge=4)]
    length: Annotated[int, Field(ge=8)]
    loss: Literal["pointwise", "listwise"]

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
    """Measure one retriever by MRR@10 on the sample; checkpoints are chosen by this value.

    Attributes:
        retriever: the stage with the encoder.
    """

    retriever: Annotated[str, Input("encoder")]


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
