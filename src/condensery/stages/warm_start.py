"""Stage ``warm_start``: an encoder out of the co-occurrences of a collection's tokens, without training."""

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from condensery.errors import UserError
from condensery.files import expanded
from condensery.models.config import BackboneConfig
from condensery.stages.base import Context, Input, StageConfig, stage
from condensery.stages.checks import check_folder, check_length

if TYPE_CHECKING:
    import numpy as np

    from condensery.tokens.store import TokenStore

Amount = Annotated[float, Field(ge=0)]


class WarmStartConfig(StageConfig):
    """``embeddings``: whether tokens begin with vectors of their co-occurrences; the other parts are those of ``WarmStart``.

    ``length``: tokens of the longest text, for whoever takes the encoder as a retriever.
    """

    tokenizer: Annotated[str, Input("tokenizer")]
    tokens: Annotated[str, Input("tokens")]
    backbone: BackboneConfig
    length: Annotated[int, Field(ge=8)]
    embeddings: bool
    window: Annotated[int, Field(ge=1, le=40)]
    smoothing: Annotated[float, Field(gt=0, le=1)]
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
        return self

    def identity(self) -> list[str]:
        """Nothing besides the fields. Raises ``UserError`` where the checkpoint to start from is a missing folder."""
        check_folder(self.backbone.name, "backbone.name")
        return []


@stage("warm_start", version=1, makes="encoder", cost=2.0)
def warm_start(config: WarmStartConfig, context: Context) -> dict[str, Any]:
    """Save the encoder; one that is named in ``backbone.name`` knows its tokens already and is taken as it is.

    Raises ``UserError`` where a text of ``length`` tokens does not fit that one's positions.
    """
    from dataclasses import fields

    from condensery.models.backbone import masked_language_model
    from condensery.models.checkpoint import save_condenser
    from condensery.models.condenser import Condenser, condenser_shape
    from condensery.models.warm_start import WarmStart, warm_up
    from condensery.stages.texts import Tokens
    from condensery.tokens.cooccurrence import unigrams

    tokens = Tokens(context.input("tokens"))
    store, vocabulary = tokens.documents, tokens.vocabulary
    model = masked_language_model(config.backbone, vocabulary, config.seed)
    about: dict[str, Any] = {"tokens": store.token_count}
    if config.backbone.name is None:
        counts, vectors = unigrams(store, vocabulary.size), None
        if config.embeddings:
            vectors = _token_vectors(config, store, vocabulary.size, context.stage_name)
            about["known_tokens"] = int(vectors.any(axis=1).sum())
        parts = WarmStart(**{field.name: getattr(config, field.name) for field in fields(WarmStart)})
        warm_up(model, vectors, counts, vocabulary, parts)
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


def _token_vectors(config: WarmStartConfig, store: "TokenStore", size: int, label: str) -> "np.ndarray":
    """Of every token, (V, d); zeros where it has no associations."""
    from condensery.models.warm_start import token_vectors
    from condensery.progress import progress
    from condensery.tokens.cooccurrence import cooccurrences, positive_pmi, truncated_svd

    with progress(f"{label}: co-occurrences", store.token_count, "tokens") as task:
        associations = positive_pmi(cooccurrences(store, size, config.window, task), config.smoothing)
    print(f"[{label}] {associations.nnz:,} associations of {size:,} tokens", flush=True)
    return token_vectors(*truncated_svd(associations, config.backbone.hidden, config.seed), config.seed)
