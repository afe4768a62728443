"""Judgements of negatives by people, from the sheets that a stage is given."""

from condensery.retrieval.relabelled import NOTHING, Relabelled, read_relabelled
from condensery.stages.retrieval.config import RelabelConfig
from condensery.text.collection import Collection


def relabelled_by(config: RelabelConfig, collection: Collection) -> Relabelled:
    """Read the judgements of the filled sheets. Raises ``UserError``, with line and column, where a sheet has a fault."""
    return NOTHING if config.relabel is None else read_relabelled(config.filled(), collection, config.split)
