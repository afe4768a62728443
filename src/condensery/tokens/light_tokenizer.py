"""Load a checkpoint's tokenizer without importing transformers, for programs that answer single queries.

``load_tokenizer`` reads any tokenizer, but importing transformers takes longer than answering a query. This module reads
the tokenizers of this project's checkpoints with the Rust library ``tokenizers``, which transformers uses too. All other
tokenizers are left to ``load_tokenizer``.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from condensery.errors import UserError
from condensery.system.files import read_json
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary
from condensery.tokens.workers import read_tokenizer


@dataclass(frozen=True)
class QuickTokenizer:
    """A tokenizer for queries. ``ids`` maps a text to its token ids. ``cls`` and ``sep`` are the ids to put around them."""

    ids: Callable[[str], list[int]]
    cls: int
    sep: int


def load_quick_tokenizer(folder: Path) -> QuickTokenizer:
    """Load the tokenizer of a checkpoint folder. Raises ``UserError`` in the same cases as ``load_tokenizer``."""
    with suppress(UserError, KeyError, TypeError):  # the files are not in the form that transformers writes
        about = read_json(folder / "tokenizer_config.json")
        special = (about["cls_token"], about["sep_token"])  # the string alone, or with further settings
        words = [str(token["content"] if isinstance(token, dict) else token) for token in special]
        quick = read_tokenizer(folder)
        cls, sep = (quick.token_to_id(word) for word in words)
        if cls is not None and sep is not None:
            return QuickTokenizer(lambda text: list(quick.encode(text, add_special_tokens=False).ids), cls, sep)
    tokenizer = load_tokenizer(folder)
    ends = Vocabulary.of(tokenizer)
    return QuickTokenizer(lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"]), ends.cls, ends.sep)
