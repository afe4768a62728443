"""What people said of negatives, in the sheets that a stage is given."""

from condensery.retrieval.relabelled import NOTHING, Relabelled, read_relabelled
from condensery.stages.retrieval.config import RelabelConfig
from condensery.text.collection import Collection


def relabelled_by(config: RelabelConfig, collection: Collection) -> Relabelled:
    """What they say. Raises ``UserError`` with the line and the column where something is wrong."""
    return NOTHING if config.relabel is None else read_relabelled(config.filled(), collection, config.split)
