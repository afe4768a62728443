"""Keys of the stages that train on judged queries and examples."""

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
    """How ``batching: adaptive`` finds pairs that are hard to tell apart (Zhao et al., §3.2); see ``Scheduler``."""

    similarity: Literal["bm25", "encoder", "bm25_then_encoder"]
    neighbours: Annotated[int, Field(ge=1)]
    beam: Annotated[int, Field(ge=1)]


class QueriesConfig(StageConfig):
    """Which queries are trained on, and where their negatives come from.

    ``leave_out_dev_passages``: no query is trained on that shares a relevant passage with a dev query.
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
        """``leave_out_dev_passages`` came later: where it is false the ids are those of before."""
        return super().by_content() | (set() if self.leave_out_dev_passages else {"leave_out_dev_passages"})

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have."""
        return missing_split(self.split, inputs["corpus"])


@stage("finetune", "finetune:finetune", version=4, makes="encoder", cost=10.0, together=True)
class FinetuneConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """``batch_size`` counts queries; each brings one positive and ``negatives_per_query`` hard negatives.

    ``passages``: an index whose vectors of the passages are frozen; queries get a tower of their own, which alone is trained.
    ``text_queries``: made of the passages; ``text_batch_size`` of them are in a step besides, each with its own passage.
    ``teacher``: of a pair that several of these stages have scored the first counts.
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
        """None that a retriever could be too short for where its passages are frozen: its own count."""
        return super().lengths() if self.passages is None else {}

    def work(self, read: Read) -> Work:
        """Steps of queries, their positives and their hard negatives."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.passage_length)
        each = 1 + (self.negatives_per_query if self.negatives or self.labels else 0)
        if self.passages is not None:
            sizes, each = replace(sizes, same_passages=True), 0
        texts = self.text_batch_size if self.text_queries else 0
        return training_work(self, sizes, each, self.passage_length, contrast=True, texts=texts)

    def by_content(self) -> set[str]:
        """Keys that came later: where they name nothing the ids are those of before."""
        later = {key for key in ("teacher", "passages", "text_queries") if not getattr(self, key)}
        later |= {"text_batch_size"} if not self.text_queries else set()
        return super().by_content() | later | ({"shared_negatives"} if not self.shared_negatives else set())

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Also a loss that needs a teacher and has none, or has one that it cannot take."""
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


@stage(
    "finetune_generator",
    "finetune_generator:finetune_generator",
    version=1,
    makes="generator",
    cost=20.0,
    together=True,
)
class FinetuneGeneratorConfig(OptimisedStageConfig):
    """``model`` is a hub name or folder; null: a T5 of the given sizes from scratch. ``batch_size`` counts pairs.

    ``vectors``: what the token embeddings of a T5 from scratch begin with, None = noise.
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
        """Each step reads ``batch_size`` passages and writes as many queries; a model that is given counts as T5-base."""
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
        """The model, where it is a folder."""
        folder = expanded(self.model) if self.model else None
        return folder if folder is not None and folder.is_dir() else None

    def by_content(self) -> set[str]:
        """The model, where it is a folder; the sizes, where they are the model's own."""
        own = ({"model"} if self.folder() else set()) | (set(SIZES) if self.model else set())
        return super().by_content() | own

    def identity(self) -> list[str]:
        """A model in a folder counts by content, wherever it lies. ``UserError`` where it is not there."""
        check_checkpoint(self.model, "stage.finetune_generator.model")
        folder = self.folder()
        content = content_hashes(sorted(path for path in folder.iterdir() if path.is_file())) if folder else []
        return [*super().identity(), *content]

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """A split that the collection does not have, or vectors of another size than the model's."""
        return missing_split(self.split, inputs["corpus"]) or other_dimensions(
            self.vectors, inputs["vectors"], self.hidden
        )


@stage(
    "finetune_sentences",
    "finetune_sentences:finetune_sentences",
    version=1,
    makes="encoder",
    cost=5.0,
    together=True,
)
class FinetuneSentencesConfig(EncoderStageConfig):
    """``batch_size`` counts pairs or triplets, ``examples`` how many of them are trained on (null: all)."""

    sentences: Annotated[str, Input("sentences")]
    examples: Count | None
    length: Annotated[int, Field(ge=4)]
    margin: Annotated[float, Field(gt=0)]

    def work(self, read: Read) -> Work:
        """Steps of ``batch_size`` examples, each sentence read by itself."""
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
    """What is asked: ``number`` dev queries and ``number`` of ``queries`` of passages that are held out, or one of the two
    (``by``); each kind among ``passages`` more.

    ``bm25_weight``: of BM25, which each retriever is joined with before it is measured; 0 = alone.
    """

    queries: Annotated[str | None, Input("queries")]
    by: Literal["dev", "queries"] | None
    bm25_weight: Annotated[float, Field(ge=0, lt=1)]
    number: Count
    passages: Annotated[int, Field(ge=0)]
    precision: Literal["fp32", "bf16", "fp16"]
    chunk_tokens: Count

    def work(self, read: Read) -> Work:
        """The sample's passages are encoded; its queries are few beside them."""
        return self.encoding(known(read), 1)

    def encoding(self, sizes: Sizes, times: int) -> Work:
        """The work of encoding the sample's passages so many times."""
        texts = sizes.collection
        if sizes.encoder is None or texts.passages is None or texts.passage_tokens is None:
            return Work(sizes)
        length = min(texts.passage_tokens, sizes.passage_length or 512)
        kinds = 1 if self.by or not texts.queries.get("dev") else 2
        rows = min(texts.passages, kinds * (self.passages + self.number))
        step = Step(sizes.encoder, rows, length, self.chunk_tokens, trained=False, precision=self.precision)
        return Work(sizes, times, step, seconds=AROUND, disk=checkpoint_bytes(sizes))


@stage("keep_best", "keep_best:keep_best", version=3, makes="encoder", cost=2.0)
class KeepBestConfig(SampleConfig):
    """``start`` and each of ``trained``, in ``shares`` of its weights: the best by MRR@10 of what is asked.

    What was trained is kept where it is better than the start with p below ``level``, and not worse on dev queries.
    ``add_left_out_queries``: to fewer than ``number`` of these, the training queries that no stage of ``trained`` has read
    (``leave_out_dev_passages``).
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
        """``add_left_out_queries`` came later: where it is false the ids are those of before."""
        return super().by_content() | (set() if self.add_left_out_queries else {"add_left_out_queries"})

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Queries that were trained on cannot choose."""
        left_out = (getattr(config, "leave_out_dev_passages", True) for config in inputs["trained"])
        if self.add_left_out_queries and not all(left_out):
            wanted = "set leave_out_dev_passages to true where they are trained, or this to false"
            return "add_left_out_queries", f"true, but a stage of `trained` has read these queries; {wanted}"
        return super().input_error(inputs)

    def work(self, read: Read) -> Work:
        """The sample's passages are encoded with the start, and with each candidate whose tower of passages is another."""
        others = sum(not sizes.same_passages for sizes in read.get("trained", ()))
        return self.encoding(known(read), 1 + others * len(self.shares))


@stage(
    "train_cross_encoder",
    "train_cross_encoder:train_cross_encoder",
    version=2,
    makes="cross_encoder",
    cost=10.0,
    together=True,
)
class TrainCrossEncoderConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """``batch_size`` counts queries; each brings one positive and ``negatives_per_query`` negatives."""

    negatives_per_query: Annotated[int, Field(gt=0)]
    query_length: Annotated[int, Field(ge=4)]
    length: Annotated[int, Field(ge=8)]
    loss: Literal["pointwise", "listwise"]

    def work(self, read: Read) -> Work:
        """Steps of pairs, each a query and a passage read together."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.length)
        return training_work(self, sizes, 1 + self.negatives_per_query, self.length, contrast=False)

    @model_validator(mode="after")
    def _room_for_a_passage(self) -> Self:
        if wrong := no_room(self.query_length, self.length):
            raise ValueError(wrong)
        return self


@stage("validate", "validate:validate", version=1, makes="validation", cost=2.0)
class ValidateConfig(SampleConfig):
    """``retriever`` is measured by MRR@10 of the sample."""

    retriever: Annotated[str, Input("encoder")]


def training_work(
    config: FinetuneConfig | TrainCrossEncoderConfig,
    sizes: Sizes,
    passages: int,
    longest: int,
    contrast: bool,
    texts: int = 0,
) -> Work:
    """Steps of ``batch_size`` queries with so many ``passages`` each of ``longest`` tokens at most.

    Where there is no ``contrast`` query and passage are read together. ``texts``: queries of the text a step, each with its
    passage where passages are encoded.
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
