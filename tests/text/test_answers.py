"""Answers are matched by the rules that DPR publishes: NFD, tokens, no case; a run of whole tokens, or an expression."""

import pytest

from condensery.text.answers import AnswerMatcher, answer_tokens, is_pattern

CAFE, CAFE_NFD = "Caf\u00e9", "Cafe\u0301"

TOKENS = [
    ("It's 5-0, isn't it?", ["it", "'", "s", "5", "-", "0", ",", "isn", "'", "t", "it", "?"]),
    (CAFE, ["cafe\u0301"]),  # a mark belongs to its letter's token
    ("na\u00efve_word", ["nai\u0308ve", "_", "word"]),  # an underscore is no letter
    ("\u2167 \u00bd \u0663", ["\u2177", "\u00bd", "\u0663"]),  # numbers of every kind, in small letters
    ("$5.3m", ["$", "5", ".", "3m"]),
    ("a\u00a0b\u200bc\u2028d", ["a", "b", "c", "d"]),  # separators and control characters end a token
    ("\u540d\u524d\U0001f600!", ["\u540d\u524d", "\U0001f600", "!"]),
    ("STRASSE Stra\u00dfe \u0130", ["strasse", "stra\u00dfe", "i\u0307"]),
    (" \t\n", []),
]

# answers, text, whether the text holds one of them
STRINGS = [
    (["Linda Davis"], "a duet with linda davis, 1993", True),
    (["Linda Davis"], "Linda K. Davis", False),  # one after the other, nothing between
    (["Davis Linda"], "Linda Davis", False),
    (["art"], "the party started", False),  # not inside a word
    (["art"], "state-of-the-art", True),  # a hyphen is a token of its own
    (["14"], "in 1492", False),
    (["14"], "14.92", True),
    (["1492"], "14,92", False),
    ([CAFE], f"the {CAFE_NFD} Central", True),  # both are brought to NFD
    ([CAFE_NFD], f"the {CAFE.upper()} Central", True),
    (["Cafe"], f"the {CAFE}", False),  # marks are not taken away
    (["\ufb01sh"], "fish", False),  # NFD, not NFKD: ligatures stay
    (["St. John's"], "at St. John's gate", True),
    (["St. John's"], "at St John's gate", False),  # punctuation counts
    (["St. John's"], "at ST . JOHN ' S gate", True),  # white space does not
    (["581 ( second edition )"], "581 (second edition) pages", True),
    (["U.S."], "the U.S. army", True),
    (["US"], "the U.S. army", False),
    (["rock'n'roll"], "Rock 'n' Roll", True),
    (["C++"], "C is not C+", False),
    (["wrong", "right"], "the right one", True),  # any answer will do
    (["at the end"], "it stands at the end", True),
    (["it"], "it stands at the start", True),
    (["longer than the text"], "longer than", False),
    (["\u6771\u4eac"], "\u6771\u4eac\u90fd", False),  # letters without spaces are one token
    ([], "anything", False),
    ([""], "anything", True),  # DPR: no token is a run of tokens in any text
    ([" \u200b"], "", True),
    (["a"], "", False),
]

EXPRESSIONS = [
    (["Jan(uary)? 1[5-7]"], "on JAN 16, 1991", True),
    (["Jan(uary)? 1[5-7]"], "on Jan 18", False),
    (["^second"], "first\nsecond", True),  # lines
    (["art"], "the party", True),  # anywhere
    ([CAFE], f"the {CAFE_NFD}s", True),
    (["a.c", "x"], "abc", True),
    (["("], "(", False),  # DPR: a broken expression is in no text
    ([""], "anything", True),
    ([], "anything", False),
]


@pytest.mark.parametrize(("text", "tokens"), TOKENS)
def test_tokens_are_runs_of_letters_marks_and_numbers_or_single_characters(text: str, tokens: list[str]) -> None:
    assert answer_tokens(text) == tokens


@pytest.mark.parametrize(("answers", "text", "held"), STRINGS)
def test_a_string_is_matched_by_whole_tokens(answers: list[str], text: str, held: bool) -> None:
    assert AnswerMatcher(answers)(text) is held


@pytest.mark.parametrize(("answers", "text", "held"), EXPRESSIONS)
def test_an_expression_is_searched_anywhere(answers: list[str], text: str, held: bool) -> None:
    assert AnswerMatcher(answers, regex_answers=True)(text) is held


def test_an_expression_is_one_in_the_form_in_which_it_is_searched() -> None:
    assert is_pattern("a.c")
    assert not is_pattern("(")
    assert not is_pattern("Sn\\\u011b")  # of CuratedTREC: NFD makes \e and a caron of it


def test_runs_of_tokens_agree_with_comparing_them_one_by_one() -> None:
    import random

    draw = random.Random(0)
    words = ["a", "ab", "b", "B", "-", "a\u0301", "'", "7"]
    for _ in range(2000):
        text, answer = (
            "".join(draw.choice(words) + draw.choice(["", " "]) for _ in range(draw.randint(0, most)))
            for most in (9, 3)
        )
        inside, sought = answer_tokens(text), answer_tokens(answer)
        places = range(len(inside) - len(sought) + 1)
        expected = any(inside[at : at + len(sought)] == sought for at in places)
        assert AnswerMatcher([answer])(text) is expected, (text, answer)
