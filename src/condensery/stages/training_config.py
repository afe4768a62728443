"""Config keys that all training stages share: the optimiser, the length of training, the start and validation."""

from typing import Annotated, Literal, Self, cast

from pydantic import model_validator

from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.flops import Step
from condensery.ranges import Count, CountOrZero, Positive, PositiveShare, Share, Weight
from condensery.stages.base import FromRecipe, Input, Operational, Precision, Seed, StageConfig
from condensery.stages.checks import check_checkpoint, check_length
from condensery.stages.trainer_options import Callbacks, identity
from condensery.stages.workload import Sizes, Work, checkpoint_bytes, product
from condensery.training.settings import RUN_LENGTHS, Optimiser

SMALLEST = 2048  # padded tokens of the first chunk that chunk_tokens=auto tries

LENGTHS = ("length", "query_length", "passage_length")  # fields that say how long inputs are, in tokens

AROUND = 5.0  # CPU-seconds of a training besides its steps: importing libraries, loading, validation, saving


class OptimisedStageConfig(StageConfig):
    """Keys of every stage that trains a model, of any kind."""

    batch_size: Count
    """items of an optimisation step"""
    chunk_tokens: Count | Literal["auto"] = 2048
    """padded tokens that are in memory together, a larger batch is accumulated; auto: what fits the GPU, 2048 on a CPU"""
    steps: Count | None = None
    """optimisation steps; give this, ``epochs`` or ``token_budget``, and set the other two to null"""
    epochs: Positive | None = None
    """passes over the data"""
    token_budget: Count | None = None
    """tokens read in all: as many steps as that takes"""
    learning_rate: Positive
    """the peak, of AdamW"""
    layer_decay: PositiveShare = 1.0
    """share of the rate of the layer above that a backbone layer gets; .7 to .95 keeps lower layers; 1: all get the same"""
    warmup_ratio: Share = 0.1
    """share of the steps in which the rate rises; then it falls linearly to zero"""
    weight_decay: Weight = 0.01
    """of AdamW; biases and LayerNorm weights are not decayed"""
    max_grad_norm: Weight = 1.0
    """largest norm of the gradient; 0: no clipping"""
    precision: Precision
    """fp32, or mixed bf16 or fp16"""
    seed: Seed
    """of weights, dropout, order, masks and whatever else is drawn"""
    checkpoint_every: Annotated[CountOrZero, Operational()] = 500
    """steps between checkpoints; an interrupted stage goes on from the last; 0: none by steps"""
    checkpoint_minutes: Annotated[Weight, Operational()] = 10
    """after so many minutes without a checkpoint there is one as well, for steps that are slow; 0: never"""
    log_every: Annotated[Count, Operational()] = 20
    """steps between two logged points"""
    callbacks: Annotated[Callbacks, FromRecipe("trainer.callbacks")]
    """of Lightning, by a label: EarlyStopping, EMAWeightAveraging and others; see conf/trainer/auto.yaml"""

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
        return super().by_content() | {"callbacks", "layer_decay"}

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
        return cast(Optimiser, {key: getattr(self, key) for key in Optimiser.__annotations__})

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
    """Keys of every stage that trains an encoder of texts; ``conf/stage/`` explains each."""

    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer, saved beside the weights"""
    init: Annotated[str, Input("encoder", literal=("backbone",))]
    """the stage with an encoder to start from, or backbone"""
    backbone: Annotated[BackboneConfig, FromRecipe("backbone")]
    """the group ``backbone``, for init: backbone"""

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
    """Keys of every stage that reads the texts of a collection."""

    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the tokens"""


class ValidatedConfig(CollectionConfig):
    """Keys of validation, on the collection that is trained on."""

    validate_every: Annotated[CountOrZero, Operational()] = 200
    """steps between validations on a sampled sub-corpus; 0: none"""
    validation_queries: Annotated[CountOrZero, Operational()] = 200
    """dev queries of the collection in the sample; 0: no validation"""
    validation_passages: Annotated[CountOrZero, Operational()] = 2000
    """passages in the sample besides the relevant ones"""

    def validations(self) -> tuple[int, ...] | None:
        """Return the three keys, in the order of their definition; None where one of the first two is 0."""
        numbers = self.validate_every, self.validation_queries, self.validation_passages
        return numbers if all(numbers[:2]) else None
