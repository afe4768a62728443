"""Config keys that all training stages share: the optimiser, the length of training, the start and validation."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.flops import Step
from condensery.stages.base import Input, Operational, StageConfig
from condensery.stages.checks import check_checkpoint, check_length
from condensery.stages.trainer_options import Callbacks, identity
from condensery.stages.workload import Sizes, Work, checkpoint_bytes, product
from condensery.training.settings import RUN_LENGTHS, Optimiser

Share = Annotated[float, Field(ge=0, le=1)]

Count = Annotated[int, Field(gt=0)]

SMALLEST = 2048  # padded tokens of the first chunk that chunk_tokens=auto tries

LENGTHS = ("length", "query_length", "passage_length")  # fields that say how long inputs are, in tokens

AROUND = 5.0  # CPU-seconds of a training besides its steps: importing libraries, loading, validation, saving


class OptimisedStageConfig(StageConfig):
    """Keys of every stage that trains a model, of any kind.

    Attributes:
        batch_size: items per optimisation step.
        chunk_tokens: padded tokens that are in memory together; a larger batch is accumulated. ``auto`` takes as many as fit.
        steps, epochs, token_budget: the length of training; one of them is given, the others are null.
        learning_rate: the peak, of AdamW.
        callbacks: callbacks of Lightning, by a label.
    """

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
        """Return ``callbacks`` and ``layer_decay``, which enter the id through ``identity``.

        Callbacks that only watch do not count. A decay of 1 leaves the id as it was before the key was added.
        """
        return {"callbacks", "layer_decay"}

    def identity(self) -> list[str]:
        """Return the callbacks that can change the result, and the layer decay where it is below 1."""
        decay = [f"layer_decay {self.layer_decay}"] if self.layer_decay < 1 else []
        return [*identity(self.callbacks, self.validations()), *decay]

    def validations(self) -> tuple[int, ...] | None:
        """Return the interval and the sizes of validation; None = the stage is not validated."""
        return None

    @property
    def budget(self) -> int:
        """Padded tokens of a chunk; for ``auto`` the smallest, until ``training.fitting`` has found the number that fits."""
        return SMALLEST if self.chunk_tokens == "auto" else self.chunk_tokens

    def lengths(self) -> dict[str, int]:
        """Return the lengths of inputs, in tokens, by key."""
        return {key: getattr(self, key) for key in LENGTHS if hasattr(self, key)}

    def optimiser(self) -> Optimiser:
        """Return the optimiser's settings, as keyword arguments of the training module."""
        return {
            "learning_rate": self.learning_rate,
            "warmup_ratio": self.warmup_ratio,
            "weight_decay": self.weight_decay,
            "max_grad_norm": self.max_grad_norm,
            "seed": self.seed,
            "layer_decay": self.layer_decay,
        }

    def training(self, sizes: Sizes, step: Step | None, items: float | None) -> Work:
        """Return the work of the whole training, whose number of steps follows from the config.

        The number comes from ``steps``, from ``epochs`` of ``items``, or from ``token_budget``. Gradients and AdamW's two
        moments lie in memory and, during training, in a checkpoint; only the weights stay on disk.

        Args:
            sizes: of the stage's artifact.
            step: one step; None = not known.
            items: items per epoch; None = not known.
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


class EncoderStageConfig(OptimisedStageConfig):
    """Keys of every stage that trains an encoder of texts; ``conf/stage/`` explains each.

    Attributes:
        tokenizer: the stage with the tokenizer.
        init: the stage with the encoder to start from, or the word ``backbone``.
        backbone: the model to start from where ``init`` is ``backbone``.
    """

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
        """Return the callbacks and the layer decay that can change the result.

        Raises:
            UserError: the checkpoint to start from is a missing folder, or holds no checkpoint.
        """
        if self.init == "backbone":
            check_checkpoint(self.backbone.name, "backbone.name")
        return super().identity()


class CollectionConfig(StageConfig):
    """Keys of every stage that reads the texts of a collection.

    Attributes:
        corpus: the stage with the collection.
        tokens: the stage with its tokens.
    """

    corpus: Annotated[str, Input("corpus")]
    tokens: Annotated[str, Input("tokens")]


class ValidatedConfig(CollectionConfig):
    """Keys of validation, on the collection that is trained on.

    Attributes:
        validate_every: steps between validations; 0 = none.
        validation_queries: dev queries in the sample; 0 = no validation.
        validation_passages: passages in the sample besides the relevant ones.
    """

    validate_every: Annotated[int, Field(ge=0), Operational()]
    validation_queries: Annotated[int, Field(ge=0), Operational()]
    validation_passages: Annotated[int, Field(ge=0), Operational()]

    def validations(self) -> tuple[int, ...] | None:
        """Return the three keys, in the order of their definition; None where one of the first two is 0."""
        numbers = self.validate_every, self.validation_queries, self.validation_passages
        return numbers if all(numbers[:2]) else None
