"""Split a text into terms for BM25. The module imports no large library, so that a dry run stays fast."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

from condensery.errors import UserError, shown
from condensery.text.languages import ANY, AUTO, LANGUAGES, check_language, guess

LUCENE_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the
their then there these they this to was will with
"""
STOPWORDS = {
    "none": frozenset[str](),
    "english": frozenset((*LUCENE_STOP_WORDS.split(), "s", "t")),  # s, t: the ends of "it's" and "don't"
}


def check_stopwords(name: str) -> str:
    """Return ``name``. Raises ``ValueError`` if there is no stop word list of this name."""
    if name not in STOPWORDS:
        raise ValueError(f"{shown(name)!r} does not exist, choose from {', '.join(STOPWORDS)}")
    return name


def check_stemmer(name: str) -> str:
    """Return ``name``. Raises ``ValueError`` if there is no stemmer of this name."""
    if name == "none":
        return name
    import Stemmer

    if name not in Stemmer.algorithms():
        raise ValueError(f"{shown(name)!r} does not exist, choose from none, {', '.join(Stemmer.algorithms())}")
    return name


class Analyser:
    """Splits a text into terms: lower-case words (``text.words``), without stop words, optionally stemmed.

    Args:
        stopwords: none or english.
        stemmer: none, or a Snowball algorithm (porter is Lucene's).
        language: one of ``text.languages.LANGUAGES``. ``auto`` means ``any`` here, because there are no passages from which
            the language could be guessed.

    Raises:
        UserError: the stop word list, the stemmer or the language does not exist.
    """

    def __init__(self, stopwords: str = "english", stemmer: str = "none", language: str = AUTO) -> None:
        checks = (
            ("stopwords", check_stopwords, stopwords),
            ("stemmer", check_stemmer, stemmer),
            ("language", check_language, language),
        )
        for what, check, name in checks:
            try:
                check(str(name))
            except ValueError as error:
                raise UserError(f"BM25: {what}: {error}") from None
        language = ANY if language == AUTO else language
        self.settings = {"stopwords": stopwords, "stemmer": stemmer, "language": language}
        self.language = LANGUAGES[language]
        if stemmer == "arabic":  # this stemmer strips the letter teh marbuta, so the letter must stay
            letters = {letter: to for letter, to in self.language.letters.items() if letter != ord("ة")}
            self.language = replace(self.language, letters=letters)
        self.stopwords = STOPWORDS[stopwords]
        self.stem: Callable[[list[str]], list[str]] | None = None
        if stemmer != "none":
            import Stemmer

            self.stem = Stemmer.Stemmer(stemmer).stemWords

    @classmethod
    def of(cls, texts: Sequence[str], stopwords: str, stemmer: str, language: str, who: str, key: str) -> Self:
        """Return the analyser for some passages. ``auto``: the stemmer's language if it has rules, otherwise a guess.

        Args:
            texts: the passages, from which ``text.languages.guess`` guesses the language.
            stopwords, stemmer, language: as in the class.
            who, key: the beginning of the printed line, and the config key of the language. The line is printed if the terms
                of the guessed language are not plain words.
        """
        if language == AUTO and stemmer in LANGUAGES:
            language = stemmer
        elif language == AUTO:
            language = guess(texts)
            if language != ANY:
                found = f"the passages have {language.capitalize()} letters: {LANGUAGES[language].says}"
                print(f"{who} {found}; to use another language, set {key}", flush=True)
        return cls(stopwords, stemmer, language)

    def __reduce__(self) -> tuple[type["Analyser"], tuple[str, ...]]:
        # a stemmer cannot be pickled, but processes that make batches need the analyser
        return Analyser, tuple(self.settings.values())

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text in order."""
        words = [word for word in self.language.terms(text) if word not in self.stopwords]
        return self.stem(words) if self.stem else words
