"""Split a text into words, for all code that counts or compares words, and decide whether a text is blank.

A word is a run of letters, combining marks, digits and ``_``. Typographic variants give the same words: composed and
decomposed accents, fullwidth and plain letters, ligatures, and digits of any script. Invisible characters such as soft
hyphens, joiners and direction marks are ignored. The words of an ASCII text are ``re.findall(r"\\w+", text.lower())``.

Combining marks stay with their letters, as in Unicode's rules of word boundaries (UAX 29, WB4). Three rules differ from
UAX 29. A word ends at an apostrophe or a full stop between letters, even at an apostrophe that Unicode counts as a letter.
``_`` is a word character. Symbols and emoji are not part of words.
"""

import re
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from unicodedata import category, decimal, decomposition, normalize

import regex

# Scripts that are written without spaces between words.
THAI, LAO, KHMER = "\u0e00-\u0e7f", "\u0e80-\u0eff", "\u1780-\u17ff\u19e0-\u19ff"
BURMESE = "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f"
TAI_AND_JAVANESE = "\u1950-\u19df\u1a20-\u1aaf\uaa80-\uaadf\u1b00-\u1b7f\ua980-\ua9df"  # Balinese, too
KANA = "\u3031-\u3035\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001b16f"
HAN = "\u2e80-\u2fd5\u3005-\u3007\u3021-\u3029\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
BOPOMOFO_AND_TANGUT = "\u3100-\u312f\u31a0-\u31bf\U00016fe0-\U00018dff\U0001b170-\U0001b2ff"  # Khitan and Nushu, too
# (letters of scripts without spaces, mean number of letters per word in running text, without combining marks)
LETTERS = [(THAI + LAO, 3.0), (BURMESE + KHMER + TAI_AND_JAVANESE, 2.4), (KANA, 2.0), (HAN + BOPOMOFO_AND_TANGUT, 1.6)]
UNSPACED = "".join(letters for letters, _ in LETTERS)
MARKED = (
    "\u0f0b\u0f0c\u1361"  # marks in place of spaces: between syllables of Tibetan, and between words of old Ethiopic
)
HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff\uffa0-\uffdc"

_WORD, _SPAN = re.compile(r"\w+"), re.compile("\\w[\\w\u00ad]*")
# annotation characters, and the characters that Unicode calls default ignorable except the zero width space
_INVISIBLE = regex.compile(r"(?!\u200b)[\p{Default_Ignorable_Code_Point}\ufff9-\ufffb]")
# Any character except white space, control characters, the empty Braille pattern, and the characters that Unicode calls
# default ignorable (zero-width spaces and joiners, soft hyphens, fillers, selectors).
_SEEN = regex.compile(r"[^\s\p{Cc}\p{Default_Ignorable_Code_Point}\u2800]")
_MARKS, _CHARACTER = regex.compile(r"\A\p{M}+"), regex.compile(r"\P{M}\p{M}*")  # a letter with its combining marks
_CLUSTER = regex.compile(r"\X")  # what a reader takes for one character (UAX 29), such as an emoji with its skin tone
_BREAK = "\u200b"  # the zero width space, which may separate words of scripts without spaces
# characters that do not count within a word: Arabic's stretching tatweel; Armenian's emphasis, exclamation, question marks
_DROPPED = "\u0640\u055b\u055c\u055e"
# letters that most people type as ' or ", and the Korean letter that is typed as a middle dot
_APOSTROPHES = "\u02b9\u02ba\u02bb\u02bc\u02bd\u02be\u02bf\u02ee\ua78b\ua78c\u318d"
# Malayalam and Bengali letters that older texts write as a consonant, a virama and a joiner
_JOINED = dict(zip("\u0d23\u0d28\u0d30\u0d32\u0d33\u0d15\u09a4", "ൺൻർൽൾൿৎ", strict=True))
_MEANT = ("<super", "<fraction")  # forms that carry meaning: 10² must not become 102, and ½ must not become 1 and 2
_WIDTHS = ("<wide", "<narrow", "<small", "<square", "<vertical")


@cache  # patterns are compiled on first use, not at import
def runs_of(letters: str) -> "re.Pattern[str]":
    """Return the pattern that matches runs of ``letters``, written as the inside of a regex character class."""
    return re.compile(f"([{letters}]+)")


class _Characters(dict[int, str]):
    """Maps the code point of a character to the form of the character within words.

    A letter becomes its plain form, an invisible character the empty string, and any other character a space.
    """

    def __missing__(self, code: int) -> str:
        self[code] = plain = self._plain(chr(code))
        return plain

    def _plain(self, character: str) -> str:
        kind, form = category(character), decomposition(character).partition(">")[0]
        if kind == "Me" or character in _DROPPED or _INVISIBLE.match(character):
            return ""
        if kind == "Nd":
            return str(decimal(character))
        # a file made from a PDF may have radicals in place of ideographs
        is_letter = character.isalnum() or kind[0] == "M" or character == "_" or "\u2e80" <= character <= "\u2fd5"
        is_letter = is_letter and character not in _APOSTROPHES
        plain = normalize("NFKC", character)
        if plain != character and form not in _MEANT and (is_letter or form in _WIDTHS):
            return "".join(self[ord(one)] for one in plain)
        return character if is_letter else " "


_CHARACTERS = _Characters()


def words(text: str) -> list[str]:
    """Return the lower-case words of a text, in order. In scripts without spaces a word is a run between punctuation."""
    return _WORD.findall(text.lower()) if text.isascii() else _words(_folded(text))


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the range of characters (begin, end) of each word of a text, in order. A run of letters is one word."""
    kinds = {"": "\u00ad", " ": " "}  # form within words -> sign in ``shape``; all other forms become x
    shape = text if text.isascii() else "".join(kinds.get(_CHARACTERS[ord(one)], "x") for one in text)
    return [match.span() for match in _SPAN.finditer(shape)]


def terms(text: str, paired: str = UNSPACED) -> list[str]:
    """Return the terms of a text, in order: words, or overlapping character bigrams in scripts without spaces.

    Lucene's CJKAnalyzer does the same for Chinese and Japanese. A character here is a letter with its marks. A single
    character without a neighbour is itself a term.

    Args:
        text: any text.
        paired: letters that form bigrams, written as the inside of a regex character class; empty for no bigrams.
    """
    if text.isascii():
        return _WORD.findall(text.lower())
    runs = runs_of(paired) if paired else None
    folded = _folded(_without_breaks(text, paired) if runs and _BREAK in text else text)
    if runs is None or not runs.search(folded):
        return _words(folded)
    found: list[str] = []
    for word in _words(folded):
        for at, part in enumerate(runs.split(word)):  # odd parts are runs of paired letters
            found += _pairs(part) if at % 2 else _words(part)
    return found


def unspaced(text: str) -> bool:
    """Return whether a text contains a letter of a script without spaces between words."""
    return not text.isascii() and runs_of(UNSPACED).search(text) is not None


def number_of_words(text: str) -> int:
    """Return the number of words of a text, split at white space; an estimate for scripts without spaces between words.

    Each syllable of Tibetan counts as a word.
    """
    pieces = _spaced(text).split()
    return _counted(pieces) if unspaced(text) else len(pieces)


def number_of_plain_words(text: str) -> int:
    """Return the number of words of a text without punctuation: "it's" counts as two words, a dash as none."""
    found = words(text)
    return _counted(found) if unspaced(text) else len(found)


def first_words(text: str, number: int) -> str:
    """Return the first ``number`` words of a text, joined by single spaces."""
    pieces = _spaced(text).split()
    if not unspaced(text):
        return " ".join(pieces[:number])
    kept, left = list[str](), float(number)
    for piece in pieces:
        size = _size(piece)
        if size >= left:
            kept.append(piece[: between_letters(piece, max(1, round(len(piece) * left / size)))])
            break
        kept.append(piece)
        left -= size
    return " ".join(kept)


def is_blank(text: str) -> bool:
    """Return whether ``text`` contains no visible character."""
    return _SEEN.search(text) is None


def between_letters(text: str, at: int) -> int:
    """Return ``at``, moved left until a cut there separates no letter from its combining marks, but not below 1.

    The parts of a Korean syllable, of a conjunct, of an emoji or of a flag are not separated either.
    """
    while 1 < at < len(text) and _is_within(text, at):
        at -= 1
    return at


def _is_within(text: str, at: int) -> bool:
    is_joined = category(text[at])[0] == "M" or "\u200d" in text[at - 1 : at + 1]
    return is_joined or len(_CLUSTER.findall(text[max(0, at - 4) : at + 1])[-1]) > 1  # 4: a conjunct with its marks


def is_one_character(term: str) -> bool:
    """Return whether a term is a single letter, with or without combining marks."""
    return len(_characters(term)) == 1


def _folded(text: str) -> str:
    """Return the text in plain, composed, lower-case letters, with a space for every character outside words."""
    if "\u200d" in text:
        text = re.sub(f"([{''.join(_JOINED)}])[\u0d4d\u09cd]\u200d", lambda found: _JOINED[found[1]], text)
    small = text.translate(_CHARACTERS).casefold()
    return normalize("NFC", small.replace("i\u0307", "i"))  # casefold of the dotted capital I gives "i" and a dot


def _words(folded: str) -> list[str]:
    """Split a result of ``_folded`` at spaces into words. Combining marks at the beginning of a word are removed."""
    return [word for piece in folded.split() if (word := piece if piece[0].isalnum() else _MARKS.sub("", piece))]


def _characters(run: str) -> list[str]:
    """Return the letters of a run, each with its combining marks."""
    return list(run) if run.isalnum() else _CHARACTER.findall(run)


def _without_breaks(text: str, paired: str) -> str:
    """Remove zero width spaces between letters that form bigrams. Such spaces are rare, and no reader sees them."""
    return re.sub(f"(?<=[{paired}]){_BREAK}+(?=[{paired}])", "", text)


def _pairs(run: str) -> list[str]:
    characters = _characters(run)
    return [one + other for one, other in pairwise(characters)] if len(characters) > 1 else characters


def _spaced(text: str) -> str:
    for mark in MARKED if not text.isascii() else "":
        text = text.replace(mark, " ")
    return text


def _size(piece: str) -> float:
    """Return the estimated number of words of a piece without spaces."""
    parts = runs_of(UNSPACED).split(piece)
    if len(parts) == 1:
        return 1.0
    letters = "".join(one for run in parts[1::2] for one in run if one.isalnum())
    estimate = sum(sum(map(len, runs_of(kind).findall(letters))) / length for kind, length in LETTERS)
    return estimate + sum(len(_WORD.findall(part)) for part in parts[::2])


def _counted(pieces: Iterable[str]) -> int:
    return max(1, round(sum(map(_size, pieces))))
