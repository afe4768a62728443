"""Words of error messages."""

import pytest

from condensery.errors import number_of


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        (1, "dev queries", "1 dev query"),
        (1, "stages are", "1 stage is"),
        (1, "passages have no query", "1 passage has no query"),
        (1, "of 9 queries share no term", "1 of 9 queries shares no term"),
        (1, "passages were", "1 passage was"),
        (1, "candidates do not", "1 candidate does not"),
        (1, "are a single sentence", "1 is a single sentence"),
        (0, "queries have", "0 queries have"),
        (2_000, "files", "2,000 files"),
    ],
)
def test_what_is_counted_once_is_in_the_singular(number: int, words: str, text: str) -> None:
    assert number_of(number, words) == text
