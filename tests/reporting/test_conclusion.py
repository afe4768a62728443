"""What a table shows, in words: which rows are compared, by which test, and where nothing is said."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from condensery.evaluation.metrics import Evaluation
from condensery.evaluation.significance import Interval, compare, holm
from condensery.reporting import conclusion as module
from condensery.reporting.conclusion import conclusion, lines_of
from condensery.reporting.results import Row
from condensery.reporting.table import Comparison, Significance, build_table
from condensery.reporting.table_formats import csv_text, markdown, show
from condensery.retrieval.indexes.interface import UNMATCHED

SOME = Interval(0.0, 0.2, 0.05)

QUERIES = 1_200
KINDS = {"BM25": "bm25", "sparse": "bm25", "fused": "fuse", "reranked": "rerank", "near": "ann_index"}


def row(name: str, mean: float, seed: int | None = 1, noise: float = 0.2, **changes: Any) -> Row:
    """A row whose mean is exactly ``mean``; what is called alike is hard for the same queries."""
    random = np.random.default_rng([len(name), *map(ord, name), seed or 0])
    values = random.normal(0, noise, QUERIES)
    values += mean - values.mean()
    fields: dict[str, Any] = {
        "collection": "c",
        "split": "test",
        "metrics": {"MRR@10": float(values.mean()), "R@9": 0.5},
        "per_query": {"MRR@10": values},
        "query_ids": [f"q{i}" for i in range(QUERIES)],
        "seed": seed,
        "artifact": f"evaluate/{name}-{seed}",
    }
    return Row(name, **{**fields, **changes})


def kinds(rows: list[Row]) -> dict[str, str]:
    return {one.artifact: KINDS.get(one.name, "encode") for one in rows}


def said(*rows: Row, tested: Sequence[Comparison] = (), **how: Any) -> str:
    return conclusion(lines_of(rows, kinds(list(rows)), Significance(**how), tested))


def test_the_best_row_is_held_against_bm25_and_the_best_dense_one_is_told() -> None:
    rows = [row("BM25", 0.353), row("fused", 0.389), row("dense", 0.265), row("weak", 0.1), row("reranked", 0.3)]
    assert said(*rows, baseline="weak") == (
        "fused is ahead of BM25: MRR@10 38.9 against 35.3 (p < 0.01). The best dense row is dense, 26.5: 0.75 of BM25."
    )
    assert said(rows[0], rows[1]) == "fused is ahead of BM25: MRR@10 38.9 against 35.3 (p < 0.01)."


def test_where_bm25_is_the_best_it_is_held_against_the_next() -> None:
    rows = [row("dense", 0.064), row("BM25", 0.352), row("weak", 0.02)]
    assert said(*rows) == "BM25 is ahead of the next, dense: MRR@10 35.2 against 6.4 (p < 0.01)."
    assert said(*rows, row("reranked", 0.2)) == (
        "BM25 is ahead of the next, reranked: MRR@10 35.2 against 20.0 (p < 0.01)."
        " The best dense row is dense, 6.4: 0.18 of BM25."
    )


def test_a_dense_row_that_is_ahead_is_told_once() -> None:
    assert said(row("BM25", 0.3), row("near", 0.4)) == "near is ahead of BM25: MRR@10 40.0 against 30.0 (p < 0.01)."


def test_without_bm25_the_tables_baseline_is_the_other_and_without_one_the_first_row() -> None:
    rows = [row("first", 0.2), row("base", 0.1), row("best", 0.4)]
    assert said(*rows, baseline="base") == "best is ahead of base: MRR@10 40.0 against 10.0 (p < 0.01)."
    assert said(*rows) == "best is ahead of first: MRR@10 40.0 against 20.0 (p < 0.01)."
    assert said(*rows, baseline="best") == "best is ahead of the next, first: MRR@10 40.0 against 20.0 (p < 0.01)."
    lost = Row("lost", "c", "test", {}, failed="it broke")
    assert said(lost, *rows[:1], rows[2], baseline="lost") == said(rows[0], rows[2])


def test_a_bm25_that_failed_is_not_compared_with() -> None:
    lost = replace(row("BM25", 0.3), metrics={}, per_query={}, query_ids=(), failed="it broke")
    assert said(lost, row("a", 0.1), row("b", 0.4)) == "b is ahead of a: MRR@10 40.0 against 10.0 (p < 0.01)."
    assert said(lost, row("b", 0.4)) == "", "one row is left"


def test_what_may_be_luck_is_not_called_ahead() -> None:
    rows = [row("BM25", 0.300), row("dense", 0.306)]
    p = compare(*(Evaluation(list(one.query_ids), one.per_query) for one in rows[::-1]), "MRR@10")[1]
    assert p > 0.1
    assert said(*rows) == (
        "dense has the highest MRR@10, 30.6 against 30.0 of BM25: 1,200 queries show no significant difference"
        f" (p = {p:.2g})."
    )
    even = [row("BM25", 0.3), row("dense", 0.3, per_query=row("BM25", 0.3).per_query)]
    assert said(*even) == "dense is level with BM25: both have MRR@10 30.0."
    one = {"per_query": {"MRR@10": np.array([1.0])}, "query_ids": ["q"], "metrics": {"MRR@10": 1.0}}
    none = {"per_query": {"MRR@10": np.array([0.5])}, "query_ids": ["q"], "metrics": {"MRR@10": 0.5}}
    told = said(row("BM25", 1, **none), row("dense", 1, **one))
    assert (
        "1 query shows no significant difference (p = 1). With so few queries, a choice based on them is mostly chance."
        in told
    )
    assert said(row("BM25", 1, **one), row("dense", 1, **one)) == (
        "dense is level with BM25: both have MRR@10 100.0. With so few queries, a choice based on them is mostly chance."
    )


def test_the_level_is_that_of_the_table() -> None:
    rows = [row("BM25", 0.300), row("dense", 0.320)]
    assert "(p < 0.05)" in said(*rows, level=0.05)
    assert "no significant difference" in said(*rows, level=0.0001)


def test_the_best_of_many_is_corrected_for_having_been_chosen() -> None:
    rows = [row("BM25", 0.3), *(row(f"dense{i}", 0.3 + 0.001 * i) for i in range(20))]
    found = [Evaluation(list(one.query_ids), one.per_query) for one in rows]
    ps = [compare(one, found[0], "MRR@10")[1] for one in found[1:]]
    assert said(*rows).endswith(f"(p = {holm(ps)[-1]:.2g}).")
    assert holm(ps)[-1] > ps[-1]


def test_the_p_value_is_the_tables_where_it_made_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row("BM25", 0.3), row("a", 0.32), row("b", 0.1)]
    table = build_table(rows, significance=Significance("BM25"))
    known = next(one.p for one in table.comparisons if one.name == "a")
    monkeypatch.setattr(module, "compare", lambda *_: pytest.fail("tested again"))
    assert said(*rows, baseline="BM25", tested=table.comparisons, level=1e-9).endswith(f"(p = {known:.2g}).")
    other = [Comparison("a", "R@9", 0.1, 0.5, SOME, "a"), Comparison("b", "MRR@10", 0.1, 0.5, SOME, "a")]
    monkeypatch.undo()
    assert "p = 0.5" not in said(*rows, baseline="BM25", tested=other, level=1e-9)
    assert "p = 0.5" not in said(*rows, baseline="a", tested=[Comparison("a", "MRR@10", 0, 0.5, SOME, "a")], level=1e-9)


def test_seeds_of_a_row_are_one_system() -> None:
    rows = [row("BM25", 0.3), row("dense", 0.38, 1), row("dense", 0.42, 2)]
    assert said(*rows) == "dense is ahead of BM25: MRR@10 40.0 against 30.0 (p < 0.01)."
    assert said(*rows[1:]) == "", "one system"


def test_in_a_sweep_the_baseline_is_that_of_the_same_settings() -> None:
    rows = [
        row(f"steps={steps} · {system}", mean, system=system)
        for steps, system, mean in ((1, "MLM", 0.1), (1, "x", 0.15), (2, "MLM", 0.2), (2, "x", 0.5))
    ]
    assert said(*rows, baseline="MLM").startswith("steps=2 · x is ahead of steps=2 · MLM: MRR@10 50.0 against 20.0")


def test_of_several_bm25_rows_the_best_is_the_one_to_beat() -> None:
    assert said(row("BM25", 0.2), row("sparse", 0.3), row("dense", 0.5)).startswith("dense is ahead of sparse: ")


@pytest.mark.parametrize(
    "other",
    [
        {"collection": "d"},
        {"split": "dev"},
        {"per_query": {}},
        {"per_query": {"R@9": np.zeros(QUERIES)}},
        {"query_ids": [f"x{i}" for i in range(QUERIES)]},
    ],
    ids=["collection", "split", "no values", "other metric", "queries"],
)
def test_nothing_is_said_of_rows_that_cannot_be_compared(other: dict[str, Any]) -> None:
    assert said(row("BM25", 0.3), row("dense", 0.4, **other)) == ""


def test_nothing_is_said_of_one_row_or_none_or_of_what_was_not_retrieved() -> None:
    assert said() == ""
    assert said(row("BM25", 0.3)) == ""
    assert conclusion(lines_of([row("a", 0.3), row("b", 0.4)], {}, Significance())) == "", "a sentence task"


def test_a_share_of_nothing_is_not_told() -> None:
    nothing = {"per_query": {"MRR@10": np.zeros(QUERIES)}, "metrics": {"MRR@10": 0.0}}
    rows = [row("BM25", 0, **nothing), row("fused", 0.4), row("dense", 0.2)]
    assert said(*rows) == "fused is ahead of BM25: MRR@10 40.0 against 0.0 (p < 0.01)."


def test_it_stands_in_markdown_on_the_terminal_and_not_among_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row("BM25", 0.3), row("dense_1 | *", 0.4)]
    table = replace(build_table(rows), conclusion=said(*rows))
    assert "\n\ndense_1 | \\* is ahead of BM25: MRR@10 40.0 against 30.0 (p < 0.01).\n\n" in markdown(table)
    show(table)
    assert "\ndense_1 | * is ahead of BM25: MRR@10 40.0 against 30.0 (p < 0.01).\n" in capsys.readouterr().out
    assert "ahead" not in csv_text(table)


def test_nothing_is_ahead_of_a_bm25_that_shares_no_term_with_most_queries() -> None:
    blind = {"warnings": [f"34 of 36 queries {UNMATCHED}, so BM25 finds nothing for them"]}
    rows = [row("BM25", 0.0, **blind), row("dense", 0.5), row("weak", 0.1)]
    assert said(*rows) == (
        "dense is ahead of the next, weak: MRR@10 50.0 against 10.0 (p < 0.01)."
        " BM25 is compared with no row, because most queries share no term with any passage."
    ) or said(*rows).endswith("BM25 is compared with no row, because most queries share no term with any passage.")
    assert "ahead of BM25" not in said(*rows)
    assert said(*rows[:2]) == "BM25 is compared with no row, because most queries share no term with any passage."
    two = [row("BM25", 0.3), row("sparse", 0.01, **blind), row("dense", 0.5)]
    assert said(*two).startswith("dense is ahead of BM25: MRR@10 50.0 against 30.0 (p < 0.01).")
    assert said(*two).endswith(" sparse is compared with no row, because most queries share no term with any passage.")
    other = [row("BM25", 0.3), row("dense", 0.5, **blind)]
    assert said(*other) == "dense is ahead of BM25: MRR@10 50.0 against 30.0 (p < 0.01).", "that of a stage before it"
