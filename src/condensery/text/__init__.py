"""Texts: readers convert every input format to a ``Collection`` on disk."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from condensery.text.collection import Collection
    from condensery.text.config import DataConfig


def read_collection(config: "DataConfig", folder: Path) -> "Collection":
    """Read the input that ``config`` describes, write it as a collection to ``folder``, and open the collection.

    Raises ``UserError`` for invalid input.
    """
    from condensery.text.collection import Collection
    from condensery.text.config import FORMATS
    from condensery.text.writer import CollectionWriter

    config.check()
    source = getattr(config, "root", config.name)
    settings = (config.empty_passages, config.dev_queries, config.unlabelled_queries)
    with CollectionWriter(folder, config.called, source, *settings) as writer:
        _, read = FORMATS[config.format]
        read(config, writer)
    return Collection(folder)
