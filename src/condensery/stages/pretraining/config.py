"""Configs of the pre-training stages: the source of spans and pairs, the masking, and the head or decoder."""

from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import model_validator

from condensery.models.flops import Step
from condensery.ranges import Count, CountOrZero, Positive, PositiveShare, Share, Weight
from condensery.stages.base import Input, Later, RowLength, StageConfig
from condensery.stages.checks import check_no_retriever
from condensery.stages.registry import stage
from condensery.stages.training_config import EncoderStageConfig, OptimisedStageConfig, ValidatedConfig
from condensery.stages.workload import Read, Work, known, product, total, with_encoder

FILLED = 0.9  # share of a span's length that whole sentences fill


QUERY = 11.0  # mean tokens of a generated query


class Texts(NamedTuple):
    """The texts that pre-training reads; None = not known.

    Attributes:
        items: items per epoch.
        texts: texts per item.
        tokens: mean tokens of a text.
    """

    items: float | None
    texts: int
    tokens: float | None


class SpanConfig(StageConfig):
    """Shared keys of the stages that pre-train on spans of text."""

    data_checks = {"tokens": ["spans"]}
    spans: Literal["sentences", "windows"] = "sentences"
    """sentences: whole sentences packed up to ``length``, as in the papers' scripts; windows: text split at any token"""
    length: RowLength = 128
    """maximum tokens of a span, including [CLS] and [SEP]"""
    short_probability: Share = 0.1
    """share of the spans that get a shorter target length (spans: sentences)"""
    min_length: Count = 16
    """minimum tokens of a span; a document needs twice as many"""
    epochs: Positive | None = 8
    """passes over the collection"""
    init: Annotated[str, Input("encoder", literal=("backbone",))] = "backbone"
    """the initial checkpoint: the word backbone, or a stage with an encoder"""
    learning_rate: Positive = 1e-4
    """peak learning rate of AdamW"""

    def work(self: Any, read: Read) -> Work:  # Any, because another base class of the stage has the encoder's keys
        """Estimate the work of training steps of the objective on the backbone."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.length)
        texts, step = self.texts(read), None
        if sizes.encoder is not None and texts.tokens is not None:
            rows, own = self.batch_size * texts.texts, self.objective()
            step = Step(sizes.encoder, rows, texts.tokens, self.budget, precision=self.precision, **own)
        work: Work = self.training(sizes, step, texts.items)
        return work

    def objective(self) -> dict[str, Any]:
        """Return the keyword arguments of ``Step`` (``models/flops.py``) for the objective's additional cost."""
        raise NotImplementedError

    def texts(self, read: Read) -> Texts:
        """Return the number and mean length of the spans, which are consecutive and do not overlap."""
        sizes = known(read, "tokens")
        each = self.span_tokens(sizes.text_tokens)
        return Texts(product(sizes.tokens, 1 / (each - 2)) if each else None, 1, each)

    def span_tokens(self, text: float | None) -> float | None:
        """Return the mean number of tokens of a span, if texts have ``text`` tokens; None if ``text`` is None.

        Whole sentences do not fill a span completely, and some spans get a shorter target length.
        """
        if text is None:
            return None
        filled = FILLED * (1 - self.short_probability / 2) if self.spans == "sentences" else 1.0
        return 2 + max(1.0, min(text, filled * (self.length - 2)))


class MaskingConfig(StageConfig):
    """Shared keys of masked language modelling (MLM)."""

    mask_rate: PositiveShare = 0.15
    """share of the tokens that are masked and predicted"""
    whole_word: bool = True
    """mask whole words; false: mask single tokens"""
    mlm_weight: Weight = 1.0
    """weight of the MLM losses; in CoT-MAE and RetroMAE, only of the encoder's loss; 2: as in Condenser's released code
    with gradient cache"""

    def identity(self: Any) -> list[str]:
        """Return the same strings as ``EncoderStageConfig.identity``.

        Raises:
            UserError: the checkpoint is missing, or it is a released retriever, which MLM would degrade.
        """
        if self.init == "backbone":
            check_no_retriever(self.backbone)
        return list(super().identity())  # type: ignore[misc]


class HeadConfig(StageConfig):
    """Shared keys of the Condenser head."""

    head_layers: CountOrZero = 2
    """Transformer layers of the head; 0: no head"""
    skip_from: CountOrZero | None = None
    """number of backbone layers after which the head reads the token states; null: half of the layers"""
    late_mlm: bool = True
    """also compute an MLM loss on the last layer of the backbone"""
    head_steps: Annotated[CountOrZero, Later()] = 0
    """number of first steps that train only a new head, with a separate learning rate schedule; no effect if the
    checkpoint has a head"""
    new_head: Annotated[bool, Later()] = False
    """randomly initialise the head even if the initial checkpoint has one"""

    @model_validator(mode="after")
    def _steps_train_a_head(self: Any) -> Any:  # Any, because another base class of the stage has the key ``steps``
        if self.head_steps and not self.head_layers:
            raise ValueError("head_steps: there is no head to train; set head_layers, or head_steps=0")
        if self.steps is not None and self.head_steps >= self.steps:
            raise ValueError(f"head_steps: {self.head_steps} leaves none of {self.steps} steps for the backbone")
        return self

    def head(self) -> dict[str, Any]:
        """Return the keyword arguments of ``Step`` for the Condenser head."""
        return {"head_layers": self.head_layers, "losses": 1 + (self.late_mlm and self.head_layers > 0)}


class PairConfig(SpanConfig, OptimisedStageConfig):
    """Shared keys of the stages that pre-train on pairs: two spans of one text, or a passage and one of its queries."""

    pairs_within: Literal["document", "passage"] = "document"
    """without ``queries``: whether the two spans of a pair come from one document or from one passage"""
    queries: Annotated[str | None, Input("queries")] = None
    """a stage with queries: a pair is a passage and one of its queries; null: a pair is two spans of a document"""
    query_length: RowLength = 64
    """maximum tokens of a query, including [CLS] and [SEP]"""
    candidates: Count = 5
    """number of a passage's first queries from which one is sampled each time the passage is used"""
    mixed_context: Share = 0.0
    """with ``queries``: probability that a step uses pairs of passages of one document instead; 0.5 in Wu et al. 2023"""

    @model_validator(mode="after")
    def _mixed_needs_queries(self) -> Self:
        if self.mixed_context and not self.queries:
            raise ValueError("mixed_context mixes passages into pairs with queries; name a stage in `queries`")
        return self

    def texts(self, read: Read) -> Texts:
        """Return the sizes of the pairs: two spans of each document or passage, or a passage and one of its queries."""
        sizes = known(read, "queries" if self.queries else "tokens")
        passages, tokens = sizes.collection.passages, sizes.collection.passage_tokens
        if self.queries:
            cut = None if tokens is None else min(tokens + 2, self.length)
            return Texts(passages, 2, product(0.5, total([cut, min(QUERY, self.query_length)])))
        if self.pairs_within == "document":
            passages, tokens = sizes.collection.documents or passages, sizes.text_tokens
        return Texts(passages, 2, self.span_tokens(product(0.5, tokens)))

    def lengths(self) -> dict[str, int]:
        """Return the maximum input lengths in tokens, by key; ``query_length`` is included only with ``queries``."""
        return {key: tokens for key, tokens in super().lengths().items() if self.queries or key != "query_length"}


class DecoderConfig(StageConfig):
    """Shared keys of the decoder of a masked auto-encoder."""

    decoder_layers: Count = 2
    """Transformer layers of the decoder"""
    decoder_init: Literal["random", "last"] = "random"
    """initial weights of the decoder: random, or copied from the backbone's last layers (last)"""
    length: RowLength = 144
    """maximum tokens of a span, including [CLS] and [SEP]"""
    short_probability: Share = 0.0
    """share of the spans that get a shorter target length (spans: sentences)"""
    mask_rate: PositiveShare = 0.3
    """share of the encoder's tokens that are masked and predicted"""

    def decoding(self, encoder: float, decoder: float) -> dict[str, Any]:
        """Return the keyword arguments of ``Step`` for the decoder.

        Args:
            encoder: share of the tokens that the encoder predicts.
            decoder: share of the tokens that the decoder predicts.
        """
        return {"head_layers": self.decoder_layers, "predicted": (encoder + decoder) / 2, "losses": 2}


class SpanDecoderConfig(DecoderConfig, MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """Keys of a baseline that pre-trains a masked auto-encoder on single spans."""


class PairDecoderConfig(DecoderConfig, PairConfig, MaskingConfig, ValidatedConfig, EncoderStageConfig):
    """Keys of a baseline that pre-trains a masked auto-encoder on pairs."""


@stage("pretrain_mlm", "pretrain:pretrain_mlm", version=3, makes="encoder", together=True)
class PretrainMlmConfig(MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train by masked language modelling on spans: the baseline."""

    batch_size: Count = 1024
    """spans per step"""

    def objective(self) -> dict[str, Any]:
        """Return keyword arguments of ``Step``: the share ``mask_rate`` of the tokens is predicted."""
        return {"predicted": self.mask_rate}


@stage("pretrain_condenser", "pretrain:pretrain_condenser", version=3, makes="encoder", together=True)
class PretrainCondenserConfig(HeadConfig, MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train a Condenser (Gao and Callan 2021a): MLM on spans through a head that depends on the late CLS state."""

    batch_size: Count = 1024
    """spans per step"""

    def objective(self) -> dict[str, Any]:
        """Return keyword arguments of ``Step``: the head predicts tokens, and with ``late_mlm`` the backbone does too."""
        return {"predicted": self.mask_rate, **self.head()}


@stage("pretrain_cocondenser", "pretrain:pretrain_cocondenser", version=4, makes="encoder", together=True)
class PretrainCoCondenserConfig(PairConfig, HeadConfig, MaskingConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train a coCondenser (Gao and Callan 2021b): Condenser with a contrastive loss on two spans of each document.

    With ``queries`` it is query-as-context pre-training (Wu et al. 2023): the contrastive loss pairs a passage with a query
    that was made for it.
    """

    temperature: Positive = 1.0
    """temperature of the contrastive loss, which divides the inner products"""
    contrast_weight: Weight = 1.0
    """weight of the contrastive loss relative to MLM"""
    batch_size: Count = 2000
    """documents (with ``queries``: passages) per step; each gives two texts"""

    def objective(self) -> dict[str, Any]:
        """Return keyword arguments of ``Step``: the arguments for the Condenser head, and ``contrast``."""
        return {"predicted": self.mask_rate, **self.head(), "contrast": True}


@stage("pretrain_cotmae", "pretrain:pretrain_cotmae", version=1, makes="encoder", together=True)
class PretrainCotmaeConfig(DecoderConfig, PairConfig, MaskingConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train by CoT-MAE (Wu et al. 2022): a shallow decoder fills in one text of a pair from the other text's vector.

    A pair is two spans of a document, or with ``queries`` a passage and a query that was made for it.
    """

    decoder: Literal["masked", "causal"] = "masked"
    """masked: the decoder fills in masked tokens (Wu et al. 2022); causal: it predicts the next token (the authors' released
    code)"""
    both_directions: bool = True
    """true: each text of a pair is the context of the other text; false: only the second text (the query) is a context"""
    decoder_mask_rate: PositiveShare = 0.45
    """share of the context's tokens that are masked for a masked decoder, which predicts these tokens"""
    batch_size: Count = 8192
    """pairs per step; 8,192 pairs are 16,384 texts with ``both_directions``"""
    steps: Count | None = 50000
    """optimisation steps; set exactly one of ``steps``, ``epochs`` and ``token_budget``, the other two to null"""
    epochs: Positive | None = None
    """passes over the collection"""
    learning_rate: Positive = 4e-4
    """peak learning rate of AdamW"""

    def objective(self) -> dict[str, Any]:
        """Return keyword arguments of ``Step``; a causal decoder predicts every token."""
        return self.decoding(self.mask_rate, self.decoder_mask_rate if self.decoder == "masked" else 1.0)


@stage("pretrain_retromae", "pretrain:pretrain_retromae", version=1, makes="encoder", together=True)
class PretrainRetromaeConfig(DecoderConfig, MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train by RetroMAE (Xiao et al. 2022): a one-layer decoder reconstructs a text from the text's own vector."""

    decoder: Literal["enhanced", "masked"] = "enhanced"
    """enhanced: every token is predicted, each from its own random sample of tokens; masked: as in CoT-MAE"""
    decoder_layers: Count = 1
    """Transformer layers of the decoder; an enhanced decoder has one"""
    decoder_mask_rate: PositiveShare = 0.5
    """share of the tokens that are masked for the decoder"""
    batch_size: Count = 256
    """spans per step"""

    def objective(self) -> dict[str, Any]:
        """Return keyword arguments of ``Step``; an enhanced decoder predicts every token."""
        return self.decoding(self.mask_rate, self.decoder_mask_rate if self.decoder == "masked" else 1.0)

    @model_validator(mode="after")
    def _enhanced_is_one_layer(self) -> Self:
        if self.decoder == "enhanced" and self.decoder_layers != 1:
            raise ValueError("decoder_layers: an enhanced decoder has one; set decoder_layers=1 or decoder=masked")
        return self


@stage("pretrain_ict", "pretrain:pretrain_ict", version=1, makes="encoder", together=True)
class PretrainIctConfig(SpanConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train by the inverse cloze task (Lee et al. 2019): a sentence retrieves the passage that it was taken from."""

    query_length: RowLength = 64
    """maximum tokens of a sentence, including [CLS] and [SEP]"""
    keep_sentence: Share = 0.0
    """probability that the sentence stays in its passage; 0.1 in Lee et al."""
    temperature: Positive = 1.0
    """temperature of the loss, which divides the inner products"""
    batch_size: Count = 4096
    """passages per step; each gives one sentence"""

    def objective(self) -> dict[str, Any]:
        """Return keyword arguments of ``Step``: ``contrast``."""
        return {"contrast": True}

    def texts(self, read: Read) -> Texts:
        """Return the sizes of the pairs. A pair is a span and one of its sentences, about a fifth of the span's length."""
        items, _, tokens = super().texts(read)
        return Texts(items, 2, product(0.6, tokens))


@stage("pretrain_contrastive", "pretrain:pretrain_contrastive", version=1, makes="encoder", together=True)
class PretrainContrastiveConfig(PairConfig, ValidatedConfig, EncoderStageConfig):
    """Pre-train a released retriever with a contrastive loss on the vectors that it uses for retrieval.

    These vectors have the retriever's pooling, normalisation and prefixes. The pairs are coCondenser's: two spans of a
    document, or with ``queries`` a passage and one of its queries.
    """

    temperature: Positive = 0.05
    """temperature of the contrastive loss, which divides the inner products; .01 to .1 for cosines"""
    learn_temperature: bool = False
    """learn the temperature, with ``temperature`` as initial value"""
    mlm_weight: Annotated[Weight, Later()] = 0.0
    """weight of an additional MLM loss on masked texts; 0: no MLM loss; without effect if ``init`` has no LM head"""
    mask_rate: Annotated[PositiveShare, Later()] = 0.15
    """share of the tokens that are masked and predicted, with ``mlm_weight``"""
    batch_size: Count = 64
    """documents (with ``queries``: passages) per step; each gives two texts"""
    steps: Count | None = 150
    """optimisation steps (a few minutes on a CPU); set exactly one of ``steps``, ``epochs`` and ``token_budget``, the other
    two to null"""
    epochs: Positive | None = None
    """passes over the collection"""
    learning_rate: Positive = 2e-5
    """peak learning rate of AdamW; 1e-5 to 5e-5 preserve what a released retriever has learned"""

    def objective(self) -> dict[str, Any]:
        """Return keyword arguments of ``Step``: ``contrast``, and the share of predicted tokens."""
        return {"contrast": True, "predicted": self.mask_rate if self.mlm_weight else 0.0}


CondenserConfig = PretrainMlmConfig | PretrainCondenserConfig | PretrainCoCondenserConfig


AutoEncoderConfig = PretrainCotmaeConfig | PretrainRetromaeConfig | SpanDecoderConfig | PairDecoderConfig


AnyPairConfig = PretrainCoCondenserConfig | PretrainCotmaeConfig | PairDecoderConfig | PretrainContrastiveConfig


AnyConfig = CondenserConfig | AutoEncoderConfig | PretrainIctConfig | PretrainContrastiveConfig
