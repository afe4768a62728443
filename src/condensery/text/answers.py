"""Does a text hold an answer? The rules by which open-domain question answering counts hits (Karpukhin et al. 2020, DPR).

Question and text are brought to NFD and cut into tokens: runs of letters, marks and digits, or single characters of any
other kind but separators and control characters. Case does not count. A text holds an answer if the answer's tokens stand
in it one after the other; or, for regular expressions (CuratedTREC), if the expression is found in it anywhere.
"""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache

import regex

TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
FLAGS = regex.IGNORECASE | regex.UNICODE | regex.MULTILINE
REMEMBERED = 1 << 16  # texts whose tokens are kept
GAP = " "  # a separator, hence part of no token


def answer_tokens(text: str) -> list[str]:
    """The tokens of a text, in small letters."""
    return [token.lower() for token in TOKEN.findall(unicodedata.normalize("NFD", text))]


class AnswerMatcher:
    """Tells which texts hold one of some answers.

    As in DPR, an answer without any token (a blank) is in every text, which is why readers leave it out, and a broken
    regular expression in none, of which readers warn.
    """

    def __init__(self, answers: Iterable[str], regex_answers: bool = False) -> None:
        self._patterns = [_compiled(answer) for answer in answers] if regex_answers else None
        self._sequences = [] if regex_answers else [_sequence(answer) for answer in answers]

    def __call__(self, text: str) -> bool:
        """Whether ``text`` holds an answer."""
        if self._patterns is not None:
            normal = unicodedata.normalize("NFD", text)
            return any(pattern is not None and pattern.search(normal) for pattern in self._patterns)
        if not self._sequences:
            return False
        tokens = _sequence(text)
        return any(sequence == GAP or sequence in tokens for sequence in self._sequences)


def is_pattern(answer: str) -> bool:
    """Whether an answer is a regular expression. (Three of CuratedTREC's are none, once brought to NFD.)"""
    return _compiled(answer) is not None


@lru_cache(maxsize=REMEMBERED)  # neighbouring questions find the same passages
def _sequence(text: str) -> str:
    """The tokens with a gap before, between and behind them, so that a part of the string is a run of whole tokens."""
    return GAP + "".join(token + GAP for token in answer_tokens(text))


def _compiled(answer: str) -> "regex.Pattern[str] | None":
    try:
        return regex.compile(unicodedata.normalize("NFD", answer), FLAGS)
    except (regex.error, RecursionError):  # the latter: thousands of brackets
        return None
