"""Load a checkpoint's tokenizer without importing transformers, for programs that answer single queries.

``load_tokenizer`` reads any tokenizer, but importing transformers takes longer than answering a query. This module reads
the tokenizers of this project's checkpoints with the Rust library ``tokenizers``, which transformers uses too. All other
tokenizers are left to ``load_tokenizer``.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from condensery.errors import UserError
from condensery.system.files import read_json
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary, with_special
from condensery.tokens.workers import read_tokenizer


def load_quick_tokenizer(folder: Path) -> Callable[[str, int], list[int]]:
    """Load the tokenizer of a checkpoint folder. Raises ``UserError`` in the same cases as ``load_tokenizer``.

    Returns:
        The function that maps a text to its ids, [CLS] text [SEP], cut to a maximum length in tokens.
    """
    with suppress(UserError, KeyError, TypeError):  # the files are not in the form that transformers writes
        about = read_json(folder / "tokenizer_config.json")
        special = (about["cls_token"], about["sep_token"])  # the string alone, or with further settings
        words = [str(token["content"] if isinstance(token, dict) else token) for token in special]
        quick = read_tokenizer(folder)
        cls, sep = (quick.token_to_id(word) for word in words)
        if cls is not None and sep is not None:
            return lambda text, length: [cls, *quick.encode(text, add_special_tokens=False).ids[: length - 2], sep]
    tokenizer = load_tokenizer(folder)
    ends = Vocabulary.of(tokenizer)
    return lambda text, length: with_special(
        tokenizer(text, add_special_tokens=False)["input_ids"], ends, length
    ).tolist()
