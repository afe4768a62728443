"""Stage ``bm25``: builds the lexical index, which is the baseline and the source of the first hard negatives."""

from typing import Any

from condensery.retrieval.indexes.bm25 import build_bm25
from condensery.stages.base import Context
from condensery.stages.indexes.config import Bm25Config
from condensery.text.collection import Collection


def bm25(config: Bm25Config, context: Context) -> dict[str, Any]:
    """Index all passages, titles included."""
    collection = Collection(context.input("corpus"))
    analysis = (config.stopwords, config.stemmer, config.language)
    return build_bm25(collection, context.folder, config.k1, config.b, *analysis, label=context.stage_name)
