"""Configs of the stages that train on judged queries or on labelled sentence examples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Ge, Lt
from pydantic import Field, ValidationInfo, field_validator, model_validator

from condensery.losses.registry import check_loss, check_name, teaching, twice_taught
from condensery.models.flops import T5_BASE, EncoderSize, Step
from condensery.ranges import Count, CountOrZero, Positive, PositiveShare, Share, Weight, no_room
from condensery.stages.base import Input, Later, Operational, Precision, RowLength, Seed, StageConfig, TextLength
from condensery.stages.checks import Split, check_checkpoint, missing_split, not_encoded
from condensery.stages.pretraining.config import other_dimensions
from condensery.stages.registry import stage
from condensery.stages.trainer_options import identity
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
    """Keys of ``batching: adaptive``, which builds batches of pairs that are hard to tell apart (Zhao et al., §3.2).

    ``Scheduler`` builds the batches: it starts from random pairs and swaps pairs as long as a swap makes the batch harder.
    """

    similarity: Literal["bm25", "encoder", "bm25_then_encoder"] = "bm25_then_encoder"
    """similarity that measures hardness: bm25; encoder: as trained at the start of each epoch; bm25_then_encoder: BM25 in the
    first epoch, then the encoder"""
    neighbours: Count = 100
    """number of nearest passages per query, and of nearest queries per passage, whose similarity is computed; other
    pairs get one default value"""
    beam: Count = 1
    """beam width of the search for swaps; 1: greedy search"""


class QueriesConfig(StageConfig):
    """Shared keys for the training queries and the sources of their negatives."""

    data_checks: ClassVar[Mapping[str, Sequence[str]]] = {
        "corpus": ["judged", "apart_from_dev"],
        "negatives": ["of_these_queries"],
    }
    negatives: Annotated[list[str], Input("negatives")] = []
    """stages with hard negatives (mine, read_negatives), whose lists are pooled"""
    negative_depths: list[Count] | None = None
    """for each source of negatives, how many of a query's best negatives enter the pool; null: all"""
    negative_weights: list[Positive] | None = None
    """for each source of negatives, its sampling weight, independent of its depth; null: all passages are equally likely"""
    labels: Annotated[list[str], Input("labels")] = []
    """stages with labels (pseudo_label), whose queries are trained on in addition to the judged queries"""
    split: Split = "train"
    """the split whose queries are trained on"""
    train_queries: Count | None = None
    """number of queries to train on, drawn with the seed; a smaller set is a subset of a larger one; null: all"""
    leave_out_dev_passages: Annotated[bool, Later()] = False
    """exclude training queries that share a relevant passage with a dev query; dev then measures retrieval of passages
    without training queries"""
    negatives_per_query: CountOrZero = 7
    """hard negatives sampled from the pool each time a query is used"""
    seed: Seed
    """random seed of initial weights, dropout, data order, masks and all other draws"""

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
        """Report a split that the collection lacks."""
        return missing_split(self.split, inputs["corpus"])


@stage("finetune", "finetune:finetune", version=4, makes="encoder", together=True)
class FinetuneConfig(QueriesConfig, ValidatedConfig, EncoderStageConfig):
    """Train a bi-encoder on judged queries.

    For each query a step reads one positive and ``negatives_per_query`` hard negatives.

    With ``passages`` the passage vectors come from an index, so a hard negative costs only one inner product. ``init`` must
    then be the retriever of that index, or a query tower that was trained from it. Without ``text_queries`` most passages
    are never a positive, so training teaches the query tower to rank them low.
    """

    data_checks = {**QueriesConfig.data_checks, "text_queries": ["same_passages"]}
    teacher: Annotated[list[str], Input("pair_scores"), Later()] = []
    """stages with teacher scores (score_pairs), for distillation losses; if several score a pair, the first one's score
    is used"""
    in_batch_teacher: Annotated[str | None, Input("index"), Later()] = None
    """a stage with an index or an encoder, which scores each query with every passage of its batch (TCT-ColBERT); only
    dual_supervision also takes a ``teacher``"""
    passages: Annotated[str | None, Input("index"), Later()] = None
    """a stage with an index or an encoder, whose passage vectors stay frozen: only the query tower is trained (ADORE);
    null: passages are encoded too"""
    text_queries: Annotated[str | None, Input("queries"), Later()] = None
    """a stage that makes queries from the passages; training also uses these, each with its passage as the positive;
    null: judged queries only"""
    validation_candidates: Annotated[str | None, Input("index"), Later()] = None
    """a stage with an index: validation ranks each dev query's positive among 99 passages sampled from the index's best
    1,000 (Zhao et al.), also by MRR@100"""
    text_batch_size: Count = 48
    """queries of ``text_queries`` per step, in addition to ``batch_size``"""
    shared_negatives: Annotated[CountOrZero, Later()] = 0
    """number of passages drawn at random from the collection in each step, as negatives of all queries; needs
    ``passages``"""
    towers: Literal["shared", "separate"] = "shared"
    """shared: one encoder for queries and passages; separate: one encoder for each"""
    query_length: TextLength | None = 32
    """maximum tokens of a query, including [CLS] and [SEP]; null: as many as the retriever in ``init`` reads"""
    passage_length: TextLength | None = 128
    """maximum tokens of a passage; null: as many as the retriever in ``init`` reads; with ``passages``, the length of that
    index is used instead"""
    mask_known_positives: bool = True
    """exclude other relevant passages of the batch, by judgement or by identical text, as negatives; false: keep them,
    as in the papers' code"""
    temperature: Positive = 1.0
    """temperature of the loss, which divides the inner products"""
    loss: str | dict[str, Any] = "info_nce"
    """info_nce; with a teacher: margin_mse, kl, rank_consistent, dual_supervision; passage_centric (PAIR); learning_to_rank
    (Zhao et al.); matryoshka. With options: {name: kl, teacher_temperature: 2.0}"""
    batching: Literal["random", "sequential", "adaptive"] = "random"
    """which queries form a batch: random, sequential (in file order) or adaptive (hard to tell apart, Zhao et al.)"""
    adaptive: AdaptiveConfig = AdaptiveConfig()
    """settings of ``batching``: adaptive"""
    batch_size: Count = 8
    """queries per step"""
    epochs: Positive | None = 3
    """passes over the queries"""
    learning_rate: Positive = 5e-6
    """peak learning rate of AdamW"""

    def lengths(self) -> dict[str, int]:
        """Return the lengths that are given; none where the passages are frozen, since the retriever's own are then used."""
        given = {key: tokens for key, tokens in super().lengths().items() if tokens is not None}
        return given if self.passages is None else {}

    def work(self, read: Read) -> Work:
        """Estimate the work of steps of queries, their positives and their hard negatives."""
        sizes = known(read, "tokens", "tokenizer", "init")
        longest = self.passage_length or sizes.passage_length or self.backbone.max_positions
        sizes = with_encoder(sizes, self.backbone, longest)
        each = 1 + (self.negatives_per_query if self.negatives or self.labels else 0)
        if self.passages is not None:
            sizes, each = replace(sizes, same_passages=True), 0
        texts = self.text_batch_size if self.text_queries else 0
        return training_work(self, sizes, each, longest, contrast=True, texts=texts)

    def by_content(self) -> set[str]:
        """Also return ``text_batch_size`` without ``text_queries``, and ``validation_candidates`` if no callback watches."""
        watched = any(part.startswith("validation ") for part in identity(self.callbacks, self.validations()))
        unused = set() if self.text_queries else {"text_batch_size"}
        return super().by_content() | unused | (set() if watched else {"validation_candidates"})

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a loss without the teacher that it needs, or with a teacher that it cannot use.

        Also report a missing split, ``shared_negatives`` without frozen passages, and ``chunk_tokens: auto`` with adaptive
        batches.
        """
        if self.shared_negatives and self.passages is None:
            return (
                "shared_negatives",
                "so many passages would be encoded in each step; set passages to an index, or it to 0",
            )
        if self.batching == "adaptive" and self.chunk_tokens == "auto":
            return (
                "chunk_tokens",
                "auto measures a batch before training, and adaptive batches are made in it; give a number",
            )
        (takes, needs), name = teaching(self.loss), check_name(self.loss)
        given = [key for key in ("teacher", "in_batch_teacher") if getattr(self, key)]
        if needs and not given:
            advice = "set teacher to the stages that made them (score_pairs)"
            return "loss", f"{name} learns from a teacher's scores, and there are none; {advice}"
        if given and not takes:
            return given[0], f"the loss {name} takes no teacher's scores; set loss to margin_mse or kl"
        takes_both, needs_both = twice_taught(self.loss)
        if needs_both and len(given) < 2:
            return "loss", f"{name} learns from two teachers; set teacher and in_batch_teacher"
        if len(given) > 1 and not takes_both:
            return "in_batch_teacher", f"the loss {name} learns from one teacher; set teacher or in_batch_teacher"
        missing = not_encoded(self.split, "in_batch_teacher", inputs.get("in_batch_teacher", ()))
        return missing or super().input_error(inputs)

    @field_validator("loss")
    @classmethod
    def _is_known(cls, loss: str | dict[str, Any]) -> str | dict[str, Any]:
        check_loss(loss)
        return loss


class GeneratorConfig(OptimisedStageConfig):
    """Shared keys of the stages that train a sequence-to-sequence model."""

    kind: ClassVar[str]  # of the stage
    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer of a model that is trained from scratch"""
    vectors: Annotated[str | None, Input("token_vectors")] = None
    """the stage with the initial token embeddings of a T5 from scratch: token_vectors, or tokens (token_vectors is added);
    null: random"""
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
            raise ValueError(f"vectors is {self.vectors}, but model knows its tokens already; set one of them to null")
        return self

    def writing(self, sizes: Sizes, read: float | None, written: float, pairs: float | None) -> Work:
        """Estimate the work of steps that read ``batch_size`` texts and predict as many.

        A given ``model`` is assumed to have the size of T5-base.

        Args:
            sizes: known sizes of the inputs.
            read, written: mean tokens of the texts that are read, and of those that are predicted; None = not known.
            pairs: number of pairs; None = not known.
        """
        words, step = sizes.vocabulary or T5_BASE.vocabulary, None
        own = EncoderSize(self.layers, self.hidden, self.intermediate, self.heads, words, self.dropout)
        sizes = replace(sizes, encoder=T5_BASE if self.model else own)
        if read is not None and sizes.encoder:
            length, predicted, rows = (read + written) / 2, written / (read + written), 2.0 * self.batch_size
            step = Step(sizes.encoder, rows, length, self.budget, predicted=predicted, precision=self.precision)
        return self.training(sizes, step, pairs)

    def folder(self) -> Path | None:
        """Return the folder of the initial model, or None if ``model`` is a hub name or null."""
        folder = expanded(self.model) if self.model else None
        return folder if folder is not None and folder.is_dir() else None

    def by_content(self) -> set[str]:
        """Also return ``model`` where it names a folder, and the unused size keys where a model is given."""
        own = ({"model"} if self.folder() else set()) | (set(SIZES) if self.model else set())
        return super().by_content() | own

    def identity(self) -> list[str]:
        """Return the content hashes of a model in a folder, so that the place of the folder does not matter.

        Raises:
            UserError: the folder does not exist, or holds no checkpoint.
        """
        check_checkpoint(self.model, f"stage.{self.kind}.model")
        folder = self.folder()
        content = content_hashes(sorted(path for path in folder.iterdir() if path.is_file())) if folder else []
        return [*super().identity(), *content]


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
    """string put before each passage, in training and in generation; '' to continue training castorini's doc2query
    models, which read the bare passage"""
    titles: bool = True
    """the model reads a passage's title, if there is one, before the text"""
    max_input_tokens: Annotated[int, Ge(8)] = 384
    """maximum tokens of prefix, title and passage; a longer input is truncated"""
    max_tokens: Annotated[int, Ge(2)] = 64
    """maximum tokens of a query; a longer query is truncated"""

    def work(self, read: Read) -> Work:
        """Estimate the work: each step reads ``batch_size`` passages and predicts as many queries."""
        sizes = known(read)
        text, written = sizes.collection.passage_tokens, min(QUESTION, self.max_tokens)
        passage = None if text is None else min(text, self.max_input_tokens)
        return self.writing(sizes, passage, written, sizes.collection.queries.get(self.split))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report a split that the collection lacks, or token vectors whose dimension differs from the model's."""
        return missing_split(self.split, inputs["corpus"]) or other_dimensions(
            self.vectors, inputs["vectors"], self.hidden
        )


@stage("finetune_sentences", "finetune_sentences:finetune_sentences", version=1, makes="encoder", together=True)
class FinetuneSentencesConfig(EncoderStageConfig):
    """Train a bi-encoder on a sentence task: regression on the cosine for pairs, a margin loss on distances for triplets."""

    data_checks = {"sentences": ["examples"]}
    sentences: Annotated[str, Input("sentences")] = "sentences"
    """the stage with the examples (read_sts, read_triplets, section_triplets)"""
    examples: Count | None = None
    """number of training examples, drawn with the seed; a smaller set is a subset of a larger one; null: all"""
    length: TextLength = 128
    """maximum tokens of a sentence, including [CLS] and [SEP]"""
    margin: Positive = 1.0
    """margin of the triplet loss: how much nearer the positive should be than the negative"""
    batch_size: Count = 16
    """pairs or triplets per step"""
    epochs: Positive | None = 4
    """passes over the examples"""
    learning_rate: Positive = 2e-5
    """peak learning rate of AdamW (of Adam, where ``weight_decay`` is 0)"""
    weight_decay: Weight = 0.0
    """weight decay of AdamW; biases and LayerNorm weights are not decayed"""

    def work(self, read: Read) -> Work:
        """Estimate the work of steps of ``batch_size`` examples, whose sentences are encoded separately."""
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
    """a stage with queries made from the text, to measure on held-out passages; a query that is a sentence is removed
    from its passage"""
    by: Literal["dev", "queries"] | None = None
    """queries to measure on: dev queries, or those of the stage in ``queries``; null: both, where both exist"""
    bm25_weight: Annotated[float, Ge(0), Lt(1)] = 0.0
    """weight of BM25 in the fusion with each retriever before it is measured; 0: the retriever alone"""
    number: Count = 1000
    """maximum number of queries of each kind"""
    passages: CountOrZero = 500
    """passages in the sample of each kind, besides the relevant ones"""
    precision: Precision
    """numeric precision: fp32, bf16 or fp16"""
    chunk_tokens: Count = 4096
    """padded tokens that the encoder processes at once"""

    def work(self, read: Read) -> Work:
        """Estimate the work of encoding the sample's passages; the queries are few in comparison."""
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
    """Keep the best of the initial encoder and its interpolations with trained encoders (WiSE-FT), by MRR@10.

    The best trained candidate is kept if two conditions hold. On dev queries and queries of held-out passages together, it
    is better than the initial encoder with p below ``level``. On dev queries alone, it is not worse. Otherwise the initial
    encoder is kept.
    """

    data_checks = {"corpus": ["dev_queries"]}
    start: Annotated[str, Input("encoder")]
    """the stage with the encoder that training started from (the initial encoder)"""
    trained: Annotated[list[str], Input("encoder"), Field(min_length=1)]
    """stages with encoders that were trained from the initial encoder"""
    shares: Annotated[list[Share], Field(min_length=1)] = [0.25, 0.5, 0.75, 1.0]
    """interpolation shares of the trained weights that are tried; the remaining share is the initial encoder's"""
    level: PositiveShare = 0.05
    """keep the best candidate only if its gain has a p-value below this (paired randomisation test) and its dev metric is
    no lower; 1: no test"""
    add_left_out_queries: Annotated[bool, Later()] = False
    """with fewer dev queries than ``number``, also measure on the training queries that leave_out_dev_passages has
    excluded from training"""

    @field_validator("shares")
    @classmethod
    def _of_the_trained(cls, shares: list[float]) -> list[float]:
        if 0 in shares or len(set(shares)) < len(shares):
            raise ValueError("each share is above 0 and stands once; the start itself is always tried")
        return sorted(shares)

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report ``add_left_out_queries`` where a stage of ``trained`` was trained on these queries."""
        left_out = (getattr(config, "leave_out_dev_passages", True) for config in inputs["trained"])
        if self.add_left_out_queries and not all(left_out):
            wanted = "set leave_out_dev_passages to true where they are trained, or this to false"
            return "add_left_out_queries", f"true, but a stage of `trained` has read these queries; {wanted}"
        return super().input_error(inputs)

    def work(self, read: Read) -> Work:
        """Estimate the work of encoding the sample's passages.

        The initial encoder encodes them. So does each candidate whose passage tower differs from the initial encoder's.
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

    For each query a step reads one positive and ``negatives_per_query`` negatives. Without ``negatives`` the negatives are
    sampled from the collection. The validation metric is MRR@10: for each query the cross-encoder ranks a positive and nine
    passages that BM25 retrieves from the sample. The stages rerank, denoise and pseudo_label use the cross-encoder.
    """

    data_checks = {**QueriesConfig.data_checks, "corpus": ["judged", "apart_from_dev", "enough_passages"]}
    negatives_per_query: Count = 4
    """negatives sampled each time a query is used"""
    query_length: TextLength = 32
    """maximum tokens of a query, including [CLS] and [SEP]"""
    length: RowLength = 160
    """maximum tokens of query and passage together; the passage is truncated to what the query leaves"""
    loss: Literal["pointwise", "listwise"] = "pointwise"
    """pointwise: each pair is classified separately, as denoise and pseudo_label need it; listwise: softmax over the
    query's passages"""
    batch_size: Count = 16
    """queries per step"""
    chunk_tokens: Count | Literal["auto"] = 4096
    """padded tokens in memory at once; a larger batch is processed in chunks of whole queries"""
    validation_queries: Annotated[CountOrZero, Operational()] = 100
    """dev queries in the sample; 0: no validation"""
    epochs: Positive | None = 2
    """passes over the queries"""
    learning_rate: Positive = 2e-5
    """peak learning rate of AdamW"""

    def work(self, read: Read) -> Work:
        """Estimate the work of steps of pairs; the cross-encoder reads the query and the passage of a pair together."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.length)
        return training_work(self, sizes, 1 + self.negatives_per_query, self.length, contrast=False)

    @model_validator(mode="after")
    def _room_for_a_passage(self) -> Self:
        if wrong := no_room(self.query_length, self.length):
            raise ValueError(wrong)
        return self


@stage("validate", "validate:validate", version=1, makes="validation")
class ValidateConfig(SampleConfig):
    """Measure one retriever by MRR@10, on dev queries and on queries of held-out passages.

    The key ``choose`` selects one of several checkpoints by this metric.
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
        sizes: sizes of the stage's inputs.
        passages: passages per query.
        longest: maximum tokens of a passage, or of a pair.
        contrast: whether queries and passages are encoded separately; otherwise each pair is read together.
        texts: queries made from the text per step, each with its own passage where passages are encoded.
    """
    queries, text, step = sizes.collection.queries.get(config.split), sizes.collection.passage_tokens, None
    if config.train_queries is not None:
        queries = float(config.train_queries)
    if sizes.encoder is not None and text is not None:
        question = min(QUESTION, config.query_length or QUESTION)
        each = min(text + 2, longest) if contrast else min(text + 1 + question, longest)
        rows = config.batch_size * (passages + contrast) + texts * (1 + min(passages, 1))
        length = (passages * each + contrast * question) / (passages + contrast)
        step = Step(sizes.encoder, rows, length, config.budget, contrast=contrast, precision=config.precision)
    return config.training(sizes, step, queries)
