"""Ranks come to shares and a median, and a passage that is never found counts as far away."""

from pathlib import Path

import numpy as np
import pytest

from condensery.evaluation.pair_audit.bm25_ranks import NOT_FOUND, index_passages, ranks, summary
from condensery.evaluation.pair_audit.pairs import Pair
from condensery.retrieval.indexes.bm25 import BM25Index
from condensery.text.table import TableWriter, TextTable


def test_shares_and_median_of_ranks() -> None:
    found = summary(np.array([1, 1, 2, 10, 11, 100, 101, NOT_FOUND]))
    assert found == {"pairs": 8, "rank_1": 2 / 8, "rank_10": 4 / 8, "rank_100": 6 / 8, "median_rank": 10.5}


def test_the_median_is_unknown_where_half_of_the_passages_are_not_found() -> None:
    assert summary(np.array([1, 1, NOT_FOUND, NOT_FOUND]))["median_rank"] is None
    assert summary(np.array([1, 7, NOT_FOUND]))["median_rank"] == 7


@pytest.mark.parametrize(
    ("texts", "context"),
    [
        (["蜜蜂用跳舞告诉同伴花在哪里。", "铁在潮湿的空气里会生锈。"], "空气里的铁" + "水" * 400),
        (["벌은 춤을 춘다", "쇠는 공기에서 녹슨다"], "공기"),
        (["Bees dance.", "Iron rusts in air."], "rusts in air " + "bees " * 400),
    ],
    ids=["chinese", "korean", "english"],
)
def test_the_first_words_of_a_context_find_its_passage_in_any_script(
    texts: list[str], context: str, tmp_path: Path
) -> None:
    with TableWriter(tmp_path / "passages.arrow", ("id", "text")) as table:
        for number, text in enumerate(texts):
            table.add((f"p{number}", text), len(text))
    index_passages(TextTable(tmp_path / "passages.arrow"), tmp_path / "index", 0.9, 0.4, "english", "porter")
    pair = Pair("kind", 1, -1, "p1", "", texts[1], context)
    assert ranks([pair], BM25Index(tmp_path / "index"), 3).tolist() == [1]
