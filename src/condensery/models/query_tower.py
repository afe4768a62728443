"""The tower of a saved retriever that encodes queries, loaded for its CLS vectors alone."""

from pathlib import Path

from condensery.files import read_json
from condensery.models.encoder import Encoder
from condensery.models.parts import load_parts

QUERY_ENCODER = "query_encoder"  # in a checkpoint's folder, where the towers are separate
ABOUT = "condensery.json"


def load_query_tower(folder: Path) -> tuple[Encoder, int]:
    """The encoder of queries, in evaluation mode, and the longest query in tokens that it was trained with.

    ``checkpoint.load_retriever`` gives the same tower, and reads what ``parts`` does not know. Raises ``UserError`` where
    there is no such thing.
    """
    own = folder / QUERY_ENCODER
    parts = load_parts(own if own.is_dir() else folder)
    if parts is None:
        from condensery.models.checkpoint import load_retriever  # the library takes seconds to import

        retriever = load_retriever(folder)
        return retriever.model.query.eval(), retriever.query_length
    return Encoder(parts).eval(), int(read_json(folder / ABOUT)["query_length"])
