"""The stages ``pretrain_...``: train an encoder on text alone, or on text and queries made from it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from condensery.distributed import rank
from condensery.models.checkpoints.backbone import masked_language_model
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.pretraining import load_condenser, load_masked_autoencoder
from condensery.models.condenser import Condenser, condenser_shape
from condensery.models.masked_autoencoder import DecoderShape, MaskedAutoEncoder
from condensery.stages.base import Artifact, Context
from condensery.stages.checks import check_no_retriever
from condensery.stages.pretraining import config as configs
from condensery.stages.training import folder_of_start, initial_towers, lengths_of_start, train_and_save
from condensery.tokens.artifacts import Passages, Queries, Tokens
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.data.data_module import TokenDataModule
from condensery.training.data.passage_queries import PassageQueryDataModule
from condensery.training.data.sources import PassagesAndQueries
from condensery.training.data.span_batches import ContextMasking, SpanBatches
from condensery.training.data.spans import SpanPairDataModule
from condensery.training.modules import pretraining as modules
from condensery.training.modules.contrastive import ContrastiveModule
from condensery.training.modules.encoders import EncoderModule


def pretrain_mlm(config: configs.PretrainMlmConfig, context: Context) -> dict[str, Any]:
    """Pre-train by plain masked language modelling: the baseline."""
    return _pretrain_condenser(config, context, span_data(config, context), modules.CondenserModule)


def pretrain_condenser(config: configs.PretrainCondenserConfig, context: Context) -> dict[str, Any]:
    """Pre-train a Condenser (Gao and Callan 2021a, §3).

    A run that starts from another stage's weights, with a low learning rate, is the continued training of §5.4 in the paper's
    early version.
    """
    return _pretrain_condenser(config, context, span_data(config, context), modules.CondenserModule)


def pretrain_cocondenser(config: configs.PretrainCoCondenserConfig, context: Context) -> dict[str, Any]:
    """Pre-train a coCondenser (Gao and Callan 2021b, §3): Condenser with a contrastive loss on pairs.

    With ``queries`` it is query-as-context pre-training (Wu et al. 2023, §3.1).
    """
    module = modules.QueryAsContextModule if config.queries else modules.CoCondenserModule
    kind = partial(module, **config.values_of("temperature", "contrast_weight"))
    return _pretrain_condenser(config, context, pair_data(config, context), kind)


def _pretrain_condenser(
    config: configs.CondenserConfig,
    context: Context,
    data: TokenDataModule,
    kind: Callable[..., modules.CondenserModule],
) -> dict[str, Any]:
    model, head_steps = condenser(config, context, data.vocabulary), getattr(config, "head_steps", 0)
    module = kind(model, mlm_weight=config.mlm_weight, head_steps=head_steps, **config.optimiser())
    if module.first_steps and rank() == 0:
        context.say(f"the first {module.first_steps:,} steps train only the new head")
    return fit_and_save(module, data, config, context)


def pretrain_cotmae(config: configs.PretrainCotmaeConfig, context: Context) -> dict[str, Any]:
    """Pre-train by CoT-MAE (Wu et al. 2022): a decoder fills in one text of a pair, given the other text's vector."""
    rate = config.decoder_mask_rate if config.decoder == "masked" else None
    data = pair_data(config, context, ContextMasking("partner", config.both_directions, rate))
    return _pretrain_autoencoder(config, context, data)


def pretrain_retromae(config: configs.PretrainRetromaeConfig, context: Context) -> dict[str, Any]:
    """Pre-train by RetroMAE (Xiao et al. 2022): a decoder reconstructs a text, given the text's own vector."""
    rate = config.decoder_mask_rate if config.decoder == "masked" else None
    data = span_data(config, context, decoder=ContextMasking("same", True, rate))
    return _pretrain_autoencoder(config, context, data)


def _pretrain_autoencoder(
    config: configs.PretrainCotmaeConfig | configs.PretrainRetromaeConfig, context: Context, data: TokenDataModule
) -> dict[str, Any]:
    shape = DecoderShape(config.decoder, config.decoder_layers, config.decoder_mask_rate)
    model = autoencoder(config, shape, context, data.vocabulary)
    module = modules.MaskedAutoEncoderModule(model, mlm_weight=config.mlm_weight, **config.optimiser())
    return fit_and_save(module, data, config, context)


def pretrain_ict(config: configs.PretrainIctConfig, context: Context) -> dict[str, Any]:
    """Pre-train by the inverse cloze task (Lee et al. 2019; Gao and Callan 2021a, §4.4): a sentence retrieves its passage."""
    data = span_data(config, context, pairs="sentence", **config.values_of("query_length", "keep_sentence"))
    towers = initial_towers(config, context, data.vocabulary, separate=False)
    module = modules.InverseClozeModule(towers, temperature=config.temperature, **config.optimiser())
    return fit_and_save(module, data, config, context)


def pretrain_contrastive(config: configs.PretrainContrastiveConfig, context: Context) -> dict[str, Any]:
    """Pre-train with a contrastive loss on pairs, computed on the vectors that the checkpoint uses for retrieval.

    These vectors have the checkpoint's pooling, normalisation and prefixes. The saved retriever keeps the checkpoint's input
    lengths, even if training uses other lengths.
    """
    towers = initial_towers(config, context, Tokens(context.input("tokens")).vocabulary, separate=False)
    prefixes = {name: getattr(towers.settings, name) for name in ("query_prefix", "passage_prefix")}
    own = config.values_of("temperature", "learn_temperature", "mlm_weight")
    module = ContrastiveModule(towers, lm_head=folder_of_start(config, context), **own, **config.optimiser())
    masked = config.mask_rate if module.mlm is not None else None
    data = pair_data(config, context, mask_rate=masked, tokenizer=context.input("tokenizer"), **prefixes)
    values = fit_and_save(module, data, config, context, lengths_of_start(config, context))
    return {**values, **({"temperature": module.reached} if config.learn_temperature else {})}


def _shared(config: configs.AnyConfig, context: Context) -> dict[str, Any]:
    """Return the arguments that all data modules of this file share."""
    named = ("length", "batch_size", "seed", "mask_rate", "whole_word")
    settings = {name: getattr(config, name) for name in named if hasattr(config, name)}
    return {**settings, "chunk_tokens": config.budget, "workers": context.runtime.workers}


def span_data(
    config: configs.AnyConfig, context: Context, kind: type[SpanPairDataModule] = SpanPairDataModule, **own: Any
) -> SpanPairDataModule:
    """Return the data module of document spans, of class ``kind``. Without the argument ``pairs`` it gives single spans."""
    cut = config.values_of("spans", "short_probability", "min_length")
    return kind(Tokens(context.input("tokens")), **{"pairs": None, **_shared(config, context), **cut, **own})


def pair_data(
    config: configs.AnyPairConfig,
    context: Context,
    decoder: ContextMasking | None = None,
    kind: type[PassageQueryDataModule] = PassageQueryDataModule,
    **own: Any,
) -> TokenDataModule:
    """Return the data module of pairs: two spans of a document or, with ``queries``, a passage and one of its queries.

    ``kind`` is the class of the data module if the config has ``queries``.
    """
    if not config.queries:
        return span_data(config, context, pairs=config.pairs_within, decoder=decoder, **own)
    artifact = context.artifact("queries")
    _check_tokenizers(artifact, context)
    queries, passages = Queries(artifact.path), Passages(artifact.input("passages").path)
    hidden = queries.places if artifact.manifest["config"].get("remove") else None
    return kind(
        Tokens(context.input("tokens")),
        stores=PassagesAndQueries(passages.store, passages.titles, queries.store, queries.first, hidden),
        decoder=decoder,
        **{**_shared(config, context), **config.values_of("query_length", "candidates", "mixed_context"), **own},
    )


def _check_tokenizers(queries: Artifact, context: Context) -> None:
    """Raise ``UserError`` if the queries or their passages were not tokenised with this stage's tokenizer."""
    own = context.artifact("tokenizer").id
    for what, artifact in (("queries", queries), ("passages of these queries", queries.input("passages"))):
        if any(tokenizer.id != own for tokenizer in artifact.inputs("tokenizer")):
            other = f"the {what} were tokenised with another tokenizer than this stage uses"
            raise context.error("queries", f"{other}; give both the same stage as `tokenizer`")


def fit_and_save(
    module: EncoderModule,
    data: TokenDataModule,
    config: configs.AnyConfig,
    context: Context,
    saved: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Train the module and save the checkpoint.

    Args:
        module: model with its objective.
        data: data module with the batches.
        config: config of the stage.
        context: context of the stage.
        saved: maximum query and passage length that the checkpoint records for retrieval, in tokens; None = as in training.

    Returns:
        the metrics for the manifest, with the number of items and the counts of texts that could not be used.
    """
    data.setup()
    assert isinstance(data.batches, SpanBatches)
    source = data.batches.source
    values = train_and_save(module, data, config, context, (config.length, config.length), saved=saved or data.lengths)
    return {"items": source.items, "left_out": source.left_out, **values}


def condenser(config: configs.CondenserConfig, context: Context, vocabulary: Vocabulary) -> Condenser:
    """Return the Condenser before the first step: from scratch, from a checkpoint, or from another stage's artifact."""
    torch.manual_seed(config.seed)  # for weights that a checkpoint lacks, such as a new Condenser head
    # the config of the MLM baseline has no keys for a head
    head = (getattr(config, "head_layers", 0), getattr(config, "skip_from", None), getattr(config, "late_mlm", True))
    if source := _start(config, context):
        new_head = getattr(config, "new_head", False)
        return load_condenser(source[0], vocabulary, *head, config.backbone.dropout, source[1], new_head)
    language_model = masked_language_model(config.backbone, vocabulary, config.seed)
    return Condenser(language_model, condenser_shape(language_model, *head))


def autoencoder(
    config: configs.AutoEncoderConfig, shape: DecoderShape, context: Context, vocabulary: Vocabulary
) -> MaskedAutoEncoder:
    """Return the auto-encoder before the first step: from scratch, from a checkpoint, or from another stage's artifact."""
    torch.manual_seed(config.seed)  # for the weights of a new decoder
    if source := _start(config, context):
        dropout = config.backbone.dropout
        return load_masked_autoencoder(source[0], vocabulary, shape, config.decoder_init, dropout, source[1])
    language_model = masked_language_model(config.backbone, vocabulary, config.seed)
    return MaskedAutoEncoder(language_model, shape, config.decoder_init)


def _start(config: configs.AnyConfig, context: Context) -> tuple[Path | str, str | None] | None:
    """Return the initial checkpoint and its revision; None = from scratch.

    Raises:
        UserError: the checkpoint is a released retriever, which pre-training would degrade.
    """
    if config.init != "backbone":
        return context.input("init"), None
    name, revision = config.backbone.name, config.backbone.revision
    if name is None:
        return None
    check_no_retriever(config.backbone, checkpoint_folder(name, revision))
    return name, revision
