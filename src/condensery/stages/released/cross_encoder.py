"""Stage ``cross_encoder``: loads a cross-encoder that was trained elsewhere, unchanged."""

from typing import Any

from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.cross_encoder import Reranker, load_cross_encoder, pair_separators, save_cross_encoder
from condensery.stages.base import Context
from condensery.stages.released.config import CrossEncoderConfig
from condensery.tokens.tokenizer import load_tokenizer


def cross_encoder(config: CrossEncoderConfig, context: Context) -> dict[str, Any]:
    """Save the cross-encoder in the format of ``train_cross_encoder``.

    Raises:
        UserError: the given tokenizer is not the checkpoint's, or ``length`` exceeds the model's positions.
    """
    folder = checkpoint_folder(str(config.folder), config.revision)
    model = load_cross_encoder(folder, new_head=False)
    own, given = load_tokenizer(folder), load_tokenizer(context.input("tokenizer"))
    if own.get_vocab() != given.get_vocab():
        own_stage = f"{{stage: tokenizer, backbone: {{tokenizer: {config.folder}}}}}"
        advice = f"add a stage {own_stage} and a stage `tokens` that reads it, and name both here"
        raise context.error("tokenizer", f"{config.tokenizer} is not the tokenizer of {config.folder}; {advice}")
    model.encoder.check_length(config.length, context.place("length"))
    reranker = Reranker(model, config.query_length, config.length, pair_separators(folder))
    save_cross_encoder(reranker, context.folder, context.input("tokenizer"))
    return config.values_of("query_length", "length")
