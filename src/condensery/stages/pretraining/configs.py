"""What the stages ``pretrain_...`` are told: where spans and pairs come from, what is masked, which head or decoder."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from condensery.models.flops import Step
from condensery.stages.base import Input, StageConfig
from condensery.stages.checks import check_no_retriever
from condensery.stages.training import (
    Count,
    EncoderStageConfig,
    OptimisedStageConfig,
    Share,
    ValidatedConfig,
)
from condensery.stages.work import Read, Work, known, product, total, with_encoder

if TYPE_CHECKING:
    pass

Rate = Annotated[float, Field(gt=0, le=1)]
Length = Annotated[int, Field(ge=8)]
FILLED = 0.9  # of a span, by whole sentences
QUERY = 11.0  # tokens of a query that was made for a passage


class Texts(NamedTuple):
    """What pre-training reads: ``items`` an epoch, so many ``texts`` of each, ``tokens`` of a text on the average.

    None = not known.
    """

    items: float | None
    texts: int
    tokens: float | None


class SpanConfig(StageConfig):
    """Where spans come from. ``length`` is in tokens, [CLS] and [SEP] included."""

    spans: Literal["sentences", "windows"]
    length: Length
    short_probability: Share
    min_length: Count

    def work(self: Any, read: Read) -> Work:  # Any: an encoder's keys are those of another base of the stage
        """Steps of the objective on the backbone."""
        sizes = with_encoder(known(read, "tokens", "tokenizer", "init"), self.backbone, self.length)
        texts, step = self.texts(read), None
        if sizes.encoder is not None and texts.tokens is not None:
            rows, own = self.batch_size * texts.texts, self.objective()
            step = Step(sizes.encoder, rows, texts.tokens, self.budget, precision=self.precision, **own)
        work: Work = self.training(sizes, step, texts.items)
        return work

    def objective(self) -> dict[str, Any]:
        """What of the objective makes a step longer: fields of ``Step``."""
        raise NotImplementedError

    def texts(self, read: Read) -> Texts:
        """Spans, one behind the other."""
        sizes = known(read, "tokens")
        each = self.span_tokens(sizes.text_tokens)
        return Texts(product(sizes.tokens, 1 / (each - 2)) if each else None, 1, each)

    def span_tokens(self, text: float | None) -> float | None:
        """The mean of spans of texts of so many tokens: sentences leave some room, and some aim at a shorter length."""
        if text is None:
            return None
        filled = FILLED * (1 - self.short_probability / 2) if self.spans == "sentences" else 1.0
        return 2 + max(1.0, min(text, filled * (self.length - 2)))


class MaskingConfig(StageConfig):
    """What is masked."""

    mask_rate: Rate
    whole_word: bool
    mlm_weight: Annotated[float, Field(ge=0)]

    def identity(self: Any) -> list[str]:
        """As ``EncoderStageConfig``; ``UserError`` too where a released retriever would lose what it has learned."""
        if self.init == "backbone":
            check_no_retriever(self.backbone)
        return list(super().identity())  # type: ignore[misc]


class HeadConfig(StageConfig):
    """The Condenser head; ``skip_from`` null = half of the backbone's layers."""

    head_layers: Annotated[int, Field(ge=0)]
    skip_from: Annotated[int, Field(ge=0)] | None
    late_mlm: bool

    def head(self) -> dict[str, Any]:
        """Fields of ``Step``."""
        return {"head_layers": self.head_layers, "losses": 1 + (self.late_mlm and self.head_layers > 0)}


class PairConfig(SpanConfig, OptimisedStageConfig):
    """What the two texts of a pair are: spans of a document or of a passage, or with ``queries`` a passage and one of its
    queries."""

    pairs_within: Literal["document", "passage"]
    queries: Annotated[str | None, Input("queries")]
    query_length: Length
    candidates: Count
    mixed_context: Share

    @model_validator(mode="after")
    def _mixed_needs_queries(self) -> Self:
        if self.mixed_context and not self.queries:
            raise ValueError("mixed_context mixes passages into pairs with queries; name a stage in `queries`")
        return self

    def texts(self, read: Read) -> Texts:
        """Two spans of each document or passage, or a passage and one of its queries."""
        sizes = known(read, "queries" if self.queries else "tokens")
        passages, tokens = sizes.collection.passages, sizes.collection.passage_tokens
        if self.queries:
            cut = None if tokens is None else min(tokens + 2, self.length)
            return Texts(passages, 2, product(0.5, total([cut, min(QUERY, self.query_length)])))
        if self.pairs_within == "document":
            passages, tokens = sizes.collection.documents or passages, sizes.text_tokens
        return Texts(passages, 2, self.span_tokens(product(0.5, tokens)))

    def lengths(self) -> dict[str, int]:
        """Without queries theirs does not count."""
        return {key: tokens for key, tokens in super().lengths().items() if self.queries or key != "query_length"}


class DecoderConfig(StageConfig):
    """The decoder of an auto-encoder, but for its kind."""

    decoder_layers: Count
    decoder_init: Literal["random", "last"]
    decoder_mask_rate: Rate

    def decoding(self, encoder: float, decoder: float) -> dict[str, Any]:
        """Fields of ``Step``, of the shares of the tokens that the two predict."""
        return {"head_layers": self.decoder_layers, "predicted": (encoder + decoder) / 2, "losses": 2}


class PretrainMlmConfig(MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """MLM on spans."""

    def objective(self) -> dict[str, Any]:
        """See ``SpanConfig``."""
        return {"predicted": self.mask_rate}


class PretrainCondenserConfig(HeadConfig, MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """The same with a head."""

    def objective(self) -> dict[str, Any]:
        """See ``SpanConfig``: the head predicts, and with ``late_mlm`` the backbone does."""
        return {"predicted": self.mask_rate, **self.head()}


class PretrainCoCondenserConfig(PairConfig, HeadConfig, MaskingConfig, ValidatedConfig, EncoderStageConfig):
    """The same with the contrast of a pair."""

    temperature: Annotated[float, Field(gt=0)]
    contrast_weight: Annotated[float, Field(ge=0)]

    def objective(self) -> dict[str, Any]:
        """See ``SpanConfig``."""
        return {"predicted": self.mask_rate, **self.head(), "contrast": True}


class PretrainCotmaeConfig(DecoderConfig, PairConfig, MaskingConfig, ValidatedConfig, EncoderStageConfig):
    """The decoder reads the other text of the pair."""

    decoder: Literal["masked", "causal"]
    both_directions: bool

    def objective(self) -> dict[str, Any]:
        """See ``SpanConfig``."""
        return self.decoding(self.mask_rate, self.decoder_mask_rate if self.decoder == "masked" else 1.0)


class PretrainRetromaeConfig(DecoderConfig, MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """The decoder reads the same text as the encoder."""

    decoder: Literal["enhanced", "masked"]

    def objective(self) -> dict[str, Any]:
        """See ``SpanConfig``."""
        return self.decoding(self.mask_rate, self.decoder_mask_rate if self.decoder == "masked" else 1.0)

    @model_validator(mode="after")
    def _enhanced_is_one_layer(self) -> Self:
        if self.decoder == "enhanced" and self.decoder_layers != 1:
            raise ValueError(
                "decoder_layers: an enhanced decoder has one layer; set decoder_layers=1 or decoder=masked"
            )
        return self


class PretrainIctConfig(SpanConfig, ValidatedConfig, EncoderStageConfig):
    """``keep_sentence``: how often the sentence stays in its passage."""

    query_length: Length
    keep_sentence: Share
    temperature: Annotated[float, Field(gt=0)]

    def objective(self) -> dict[str, Any]:
        """See ``SpanConfig``."""
        return {"contrast": True}

    def texts(self, read: Read) -> Texts:
        """A span and a sentence of it, about the fifth part."""
        items, _, tokens = super().texts(read)
        return Texts(items, 2, product(0.6, tokens))


class PretrainContrastiveConfig(PairConfig, ValidatedConfig, EncoderStageConfig):
    """Pairs as coCondenser has them, contrasted in a retriever's own vectors."""

    temperature: Annotated[float, Field(gt=0)]
    learn_temperature: bool

    def objective(self) -> dict[str, Any]:
        """See ``SpanConfig``."""
        return {"contrast": True}


CondenserConfig = PretrainMlmConfig | PretrainCondenserConfig | PretrainCoCondenserConfig
AutoEncoderConfig = PretrainCotmaeConfig | PretrainRetromaeConfig
TowersConfig = PretrainIctConfig | PretrainContrastiveConfig
AnyConfig = CondenserConfig | AutoEncoderConfig | TowersConfig
