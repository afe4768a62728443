"""Salience of a sentence: the mean idf of its distinct words."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from condensery.text.words import number_of_plain_words, terms


class Salience:
    """Inverse document frequencies of words: idf(w) = ln(1 + (N - n(w) + 0.5) / (n(w) + 0.5)), as in BM25.

    N is the number of passages, and n(w) is the number of passages that contain w. Words are ``text.words.terms``: in
    scripts without spaces they are character bigrams.

    Args:
        passages: the number of passages, N.
        holding: n(w) for each word w.
    """

    def __init__(self, passages: int, holding: Counter[str]) -> None:
        self.passages, self.holding = passages, holding

    @classmethod
    def of(cls, texts: Iterable[str], advance: Callable[[int], None] = lambda n: None) -> "Salience":
        """Count in how many passages each word occurs. ``advance(1)`` is called after each passage."""
        holding: Counter[str] = Counter()
        number = 0
        for text in texts:
            holding.update(set(terms(text)))
            number += 1
            advance(1)
        return cls(number, holding)

    def of_words(self, words: Sequence[str]) -> float:
        """Return the mean idf of the distinct words; 0 for an empty list."""
        holding = [self.holding[word] for word in set(words)]
        idf = (math.log(1 + (self.passages - n + 0.5) / (n + 0.5)) for n in holding)
        return math.fsum(idf) / len(holding) if holding else 0.0

    def ranked(self, sentences: Sequence[str], minimum_words: int, maximum_words: int) -> list[int]:
        """Rank the sentences that have ``minimum_words`` to ``maximum_words`` words.

        Returns:
            The indices of these sentences, most salient first. Sentences of equal salience keep their order.
        """
        numbers = map(number_of_plain_words, sentences)
        fit = [place for place, number in enumerate(numbers) if minimum_words <= number <= maximum_words]
        return sorted(fit, key=lambda place: -self.of_words(terms(sentences[place])))
