"""Frozen passage vectors from an index, for stages that train or encode only queries."""

from pathlib import Path

from condensery.errors import UserError
from condensery.models.biencoder import BiEncoder
from condensery.models.blending import same_weights
from condensery.models.checkpoints.retrievers import SavedRetriever
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.stages.base import Context
from condensery.system.files import read_json


def vectors_of(context: Context, key: str, named: str) -> tuple[DenseIndex, Path]:
    """Open an index with frozen passage vectors.

    Args:
        context: context of the stage.
        key: config key that names the index.
        named: value of that key, for the error message.

    Returns:
        the index, and the folder of its encoder.

    Raises:
        UserError: the index does not have exactly one vector for each passage.
    """
    artifact = context.artifact(key)
    encoder = artifact.ancestor("encoder")
    dense = read_json(artifact.path / "index.json").get("method") == "dense"
    index = DenseIndex(artifact.path, context.runtime.threads, device="cpu") if dense else None
    if index is None or encoder is None or index.starts is not None:
        lacking = f"{named} does not have one vector for each passage"
        raise context.error(key, f"{lacking}; name a dense retriever that is encoded with windows=1")
    return index, encoder.path


def check_encoded_by(model: BiEncoder, passage_length: int, index: SavedRetriever, named: str) -> None:
    """Check that a retriever encodes passages in the same way as the encoder of an index.

    Args:
        model: the retriever.
        passage_length: maximum tokens of a passage for the retriever.
        index: encoder of the index.
        named: description of the index in the error message, such as 'stages.tuned.passages: as_it_is'.

    Raises:
        UserError: settings, lengths or weights of the passage towers differ.
    """
    alike = model.settings == index.model.settings and passage_length == index.passage_length
    if not alike or not same_weights(model.passage, index.model.passage):
        raise UserError(f"{named}: its passages were encoded with other weights, settings or lengths; set it to null")
