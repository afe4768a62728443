"""The words of a text, as BM25 counts them. Imports nothing but the standard library, so that a dry run stays fast."""

import re
from collections.abc import Callable

from condensery.errors import UserError, shown

WORD = re.compile(r"\w+")
LUCENE_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the
their then there these they this to was will with
"""
STOPWORDS = {
    "none": frozenset[str](),
    "english": frozenset((*LUCENE_STOP_WORDS.split(), "s", "t")),  # s, t: what WORD leaves of "it's" and "don't"
}


def check_stopwords(name: str) -> str:
    """``name`` itself. Raises ``ValueError`` where there is no such list of stop words."""
    if name not in STOPWORDS:
        raise ValueError(f"{shown(name)!r} does not exist, choose from {', '.join(STOPWORDS)}")
    return name


def check_stemmer(name: str) -> str:
    """``name`` itself. Raises ``ValueError`` where there is no such stemmer, or its package is missing."""
    if name == "none":
        return name
    try:
        import Stemmer
    except ImportError:
        raise ValueError(f"{shown(name)!r} needs the package PyStemmer: pip install PyStemmer") from None
    if name not in Stemmer.algorithms():
        raise ValueError(f"{shown(name)!r} does not exist, choose from none, {', '.join(Stemmer.algorithms())}")
    return name


class Analyser:
    """Text to terms: lower case, words, without stop words, stemmed where a stemmer is named.

    Args:
        stopwords: none or english.
        stemmer: none, or an algorithm of Snowball (porter is Lucene's), for which the package PyStemmer is needed.

    Raises:
        UserError: a name that does not exist.
    """

    def __init__(self, stopwords: str = "english", stemmer: str = "none") -> None:
        for what, check, name in (("stopwords", check_stopwords, stopwords), ("stemmer", check_stemmer, stemmer)):
            try:
                check(name)
            except ValueError as error:
                raise UserError(f"BM25: {what}: {error}") from None
        self.stopwords = STOPWORDS[stopwords]
        self.stem: Callable[[list[str]], list[str]] | None = None
        if stemmer != "none":
            import Stemmer

            self.stem = Stemmer.Stemmer(stemmer).stemWords

    def terms(self, text: str) -> list[str]:
        """The terms of a text in order."""
        words = [word for word in WORD.findall(text.lower()) if word not in self.stopwords]
        return self.stem(words) if self.stem else words
