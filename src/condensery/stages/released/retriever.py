"""Stage ``retriever``: loads a retriever that was trained elsewhere, unchanged (zero-shot evaluation)."""

from typing import Any

from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.retrievers import SavedRetriever, load_any_retriever, save_retriever
from condensery.stages.base import Context
from condensery.stages.released.config import RetrieverConfig


def retriever(config: RetrieverConfig, context: Context) -> dict[str, Any]:
    """Save the retriever in the format of the stages that train one.

    Raises:
        UserError: neither the checkpoint nor the config gives the input lengths, or a length exceeds the model's positions.
    """
    folder = checkpoint_folder(str(config.folder), config.revision)
    model, lengths = load_any_retriever(folder, config.vector_options())
    # as in sentence-transformers, a longer max_seq_length is reduced to the number of positions
    most = (model.query.longest, model.passage.longest)
    query_length, passage_length = (
        given or (own and min(own, positions))
        for given, own, positions in zip((config.query_length, config.passage_length), lengths, most, strict=True)
    )
    if query_length is None or passage_length is None:
        keys = " and ".join(map(context.place, ("query_length", "passage_length")))
        raise context.error("", f"{config.folder} does not record its lengths; set {keys}")
    for key, length, tower in (("query", query_length, model.query), ("passage", passage_length, model.passage)):
        tower.check_length(length, context.place(f"{key}_length"))
    save_retriever(SavedRetriever(model, query_length, passage_length), context.folder, folder)
    return {"query_length": query_length, "passage_length": passage_length, **model.settings.own()}
