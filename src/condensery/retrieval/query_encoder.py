"""Encode query strings with a saved retriever."""

from pathlib import Path

import numpy as np

from condensery.models.checkpoints.metadata import vector_settings
from condensery.models.query_tower import load_query_tower
from condensery.retrieval.indexes.opening import Encode
from condensery.tokens.light_tokenizer import load_quick_tokenizer
from condensery.tokens.vocabulary import with_special


def query_encoder(checkpoint: Path) -> Encode:
    """Return the function that maps n strings to query vectors (n, d), one string at a time.

    Queries are truncated to the retriever's length.
    """
    tokenizer = load_quick_tokenizer(checkpoint)
    encode, length = load_query_tower(checkpoint)
    before = vector_settings(checkpoint).query_prefix
    return lambda texts: np.stack([encode(with_special(tokenizer.ids(before + t), tokenizer, length)) for t in texts])
