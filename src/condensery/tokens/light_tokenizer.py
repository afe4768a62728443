"""The tokenizer of a checkpoint without the library around it, for one who asks a question: text to ids, and the ends.

``load_tokenizer`` reads any tokenizer but imports the library, which takes longer than the answer; this reads those that
our checkpoints hold by the same Rust code, and leaves all others to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.system.files import read_json


@dataclass(frozen=True)
class QuickTokenizer:
    """Text to ids, without special tokens, and the ids of those that a query needs."""

    ids: Callable[[str], list[int]]
    cls: int
    sep: int


def load_quick_tokenizer(folder: Path) -> QuickTokenizer:
    """The tokenizer of a checkpoint folder. Raises ``UserError`` as ``load_tokenizer``."""
    return _read(folder) or _by_library(folder)


def _read(folder: Path) -> QuickTokenizer | None:
    """The tokenizer where its files are those that the library writes."""
    from tokenizers import Tokenizer

    try:
        about = read_json(folder / "tokenizer_config.json")
        words = [_word(about[f"{name}_token"]) for name in ("cls", "sep")]
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # a bare one is what tokenizers raises
        if type(error) in (UserError, KeyError, TypeError, Exception):
            return None
        raise
    cls, sep = (tokenizer.token_to_id(word) for word in words)
    if cls is None or sep is None:
        return None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return QuickTokenizer(lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids), cls, sep)


def _by_library(folder: Path) -> QuickTokenizer:
    from condensery.tokens.tokenizer import load_tokenizer
    from condensery.tokens.vocabulary import Vocabulary

    tokenizer = load_tokenizer(folder)
    ends = Vocabulary.of(tokenizer)
    return QuickTokenizer(lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"]), ends.cls, ends.sep)


def _word(token: Any) -> str:
    """A special token as ``tokenizer_config.json`` writes it: a word, or a word with its settings."""
    return str(token["content"] if isinstance(token, dict) else token)
