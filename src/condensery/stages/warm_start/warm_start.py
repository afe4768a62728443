"""Stage ``warm_start``: initialises an encoder from the co-occurrences of a collection's tokens, without training."""

from typing import Any

from condensery.models.checkpoints.backbone import masked_language_model
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.pretraining import DECODER, HEAD, save_pretraining_model
from condensery.models.condenser import Condenser, condenser_shape
from condensery.models.warm_start import WarmStart, warm_up
from condensery.stages.base import Context
from condensery.stages.checks import check_no_retriever
from condensery.stages.warm_start.config import WarmStartConfig
from condensery.stages.warm_start.token_vectors import read_token_vectors
from condensery.system.files import expanded
from condensery.tokens.artifacts import Tokens
from condensery.tokens.cooccurrence import unigrams


def warm_start(config: WarmStartConfig, context: Context) -> dict[str, Any]:
    """Save the encoder. A checkpoint that ``backbone.name`` names is already trained and is saved unchanged.

    Raises:
        UserError: a text of ``length`` tokens does not fit the encoder's positions, or the checkpoint is a released
            retriever.
    """
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
        parts = WarmStart(**config.values_of(*WarmStart.__dataclass_fields__))
        warm_up(model, vectors, unigrams(store, vocabulary.size), vocabulary, parts)
    else:
        context.say(_taken(config.backbone.name))
    whole = Condenser(model, condenser_shape(model, 0, None, True))
    whole.encoder.check_length(config.length, context.place("length"))
    save_pretraining_model(whole, context.folder, context.input("tokenizer"), config.length)
    return about


def _taken(name: str) -> str:
    """Return the message about a checkpoint that is already trained."""
    left = [file for file in (HEAD, DECODER) if (expanded(name) / file).is_file()]
    but = f" without {left[0]}; a stage with `init: backbone` reads it" if left else ""
    return f"{name} is already trained, and is saved unchanged{but}"
