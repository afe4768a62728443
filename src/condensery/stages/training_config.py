"""Config keys that all training stages share: optimiser, length of training, initial checkpoint and validation."""

from typing import Annotated, Literal, Self, cast

from pydantic import model_validator

from condensery.models.checkpoints.config import BackboneConfig
from condensery.models.flops import Step
from condensery.ranges import Count, CountOrZero, Positive, PositiveShare, Share, Weight
from condensery.recipes import RUN_LENGTHS
from condensery.stages.base import FromRecipe, Input, Operational, Precision, Seed, StageConfig
from condensery.stages.checks import check_checkpoint, check_length
from condensery.stages.trainer_options import Callbacks, identity
from condensery.stages.workload import Sizes, Work, checkpoint_bytes, product
from condensery.training.settings import Optimiser

SMALLEST = 2048  # padded tokens per chunk that chunk_tokens=auto tries first

LENGTHS = ("length", "query_length", "passage_length")  # fields with maximum input lengths in tokens

AROUND = 5.0  # CPU-seconds of a training run besides its steps: importing libraries, loading, validation, saving


class OptimisedStageConfig(StageConfig):
    """Keys of every stage that trains a model, of any kind."""

    batch_size: Count
    """items per optimisation step"""
    chunk_tokens: Count | Literal["auto"] = 2048
    """padded tokens in memory at once; a larger batch is processed in chunks; auto: as many as fit the GPU, 2048 on a CPU"""
    steps: Count | None = None
    """optimisation steps; set exactly one of ``steps``, ``epochs`` and ``token_budget``, the other two to null"""
    epochs: Positive | None = None
    """passes over the data"""
    token_budget: Count | None = None
    """tokens to read in all; the number of steps follows from it"""
    learning_rate: Positive
    """peak learning rate of AdamW"""
    layer_decay: PositiveShare = 1.0
    """layer-wise decay: a backbone layer's learning rate divided by the rate of the next higher layer; usual: .7 to .95; 1:
    equal rates"""
    warmup_ratio: Share = 0.1
    """share of the steps in which the learning rate rises; afterwards it falls linearly to zero"""
    weight_decay: Weight = 0.01
    """weight decay of AdamW; biases and LayerNorm weights are not decayed"""
    max_grad_norm: Weight = 1.0
    """gradient norm above which gradients are clipped; 0: no clipping"""
    precision: Precision
    """fp32, or mixed precision with bf16 or fp16"""
    seed: Seed
    """random seed of initial weights, dropout, data order, masks and all other random numbers"""
    checkpoint_every: Annotated[CountOrZero, Operational()] = 500
    """steps between checkpoints; an interrupted stage resumes from the last one; 0: only by ``checkpoint_minutes``"""
    checkpoint_minutes: Annotated[Weight, Operational()] = 10
    """also write a checkpoint when the last one is this many minutes old, for slow steps; 0: never"""
    log_every: Annotated[Count, Operational()] = 20
    """steps between two logged points"""
    callbacks: Annotated[Callbacks, FromRecipe("trainer.callbacks")]
    """Lightning callbacks by label, such as EarlyStopping and EMAWeightAveraging; see conf/trainer/auto.yaml"""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        given = [key for key in RUN_LENGTHS if getattr(self, key) is not None]
        if len(given) != 1:
            got = f"got {' and '.join(given)}" if given else "all are null"
            raise ValueError(f"give one of {', '.join(RUN_LENGTHS)} and set the others to null; {got}")
        return self

    def by_content(self) -> set[str]:
        """Also return ``callbacks`` and ``layer_decay``, which ``identity`` adds to the id.

        Callbacks that cannot change the result are not added. A decay of 1 is not added either, so older ids stay valid.
        """
        return super().by_content() | {"callbacks", "layer_decay"}

    def identity(self) -> list[str]:
        """Return the callbacks that can change the result, and the layer decay if it is below 1."""
        decay = [f"layer_decay {self.layer_decay}"] if self.layer_decay < 1 else []
        return [*identity(self.callbacks, self.validations()), *decay]

    def validations(self) -> tuple[int, ...] | None:
        """Return the interval and the sample sizes of validation; None if the stage is not validated."""
        return None

    @property
    def budget(self) -> int:
        """Padded tokens of a chunk; for ``auto``, ``SMALLEST`` until ``training.chunk_size`` has measured how many fit."""
        return SMALLEST if self.chunk_tokens == "auto" else self.chunk_tokens

    def lengths(self) -> dict[str, int]:
        """Return the maximum input lengths in tokens, by key."""
        return {key: getattr(self, key) for key in LENGTHS if hasattr(self, key)}

    def optimiser(self) -> Optimiser:
        """Return the optimiser's settings, as keyword arguments of the training module."""
        return cast(Optimiser, self.values_of(*Optimiser.__annotations__))

    def training(self, sizes: Sizes, step: Step | None, items: float | None) -> Work:
        """Return the estimated work of the whole training run.

        The number of steps comes from one of the keys ``steps``, ``epochs`` and ``token_budget``. An epoch is a pass
        over the ``items``, and has at least one step. The disk estimate counts only the weights. Checkpoints of unfinished
        training, which also hold AdamW's two moments, are deleted at the end.

        Args:
            sizes: sizes of the stage's artifact.
            step: cost of one step; None = not known.
            items: items per epoch; None = not known.
        """
        steps: float | None = self.steps
        if self.epochs is not None:
            steps = product(self.epochs, items and max(1.0, items / self.batch_size))
        elif self.token_budget is not None:
            steps = None if step is None else self.token_budget / step.tokens
        disk = checkpoint_bytes(sizes, step.head_layers if step else 0)
        if step is None or steps is None:
            return Work(sizes, disk=disk)
        return Work(sizes, max(1.0, steps), step, seconds=AROUND, disk=disk)


class EncoderStageConfig(OptimisedStageConfig):
    """Keys of every stage that trains a text encoder; ``conf/stage/`` explains each key."""

    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer, which is saved beside the weights"""
    init: Annotated[str, Input("encoder", literal=("backbone",))]
    """the stage whose encoder is the initial checkpoint, or the word backbone"""
    backbone: Annotated[BackboneConfig, FromRecipe("backbone")]
    """the group ``backbone``: the encoder if ``init`` is backbone; otherwise only its dropout and vector settings are used"""

    @model_validator(mode="after")
    def _inputs_fit_the_backbone(self) -> Self:
        if self.backbone.name is None:  # the size of a named checkpoint is known only once it is loaded
            for key, tokens in self.lengths().items():
                check_length(key, tokens, self.backbone.max_positions)
        return self

    def identity(self) -> list[str]:
        """Return the callbacks and the layer decay that can change the result.

        Raises:
            UserError: the initial checkpoint is a missing folder, or a folder without a checkpoint.
        """
        if self.init == "backbone":
            check_checkpoint(self.backbone.name, "backbone.name")
        return super().identity()


class CollectionConfig(StageConfig):
    """Keys of every stage that reads the texts of a collection."""

    corpus: Annotated[str, Input("corpus")] = "corpus"
    """the stage with the collection"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the token ids of the collection"""


class ValidatedConfig(CollectionConfig):
    """Keys of validation on a sample of the training collection."""

    validate_every: Annotated[CountOrZero, Operational()] = 200
    """steps between validations on a sample of the collection; 0: no validation"""
    validation_queries: Annotated[CountOrZero, Operational()] = 200
    """dev queries of the collection in the sample; 0: no validation"""
    validation_passages: Annotated[CountOrZero, Operational()] = 2000
    """passages in the sample, besides the relevant passages"""

    def validations(self) -> tuple[int, ...] | None:
        """Return the values of the three keys, in the order of definition; None if one of the first two is 0."""
        numbers = self.validate_every, self.validation_queries, self.validation_passages
        return numbers if all(numbers[:2]) else None
