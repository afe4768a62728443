"""Passages whose vectors are frozen: those of an index, of which a stage trains or encodes the queries alone."""

from pathlib import Path

from condensery.errors import UserError
from condensery.models.biencoder import BiEncoder
from condensery.models.blending import same_weights
from condensery.models.checkpoints.saving import SavedRetriever
from condensery.retrieval.dense import DenseIndex
from condensery.stages.base import Context
from condensery.system.files import read_json


def vectors_of(context: Context, key: str, named: str) -> tuple[DenseIndex, Path]:
    """The index that is ``named`` in the stage's ``key``, and the folder of the encoder that made it.

    Raises ``UserError`` where it has no vector for each passage.
    """
    artifact = context.artifact(key)
    encoder = artifact.ancestor("encoder")
    dense = read_json(artifact.path / "index.json").get("method") == "dense"
    index = DenseIndex(artifact.path, context.runtime.threads, device="cpu") if dense else None
    if index is None or encoder is None or index.starts is not None:
        raise UserError(
            f"stages.{context.stage_name}.{key}: {named} has no vector for each passage; name a dense"
            " retriever that is encoded with windows=1"
        )
    return index, encoder.path


def check_encoded_by(model: BiEncoder, passage_length: int, index: SavedRetriever, named: str) -> None:
    """Raise ``UserError`` where a retriever encodes passages in another way than the encoder of an index.

    ``named``: how the index is called in the line, such as 'stages.tuned.passages: as_it_is'.
    """
    alike = model.settings == index.model.settings and passage_length == index.passage_length
    if not alike or not same_weights(model.passage, index.model.passage):
        raise UserError(f"{named}: its passages were encoded with other weights, or otherwise; set it to null")
