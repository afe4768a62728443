"""Token ids of the prefixes of queries and passages, such as E5's "query: " and "passage: ".

The token store holds texts without prefixes. A prefix is inserted after [CLS] when rows are built, so one store serves
every retriever. The row then has the ids of the prefixed text, provided that no token spans the border between prefix and
text. Tokenizers that split at spaces make no such token. Each prefix is checked before it is used.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Ids = NDArray[np.int64]
NONE: Ids = np.empty(0, np.int64)
# beginnings of texts with which each prefix is tried
_BEGINNINGS = ("what is it", "The end", "2 of 3", "(a) x", '"so"', "Über", "x", "don't", "U.S.")


@dataclass(frozen=True)
class Prefixes:
    """Token ids of the prefixes: ``query`` (n,) and ``passage`` (m,), each empty if there is no such prefix."""

    query: Ids = field(default_factory=lambda: NONE)
    passage: Ids = field(default_factory=lambda: NONE)

    @classmethod
    def of(cls, tokenizer: str | Path | None, query: str, passage: str, lengths: tuple[int, int]) -> Self:
        """Tokenise the prefixes of queries and passages.

        Args:
            tokenizer: folder or hub name of a tokenizer; may be None if both prefixes are empty.
            query, passage: the prefixes as strings; empty = no prefix.
            lengths: (maximum query length, maximum passage length) in tokens, special tokens included.

        Raises:
            UserError: there is no tokenizer, the tokenizer joins prefix and text, or a prefix leaves no room for a text.
        """
        if not query and not passage:
            return cls()
        if tokenizer is None:
            raise UserError("query_prefix, passage_prefix: give `tokenizer`, with which the prefix is tokenised")
        from condensery.tokens.tokenizer import load_tokenizer

        read = load_tokenizer(tokenizer)
        return cls(
            _ids(read, "query_prefix", query, "query_length", lengths[0]),
            _ids(read, "passage_prefix", passage, "passage_length", lengths[1]),
        )


NO_PREFIXES = Prefixes()


def check_prefix(key: str, prefix: str, number: int, length_key: str, length: int) -> None:
    """Raise ``UserError`` if a prefix of ``number`` tokens leaves no room for a text.

    ``length`` is the maximum input length in tokens, [CLS] and [SEP] included.
    """
    if number > length - 3:
        raise UserError(f"{key}: {shown(prefix)!r} has {number} tokens; raise {length_key}, which is {length}")


def _ids(tokenizer: "PreTrainedTokenizerFast", key: str, prefix: str, length_key: str, length: int) -> Ids:
    """Return the ids of a prefix. These ids, followed by the ids of a text, equal the ids of the text with the prefix."""

    def read(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    # some tokenizers turn a final space into a token, so the prefix is also tried without this space
    for form in (prefix, prefix.rstrip()):
        ids = read(form)
        if all(read(prefix + text) == ids + read(text) for text in _BEGINNINGS):
            check_prefix(key, prefix, len(ids), length_key, length)
            return np.asarray(ids, np.int64)
    raise UserError(
        f"{key}: the tokenizer joins {shown(prefix)!r} with the first word of a text; end the prefix in a space or a colon,"
        " or use a model whose tokenizer splits at spaces"
    )
