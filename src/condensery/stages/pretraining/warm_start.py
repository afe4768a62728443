"""Stage ``warm_start``: an encoder out of the co-occurrences of a collection's tokens, without training."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from condensery.errors import UserError
from condensery.models.config import BackboneConfig
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import check_checkpoint, check_length, check_no_retriever
from condensery.stages.pretraining.token_vectors import other_dimensions, read_token_vectors
from condensery.stages.work import Read, Work, checkpoint_bytes, known, with_encoder
from condensery.system.files import expanded

Amount = Annotated[float, Field(ge=0)]


class WarmStartConfig(StageConfig):
    """``vectors``: what the token embeddings begin with, None = noise; the other parts are those of ``WarmStart``.

    ``length``: tokens of the longest text, for whoever takes the encoder as a retriever.
    """

    tokenizer: Annotated[str, Input("tokenizer")]
    tokens: Annotated[str, Input("tokens")]
    vectors: Annotated[str | None, Input("token_vectors")]
    backbone: BackboneConfig
    length: Annotated[int, Field(ge=8)]
    unigram_bias: bool
    near_identity: Amount
    random_share: Amount
    rare_tokens: Amount
    position_scale: Amount
    seed: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _fits_the_backbone(self) -> Self:
        if self.backbone.name is None:  # a checkpoint tells its size only when it is loaded
            check_length("length", self.length, self.backbone.max_positions)
            if self.backbone.family not in ("bert", "roberta"):
                raise ValueError(
                    f"backbone.family is {self.backbone.family}; a warm start is written into bert or roberta"
                )
        return self

    def identity(self) -> list[str]:
        """Nothing besides the fields.

        Raises ``UserError`` where the checkpoint to start from is a missing folder, or a released retriever.
        """
        check_checkpoint(self.backbone.name, "backbone.name")
        check_no_retriever(self.backbone)
        return []

    def work(self, read: Read) -> Work:
        """The weights are drawn and written."""
        sizes = with_encoder(known(read), self.backbone)
        return Work(sizes, seconds=3.0, disk=checkpoint_bytes(sizes))

    def input_error(self, inputs: Mapping[str, Sequence[StageConfig]]) -> tuple[str, str] | None:
        """Vectors of another size than the backbone's."""
        if self.backbone.name is not None:
            return None
        return other_dimensions(self.vectors, inputs["vectors"], self.backbone.hidden)


@stage("warm_start", version=1, makes="encoder", cost=2.0)
def warm_start(config: WarmStartConfig, context: Context) -> dict[str, Any]:
    """Save the encoder; one that is named in ``backbone.name`` knows its tokens already and is taken as it is.

    Raises ``UserError`` where a text of ``length`` tokens does not fit that one's positions.
    """
    from dataclasses import fields

    from condensery.models.backbone import masked_language_model
    from condensery.models.checkpoint import save_condenser
    from condensery.models.condenser import Condenser, condenser_shape
    from condensery.models.hub import checkpoint_folder
    from condensery.models.warm_start import WarmStart, warm_up
    from condensery.tokens.artifacts import Tokens
    from condensery.tokens.cooccurrence import unigrams

    if config.backbone.name is not None:
        check_no_retriever(config.backbone, checkpoint_folder(config.backbone.name, config.backbone.revision))
    tokens = Tokens(context.input("tokens"))
    store, vocabulary = tokens.documents, tokens.vocabulary
    model = masked_language_model(config.backbone, vocabulary, config.seed)
    about: dict[str, Any] = {"tokens": store.token_count}
    if config.backbone.name is None:
        vectors = None
        if config.vectors is not None:
            vectors = read_token_vectors(context.input("vectors"), config.seed)
            about["known_tokens"] = int(vectors.any(axis=1).sum())
        parts = WarmStart(**{field.name: getattr(config, field.name) for field in fields(WarmStart)})
        warm_up(model, vectors, unigrams(store, vocabulary.size), vocabulary, parts)
    else:
        print(f"[{context.stage_name}] {_taken(config.backbone.name)}", flush=True)
    whole = Condenser(model, condenser_shape(model, 0, None, True))
    try:
        check_length("length", config.length, whole.encoder.longest)
    except ValueError as error:
        raise UserError(f"stages.{context.stage_name}: {error}") from None
    save_condenser(whole, context.folder, context.input("tokenizer"), config.length)
    return about


def _taken(name: str) -> str:
    """What is said of a checkpoint that is trained already."""
    from condensery.models.checkpoint import DECODER, HEAD

    left = [file for file in (HEAD, DECODER) if (expanded(name) / file).is_file()]
    but = f", but for {left[0]}, which init: backbone would read" if left else ""
    return f"{name} is trained already, and is taken as it is{but}"
