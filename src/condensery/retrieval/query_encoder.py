"""Encode query strings with a saved retriever."""

from pathlib import Path

import numpy as np

from condensery.models.checkpoints.metadata import vector_settings
from condensery.models.query_tower import load_query_tower
from condensery.retrieval.indexes.opening import Encode
from condensery.tokens.light_tokenizer import load_quick_tokenizer


def query_encoder(checkpoint: Path) -> Encode:
    """Return the function that maps n strings to query vectors (n, d), one string at a time.

    Queries are truncated to the retriever's length.
    """
    ids = load_quick_tokenizer(checkpoint)
    encode, length = load_query_tower(checkpoint)
    before = vector_settings(checkpoint).query_prefix
    return lambda texts: np.stack([encode(ids(before + text, length)) for text in texts])
