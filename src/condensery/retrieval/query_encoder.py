"""Encode query strings with a saved retriever."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from condensery.models.checkpoints.metadata import vector_settings
from condensery.models.query_tower import load_query_tower
from condensery.tokens.light_tokenizer import load_quick_tokenizer


def query_encoder(checkpoint: Path) -> Callable[[str], Any]:
    """Return the function that maps a string to its query vector (d,); queries are truncated to the retriever's length."""
    ids = load_quick_tokenizer(checkpoint)
    encode, length = load_query_tower(checkpoint)
    before = vector_settings(checkpoint).query_prefix
    return lambda text: encode(ids(before + text, length))
