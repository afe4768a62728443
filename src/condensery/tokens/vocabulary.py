"""The ids and word borders of a tokenizer, from which batches are built without the tokenizer object."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from condensery.errors import UserError
from condensery.system.files import read_json, save_array, write_json
from condensery.text.words import unspaced

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NEEDED = ("pad", "cls", "sep", "mask", "unk")
DIFFERING = 0.01  # largest share of tokens whose flags ``continues`` may differ in ``agrees_with``
_SPREAD, _SPARE = 4, 10_000  # a tokenizer may have at most _SPREAD * (number of tokens) + _SPARE ids
_WORD_START = ("Ġ", "Ċ", "ĉ", "č")  # space, line feed, tab and carriage return in the byte-level alphabet


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The ids of a tokenizer that training needs.

    Attributes:
        size: number of ids (V); the embedding matrix has at least as many rows.
        pad, cls, sep, mask, unk: ids of the special tokens.
        special: int64 (s,), every special id, sorted. Special ids are never masked and never drawn as random tokens.
        continues: uint8 (V,), 1 for a token that continues the word of the previous token. 2 for a token that follows the
            previous token without a space, in a script without spaces between words. Each token of such a script counts as
            a word. 0 for any other token.
    """

    size: int
    pad: int
    cls: int
    sep: int
    mask: int
    unk: int
    special: NDArray[np.int64] = field(repr=False)
    continues: NDArray[np.uint8] = field(repr=False)

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerFast") -> "Vocabulary":
        """Read the vocabulary of a fast tokenizer.

        Raises:
            UserError: [PAD], [CLS], [SEP], [MASK] or [UNK] is missing, or an id is far above the number of tokens.
        """
        ids = {name: getattr(tokenizer, f"{name}_token_id") for name in NEEDED}
        if missing := [name for name, number in ids.items() if number is None]:
            raise UserError(
                f"tokenizer {tokenizer.name_or_path or type(tokenizer).__name__!r} has no {', '.join(missing)} token; "
                "take the tokenizer of a masked language model (BERT, RoBERTa, ...)"
            )
        tokens = tokenizer.get_vocab()
        size = max(max(tokens.values()) + 1, len(tokens))
        if size > _SPREAD * len(tokens) + _SPARE:
            last = max(tokens, key=tokens.__getitem__)
            raise UserError(
                f"tokenizer {tokenizer.name_or_path or type(tokenizer).__name__!r} has {len(tokens):,} tokens, but"
                f" {last[:20]!r} has the id {size - 1}; its tokenizer.json is damaged"
            )
        continues = np.zeros(size, dtype=np.uint8)
        goes_on = _continuation(json.loads(tokenizer.backend_tokenizer.to_str()))
        for token, number in tokens.items():
            continues[number] = goes_on(token)
        special = np.unique(np.asarray(tokenizer.all_special_ids, dtype=np.int64))
        continues[special] = 0
        return cls(size=size, special=special, continues=continues, **ids)

    @cached_property
    def is_special(self) -> NDArray[np.bool_]:
        """True for special ids, bool (V,)."""
        flags = np.zeros(self.size, dtype=np.bool_)
        flags[self.special] = True
        return flags

    @cached_property
    def ordinary(self) -> NDArray[np.int64]:
        """Every id that is not special, (V - s,). Random replacements are drawn from these ids."""
        return np.flatnonzero(~self.is_special).astype(np.int64)

    def agrees_with(self, other: "Vocabulary") -> bool:
        """Return whether the shared ids seem to mean the same tokens. One vocabulary may have further ids at its end.

        The flags ``continues`` may differ for a small share of the tokens (``DIFFERING``), because the rules for a script may
        have changed since an artifact was made. The flags of two tokenizers differ far more often.
        """
        both = min(self.size, other.size)
        same = all(getattr(self, name) == getattr(other, name) for name in NEEDED)
        return same and bool(np.mean((self.continues[:both] > 0) != (other.continues[:both] > 0)) <= DIFFERING)

    def save(self, folder: Path) -> None:
        """Write ``vocabulary.json`` and ``vocabulary.npy`` (the flags ``continues``) into ``folder``."""
        save_array(folder / "vocabulary.npy", self.continues)
        ids = {name: getattr(self, name) for name in NEEDED}
        write_json(folder / "vocabulary.json", {"size": self.size, **ids, "special": self.special.tolist()})

    @classmethod
    def load(cls, folder: Path) -> "Vocabulary":
        """Read the files that ``save`` wrote. A missing or invalid file raises a ``UserError`` that names the file."""
        path = folder / "vocabulary.json"
        values = read_json(path)
        try:
            continues = np.load(folder / "vocabulary.npy", allow_pickle=False)
            special = np.asarray(values.pop("special"), dtype=np.int64)
            vocabulary = cls(special=special, continues=continues, **values)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: not a vocabulary ({error}); give force=[tokens]") from None
        if len(continues) != vocabulary.size:
            raise UserError(f"{path}: size is {vocabulary.size}, but vocabulary.npy has {len(continues)} entries")
        return vocabulary


def _continuation(backend: dict[str, Any]) -> Any:
    """Return the function that gives a token's entry in ``continues``, from the tokenizer's serialised description."""
    if prefix := backend["model"].get("continuing_subword_prefix"):
        # A run of Thai or Burmese contains many words with unknown borders, so each token counts as a word.
        return lambda token: token.startswith(prefix) and len(token) > len(prefix) and not unspaced(token)
    kinds = _kinds(backend.get("pre_tokenizer")) | _kinds(backend.get("decoder"))
    if "ByteLevel" in kinds:
        from tokenizers import decoders  # a dry run does not import it

        plain = decoders.ByteLevel()
        return lambda token: not token.startswith(_WORD_START) and 1 + _stands_alone(plain.decode([token]))
    # tokenizers of Gemma and Llama have no pre-tokenizer for spaces, but a normaliser that replaces them
    if "Metaspace" in kinds or "▁" in json.dumps(backend.get("normalizer"), ensure_ascii=False):
        return lambda token: not token.startswith("▁") and 1 + _stands_alone(token)
    return lambda token: False  # the tokens are whole words or characters, so each token is a word


def _stands_alone(token: str) -> bool:
    """Return whether a token is a word: it has letters of a script without spaces, or of Tibetan, which joins syllables."""
    return unspaced(token) or any("\u0f00" <= one <= "\u0fff" for one in token)


def _kinds(part: dict[str, Any] | None) -> set[str]:
    """Return the types of a pre-tokenizer or decoder and of all parts nested in it."""
    if part is None:
        return set()
    nested = part.get("pretokenizers", []) + part.get("decoders", [])
    return {part["type"]}.union(*(_kinds(inner) for inner in nested))


def with_special(ids: ArrayLike, ends: Vocabulary, length: int) -> NDArray[np.int64]:
    """Return [CLS] ids [SEP], cut to a total of ``length`` tokens: (min(len(ids) + 2, length),)."""
    return np.concatenate([[ends.cls], np.asarray(ids, dtype=np.int64)[: length - 2], [ends.sep]])
