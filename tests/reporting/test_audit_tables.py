"""The tables of an audit say what was measured, what was published, and what is not known."""

import numpy as np
import pytest

from condensery.evaluation.pair_audit.votes import judged
from condensery.reporting.pair_audit import tables
from condensery.reporting.table_formats import markdown

VOTES = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], bool)
PROXY = {"pairs": 2000, "rank_1": 0.125, "rank_10": 0.5, "rank_100": 0.75, "median_rank": 10.5}
SHEETS = ["sheet-1.csv", "sheet-2.csv", "sheet-3.csv"]


def rows(markdown: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in markdown.splitlines() if line[:3] == "| p"
    ]


def test_the_share_of_high_pairs_stands_beside_the_published_one() -> None:
    kinds = {"passage-passage": {"judged": judged(VOTES)}, "passage-query": {"judged": judged(VOTES | True)}}
    (table,) = tables({"kinds": kinds, "passages": 10, "sheets": SHEETS})
    assert rows(markdown(table)) == [
        ["passage-passage", "50.0 [15.0, 85.0]", "4", "0.333", "*35.5*"],
        ["passage-query", "100.0 [51.0, 100.0]", "4", "–", "*56.6*"],
    ]
    assert "majority of 3 annotators" in markdown(table)
    assert "not measured here" in markdown(table)


def test_before_any_judgement_there_are_dashes_and_what_to_do() -> None:
    kinds = {"passage-passage": {"proxy": PROXY}, "passage-query": {"proxy": {**PROXY, "median_rank": None}}}
    by_annotators, by_bm25 = tables({"kinds": kinds, "passages": 12345, "sheets": SHEETS})
    assert rows(markdown(by_annotators))[0] == ["passage-passage", "–", "–", "–", "*35.5*"]
    assert "copy sheet-1.csv, sheet-2.csv, sheet-3.csv to" in markdown(by_annotators)
    assert rows(markdown(by_bm25)) == [
        ["passage-passage", "12.5", "50.0", "75.0", "10.5", "2,000"],
        ["passage-query", "12.5", "50.0", "75.0", "–", "2,000"],
    ]
    assert "among 12,345 passages" in markdown(by_bm25)


def test_kappa_that_is_not_defined_is_no_number() -> None:
    assert judged(VOTES & False)["kappa"] is None
    assert judged(VOTES)["kappa"] == pytest.approx(1 / 3)
