"""The words of a text, the tokens that stand for them, and the targets of their weights (Dai and Callan 2019, §3.2)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.indexes.terms import Analyser
from condensery.text.words import word_spans


@dataclass(frozen=True)
class ReadText:
    """A text as the model reads it.

    Attributes:
        ids: (t,) token ids with [CLS] and [SEP].
        words: the w words (``text.words``) whose first token is among the ids, in the order and spelling of the text.
        places: (w,) the position in ``ids`` of each word's first token.
    """

    ids: list[int]
    words: list[str]
    places: NDArray[np.int64]


def read_texts(texts: Sequence[str], tokenizer: Any, length: int) -> list[ReadText]:
    """Tokenise texts to at most ``length`` tokens each, special tokens included, with a fast tokenizer."""
    read = tokenizer(list(texts), truncation=True, max_length=length, return_offsets_mapping=True)
    return [_with_words(*one) for one in zip(texts, read["input_ids"], read["offset_mapping"], strict=True)]


def _with_words(text: str, ids: list[int], offsets: list[tuple[int, int]]) -> ReadText:
    first: dict[int, int] = {}  # the index of the first character of a token -> the token
    for place, (start, stop) in enumerate(offsets):
        if stop > start:  # no special token
            first.setdefault(start, place)
    found = [(text[begin:end], first[begin]) for begin, end in word_spans(text) if begin in first]
    return ReadText(ids, [word for word, _ in found], np.array([place for _, place in found], np.int64))


def query_term_recall(
    words: Sequence[str], queries: Sequence[Collection[str]], analyser: Analyser
) -> NDArray[np.float32]:
    """Return the target of each word: QTR(t, d) = |Q_{d,t}| / |Q_d|.

    Args:
        words: w words of the passage d.
        queries: the passage's queries Q_d, at least one; each is the set of its terms.
        analyser: turns a word into the terms by which it is compared.

    Returns:
        float32 (w,), the share of the queries that have a term of the word.
    """
    terms = [analyser.terms(word) for word in words]
    having = [sum(any(term in query for term in own) for query in queries) for own in terms]
    return np.array(having, np.float32) / np.float32(len(queries))


def term_frequencies(weights: NDArray[np.floating], scale: int) -> NDArray[np.int16]:
    """Return weights (...) as term frequencies: tf = round(``scale`` * weight), 0 for a negative weight."""
    return np.clip(np.round(scale * weights), 0, np.iinfo(np.int16).max).astype(np.int16)


def weighted_text(words: Sequence[str], frequencies: NDArray[np.integer]) -> str:
    """Return a text in which each of the words (w,) occurs as often as its frequency (w,) says.

    Words that differ only in case count as one word, with their largest frequency. The returned text contains the form that
    occurs first, not the lower-case form, because lower case depends on the language (I becomes ı in Turkish).
    """
    largest: dict[str, int] = {}
    for word, frequency in zip(map(str.lower, words), frequencies.tolist(), strict=True):
        largest[word] = max(largest.get(word, 0), frequency)
    forms = {word.lower(): word for word in reversed(words)}
    return " ".join(forms[word] for word, frequency in largest.items() for _ in range(frequency))
