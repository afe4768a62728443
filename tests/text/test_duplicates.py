"""Near-duplicates and quoted sentences."""

import numpy as np
import pytest

from condensery.text.duplicates import contained, first_of_each, sketches


def text_of(*numbers: int) -> str:
    return " ".join(f"word{number}" for number in numbers)


def test_a_copy_with_a_few_other_words_is_a_near_duplicate_of_the_first() -> None:
    base = list(range(100))
    texts = [text_of(*base), text_of(*base[:95], 1, 2, 3), text_of(*range(200, 300)), text_of(*base).upper() + "!"]
    assert first_of_each(sketches(texts), 0.7) == [True, False, True, False]


def test_a_text_that_shares_half_is_kept() -> None:
    assert first_of_each(sketches([text_of(*range(100)), text_of(*range(50, 150))]), 0.7) == [True, True]


def test_texts_shorter_than_a_shingle_are_compared_too() -> None:
    assert first_of_each(sketches(["one two", "one two", "three"]), 0.7) == [True, False, True]


@pytest.mark.parametrize(
    ("sentence", "inside"),
    [
        ("Open the file.", True),
        ("open, THE file", True),
        ("the file now", False),
        ("then open the file if it exists", True),
        ("a b", False),
        ("", False),
    ],
)
def test_a_quoted_sentence_is_found_whatever_its_case_and_punctuation(sentence: str, inside: bool) -> None:
    assert contained([sentence], ["nothing here", "And then: open (the file) if it exists"]) == [inside]


def test_the_search_agrees_with_a_plain_search() -> None:
    draw = np.random.default_rng(1)
    texts = [" ".join(draw.choice(list("abc"), 30)) for _ in range(40)]
    sentences = [" ".join(draw.choice(list("abc"), 6)) for _ in range(200)]
    assert contained(sentences, texts) == [any(f" {one} " in f" {text} " for text in texts) for one in sentences]
