"""Stage ``retriever``: loads a retriever that was trained elsewhere, unchanged (zero-shot evaluation)."""

from typing import Any

from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.retrievers import SavedRetriever, load_any_retriever, save_retriever
from condensery.models.encoder import Encoder
from condensery.stages.base import Context
from condensery.stages.released.config import Lengths, ReleasedConfig, RetrieverConfig


def retriever(config: RetrieverConfig, context: Context) -> dict[str, Any]:
    """Save the retriever in the format of the stages that train a retriever.

    Raises:
        UserError: neither the checkpoint nor the config gives the input lengths, or a length exceeds the model's positions.
    """
    folder = checkpoint_folder(str(config.folder), config.revision)
    model, recorded = load_any_retriever(folder, config.vector_options())
    lengths = lengths_of(config, context, recorded, model.query, model.passage)
    save_retriever(SavedRetriever(model, **lengths), context.folder, folder)
    return {**lengths, **model.settings.own()}


def lengths_of(config: ReleasedConfig, context: Context, recorded: Lengths, *towers: Encoder) -> dict[str, Any]:
    """Return the maximum tokens of a query and of a passage, under the names of their keys.

    Args:
        config, context: config and context of the stage.
        recorded: the lengths that the checkpoint records; those of the config replace them.
        towers: the encoder of queries and the encoder of passages.

    Raises:
        UserError: neither the checkpoint nor the config gives a length, or it exceeds the positions of its encoder.
    """
    lengths, keys = {}, ("query_length", "passage_length")
    for key, own, tower in zip(keys, recorded, towers, strict=True):
        # as in sentence-transformers, a longer max_seq_length is reduced to the number of positions
        length = getattr(config, key) or (own and min(own, tower.longest))
        if length is None:
            wanted = " and ".join(map(context.place, keys))
            raise context.error("", f"{config.folder} does not record its lengths; set {wanted}")
        tower.check_length(length, context.place(key))
        lengths[key] = length
    return lengths
