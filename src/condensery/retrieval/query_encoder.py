"""Encode query strings with a saved retriever."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from condensery.models.checkpoints.metadata import vector_settings
from condensery.models.query_tower import load_query_tower
from condensery.tokens.light_tokenizer import load_quick_tokenizer


def query_encoder(checkpoint: Path) -> Callable[[Sequence[str]], Any]:
    """Return the function that maps n > 0 strings to their query vectors (n, d), each truncated to the retriever's length."""
    ids = load_quick_tokenizer(checkpoint)
    encode, length = load_query_tower(checkpoint)
    before = vector_settings(checkpoint).query_prefix
    return lambda texts: np.stack([encode(ids(before + text, length)) for text in texts])
