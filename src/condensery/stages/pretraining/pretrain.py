"""The stages ``pretrain_...``: an encoder from text alone, or from text and queries that were made for it."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from condensery.errors import UserError
from condensery.models.flops import Step
from condensery.stages.base import Artifact, Context, Input, StageConfig, stage
from condensery.stages.card import card_of, name_of_data
from condensery.stages.training import (
    Count,
    EncoderStageConfig,
    OptimisedStageConfig,
    Share,
    ValidatedConfig,
    run_training,
    validation_sample,
)
from condensery.stages.work import Read, Work, known, product, total, with_encoder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from condensery.models.condenser import Condenser
    from condensery.models.masked_autoencoder import MaskedAutoEncoder
    from condensery.tokens.vocabulary import Vocabulary
    from condensery.training.batches.spans import ContextMasking
    from condensery.training.datamodules.base import TokenDataModule
    from condensery.training.datamodules.spans import SpanPairDataModule
    from condensery.training.modules.base import EncoderModule
    from condensery.training.modules.pretraining import CondenserModule

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


CondenserConfig = PretrainMlmConfig | PretrainCondenserConfig | PretrainCoCondenserConfig
AutoEncoderConfig = PretrainCotmaeConfig | PretrainRetromaeConfig
AnyConfig = CondenserConfig | AutoEncoderConfig | PretrainIctConfig


@stage("pretrain_mlm", version=3, makes="encoder", cost=20.0, together=True)
def pretrain_mlm(config: PretrainMlmConfig, context: Context) -> dict[str, Any]:
    """Plain masked language modelling: the baseline."""
    from condensery.training.modules.pretraining import CondenserModule

    return _pretrain_condenser(config, context, _spans(config, context), 0, CondenserModule)


@stage("pretrain_condenser", version=3, makes="encoder", cost=30.0, together=True)
def pretrain_condenser(config: PretrainCondenserConfig, context: Context) -> dict[str, Any]:
    """Condenser (Gao and Callan 2021a, §3).

    From another stage's weights and with a low rate it is continued training (§5.4 of the paper's early version).
    """
    from condensery.training.modules.pretraining import CondenserModule

    return _pretrain_condenser(config, context, _spans(config, context), config.head_layers, CondenserModule)


@stage("pretrain_cocondenser", version=4, makes="encoder", cost=30.0, together=True)
def pretrain_cocondenser(config: PretrainCoCondenserConfig, context: Context) -> dict[str, Any]:
    """coCondenser (Gao and Callan 2021b, §3): Condenser plus the contrast of pairs.

    With ``queries`` query-as-context (Wu et al. 2023, §3.1).
    """
    from condensery.training.modules.pretraining import CoCondenserModule, QueryAsContextModule

    kind = partial(
        QueryAsContextModule if config.queries else CoCondenserModule,
        temperature=config.temperature,
        contrast_weight=config.contrast_weight,
    )
    return _pretrain_condenser(config, context, _pairs(config, context), config.head_layers, kind)


def _pretrain_condenser(
    config: CondenserConfig,
    context: Context,
    data: "TokenDataModule",
    head_layers: int,
    kind: "Callable[..., CondenserModule]",
) -> dict[str, Any]:
    model = _condenser(config, context, data.vocabulary, head_layers)
    return _fit(kind(model, mlm_weight=config.mlm_weight, **config.optimiser()), data, config, context)


@stage("pretrain_cotmae", version=1, makes="encoder", cost=30.0, together=True)
def pretrain_cotmae(config: PretrainCotmaeConfig, context: Context) -> dict[str, Any]:
    """CoT-MAE (Wu et al. 2023, §2.4): a decoder fills in one text of a pair with the help of the other's vector."""
    from condensery.training.batches.spans import ContextMasking

    rate = config.decoder_mask_rate if config.decoder == "masked" else None
    return _pretrain_autoencoder(
        config, context, _pairs(config, context, ContextMasking("partner", config.both_directions, rate))
    )


@stage("pretrain_retromae", version=1, makes="encoder", cost=25.0, together=True)
def pretrain_retromae(config: PretrainRetromaeConfig, context: Context) -> dict[str, Any]:
    """RetroMAE (Xiao et al. 2022): a decoder fills in the text itself with the help of its vector."""
    from condensery.training.batches.spans import ContextMasking

    rate = config.decoder_mask_rate if config.decoder == "masked" else None
    return _pretrain_autoencoder(config, context, _spans(config, context, decoder=ContextMasking("same", True, rate)))


def _pretrain_autoencoder(config: AutoEncoderConfig, context: Context, data: "TokenDataModule") -> dict[str, Any]:
    from condensery.training.modules.pretraining import MaskedAutoEncoderModule

    model = _autoencoder(config, context, data.vocabulary)
    module = MaskedAutoEncoderModule(model, mlm_weight=config.mlm_weight, **config.optimiser())
    return _fit(module, data, config, context)


@stage("pretrain_ict", version=1, makes="encoder", cost=20.0, together=True)
def pretrain_ict(config: PretrainIctConfig, context: Context) -> dict[str, Any]:
    """The inverse cloze task (Lee et al. 2019; Gao and Callan 2021a, §4.4): a sentence finds its own passage."""
    from condensery.stages.training import initial_towers
    from condensery.training.modules.pretraining import InverseClozeModule

    own: dict[str, Any] = {"query_length": config.query_length, "keep_sentence": config.keep_sentence}
    data = _spans(config, context, pairs="sentence", **own)
    towers = initial_towers(config, context, data.vocabulary, separate=False)
    module = InverseClozeModule(towers, temperature=config.temperature, **config.optimiser())
    return _fit(module, data, config, context)


def _shared(config: AnyConfig, context: Context) -> dict[str, Any]:
    """What every data module here is given."""
    named = ("length", "batch_size", "seed", "mask_rate", "whole_word")
    settings = {name: getattr(config, name) for name in named if hasattr(config, name)}
    return {**settings, "chunk_tokens": config.budget, "workers": context.runtime.workers}


def _spans(config: AnyConfig, context: Context, **own: Any) -> "SpanPairDataModule":
    """Spans of the documents, by default single ones."""
    from condensery.tokens.artifacts import Tokens
    from condensery.training.datamodules.spans import SpanPairDataModule

    cut = {"spans": config.spans, "short_probability": config.short_probability, "min_length": config.min_length}
    given = {"pairs": None, **_shared(config, context), **cut, **own}
    return SpanPairDataModule(Tokens(context.input("tokens")), **given)


def _pairs(
    config: PretrainCoCondenserConfig | PretrainCotmaeConfig, context: Context, decoder: "ContextMasking | None" = None
) -> "TokenDataModule":
    """Spans of the documents, or the passages that ``queries`` was made for with their queries."""
    from condensery.tokens.artifacts import Passages, Queries, Tokens
    from condensery.training.batches.sources import PassagesAndQueries
    from condensery.training.datamodules.passage_queries import PassageQueryDataModule

    if not config.queries:
        return _spans(config, context, pairs=config.pairs_within, decoder=decoder)
    artifact = context.artifact("queries")
    _check_tokenizers(artifact, context)
    queries, passages = Queries(artifact.path), Passages(artifact.input("passages").path)
    hidden = queries.places if artifact.manifest["config"].get("remove") else None
    return PassageQueryDataModule(
        Tokens(context.input("tokens")),
        asked=PassagesAndQueries(passages.store, passages.titles, queries.store, queries.first, hidden),
        query_length=config.query_length,
        candidates=config.candidates,
        mixed_context=config.mixed_context,
        decoder=decoder,
        **_shared(config, context),
    )


def _check_tokenizers(queries: Artifact, context: Context) -> None:
    """Raise ``UserError`` where the queries, or their passages, have ids of another tokenizer than this stage's."""
    own = context.artifact("tokenizer").id
    for what, artifact in (("queries", queries), ("passages of these queries", queries.input("passages"))):
        if any(tokenizer.id != own for tokenizer in artifact.inputs("tokenizer")):
            raise UserError(
                f"stages.{context.stage_name}.queries: the {what} were tokenised with another tokenizer than this stage "
                "reads; give both the same stage as `tokenizer`"
            )


def _fit(module: "EncoderModule", data: "TokenDataModule", config: AnyConfig, context: Context) -> dict[str, Any]:
    """Train and save; the manifest also says how many items there are, and what could not be used."""
    from condensery.training.batches.spans import SpanBatches

    data.setup()
    assert isinstance(data.batches, SpanBatches)
    source = data.batches.source
    sample = validation_sample(config, module, context, (config.length, config.length))
    values = run_training(module, data, config.loop(data.batches), config, context, sample)
    card = card_of(type(config), config.model_dump(mode="json"), name_of_data(context.input("corpus")), values)
    module.save_pretrained(context.folder, context.input("tokenizer"), data.lengths, card)
    return {"items": source.items, "left_out": source.left_out, **values}


def _condenser(config: CondenserConfig, context: Context, vocabulary: "Vocabulary", head_layers: int) -> "Condenser":
    """The model before the first step: from scratch, from a checkpoint, or from the artifact of another stage."""
    import torch

    from condensery.models.backbone import masked_language_model
    from condensery.models.checkpoint import load_condenser
    from condensery.models.condenser import Condenser, condenser_shape

    torch.manual_seed(config.seed)  # of what a checkpoint does not hold: a new Condenser head
    head = (head_layers, getattr(config, "skip_from", None), getattr(config, "late_mlm", True))
    if source := _start(config, context):
        return load_condenser(source[0], vocabulary, *head, config.backbone.dropout, source[1])
    language_model = masked_language_model(config.backbone, vocabulary, config.seed)
    return Condenser(language_model, condenser_shape(language_model, *head))


def _autoencoder(config: AutoEncoderConfig, context: Context, vocabulary: "Vocabulary") -> "MaskedAutoEncoder":
    """The same for an auto-encoder."""
    import torch

    from condensery.models.backbone import masked_language_model
    from condensery.models.checkpoint import load_masked_autoencoder
    from condensery.models.masked_autoencoder import DecoderShape, MaskedAutoEncoder

    torch.manual_seed(config.seed)  # of a new decoder
    shape = DecoderShape(config.decoder, config.decoder_layers, config.decoder_mask_rate)
    if source := _start(config, context):
        dropout = config.backbone.dropout
        return load_masked_autoencoder(source[0], vocabulary, shape, config.decoder_init, dropout, source[1])
    language_model = masked_language_model(config.backbone, vocabulary, config.seed)
    return MaskedAutoEncoder(language_model, shape, config.decoder_init)


def _start(config: AnyConfig, context: Context) -> tuple["Path | str", str | None] | None:
    """The checkpoint that the weights come from, and its revision; None = from scratch."""
    if config.init != "backbone":
        return context.input("init"), None
    return None if config.backbone.name is None else (config.backbone.name, config.backbone.revision)
