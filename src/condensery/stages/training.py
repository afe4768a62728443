"""What all training stages share: the settings of a run, validation, the model that they start from."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from condensery.errors import UserError
from condensery.models.config import BackboneConfig
from condensery.models.flops import Step
from condensery.sharing import NotRankZero
from condensery.stages.base import Context, Input, Operational, StageConfig
from condensery.stages.checks import check_checkpoint, check_length
from condensery.stages.trainer_options import Callbacks, identity
from condensery.stages.work import Sizes, Work, checkpoint_bytes, product

if TYPE_CHECKING:
    from pytorch_lightning.callbacks import Callback

    from condensery.models.biencoder import BiEncoder
    from condensery.tokens.vocabulary import Vocabulary
    from condensery.training.batches.base import Batches
    from condensery.training.datamodules.base import StepDataModule
    from condensery.training.modules.base import TrainingModule
    from condensery.training.modules.encoders import EncoderModule
    from condensery.training.settings import LoopSettings, Optimiser
    from condensery.training.tracking import Tracked
    from condensery.training.validation import PairSample, ValidationSample

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(gt=0)]
SMALLEST = 2048  # padded tokens of a chunk with which chunk_tokens=auto begins
RUN_LENGTHS = ("steps", "epochs", "token_budget")  # fields that say how long training runs
LENGTHS = ("length", "query_length", "passage_length")  # fields that say how long inputs are, in tokens
GROWN, GROWN_RATE = 384, 3e-4  # dimensions of the smallest released encoders, and a rate that none of them stands
COSINE = 0.5  # temperature from which on the softmax over cosines is nearly flat
AROUND = 5.0  # CPU-seconds of a training besides its steps: libraries, loading, validation, saving
SAVED = "saved_checkpoints"  # in the artifact: those that a callback keeps


class OptimisedStageConfig(StageConfig):
    """The keys of every stage that trains a model, whatever it is."""

    batch_size: Count
    chunk_tokens: Count | Literal["auto"]
    steps: Count | None
    epochs: Annotated[float, Field(gt=0)] | None
    token_budget: Count | None
    learning_rate: Annotated[float, Field(gt=0)]
    layer_decay: Annotated[float, Field(gt=0, le=1)]
    warmup_ratio: Share
    weight_decay: Annotated[float, Field(ge=0)]
    max_grad_norm: Annotated[float, Field(ge=0)]
    precision: Literal["fp32", "bf16", "fp16"]
    seed: Annotated[int, Field(ge=0)]
    checkpoint_every: Annotated[int, Field(ge=0), Operational()]
    checkpoint_minutes: Annotated[float, Field(ge=0), Operational()]
    log_every: Annotated[int, Field(ge=1), Operational()]
    callbacks: Callbacks

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        given = [key for key in RUN_LENGTHS if getattr(self, key) is not None]
        if len(given) != 1:
            got = f"got {' and '.join(given)}" if given else "all are null"
            raise ValueError(f"give one of {', '.join(RUN_LENGTHS)} and set the others to null; {got}")
        return self

    def by_content(self) -> set[str]:
        """The callbacks, of which those that only watch do not count, and the decay: at 1 ids are those of before."""
        return {"callbacks", "layer_decay"}

    def identity(self) -> list[str]:
        """The callbacks that can change the result, and the decay where there is one."""
        decay = [f"layer_decay {self.layer_decay}"] if self.layer_decay < 1 else []
        return [*identity(self.callbacks, self.validations()), *decay]

    def validations(self) -> tuple[int, ...] | None:
        """How often and on what it is validated; None = never."""
        return None

    @property
    def budget(self) -> int:
        """Padded tokens of a chunk; of ``auto`` until it is known what fits (``training.fitting``)."""
        return SMALLEST if self.chunk_tokens == "auto" else self.chunk_tokens

    def lengths(self) -> dict[str, int]:
        """How long inputs are, in tokens, by key."""
        return {key: getattr(self, key) for key in LENGTHS if hasattr(self, key)}

    def optimiser(self) -> "Optimiser":
        """The keywords of the module."""
        return {
            "learning_rate": self.learning_rate,
            "warmup_ratio": self.warmup_ratio,
            "weight_decay": self.weight_decay,
            "max_grad_norm": self.max_grad_norm,
            "seed": self.seed,
            "layer_decay": self.layer_decay,
        }

    def training(self, sizes: Sizes, step: Step | None, items: float | None) -> Work:
        """The work of so many of these steps: as many as ``steps``, ``epochs`` of ``items`` or ``token_budget`` come to.

        The gradients and AdamW's two moments lie in memory and, while it trains, in a checkpoint; only weights stay.
        """
        steps: float | None = self.steps
        if self.epochs is not None:
            steps = product(self.epochs, items, 1 / self.batch_size)
        elif self.token_budget is not None:
            steps = None if step is None else self.token_budget / step.tokens
        disk = checkpoint_bytes(sizes, step.head_layers if step else 0)
        if step is None or steps is None:
            return Work(sizes, disk=disk)
        return Work(sizes, max(1.0, steps), step, seconds=AROUND, disk=disk)

    def loop(self, batches: "Batches") -> "LoopSettings":
        """How long the training is and what is written meanwhile, with the number of steps worked out."""
        from condensery.training.batches.base import steps_of_epochs, steps_of_tokens
        from condensery.training.settings import LoopSettings

        if self.steps is not None:
            steps = self.steps
        elif self.epochs is not None:
            steps = steps_of_epochs(batches, self.epochs)
        else:
            steps = steps_of_tokens(batches, self.token_budget or 0)
        validate_every = getattr(self, "validate_every", 0)  # only retrievers are validated on the way
        written = self.checkpoint_every, self.checkpoint_minutes, self.log_every
        return LoopSettings(steps, self.precision, *written, validate_every)


class EncoderStageConfig(OptimisedStageConfig):
    """The keys of every stage that trains an encoder of texts; ``conf/stage/`` explains each."""

    tokenizer: Annotated[str, Input("tokenizer")]
    init: Annotated[str, Input("encoder", literal=("backbone",))]
    backbone: BackboneConfig

    @model_validator(mode="after")
    def _inputs_fit_the_backbone(self) -> Self:
        if self.backbone.name is None:  # a checkpoint tells its size only when it is loaded
            for key, tokens in self.lengths().items():
                check_length(key, tokens, self.backbone.max_positions)
        return self

    def identity(self) -> list[str]:
        """The callbacks. Raises ``UserError`` where the checkpoint to start from is a missing folder."""
        if self.init == "backbone":
            check_checkpoint(self.backbone.name, "backbone.name")
        return super().identity()


class CollectionConfig(StageConfig):
    """The keys of what a stage has that reads the texts of a collection."""

    corpus: Annotated[str, Input("corpus")]
    tokens: Annotated[str, Input("tokens")]


class ValidatedConfig(CollectionConfig):
    """The keys of validation, on the collection that is trained on."""

    validate_every: Annotated[int, Field(ge=0), Operational()]
    validation_queries: Annotated[int, Field(ge=0), Operational()]
    validation_passages: Annotated[int, Field(ge=0), Operational()]

    def validations(self) -> tuple[int, ...] | None:
        """How often, with how many queries and passages; None where one of the first two is 0."""
        numbers = self.validate_every, self.validation_queries, self.validation_passages
        return numbers if all(numbers[:2]) else None


def run_training(
    module: "TrainingModule",
    data: "StepDataModule",
    settings: "LoopSettings",
    config: OptimisedStageConfig,
    context: Context,
    sample: "ValidationSample | PairSample | None",
    callbacks: "Sequence[Callback]" = (),
) -> Mapping[str, Any]:
    """Run the training loop of a stage; the last logged values and the steps that were done go into the manifest.

    Of several processes all but the first end the stage here, by ``NotRankZero``.

    ``sample``: for validation; None where nothing is ranked, or there are no dev queries.
    Raises ``UserError`` where the backbone has too few positions, or there is no GPU and one is asked for.
    """
    from condensery.losses.cross_batch import processes, rank
    from condensery.stages.devices import init_process_group, torch_device
    from condensery.system import memory
    from condensery.training.equipment import check_precision, equipment
    from condensery.training.fitting import chunk_that_fits
    from condensery.training.logs import wandb_logger
    from condensery.training.loop import first_step, fit

    memory.keep_flat()
    device = torch_device(context.runtime.accelerator)
    init_process_group(context.runtime)
    _check_positions(module, config, context.stage_name)
    check_precision(config.precision, device)
    if config.chunk_tokens == "auto":
        chunk = chunk_that_fits(module, data.batches, config.precision, device, SMALLEST)
        data.batches.budget = chunk  # type: ignore[attr-defined]
        if rank() == 0:
            print(f"[{context.stage_name}] chunks of {chunk:,} tokens", flush=True)
    train = partial(
        fit,
        module,
        data,
        settings,
        context.folder,
        context.stage_name,
        accelerator=context.runtime.accelerator,
        compiled=context.runtime.compile,
        sample=sample,
        callbacks=[*callbacks, *_callbacks(config, context, validated=sample is not None)],
        flags=context.runtime.flags,
    )
    if rank() > 0:
        train()
        raise NotRankZero
    used = equipment(module, config.precision, device, processes(), context.runtime.compile)
    first = first_step(context.folder)
    print(f"[{context.stage_name}] trains on {used}", flush=True)
    warnings = unsuited(module, config, context.stage_name)
    for warning in warnings:
        print(f"[{context.stage_name}] Warning: {warning}", flush=True)
    if first:
        print(f"[{context.stage_name}] goes on from step {first:,} of {settings.steps:,}", flush=True)
    with wandb_logger(_tracked(config, context), context.folder, first) as loggers:
        values = train(loggers=loggers)
    if module.global_step < settings.steps:
        print(
            f"[{context.stage_name}] a callback ended it at step {module.global_step:,} of {settings.steps:,}",
            flush=True,
        )
    return {"steps": module.global_step, "trained_on": used, **({"warnings": warnings} if warnings else {}), **values}


def unsuited(module: "TrainingModule", config: OptimisedStageConfig, stage: str) -> list[str]:
    """What of the settings suits small models from scratch, where training began with a larger checkpoint, in sentences."""
    from condensery.models.encoder import Encoder

    backbone: BackboneConfig | None = getattr(config, "backbone", None)
    encoder = next((part for part in module.modules() if isinstance(part, Encoder)), None)
    if backbone is None or backbone.name is None or encoder is None or encoder.model.config.hidden_size < GROWN:
        return []
    found = list[str]()
    if config.learning_rate > GROWN_RATE:
        found.append(
            f"stages.{stage}.learning_rate: {config.learning_rate:g} is a rate of small models from scratch, at which"
            f" {backbone.name} may lose what it knows; 1e-5 to 1e-4 are usual"
        )
    towers = getattr(module, "towers", None)
    temperature = getattr(config, "temperature", 0.0)
    if towers is not None and towers().settings.normalise and temperature > COSINE:
        found.append(
            f"stages.{stage}.temperature: {temperature:g} leaves cosines nearly alike, so the loss tells little;"
            " .01 to .1 are usual"
        )
    return found


def _callbacks(config: OptimisedStageConfig, context: Context, validated: bool) -> "list[Callback]":
    """Lightning's callbacks that the config names; of several processes the first has all of them."""
    from pytorch_lightning import callbacks

    from condensery.losses.cross_batch import rank

    instances = []
    for label, chosen in config.callbacks.items():
        if chosen.at_validation and not validated:
            if rank() == 0:
                print(f"[{context.stage_name}] {chosen.name} does nothing: this stage is not validated", flush=True)
        elif chosen.everywhere or rank() == 0:
            arguments = chosen.arguments(context.folder / SAVED / label, validated)
            instances.append(getattr(callbacks, chosen.name)(**arguments))
    return instances


def _tracked(config: OptimisedStageConfig, context: Context) -> "Tracked":
    """How W&B knows the stage: by the id of its artifact, in the group of the study."""
    from condensery.training.tracking import Tracked

    runtime, kind, name = context.runtime, context.folder.parent.name, context.stage_name
    run_id = context.folder.name.partition(".")[0]
    label = runtime.labels.get(name, "")
    return Tracked(
        runtime.wandb.enabled,
        runtime.wandb.project,
        runtime.wandb.entity,
        group=runtime.group,
        name=f"{name} · {label}" if label else name,
        job_type=kind,
        run_id=run_id,
        config={"stage": name, "artifact": f"{kind}/{run_id}", **config.model_dump(mode="json")},
        folder=runtime.output_root,
    )


def initial_towers(
    config: EncoderStageConfig, context: Context, vocabulary: "Vocabulary", separate: bool
) -> "BiEncoder":
    """The towers before the first step: from scratch, from a checkpoint, or from the artifact of another stage."""
    from condensery.models.checkpoint import backbone_towers, load_biencoder

    backbone = config.backbone
    if config.init != "backbone":
        return load_biencoder(context.input("init"), separate, backbone.dropout, backbone.vector_options())
    return backbone_towers(backbone, vocabulary, config.seed, separate)


def lengths_of_start(config: EncoderStageConfig, context: Context) -> tuple[int, int] | None:
    """The longest query and passage, in tokens, with which the encoder to start from is searched; None = it says none."""
    from condensery.models.about import longest_inputs
    from condensery.models.hub import checkpoint_folder

    if config.init != "backbone":
        return longest_inputs(context.input("init"))
    name = config.backbone.name
    return None if name is None else longest_inputs(checkpoint_folder(name, config.backbone.revision))


def _check_positions(module: "TrainingModule", config: OptimisedStageConfig, stage: str) -> None:
    from condensery.models.encoder import Encoder

    for encoder in (part for part in module.modules() if isinstance(part, Encoder)):
        for key, tokens in config.lengths().items():
            try:
                check_length(key, tokens, encoder.longest)
            except ValueError as error:
                raise UserError(f"stages.{stage}: {error}") from None


def validation_sample(
    config: ValidatedConfig, module: "EncoderModule", context: Context, lengths: tuple[int, int]
) -> "ValidationSample | None":
    """What a retriever is validated on; None where there is no dev split, or nothing is to be validated.

    ``lengths``: of queries and passages in tokens.
    """
    from condensery.text.collection import Collection
    from condensery.tokens.artifacts import Tokens
    from condensery.tokens.prefixes import Prefixes
    from condensery.training.validation import sample_of

    if config.validations() is None:
        return None
    collection, tokens = Collection(context.input("corpus")), Tokens(context.input("tokens"))
    sizes = config.validation_queries, config.validation_passages
    assert isinstance(config, OptimisedStageConfig)
    settings = module.towers().settings
    prefixes = Prefixes.of(context.input("tokenizer"), settings.query_prefix, settings.passage_prefix, lengths)
    return sample_of(collection, tokens, lengths, *sizes, budget=config.budget, prefixes=prefixes)
