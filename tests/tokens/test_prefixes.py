"""A prefix in front of stored tokens gives what the tokenizer makes of both texts together."""

from pathlib import Path

import numpy as np
import pytest
from error_lines import names

from condensery.errors import UserError
from condensery.tokens.batches import text_rows
from condensery.tokens.prefixes import NO_PREFIXES, Prefixes
from condensery.tokens.store import tokenise
from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece
from condensery.tokens.vocabulary import Vocabulary

TEXTS = ["What is it?", "(the end)", "", "two  spaces, and a long text that is cut", "Über alles", "'s"]
TITLES = ["A title", "", "Another", "", "x", "'s"]
QUERY, PASSAGE = "query: ", "Represent this passage (it is short):"


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wordpiece")
    train_wordpiece([*TEXTS, *TITLES, QUERY, PASSAGE], 200, folder)
    return folder


@pytest.mark.parametrize("length", [14, 40, 100])
@pytest.mark.parametrize("prefix", [QUERY, PASSAGE, "query"])
def test_rows_with_a_prefix_are_what_the_tokenizer_makes_of_prefix_and_text(
    prefix: str, length: int, wordpiece: Path, tmp_path: Path
) -> None:
    read, rows = load_tokenizer(wordpiece), range(len(TEXTS))
    words = Vocabulary.of(read)
    if prefix == "query":
        with pytest.raises(UserError) as raised:  # "queryWhat" is one word
            Prefixes.of(wordpiece, prefix, "", (length, length))
        names(str(raised.value), "query_prefix", "'query'", "first word")
        return
    long = 4 * length if prefix == PASSAGE else length
    ids = Prefixes.of(wordpiece, prefix, "", (long, 100)).query
    stores = [
        tokenise(texts, wordpiece, tmp_path / name, sentences=False) for name, texts in (("a", TEXTS), ("b", TITLES))
    ]
    flat, starts = text_rows(stores[0], rows, words, long, prefix=ids)
    wanted = read([prefix + text for text in TEXTS], truncation=True, max_length=long)["input_ids"]
    assert [part.tolist() for part in np.split(flat, starts[1:-1])] == wanted
    flat, starts = text_rows(stores[0], rows, words, long, stores[1], prefix=ids)
    titled = [f"{title} [SEP] {text}" if title else text for title, text in zip(TITLES, TEXTS, strict=True)]
    wanted = read([prefix + text for text in titled], truncation=True, max_length=long)["input_ids"]
    assert [part.tolist() for part in np.split(flat, starts[1:-1])] == wanted


def test_a_prefix_that_fills_the_input_is_one_line_and_none_needs_no_tokenizer(wordpiece: Path) -> None:
    assert Prefixes.of(None, "", "", (8, 8)).query.size == NO_PREFIXES.query.size == 0
    with pytest.raises(UserError) as raised:
        Prefixes.of(wordpiece, "", PASSAGE, (100, 8))
    names(str(raised.value), "passage_prefix", "raise passage_length", "8")
    with pytest.raises(UserError, match="give `tokenizer`"):
        Prefixes.of(None, QUERY, "", (8, 8))
