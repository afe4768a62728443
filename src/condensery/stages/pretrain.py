"""The stages ``pretrain_...``: an encoder from text alone, or from text and queries that were made for it."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from condensery.errors import UserError
from condensery.stages.base import Artifact, Context, Input, stage
from condensery.stages.training import Count, Share, TrainingStageConfig, run_training

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from condensery.models.condenser import Condenser
    from condensery.models.masked_autoencoder import MaskedAutoEncoder
    from condensery.stages.texts import Tokens
    from condensery.tokens.spans import SpanSet
    from condensery.tokens.vocabulary import Vocabulary
    from condensery.training.modules import CondenserModule, TrainingModule
    from condensery.training.settings import TrainingSettings
    from condensery.training.sources import Source
    from condensery.training.span_batches import ContextMasking, SpanBatches

Rate = Annotated[float, Field(gt=0, le=1)]
Length = Annotated[int, Field(ge=8)]


class SpanConfig(TrainingStageConfig):
    """Where spans come from. ``length`` is in tokens, [CLS] and [SEP] included."""

    spans: Literal["sentences", "windows"]
    length: Length
    short_probability: Share
    minimum: Count


class PretrainMlmConfig(SpanConfig):
    """What is masked."""

    mask_rate: Rate
    whole_word: bool
    mlm_weight: Annotated[float, Field(ge=0)]


class PretrainCondenserConfig(PretrainMlmConfig):
    """The Condenser head; ``skip_from`` null = half of the backbone's layers."""

    head_layers: Annotated[int, Field(ge=0)]
    skip_from: Annotated[int, Field(ge=0)] | None
    late_mlm: bool


class PairConfig(PretrainMlmConfig):
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

    def lengths(self) -> dict[str, int]:
        """Without queries theirs does not count."""
        return {key: tokens for key, tokens in super().lengths().items() if self.queries or key != "query_length"}


class PretrainCoCondenserConfig(PairConfig, PretrainCondenserConfig):
    """The contrast of a pair."""

    temperature: Annotated[float, Field(gt=0)]
    contrast_weight: Annotated[float, Field(ge=0)]


class PretrainCotmaeConfig(PairConfig):
    """The decoder, and what it reads."""

    decoder: Literal["masked", "causal"]
    decoder_layers: Count
    decoder_init: Literal["random", "last"]
    decoder_mask_rate: Rate
    both_directions: bool


class PretrainRetromaeConfig(PretrainMlmConfig):
    """The decoder, which reads the same text as the encoder."""

    decoder: Literal["enhanced", "masked"]
    decoder_layers: Count
    decoder_init: Literal["random", "last"]
    decoder_mask_rate: Rate

    @model_validator(mode="after")
    def _enhanced_is_one_layer(self) -> Self:
        if self.decoder == "enhanced" and self.decoder_layers != 1:
            raise ValueError(
                "decoder_layers: an enhanced decoder has one layer; set decoder_layers=1 or decoder=masked"
            )
        return self


class PretrainIctConfig(SpanConfig):
    """``keep_sentence``: how often the sentence stays in its passage."""

    query_length: Length
    keep_sentence: Share
    temperature: Annotated[float, Field(gt=0)]


@stage("pretrain_mlm", version=3, makes="encoder", cost=20.0, together=True)
def pretrain_mlm(config: PretrainMlmConfig, context: Context) -> dict[str, Any]:
    """Plain masked language modelling: the baseline."""
    from condensery.training.modules import CondenserModule

    tokens, source = _single_spans(config, context)
    return _pretrain_condenser(config, context, tokens, source, 0, CondenserModule)


@stage("pretrain_condenser", version=3, makes="encoder", cost=30.0, together=True)
def pretrain_condenser(config: PretrainCondenserConfig, context: Context) -> dict[str, Any]:
    """Condenser (C §3); from another stage's weights and with a low rate it is continued training (E §5.4)."""
    from condensery.training.modules import CondenserModule

    tokens, source = _single_spans(config, context)
    return _pretrain_condenser(config, context, tokens, source, config.head_layers, CondenserModule)


@stage("pretrain_cocondenser", version=4, makes="encoder", cost=30.0, together=True)
def pretrain_cocondenser(config: PretrainCoCondenserConfig, context: Context) -> dict[str, Any]:
    """coCondenser (CO §3): Condenser plus the contrast of pairs; with ``queries`` query-as-context (Q §3.1)."""
    from condensery.stages.texts import Tokens
    from condensery.training.modules import CoCondenserModule, QueryAsContextModule

    tokens = Tokens(context.input("tokens"))
    kind = partial(
        QueryAsContextModule if config.queries else CoCondenserModule,
        temperature=config.temperature,
        contrast_weight=config.contrast_weight,
    )
    return _pretrain_condenser(config, context, tokens, _pairs(config, context, tokens), config.head_layers, kind)


def _pretrain_condenser(
    config: PretrainMlmConfig,
    context: Context,
    tokens: "Tokens",
    source: "Source",
    head_layers: int,
    kind: "Callable[[Condenser, TrainingSettings, float], CondenserModule]",
) -> dict[str, Any]:
    from condensery.models.checkpoint import save_condenser

    batches = _batches(config, source, tokens.vocabulary, config.mask_rate, config.whole_word)
    model = _condenser(config, context, tokens.vocabulary, head_layers)
    settings = config.settings(batches)
    values = _fit(kind(model, settings, config.mlm_weight), batches, config, context)
    save_condenser(model, context.folder, context.input("tokenizer"), config.length)
    return values


@stage("pretrain_cotmae", version=1, makes="encoder", cost=30.0, together=True)
def pretrain_cotmae(config: PretrainCotmaeConfig, context: Context) -> dict[str, Any]:
    """CoT-MAE (Q §2.4): a decoder fills in one text of a pair with the help of the other's vector."""
    from condensery.stages.texts import Tokens
    from condensery.training.span_batches import ContextMasking

    tokens = Tokens(context.input("tokens"))
    rate = config.decoder_mask_rate if config.decoder == "masked" else None
    masking = ContextMasking("partner", config.both_directions, rate)
    return _pretrain_autoencoder(config, context, tokens.vocabulary, _pairs(config, context, tokens), masking)


@stage("pretrain_retromae", version=1, makes="encoder", cost=25.0, together=True)
def pretrain_retromae(config: PretrainRetromaeConfig, context: Context) -> dict[str, Any]:
    """RetroMAE (Xiao et al. 2022): a decoder fills in the text itself with the help of its vector."""
    from condensery.training.span_batches import ContextMasking

    tokens, source = _single_spans(config, context)
    masking = ContextMasking("same", both=True, rate=config.decoder_mask_rate if config.decoder == "masked" else None)
    return _pretrain_autoencoder(config, context, tokens.vocabulary, source, masking)


def _pretrain_autoencoder(
    config: PretrainCotmaeConfig | PretrainRetromaeConfig,
    context: Context,
    vocabulary: "Vocabulary",
    source: "Source",
    masking: "ContextMasking",
) -> dict[str, Any]:
    from condensery.models.checkpoint import save_masked_autoencoder
    from condensery.training.modules import MaskedAutoEncoderModule

    batches = _batches(config, source, vocabulary, config.mask_rate, config.whole_word, masking)
    model = _autoencoder(config, context, vocabulary)
    settings = config.settings(batches)
    values = _fit(MaskedAutoEncoderModule(model, settings, config.mlm_weight), batches, config, context)
    save_masked_autoencoder(model, context.folder, context.input("tokenizer"), config.length)
    return values


@stage("pretrain_ict", version=1, makes="encoder", cost=20.0, together=True)
def pretrain_ict(config: PretrainIctConfig, context: Context) -> dict[str, Any]:
    """The inverse cloze task (Lee et al. 2019, C §4.4): a sentence finds the passage that it was taken from."""
    from condensery.models.checkpoint import Retriever, save_retriever
    from condensery.stages.texts import Tokens
    from condensery.stages.training import initial_towers
    from condensery.training.modules import InverseClozeModule
    from condensery.training.sources import SentencePairs

    tokens = Tokens(context.input("tokens"))
    spans, draws = _spans(config, tokens), (config.keep_sentence, config.seed)
    source = SentencePairs(spans, tokens.vocabulary, config.query_length, *draws)
    batches = _batches(config, source, tokens.vocabulary, None, whole_word=False)
    model = initial_towers(config, context, tokens.vocabulary, separate=False)
    settings = config.settings(batches)
    values = _fit(InverseClozeModule(model, settings, config.temperature), batches, config, context)
    save_retriever(Retriever(model, config.query_length, config.length), context.folder, context.input("tokenizer"))
    return values


def _spans(config: SpanConfig, tokens: "Tokens") -> "SpanSet":
    from condensery.tokens.spans import RandomWindows, SentencePacked
    from condensery.tokens.store import TokenStore

    store = tokens.documents
    if isinstance(config, PairConfig) and config.pairs_within == "passage":
        store = TokenStore(store.folder, single_texts=True)
    if config.spans == "windows":
        return RandomWindows(store, config.length, config.seed, config.minimum)
    return SentencePacked(store, config.length, config.short_probability, config.seed, config.minimum)


def _single_spans(config: SpanConfig, context: Context) -> tuple["Tokens", "Source"]:
    """The tokens, and every span of them once an epoch."""
    from condensery.stages.texts import Tokens
    from condensery.training.sources import SingleSpans

    tokens = Tokens(context.input("tokens"))
    return tokens, SingleSpans(_spans(config, tokens), tokens.vocabulary)


def _pairs(config: PairConfig, context: Context, tokens: "Tokens") -> "Source":
    """Spans of the documents, or the passages that ``queries`` was made for with their queries."""
    from condensery.stages.texts import Passages, Queries
    from condensery.training.sources import Asked, MixedPairs, PassageQueries, SpanPairs

    if not config.queries:
        return SpanPairs(_spans(config, tokens), tokens.vocabulary)
    made = context.artifact("queries")
    _check_tokenizers(made, context)
    queries, passages = Queries(made.path), Passages(made.input("passages").path)
    hidden = queries.places if made.manifest["config"].get("remove") else None
    asked = Asked(passages.store, passages.titles, queries.store, queries.first, hidden)
    lengths = (config.length, config.query_length)
    pairs = PassageQueries(asked, tokens.vocabulary, *lengths, config.candidates, config.seed)
    return MixedPairs(pairs, config.mixed_context, config.seed) if config.mixed_context else pairs


def _check_tokenizers(queries: Artifact, context: Context) -> None:
    """Raise ``UserError`` where the queries, or their passages, have ids of another tokenizer than this stage's."""
    own = context.artifact("tokenizer").id
    for what, artifact in (("queries", queries), ("passages of these queries", queries.input("passages"))):
        if any(tokenizer.id != own for tokenizer in artifact.inputs("tokenizer")):
            raise UserError(
                f"stages.{context.stage_name}.queries: the {what} were tokenised with another tokenizer than this stage "
                "reads; give both the same stage as `tokenizer`"
            )


def _batches(
    config: SpanConfig,
    source: "Source",
    vocabulary: "Vocabulary",
    mask_rate: float | None,
    whole_word: bool,
    masking: "ContextMasking | None" = None,
) -> "SpanBatches":
    from condensery.training.span_batches import SpanBatches

    return SpanBatches(
        source,
        vocabulary,
        batch_size=config.batch_size,
        mask_rate=mask_rate,
        whole_word=whole_word,
        budget=config.chunk_tokens,
        seed=config.seed,
        context=masking,
    )


def _fit(module: "TrainingModule", batches: "SpanBatches", config: SpanConfig, context: Context) -> dict[str, Any]:
    """Train; the manifest also says how many items there are, and what could not be used."""
    from condensery.training.data import PassageQueryDataModule, SpanPairDataModule
    from condensery.training.sources import MixedPairs, PassageQueries

    source = batches.source
    kind = PassageQueryDataModule if isinstance(source, PassageQueries | MixedPairs) else SpanPairDataModule
    data = kind(batches, module.settings.steps, context.runtime.workers)
    values = run_training(module, data, config, context, (config.length, config.length))
    return {"items": source.items, "left_out": source.left_out, **values}


def _condenser(config: PretrainMlmConfig, context: Context, vocabulary: "Vocabulary", head_layers: int) -> "Condenser":
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


def _autoencoder(
    config: PretrainCotmaeConfig | PretrainRetromaeConfig, context: Context, vocabulary: "Vocabulary"
) -> "MaskedAutoEncoder":
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


def _start(config: TrainingStageConfig, context: Context) -> tuple["Path | str", str | None] | None:
    """The checkpoint that the weights come from, and its revision; None = from scratch."""
    if config.init != "backbone":
        return context.input("init"), None
    return None if config.backbone.name is None else (config.backbone.name, config.backbone.revision)
