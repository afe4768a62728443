"""Rows of a query and a passage: whatever the query takes, a passage has its share."""

from itertools import pairwise
from pathlib import Path

import pytest
import textbook
from trainings import store

from condensery.errors import UserError
from condensery.tokens.pairs import PairReader


@pytest.mark.parametrize("separators", [1, 2])
def test_the_longest_query_leaves_a_passage_its_share(separators: int, tmp_path: Path) -> None:
    queries, passages = store(tmp_path / "asked", [3, 30]), store(tmp_path / "read", [9, 0, 40], seed=1)
    reader = PairReader(queries, passages, None, textbook.vocabulary(), 12, 16, separators)
    flat, starts, second = reader.rows([0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 2, 2])
    rows = [flat[first:last].tolist() for first, last in pairwise(starts.tolist())]
    assert max(map(len, rows)) == 16
    for row, begin, (query, passage) in zip(
        rows, second, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)], strict=True
    ):
        own = queries.text(query)[:10].tolist()
        assert row[: 1 + len(own)] == [textbook.CLS, *own]
        assert row[1 + len(own) : begin] == [textbook.SEP] * separators
        room = 16 - begin - 1
        assert room >= 4 - separators
        assert row[begin:] == [*passages.text(passage)[:room].tolist(), textbook.SEP]


@pytest.mark.parametrize(("query_length", "length"), [(16, 16), (15, 16), (13, 16), (40, 16), (5, 8)])
def test_a_query_that_may_fill_the_row_is_one_line(query_length: int, length: int, tmp_path: Path) -> None:
    texts = store(tmp_path / "texts", [3, 30])
    with pytest.raises(UserError, match=f"query_length={query_length} leaves no room for a passage in length={length}"):
        PairReader(texts, texts, None, textbook.vocabulary(), query_length, length)
