"""Functions that all training stages share: the settings of a run, the validation and the initial model."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pytorch_lightning import callbacks
from pytorch_lightning.callbacks import Callback

from condensery.distributed import processes, rank
from condensery.losses.registry import temperature_of
from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.metadata import longest_inputs, vector_settings
from condensery.models.checkpoints.retrievers import backbone_towers, load_biencoder
from condensery.models.condenser import Condenser
from condensery.models.encoder import Encoder
from condensery.models.vectors import VectorSettings
from condensery.reporting.plain import as_typed
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.indexes.sampled import SampledCandidates
from condensery.sharing import NotRankZero
from condensery.stages.base import Artifact, Context
from condensery.stages.card import card_of
from condensery.stages.devices import init_process_group, torch_device
from condensery.stages.training_config import SMALLEST, EncoderStageConfig, OptimisedStageConfig, ValidatedConfig
from condensery.system import memory_growth
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Tokens, text_readers
from condensery.tokens.prefixes import Prefixes
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.callbacks import EMAWeightAveraging
from condensery.training.chunk_size import chunk_that_fits
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.steps import Batches, steps_of_epochs, steps_of_tokens
from condensery.training.equipment import equipment
from condensery.training.loggers import other_loggers, wandb_logger
from condensery.training.loop import fit
from condensery.training.modules.encoders import EncoderModule
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.resumption import first_step
from condensery.training.settings import LoopSettings
from condensery.training.validation import CandidateSample, PairSample, ValidationSample, candidate_sample, sample_of
from condensery.training.wandb_run import Tracked

GROWN, GROWN_RATE = 384, 3e-4  # hidden size of the smallest released encoders; upper limit of their learning rate
COSINE = 0.5  # above this temperature the softmax over cosines is nearly flat
CANDIDATES, CANDIDATES_DEPTH = 99, 1000  # sizes of validation_candidates, equal to the defaults of the stage evaluate
SAVED = "saved_checkpoints"  # folder in the artifact for checkpoints that a callback keeps


def run_training(
    module: TrainingModule,
    data: StepDataModule,
    settings: LoopSettings,
    config: OptimisedStageConfig,
    context: Context,
    sample: ValidationSample | CandidateSample | PairSample | None,
    callbacks: Sequence[Callback] = (),
) -> Mapping[str, Any]:
    """Run the training loop of a stage.

    Args:
        module: model with its loss and optimiser.
        data: data module with the batches.
        settings: length of training, and intervals of checkpoints and logs.
        config: config of the stage.
        context: context of the stage.
        sample: queries and passages of validation; None = no ranking is measured, or there are no dev queries.
        callbacks: callbacks besides the callbacks of the config.

    Returns:
        the metrics for the manifest: the last logged values, the number of steps and the hardware.

    Raises:
        UserError: the backbone has too few positions, or a GPU is requested and there is none.
        NotRankZero: this process is not the first, so it ends the stage here.
    """
    memory_growth.keep_flat()
    runtime = context.runtime
    device = torch_device(runtime.accelerator)
    init_process_group(runtime)
    for encoder in (part for part in module.modules() if isinstance(part, Encoder)):
        for key, tokens in config.lengths().items():
            encoder.check_length(tokens, context.place(key))
    if config.chunk_tokens == "auto":
        chunk = chunk_that_fits(module, data.batches, config.precision, device, SMALLEST)
        data.batches.budget = chunk  # type: ignore[attr-defined]
        if rank() == 0:
            context.say(f"chunks of {chunk:,} tokens")
    called = [*callbacks, *_callbacks(config, context, validated=sample is not None)]
    machine: dict[str, Any] = {"accelerator": runtime.accelerator, "compiled": runtime.compile, "flags": runtime.flags}
    where = context.folder, context.stage_name
    train = partial(fit, module, data, settings, *where, sample=sample, callbacks=called, **machine)
    if rank() > 0:
        train()
        raise NotRankZero
    used = equipment(module, config.precision, device, processes(), runtime.compile)
    first = first_step(context.folder)
    context.say(f"trains on {used}")
    warnings = [*unsuited(module, config, context.stage_name), *new_head_warning(module, config, context.stage_name)]
    for warning in warnings:
        context.say(f"warning: {warning}")
    if first:
        context.say(f"resumes from step {first:,} of {settings.steps:,}")
    tracked = _tracked(config, context)
    others = other_loggers(tracked, context.folder, first, runtime.tensorboard, runtime.trackio)
    with wandb_logger(tracked, context.folder, first) as loggers:
        values = train(loggers=[*loggers, *others])
    if module.global_step < settings.steps:
        context.say(f"a callback ended the training at step {module.global_step:,} of {settings.steps:,}")
    used = "; ".join([used, *module.process_changes])
    return {"steps": module.global_step, "trained_on": used, **({"warnings": warnings} if warnings else {}), **values}


def train_and_save(
    module: EncoderModule,
    data: StepDataModule,
    config: OptimisedStageConfig,
    context: Context,
    lengths: tuple[int, int],
    *,
    saved: tuple[int, int] | None = None,
    tokenizer: Path | None = None,
    settings: LoopSettings | None = None,
    callbacks: Sequence[Callback] = (),
    named: str | None = None,
) -> Mapping[str, Any]:
    """Train and validate a retriever as ``run_training`` does, and save it as a checkpoint with a model card.

    Args:
        module: retriever with its loss and optimiser.
        data: data module with the batches.
        config: config of the stage; if it has validation keys, they determine the validation sample.
        context: context of the stage.
        lengths: maximum query and passage length in tokens during validation.
        saved: the lengths that the checkpoint records; None = ``lengths``.
        tokenizer: folder of the tokenizer that is saved; None = the stage's input ``tokenizer``.
        settings: see ``run_training``; None = the settings in the config.
        callbacks: see ``run_training``.
        named: name of the data on the model card; None = the name of the collection.

    Returns:
        the metrics for the manifest, as ``run_training`` returns them.
    """
    sample = validation_sample(config, module, context, lengths)
    loop = settings or loop_settings(config, data.batches)
    values = run_training(module, data, loop, config, context, sample, callbacks)
    card = card_of(type(config), config.model_dump(mode="json"), context.made_from, values, named)
    module.save_pretrained(context.folder, tokenizer or context.input("tokenizer"), saved or lengths, card)
    return values


def loop_settings(config: OptimisedStageConfig, batches: Batches) -> LoopSettings:
    """Return the settings of the training loop, with the number of steps computed from the config."""
    if config.steps is not None:
        steps = config.steps
    elif config.epochs is not None:
        steps = steps_of_epochs(batches, config.epochs)
    else:
        steps = steps_of_tokens(batches, config.token_budget or 0)
    validate_every = getattr(config, "validate_every", 0)  # only retrievers are validated during training
    written = config.checkpoint_every, config.checkpoint_minutes, config.log_every
    return LoopSettings(steps, config.precision, *written, validate_every)


def unsuited(module: TrainingModule, config: OptimisedStageConfig, stage: str) -> list[str]:
    """Return warnings, as sentences, if a larger checkpoint is trained with settings that suit a small model from scratch."""
    backbone: BackboneConfig | None = getattr(config, "backbone", None)
    start = backbone.name if backbone else getattr(config, "student", None)  # distil_ranking trains a retriever
    encoder = next((part for part in module.modules() if isinstance(part, Encoder)), None)
    if start is None or encoder is None or encoder.model.config.hidden_size < GROWN:
        return []
    found = list[str]()
    if config.learning_rate > GROWN_RATE:
        found.append(
            f"stages.{stage}.learning_rate: {config.learning_rate:g} suits small models that are trained from scratch;"
            f" {start} may lose what it has learned; set 1e-5 to 1e-4"
        )
    towers = getattr(module, "towers", None)
    if towers is not None and towers().settings.normalise:
        key, temperature = temperature_of(getattr(config, "loss", "info_nce"), getattr(config, "temperature", 0.0))
        if temperature > COSINE:
            usual = "makes the softmax of cosines nearly uniform, so the loss says little; set .01 to .1"
            found.append(f"stages.{stage}.{key}: {temperature:g} {usual}")
    return found


def new_head_warning(module: TrainingModule, config: OptimisedStageConfig, stage: str) -> list[str]:
    """Return a warning, as a sentence, if pre-training of a Condenser continues with a new head in place of the old head.

    The papers continue pre-training with the backbone and the head (Gao and Callan 2021b, §4.1). Condenser pre-training
    from another model, such as BERT, always has a new head. So the warning is given only for coCondenser, and for a
    checkpoint whose name contains "condenser".
    """
    backbone: BackboneConfig | None = getattr(config, "backbone", None)
    model = module.model
    if backbone is None or backbone.name is None or not isinstance(model, Condenser) or not model.head:
        return []
    released = re.search("condenser(?!y)", Path(backbone.name).name, re.IGNORECASE)
    if model.layers_loaded or not (released or hasattr(config, "contrast_weight")):
        return []
    first = getattr(module, "first_steps", 0)
    alone = f"the first {first:,} steps train only this head" if first else "set head_steps to train only it first"
    return [
        f"stages.{stage}: {backbone.name} has no Condenser head, so a new head starts with random weights (the papers"
        f" continue with the Condenser's own head); {alone}"
    ]


def _callbacks(config: OptimisedStageConfig, context: Context, validated: bool) -> list[Callback]:
    """Create the config's Lightning callbacks; processes other than the first have only callbacks marked ``everywhere``."""
    instances = []
    for label, chosen in config.callbacks.items():
        if chosen.at_validation and not validated:
            if rank() == 0:
                context.say(f"{chosen.name} has no effect: this stage is not validated")
        elif chosen.everywhere or rank() == 0:
            arguments = chosen.arguments(context.folder / SAVED / label, validated)
            kinds = {**vars(callbacks), EMAWeightAveraging.__name__: EMAWeightAveraging}
            instances.append(kinds[chosen.name](**arguments))
    return instances


def _tracked(config: OptimisedStageConfig, context: Context) -> Tracked:
    """Describe the stage for W&B: the run has the id of the artifact and belongs to the group of the study."""
    runtime, kind, name = context.runtime, context.folder.parent.name, context.stage_name
    run_id = context.folder.name.partition(".")[0]
    label = runtime.labels.get(name, "")
    return Tracked(
        **runtime.wandb.model_dump(),
        group=runtime.group,
        name=f"{name} · {label}" if label else name,
        job_type=kind,
        run_id=run_id,
        config={"stage": name, "artifact": f"{kind}/{run_id}", **config.model_dump(mode="json")},
        folder=runtime.output_root,
    )


def initial_towers(config: EncoderStageConfig, context: Context, vocabulary: Vocabulary, separate: bool) -> BiEncoder:
    """Return the towers before the first step: from scratch, from a checkpoint, or from the artifact of another stage.

    Args:
        config: config of the stage.
        context: context of the stage.
        vocabulary: size of the tokenizer's vocabulary.
        separate: whether queries and passages have separate towers.
    """
    backbone = config.backbone
    if config.init != "backbone":
        towers = load_biencoder(context.input("init"), separate, backbone.dropout, backbone.vector_options())
        if rank() == 0 and (lost := _lost_settings(towers.settings, backbone, context.artifact("init"))):
            context.say(f"{config.init} {lost}")
        return towers
    return backbone_towers(backbone, vocabulary, config.seed, separate)


def _lost_settings(now: VectorSettings, backbone: BackboneConfig, init: Artifact) -> str:
    """Return a line about a retriever's settings that pre-training lost and that no key sets; empty if no setting was lost.

    The settings say how token states become a vector. Masked language modelling and Condenser pre-training save no settings,
    because they train the token states and the state of [CLS] themselves.
    """
    start, given = init, backbone.vector_options()
    while start.kind in ("pretrain_mlm", "pretrain_condenser") and start.inputs("init"):
        start = start.input("init")
    before = vector_settings(start.path) if start is not init else now
    lost = {key: value for key, value in asdict(before).items() if value != getattr(now, key) and not given.get(key)}
    if not lost:
        return ""
    keys = " ".join(f"backbone.{name}={shlex.quote(as_typed(value))}" for name, value in lost.items())
    return f"was pre-trained from {start.manifest['name']}, but makes vectors otherwise; to keep its settings: {keys}"


def folder_of_start(config: EncoderStageConfig, context: Context) -> Path | None:
    """Return the folder of the initial checkpoint; None = from scratch."""
    if config.init != "backbone":
        return context.input("init")
    name = config.backbone.name
    return None if name is None else checkpoint_folder(name, config.backbone.revision)


def lengths_of_start(config: EncoderStageConfig, context: Context) -> tuple[int, int] | None:
    """Return the initial encoder's maximum query and passage length in tokens; None = the encoder records no lengths."""
    folder = folder_of_start(config, context)
    return None if folder is None else longest_inputs(folder)


def validation_sample(
    config: OptimisedStageConfig, module: EncoderModule, context: Context, lengths: tuple[int, int]
) -> ValidationSample | CandidateSample | None:
    """Sample the queries and passages for validation. If the stage names ``validation_candidates``, these supply the
    passages.

    Args:
        config: config of the stage.
        module: retriever that is trained.
        context: context of the stage.
        lengths: maximum query and passage length in tokens.

    Returns:
        the sample; None if there is no dev split, or validation is switched off.
    """
    if not isinstance(config, ValidatedConfig) or config.validations() is None:
        return None
    collection, tokens = Collection(context.input("corpus")), Tokens(context.input("tokens"))
    sizes = config.validation_queries, config.validation_passages
    settings = module.towers().settings
    prefixes = Prefixes.of(context.input("tokenizer"), settings.query_prefix, settings.passage_prefix, lengths)
    readers = text_readers(tokens, lengths, prefixes)
    if "dev" in collection.splits and (pool := context.made_from.get("validation_candidates")):
        runtime = context.runtime
        index = open_index(pool[0].path, collection, runtime.threads, device=runtime.search_device)
        positives = collection.qrels("dev").positives()
        candidates_of = SampledCandidates(index, index, positives, CANDIDATES, CANDIDATES_DEPTH).candidates
        return candidate_sample(collection, readers, sizes[0], candidates_of, budget=config.budget)
    return sample_of(collection, readers, *sizes, budget=config.budget)
