"""Tells whether a text holds an answer, by the rules of open-domain question answering (Karpukhin et al. 2020, DPR).

Answer and text are brought to NFD and cut into tokens: runs of letters, marks and digits, or single characters of any
other kind except separators and control characters. Case does not count. A text holds an answer if it holds the answer's
tokens one after the other. For regular expressions (CuratedTREC) it does if the expression is found anywhere in it.
"""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache

import regex

TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
FLAGS = regex.IGNORECASE | regex.UNICODE | regex.MULTILINE
REMEMBERED = 1 << 16  # texts whose tokens are kept
GAP = " "  # a separator, so it is part of no token


def answer_tokens(text: str) -> list[str]:
    """The tokens of a text, in small letters."""
    return [token.lower() for token in TOKEN.findall(unicodedata.normalize("NFD", text))]


class AnswerMatcher:
    """Tells which texts hold one of the given answers.

    As in DPR, an answer without any token (a blank) is in every text, and a broken regular expression is in no text.
    Readers leave out the former and warn of the latter.

    Args:
        answers: the answers of one question.
        regex_answers: whether the answers are regular expressions.
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
    """Whether an answer is a valid regular expression. (Three of CuratedTREC's answers are not, once brought to NFD.)"""
    return _compiled(answer) is not None


@lru_cache(maxsize=REMEMBERED)  # neighbouring questions find the same passages
def _sequence(text: str) -> str:
    """The tokens joined with gaps before, between and behind them, so that a substring match is a run of whole tokens."""
    return GAP + "".join(token + GAP for token in answer_tokens(text))


def _compiled(answer: str) -> "regex.Pattern[str] | None":
    try:
        return regex.compile(unicodedata.normalize("NFD", answer), FLAGS)
    except (regex.error, RecursionError):  # RecursionError: thousands of brackets
        return None
