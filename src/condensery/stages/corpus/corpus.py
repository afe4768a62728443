"""Stage ``corpus``: reads the user's files, in any supported format, into a collection on disk."""

from typing import Any

from condensery.stages.base import Context
from condensery.stages.corpus.config import CorpusConfig
from condensery.text import read_collection


def corpus(config: CorpusConfig, context: Context) -> dict[str, Any]:
    """Read and check the input; return the counts and the content hash for the manifest."""
    return dict(read_collection(config.data, context.folder).description)
