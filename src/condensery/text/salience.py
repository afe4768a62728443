"""How much a sentence says: the mean idf of its distinct words."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

WORD = re.compile(r"\w+")


class Salience:
    """Inverse document frequencies of words: idf(w) = ln(1 + (N - n(w) + 0.5) / (n(w) + 0.5)), as in BM25.

    N is the number of passages, n(w) the number of those that hold w (lower case).
    """

    def __init__(self, passages: int, holding: Counter[str]) -> None:
        self.passages, self.holding = passages, holding

    @classmethod
    def of(cls, texts: Iterable[str], advance: Callable[[int], None] = lambda n: None) -> "Salience":
        """Count the words of all passages; ``advance`` hears of each."""
        holding: Counter[str] = Counter()
        number = 0
        for text in texts:
            holding.update(set(WORD.findall(text.lower())))
            number += 1
            advance(1)
        return cls(number, holding)

    def of_words(self, words: Sequence[str]) -> float:
        """The mean idf of the distinct words, 0 where there are none."""
        distinct = set(words)
        return math.fsum(self._idf(word) for word in distinct) / len(distinct) if distinct else 0.0

    def ranked(self, sentences: Sequence[str], minimum_words: int, maximum_words: int) -> list[int]:
        """The places of the sentences that have so many words, most salient first, equal ones in their order."""
        words = [WORD.findall(sentence.lower()) for sentence in sentences]
        fit = [
            place for place, sentence_words in enumerate(words) if minimum_words <= len(sentence_words) <= maximum_words
        ]
        return sorted(fit, key=lambda place: -self.of_words(words[place]))

    def _idf(self, word: str) -> float:
        holding = self.holding[word]
        return math.log(1 + (self.passages - holding + 0.5) / (holding + 0.5))
