"""The rules by which each language forms terms: which letters count as the same, and which letters form bigrams.

Every entry of ``LANGUAGES`` except ``words`` splits scripts without spaces into character bigrams (``text.words.terms``),
even within texts of other scripts. Except in Hebrew and Thai, letters are replaced as by these filters of Lucene:
ArabicNormalizationFilter, PersianCharFilter, PersianNormalizationFilter, RomanianNormalizationFilter,
TurkishLowerCaseFilter and SerbianNormalizationRegularFilter. Of HindiNormalizationFilter, only the replacements of the
nukta and the chandrabindu are used.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from condensery.errors import close_to, shown
from condensery.text import words

AUTO, ANY, WORDS = "auto", "any", "words"  # guessed; no particular language; words only, without character bigrams
SAMPLE, CHARACTERS = 1_000, 2_000  # number of passages that a guess reads, and of characters of each
SHARE = 0.1  # a script with at least this share of the letters decides the language
DOTLESS = 0.01  # lowest share of the dotless i in a Turkish text; Turkish has 5 in 100, most languages none

_ARABIC_LETTERS = "\u0620-\u065f\u066e-\u06ff\u0750-\u077f\u0870-\u08ff\ufb50-\ufdff\ufe70-\ufefe"
_HEBREW_LETTERS = "\u0590-\u05ff\ufb1d-\ufb4f"


@dataclass(frozen=True)
class Language:
    """The rules by which a text is turned into terms.

    Attributes:
        paired: letters that form bigrams, written as the inside of a regex character class; empty for no bigrams.
        before: (string, replacement) pairs that are applied before lower-casing.
        letters: code point of a letter or combining mark -> replacement in a term; None = the letter is removed.
        says: description of the effect on terms, for the user.
    """

    paired: str = words.UNSPACED
    before: Sequence[tuple[str, str]] = ()
    letters: Mapping[int, str | None] = field(default_factory=dict)
    says: str = "pairs of them are terms, and words in other letters stay whole"

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text in order."""
        for one, other in self.before:
            text = text.replace(one, other)
        found = words.terms(text, self.paired)
        return [term.translate(self.letters) for term in found] if self.letters and not text.isascii() else found

    def is_half_a_pair(self, term: str) -> bool:
        """Return whether a term is a single character of a script that forms bigrams."""
        return bool(self.paired) and words.runs_of(self.paired).match(term) is not None and words.is_one_character(term)


def _letters(points: Sequence[int], *alike: str) -> dict[int, str | None]:
    """Map the ``points`` to None, and each letter of a group to the first letter of the group."""
    return dict.fromkeys(points) | {ord(letter): group[0] for group in alike for letter in group}


# code points of vowel points, which are removed from terms
_POINTS = (*range(0x0610, 0x061B), *range(0x064B, 0x0660), 0x0670, *range(0x06D6, 0x06DD), *range(0x06DF, 0x06E5))
_POINTS += (0x06E7, 0x06E8, *range(0x06EA, 0x06EE), *range(0x08D3, 0x08E2), *range(0x08E3, 0x0900))
_HEBREW_POINTS = (*range(0x0591, 0x05BE), 0x05BF, 0x05C1, 0x05C2, 0x05C4, 0x05C5, 0x05C7)

_TURKISH = Language(
    before=(("I\u0307", "i"), ("\u0130", "i"), ("I", "\u0131")),
    says="the lower case of I is \u0131, that of \u0130 is i",
)
_FORMS = "vowel points and the different forms of alef, yeh, kaf and heh are ignored"
_ARABIC = Language(letters=_letters(_POINTS, "اآأإٱ", "يىیے", "كک", "هةۀہۂۃە"), says=_FORMS)
# each group begins with the letter that the Persian stemmer expects
_PERSIAN = Language(letters=_letters(_POINTS, "اآأإٱ", "یيىے", "کك", "هةۀہۂۃە"), says=_FORMS)
_CYRILLIC, _LATIN = "абвгдђежзијклмнопрстћуфхцчш", "abvgdđežzijklmnoprstćufhcčš"
_SERBIAN = dict(zip(map(ord, _CYRILLIC), _LATIN, strict=True)) | {ord("љ"): "lj", ord("њ"): "nj", ord("џ"): "dž"}
_PAIRED = Language()

LANGUAGES = {
    ANY: _PAIRED,
    WORDS: Language(paired=""),
    **dict.fromkeys(("chinese", "japanese", "khmer", "burmese"), _PAIRED),
    # the vowel ae, which some people type as e twice, and the vowel am, whose circle some type before the tone
    "thai": Language(before=(("\u0e40\u0e40", "\u0e41"), *((f"\u0e4d{tone}\u0e32", f"{tone}\u0e33") for tone in "่้๊๋"))),
    "lao": Language(before=tuple((f"\u0ecd{tone}\u0eb2", f"{tone}\u0eb3") for tone in "່້໊໋")),
    "korean": Language(paired=words.UNSPACED + words.HANGUL),
    **dict.fromkeys(("turkish", "azerbaijani"), _TURKISH),
    "arabic": _ARABIC,
    "persian": replace(_PERSIAN, before=(("\u200c", " "),)),  # the non-joiner separates an ending from its word
    "urdu": _PERSIAN,
    "hebrew": Language(letters=_letters(_HEBREW_POINTS), says="vowel points are ignored"),
    "hindi": Language(letters=_letters((0x093C,), "ंँ", "नऩ", "रऱ", "ळऴ")),  # without nuktas
    "romanian": Language(letters=_letters((), "șş", "țţ")),
    "serbian": Language(letters=_SERBIAN),
}

_SCRIPTS = {  # language -> its letters; on equal counts the first language wins
    "chinese": words.HAN,
    "japanese": words.KANA,
    "korean": words.HANGUL,
    "thai": words.THAI,
    "lao": words.LAO,
    "khmer": words.KHMER,
    "burmese": words.BURMESE,
    "arabic": _ARABIC_LETTERS,
    "hebrew": _HEBREW_LETTERS,
}


def check_language(name: str) -> str:
    """Return ``name``. Raises ``ValueError`` if it is neither a key of ``LANGUAGES`` nor ``auto``."""
    if name not in LANGUAGES and name != AUTO:
        known = [AUTO, *LANGUAGES]
        near = close_to(name, known)
        listed = f"{near};" if near.startswith(" (did") else ","
        raise ValueError(
            f"{shown(name)!r} does not exist{listed} choose from {', '.join(known)}; {ANY} is for languages with spaces"
            " between words, and the key stemmer sets their stemmer"
        )
    return name


def check_code(code: str) -> str:
    """Return ``code``. Raises ``ValueError`` if it does not have the form of a language code."""
    if not re.fullmatch("[a-z]{2,3}(-[a-z]+)*", code):
        raise ValueError(f"{shown(code)!r} is not a language code, such as de for German")
    return code


def guess(texts: Sequence[str]) -> str:
    """Guess the language from the letters of a sample of the texts.

    The most frequent script decides the language if it has at least a tenth of the letters. The result is ``arabic`` for
    every language in Arabic letters, and ``turkish`` for every language with a dotless i.

    Returns:
        A key of ``LANGUAGES``; ``any`` if the language has no special rules.
    """
    sample = (texts[at][:CHARACTERS] for at in range(0, len(texts), max(1, len(texts) // SAMPLE)))
    letters = "".join("".join(filter(str.isalpha, text)) for text in sample)
    counts = {name: sum(map(len, words.runs_of(own).findall(letters))) for name, own in _SCRIPTS.items()}
    if counts["japanese"] >= SHARE * (counts["chinese"] + counts["japanese"]):  # Chinese has no kana
        counts["japanese"] += counts.pop("chinese")
    best = max(counts, key=lambda name: counts[name])
    if counts[best] and counts[best] >= SHARE * len(letters):
        return best
    dotless = letters.count("\u0131")
    return "turkish" if dotless and dotless >= DOTLESS * len(letters) else ANY
