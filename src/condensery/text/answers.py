"""Decide whether a text contains an answer, by the rules of open-domain question answering (Karpukhin et al. 2020, DPR).

Answer and text are normalised to NFD and split into tokens. A token is a run of letters, combining marks and digits, or
any other single character except separators and control characters. Case is ignored. A text contains an answer if it
contains the answer's tokens as one consecutive run. An answer that is a regular expression (CuratedTREC) must match
anywhere in the text.
"""

import unicodedata
from collections.abc import Iterable
from functools import lru_cache

import regex

TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
FLAGS = regex.IGNORECASE | regex.UNICODE | regex.MULTILINE
REMEMBERED = 1 << 16  # number of texts whose tokens are cached
GAP = " "  # a separator, so no token contains it


def answer_tokens(text: str) -> list[str]:
    """Return the tokens of a text, in lower case."""
    return [token.lower() for token in TOKEN.findall(unicodedata.normalize("NFD", text))]


class AnswerMatcher:
    """Decides which texts contain any of the given answers.

    Two cases follow DPR: an answer without tokens (white space) matches every text, and an invalid regular expression
    matches no text. While a collection is read, blank answers are dropped, and invalid expressions cause a warning.

    Args:
        answers: the answers of one question.
        regex_answers: whether the answers are regular expressions.
    """

    def __init__(self, answers: Iterable[str], regex_answers: bool = False) -> None:
        self._patterns = [_compiled(answer) for answer in answers] if regex_answers else None
        self._sequences = [] if regex_answers else [_sequence(answer) for answer in answers]

    def __call__(self, text: str) -> bool:
        """Return whether ``text`` contains an answer."""
        if self._patterns is not None:
            normal = unicodedata.normalize("NFD", text)
            return any(pattern is not None and pattern.search(normal) for pattern in self._patterns)
        if not self._sequences:
            return False
        tokens = _sequence(text)
        return any(sequence == GAP or sequence in tokens for sequence in self._sequences)


def is_pattern(answer: str) -> bool:
    """Return whether an answer is a valid regular expression. After NFD, three of CuratedTREC's answers are invalid."""
    return _compiled(answer) is not None


@lru_cache(maxsize=REMEMBERED)  # neighbouring questions retrieve the same passages
def _sequence(text: str) -> str:
    """Join the tokens, with gaps before, between and after them, so that a substring match is a run of whole tokens."""
    return GAP + "".join(token + GAP for token in answer_tokens(text))


def _compiled(answer: str) -> "regex.Pattern[str] | None":
    try:
        return regex.compile(unicodedata.normalize("NFD", answer), FLAGS)
    except (regex.error, RecursionError):  # RecursionError: thousands of brackets
        return None
