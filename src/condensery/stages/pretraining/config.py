"""Keys of the stages that pre-train: where spans and pairs come from, what is masked, which head or decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.flops import Step
from condensery.stages.base import Input, StageConfig
from condensery.stages.checks import check_checkpoint, check_length, check_no_retriever
from condensery.stages.registry import stage
from condensery.stages.training_config import (
    CollectionConfig,
    Count,
    EncoderStageConfig,
    OptimisedStageConfig,
    Share,
    ValidatedConfig,
)
from condensery.stages.workload import (
    Read,
    Search,
    Work,
    checkpoint_bytes,
    known,
    product,
    search,
    together,
    total,
    with_encoder,
)

Rate = Annotated[float, Field(gt=0, le=1)]

Length = Annotated[int, Field(ge=8)]

FILLED = 0.9  # of a span, by whole sentences

QUERY = 11.0  # tokens of a query that was made for a passage

Temperature = Annotated[float, Field(gt=0)]

SENTENCE = 30.0  # tokens of a query that is a sentence

Amount = Annotated[float, Field(ge=0)]


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


@stage("pretrain_mlm", "pretrain:pretrain_mlm", version=3, makes="encoder", cost=20.0, together=True)
class PretrainMlmConfig(MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """MLM on spans."""

    def objective(self) -> dict[str, Any]:
        """See ``SpanConfig``."""
        return {"predicted": self.mask_rate}


@stage("pretrain_condenser", "pretrain:pretrain_condenser", version=3, makes="encoder", cost=30.0, together=True)
class PretrainCondenserConfig(HeadConfig, MaskingConfig, SpanConfig, ValidatedConfig, EncoderStageConfig):
    """The same with a head."""

    def objective(self) -> dict[str, Any]:
        """See ``SpanConfig``: the head predicts, and with ``late_mlm`` the backbone does."""
        return {"predicted": self.mask_rate, **self.head()}


@stage("pretrain_cocondenser", "pretrain:pretrain_cocondenser", version=4, makes="encoder", cost=30.0, together=True)
class PretrainCoCondenserConfig(PairConfig, HeadConfig, MaskingConfig, ValidatedConfig, EncoderStageConfig):
    """The same with the contrast of a pair."""

    temperature: Annotated[float, Field(gt=0)]
    contrast_weight: Annotated[float, Field(ge=0)]

    def objective(self) -> dict[str, Any]:
        """See ``SpanConfig``."""
        return {"predicted": self.mask_rate, **self.head(), "contrast": True}


@stage("pretrain_cotmae", "pretrain:pretrain_cotmae", version=1, makes="encoder", cost=30.0, together=True)
class PretrainCotmaeConfig(DecoderConfig, PairConfig, MaskingConfig, ValidatedConfig, EncoderStageConfig):
    """The decoder reads the other text of the pair."""

    decoder: Literal["masked", "causal"]
    both_directions: bool

    def objective(self) -> dict[str, Any]:
        """See ``SpanConfig``."""
        return self.decoding(self.mask_rate, self.decoder_mask_rate if self.decoder == "masked" else 1.0)


@stage("pretrain_retromae", "pretrain:pretrain_retromae", version=1, makes="encoder", cost=25.0, together=True)
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


@stage("pretrain_ict", "pretrain:pretrain_ict", version=1, makes="encoder", cost=20.0, together=True)
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


@stage("pretrain_contrastive", "pretrain:pretrain_contrastive", version=1, makes="encoder", cost=20.0, together=True)
class PretrainContrastiveConfig(PairConfig, ValidatedConfig, EncoderStageConfig):
    """Pairs as coCondenser has them, contrasted in a retriever's own vectors."""

    temperature: Annotated[float, Field(gt=0)]
    learn_temperature: bool

    def objective(self) -> dict[str, Any]:
        """See ``SpanConfig``."""
        return {"contrast": True}


@stage(
    "distil_ranking",
    "distil_ranking:distil_ranking",
    version=2,
    makes="encoder",
    cost=10.0,
)
class DistilRankingConfig(CollectionConfig, OptimisedStageConfig):
    """``student``: the index of the retriever; ``teacher``: what ranks better, such as BM25 and the student joined.

    ``cross_encoders`` score what the teacher ranks in its place (GPL: Wang et al. 2022); of several the mean counts.
    """

    student: Annotated[str, Input("index")]
    teacher: Annotated[str, Input("index")]
    cross_encoders: Annotated[list[str], Input("cross_encoder")]
    queries: Annotated[str, Input("queries")]
    number: Count
    depth: Count
    query_length: Annotated[int, Field(ge=8)]
    temperature: Temperature
    teacher_temperature: Temperature

    def lengths(self) -> dict[str, int]:
        """None that a retriever could be too short for: its own counts where it is shorter."""
        return {}

    def by_content(self) -> set[str]:
        """``cross_encoders`` came later: where there are none the ids are those of before."""
        return super().by_content() | (set() if self.cross_encoders else {"cross_encoders"})

    def work(self, read: Read) -> Work:
        """The teacher is asked, cross-encoders read what it ranks, and steps of queries alone are made."""
        sizes = replace(known(read, "teacher", "student"), same_passages=True)
        if sizes.encoder is None:
            return Work(sizes)
        step = Step(sizes.encoder, self.batch_size, SENTENCE, self.budget, contrast=True, precision=self.precision)
        work = self.training(sizes, step, float(self.number))
        looked = search(known(read, "teacher"), float(self.number), self.depth)
        return Work(sizes, work.steps, step, together([looked, self._scoring(read)]).products, work.seconds, work.disk)

    def _scoring(self, read: Read) -> Search:
        """The products of cross-encoders that read each query with what the teacher ranks for it."""
        pairs, found = float(self.number) * self.depth, Search(0.0, 0.0)
        for scorer in read.get("cross_encoders", ()):
            text = scorer.collection.passage_tokens
            if scorer.encoder is None or text is None:
                return Search(None, None)
            length = min(text + SENTENCE, scorer.passage_length or 512)
            scored = Step(scorer.encoder, pairs, length, self.budget, trained=False, precision=self.precision)
            found = together([found, Search(scored.flops, 0.0)])
        return found


@stage(
    "token_vectors",
    "token_vectors:token_vectors",
    version=1,
    makes="token_vectors",
    cost=2.0,
    adapts="tokens",
)
class TokenVectorsConfig(StageConfig):
    """``window`` in tokens; ``smoothing``: see ``positive_pmi``; ``dim``: how many dimensions are kept."""

    tokens: Annotated[str, Input("tokens")]
    dim: Annotated[int, Field(ge=1)]
    window: Annotated[int, Field(ge=1, le=40)]
    smoothing: Annotated[float, Field(gt=0, le=1)]

    def work(self, read: Read) -> Work:
        """Pairs of neighbouring tokens are counted, and their matrix is taken apart."""
        sizes = known(read)
        return Work(sizes, seconds=product(6.6e-6, sizes.tokens), disk=product(4.0 * self.dim, sizes.vocabulary))


@stage("warm_start", "warm_start:warm_start", version=1, makes="encoder", cost=2.0)
class WarmStartConfig(StageConfig):
    """``vectors``: what the token embeddings begin with, None = noise; the other parts are those of ``WarmStart``.

    ``length``: tokens of the longest text, for whoever takes the encoder as a retriever.
    """

    tokenizer: Annotated[str, Input("tokenizer")]
    tokens: Annotated[str, Input("tokens")]
    vectors: Annotated[str | None, Input("token_vectors")]
    backbone: BackboneConfig
    length: Annotated[int, Field(ge=8)]
    unigram_bias: bool
    near_identity: Amount
    random_share: Amount
    rare_tokens: Amount
    position_scale: Amount
    seed: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _fits_the_backbone(self) -> Self:
        if self.backbone.name is None:  # a checkpoint tells its size only when it is loaded
            check_length("length", self.length, self.backbone.max_positions)
            if self.backbone.family not in ("bert", "roberta"):
                raise ValueError(
                    f"backbone.family is {self.backbone.family}; a warm start is written into bert or roberta"
                )
        return self

    def identity(self) -> list[str]:
        """Nothing besides the fields.

        Raises ``UserError`` where the checkpoint to start from is a missing folder, or a released retriever.
        """
        check_checkpoint(self.backbone.name, "backbone.name")
        check_no_retriever(self.backbone)
        return []

    def work(self, read: Read) -> Work:
        """The weights are drawn and written."""
        sizes = with_encoder(known(read), self.backbone)
        return Work(sizes, seconds=3.0, disk=checkpoint_bytes(sizes))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Vectors of another size than the backbone's."""
        if self.backbone.name is not None:
            return None
        return other_dimensions(self.vectors, inputs["vectors"], self.backbone.hidden)


def other_dimensions(name: str | None, configs: Sequence[StageConfig], hidden: int) -> tuple[str, str] | None:
    """The complaint about the input ``vectors``, where they do not have the dimensions of the model that begins with them."""
    dims = [config.dim for config in configs if isinstance(config, TokenVectorsConfig)]
    if not dims or dims[0] == hidden:
        return None
    return "vectors", f"{name} has {dims[0]} dimensions, the model {hidden}; set its dim"


CondenserConfig = PretrainMlmConfig | PretrainCondenserConfig | PretrainCoCondenserConfig
AutoEncoderConfig = PretrainCotmaeConfig | PretrainRetromaeConfig
TowersConfig = PretrainIctConfig | PretrainContrastiveConfig
AnyConfig = CondenserConfig | AutoEncoderConfig | TowersConfig
