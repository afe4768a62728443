"""Stages ``pretrain_mlm``, ``pretrain_condenser`` and ``pretrain_cocondenser``: an encoder from text alone."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from condensery.stages.base import Context, stage
from condensery.stages.training import Count, Share, TrainingStageConfig, run_training

if TYPE_CHECKING:
    from condensery.models.condenser import Condenser
    from condensery.tokens.vocabulary import Vocabulary


class PretrainMlmConfig(TrainingStageConfig):
    """Spans and masks, common to all pre-training. ``length`` is in tokens, [CLS] and [SEP] included."""

    spans: Literal["sentences", "windows"]
    length: Annotated[int, Field(ge=8)]
    short_probability: Share
    minimum: Count
    mask_rate: Annotated[float, Field(gt=0, le=1)]
    whole_word: bool
    mlm_weight: Annotated[float, Field(ge=0)]


class PretrainCondenserConfig(PretrainMlmConfig):
    """The Condenser head; ``skip_from`` null = half of the backbone's layers."""

    head_layers: Annotated[int, Field(ge=0)]
    skip_from: Annotated[int, Field(ge=0)] | None
    late_mlm: bool


@stage("pretrain_mlm", version=3, makes="encoder", cost=20.0)
def pretrain_mlm(config: PretrainMlmConfig, context: Context) -> dict[str, Any]:
    """Plain masked language modelling: the baseline."""
    return _pretrain(config, context, head_layers=0, pairs=False)


@stage("pretrain_condenser", version=3, makes="encoder", cost=30.0)
def pretrain_condenser(config: PretrainCondenserConfig, context: Context) -> dict[str, Any]:
    """Condenser (C §3)."""
    return _pretrain(config, context, config.head_layers, pairs=False)


@stage("pretrain_cocondenser", version=3, makes="encoder", cost=30.0)
def pretrain_cocondenser(config: PretrainCondenserConfig, context: Context) -> dict[str, Any]:
    """coCondenser (CO §3): Condenser plus span contrast; ``batch_size`` counts documents."""
    return _pretrain(config, context, config.head_layers, pairs=True)


def _pretrain(config: PretrainMlmConfig, context: Context, head_layers: int, pairs: bool) -> dict[str, Any]:
    from condensery.models.checkpoint import save_condenser
    from condensery.stages.texts import Tokens
    from condensery.tokens.spans import RandomWindows, SentencePacked, SpanSet
    from condensery.training.batches import SpanBatches
    from condensery.training.data import SpanPairDataModule
    from condensery.training.modules import CoCondenserModule, CondenserModule

    tokens = Tokens(context.input("tokens"))
    spans: SpanSet
    if config.spans == "sentences":
        spans = SentencePacked(tokens.documents, config.length, config.short_probability, config.seed, config.minimum)
    else:
        spans = RandomWindows(tokens.documents, config.length, config.seed, config.minimum)
    batches = SpanBatches(
        spans,
        tokens.vocabulary,
        batch_size=config.batch_size,
        pairs=pairs,
        mask_rate=config.mask_rate,
        whole_word=config.whole_word,
        budget=config.chunk_tokens,
        seed=config.seed,
    )
    settings = config.settings(batches.steps_an_epoch(), context.stage_name)
    model = _initial_model(config, context, tokens.vocabulary, head_layers)
    module = (CoCondenserModule if pairs else CondenserModule)(model, settings, config.mlm_weight)
    data = SpanPairDataModule(batches, settings.steps, context.runtime.workers)
    values = run_training(module, data, config, context, (config.length, config.length))
    save_condenser(model, context.folder, context.input("tokenizer"), config.length)
    return {"documents": spans.documents, "documents_too_short": spans.dropped, **values}


def _initial_model(
    config: PretrainMlmConfig, context: Context, vocabulary: "Vocabulary", head_layers: int
) -> "Condenser":
    """The model before the first step: from scratch, from a checkpoint, or from the artifact of another stage."""
    import torch

    from condensery.models.backbone import masked_language_model
    from condensery.models.checkpoint import load_condenser
    from condensery.models.condenser import Condenser, condenser_shape

    torch.manual_seed(config.seed)  # of what a checkpoint does not hold: a new Condenser head
    head = (head_layers, getattr(config, "skip_from", None), getattr(config, "late_mlm", True))
    backbone = config.backbone
    if config.init != "backbone":
        return load_condenser(context.input("init"), vocabulary, *head, backbone.dropout)
    if backbone.name is not None:
        return load_condenser(backbone.name, vocabulary, *head, backbone.dropout, backbone.revision)
    language_model = masked_language_model(backbone, vocabulary, config.seed)
    return Condenser(language_model, condenser_shape(language_model, *head))
