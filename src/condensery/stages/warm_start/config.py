"""Configs of the stages that initialise an encoder from the co-occurrences of tokens."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Self

from annotated_types import Ge, Le
from pydantic import model_validator

from condensery.models.checkpoints.config import BackboneConfig
from condensery.ranges import Count, PositiveShare, Weight
from condensery.stages.base import FromRecipe, Input, RowLength, Seed, StageConfig
from condensery.stages.checks import check_checkpoint, check_length, check_no_retriever
from condensery.stages.registry import stage
from condensery.stages.workload import Read, Work, checkpoint_bytes, known, product, with_encoder


@stage("token_vectors", "token_vectors:token_vectors", version=1, makes="token_vectors", adapts="tokens")
class TokenVectorsConfig(StageConfig):
    """Compute token vectors by truncated SVD of the positive pointwise mutual information (PMI) of tokens.

    The stage is added automatically if a warm start needs it.
    """

    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the token ids of the documents whose co-occurrences are counted"""
    dim: Annotated[Count, FromRecipe("backbone.hidden")]
    """dimensions of the token vectors; equal to the hidden size of the backbone that is initialised with them"""
    window: Annotated[int, Ge(1), Le(40)] = 10
    """maximum distance in tokens at which two tokens count as co-occurring; a pair is weighted by 1 / distance"""
    smoothing: PositiveShare = 0.75
    """exponent to which the counts of context tokens are raised; 1: no smoothing"""

    def work(self, read: Read) -> Work:
        """Estimate the work of counting co-occurring tokens and of the SVD of their matrix."""
        sizes = known(read)
        return Work(sizes, seconds=product(6.6e-6, sizes.tokens), disk=product(4.0 * self.dim, sizes.vocabulary))


@stage("warm_start", "warm_start:warm_start", version=1, makes="encoder")
class WarmStartConfig(StageConfig):
    """Initialise an encoder from the co-occurrences of a collection's tokens, without training.

    Pre-training of models from scratch starts from this encoder. A backbone with a name (backbone=bert_base) is already
    trained and stays unchanged.
    """

    tokenizer: Annotated[str, Input("tokenizer")] = "tokenizer"
    """the stage with the tokenizer, which is saved beside the weights"""
    tokens: Annotated[str, Input("tokens")] = "tokens"
    """the stage with the token ids, whose frequencies are counted"""
    vectors: Annotated[str | None, Input("token_vectors"), FromRecipe(".tokens")]
    """the stage with the initial token embeddings: token_vectors, or tokens (token_vectors is then added); null: random
    embeddings"""
    backbone: Annotated[BackboneConfig, FromRecipe("backbone")]
    """settings of the encoder: the group ``backbone``"""
    length: RowLength = 128
    """maximum tokens of a text when the encoder is used for retrieval without further training"""
    unigram_bias: bool = True
    """initialise the bias of the vocabulary projection with the log frequencies of the tokens"""
    near_identity: Weight = 1.0
    """factor of the identity matrix in the initial weights of attention's value and output projections; 0: random weights
    only"""
    random_share: Weight = 0.3
    """factor of the random weights that are added to the identity in attention's value and output projections"""
    rare_tokens: Weight = 0.5
    """strength with which the first layer prefers rare tokens to frequent tokens in attention; 0: no preference"""
    position_scale: Weight = 0.1
    """factor of the position and type embeddings"""
    seed: Seed
    """random seed of the random weights"""

    @model_validator(mode="after")
    def _fits_the_backbone(self) -> Self:
        if self.backbone.name is None:  # the size of a named checkpoint is known only once it is loaded
            check_length("length", self.length, self.backbone.max_positions)
            if self.backbone.family not in ("bert", "roberta"):
                raise ValueError(f"backbone.family is {self.backbone.family}; a warm start needs bert or roberta")
        return self

    def identity(self) -> list[str]:
        """Return no further strings: the id depends on the fields alone.

        Raises:
            UserError: the initial checkpoint is a missing folder, or a released retriever.
        """
        check_checkpoint(self.backbone.name, "backbone.name")
        check_no_retriever(self.backbone)
        return []

    def work(self, read: Read) -> Work:
        """Estimate the work of drawing and writing the weights."""
        sizes = with_encoder(known(read), self.backbone)
        return Work(sizes, seconds=3.0, disk=checkpoint_bytes(sizes))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Report token vectors whose dimension differs from the backbone's hidden size."""
        if self.backbone.name is not None:
            return None
        return other_dimensions(self.vectors, inputs["vectors"], self.backbone.hidden)


def other_dimensions(name: str | None, configs: Sequence[StageConfig], hidden: int) -> tuple[str, str] | None:
    """Return the error about token vectors that do not have ``hidden`` dimensions; None = no error.

    Args:
        name: name of the stage in the field ``vectors``.
        configs: config of that stage, if there is one.
        hidden: hidden size of the model that the vectors initialise.

    Returns:
        the field and the error message, as ``StageConfig.input_error`` returns them.
    """
    dims = [config.dim for config in configs if isinstance(config, TokenVectorsConfig)]
    if not dims or dims[0] == hidden:
        return None
    return "vectors", f"{name} has {dims[0]} dimensions, the model {hidden}; set the dim of {name} to {hidden}"
