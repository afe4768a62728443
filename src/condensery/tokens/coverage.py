"""Measure what is lost when a text is tokenised: unknown words, and different words that get the same token ids."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from condensery.errors import shown
from condensery.text.words import terms

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BLOCKS, BLOCK, CHARACTERS = 20, 50, 1_000  # a sample has 20 blocks of 50 texts, at most 1,000 characters of each text
# larger shares cause a warning; in English texts, the shares are 0.0001 and at most 0.008
MOST_UNKNOWN, MOST_MERGED = 0.01, 0.02


@dataclass(frozen=True)
class Coverage:
    """The losses that a tokenizer causes in a sample of texts.

    Attributes:
        unknown: share of [UNK] among the tokens.
        merged: share of the distinct words (case ignored) that have the same token ids as another word. A word with
            [UNK] among its ids does not count as merged.
        examples: a few words that have the same token ids.
    """

    unknown: float
    merged: float
    examples: tuple[str, ...]

    def warnings(self, trained: bool) -> list[str]:
        """Return a line for each share that is too large, with the configuration key that can reduce the share.

        ``trained``: whether the tokenizer is a WordPiece tokenizer that this project trained.
        """
        lines = []
        if self.unknown > MOST_UNKNOWN:
            other = "choose a tokenizer for this language (backbone.name, backbone.tokenizer)"
            key = "raise stage.tokenizer.vocab_size" if trained else other
            lines.append(f"{self.unknown:.1%} of the tokens of the texts are unknown to the tokenizer ([UNK]); {key}")
        if self.merged > MOST_MERGED:
            models = "choose another model (backbone.name, backbone.tokenizer)"
            other = f"the tokenizer may remove marks that are part of letters in this language; {models}"
            key = "set stage.tokenizer.strip_accents=false to keep accents and other marks" if trained else other
            message = f"{self.merged:.1%} of the words of the texts get the token ids of another word"
            lines.append(f"{message} (such as {' and '.join(self.examples)}); {key}")
        return lines

    def metrics(self, trained: bool) -> dict[str, Any]:
        """Return the two shares, and any ``warnings``, as entries of a manifest."""
        lines = self.warnings(trained)
        shares = {"unknown_share": round(self.unknown, 6), "merged_share": round(self.merged, 6)}
        return {**shares, **({"warnings": lines} if lines else {})}


def coverage(tokenizer: "PreTrainedTokenizerFast", texts: Sequence[str]) -> Coverage:
    """Measure the losses in a sample of ``texts``, which is taken evenly from all texts."""
    sample = list(_sample(texts))
    tokens = Counter(number == tokenizer.unk_token_id for row in _ids(tokenizer, sample) for number in row)
    words = sorted({word for text in sample for word in terms(text)})
    same: dict[tuple[int, ...], list[str]] = {}
    for word, row in zip(words, map(tuple, _ids(tokenizer, words)), strict=True):
        if row and tokenizer.unk_token_id not in row:
            same.setdefault(row, []).append(word)
    merged = [group for group in same.values() if len(group) > 1]
    examples = max(merged, key=len, default=[])[:2]
    return Coverage(
        tokens[True] / max(1, tokens.total()),
        sum(map(len, merged)) / max(1, len(words)),
        tuple(shown(word, 20) for word in examples),
    )


def _sample(texts: Sequence[str]) -> Iterator[str]:
    blocks = min(BLOCKS, -(-len(texts) // BLOCK))
    for number in range(blocks):
        start = number * len(texts) // blocks
        yield from (text[:CHARACTERS] for text in texts[start : start + min(BLOCK, len(texts) // blocks)])


def _ids(tokenizer: "PreTrainedTokenizerFast", texts: Sequence[str]) -> list[list[int]]:
    return tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"] if texts else []
