"""Stage ``corpus``: the user's files, in any format, become a collection on disk."""

from typing import Any

from condensery.stages.base import Context, StageConfig, stage
from condensery.text.config import DataConfig


class CorpusConfig(StageConfig):
    """``data`` says what is read; see ``conf/data/``."""

    data: DataConfig


@stage("corpus", version=1, makes="corpus")
def corpus(config: CorpusConfig, context: Context) -> dict[str, Any]:
    """Read the input and check it; the counts and the content hash go into the manifest."""
    from condensery.text import read_collection

    return dict(read_collection(config.data, context.folder).description)
