"""Published beside measured rows: never mixed up, each with its source, in every format."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from table_data import data

from condensery.errors import UserError
from condensery.reporting.comparison import comparison
from condensery.reporting.results import Row
from condensery.reporting.table import Cell, Table, mark_best
from condensery.reporting.table_formats import csv_text, escape, latex, markdown, records
from condensery.reporting.table_layout import TableLayout

COLUMNS = {
    "MRR": {"published": "msmarco dev/MRR@10", "metric": "MRR@10"},
    "R@1K": {"published": "msmarco dev/Recall@1000", "metric": "Recall@1000"},
}
PUBLISHED = {
    "lexical": {"BM25": ["C/6/BM25", "C/5/BM25", "CO/1/BM25"], "DeepCT": ["C/6/DeepCT", "CO/1/DeepCT"]},
    "dense": {"RocketQA*": "C/6/RocketQA*", "ANCE": ["C/6/ANCE", "CO/1/ANCE"], "Condenser": "CO/1/Condenser"},
}
IDS = [f"q{i}" for i in range(60)]


def layout(**changes: Any) -> TableLayout:
    given = {"title": None, "columns": COLUMNS, "published": PUBLISHED, "within": 0, "test": "t", "level": 0.01}
    return TableLayout.model_validate({**given, **changes})


def measured(name: str, level: float, seed: int = 1, ids: Sequence[str] = IDS, **changes: Any) -> Row:
    values = np.random.default_rng(seed).normal(level, 0.05, len(ids))
    fields: dict[str, Any] = {
        "collection": "pydocs",
        "split": "test",
        "metrics": {"MRR@10": float(values.mean())},
        "per_query": {"MRR@10": values},
        "query_ids": ids,
        "seed": seed,
    }
    return Row(name, **{**fields, **changes})


def lines(table: Table) -> list[list[str]]:
    return [
        [row["name"], *(cell["text"] for cell in row["cells"])]
        for block in data(table)["blocks"]
        for row in block["rows"]
    ]


def test_numbers_on_which_papers_disagree_stand_together_each_with_its_source() -> None:
    table = comparison(layout(), [], "test")
    assert lines(table) == [
        ["BM25", "18.9 [C t6] / 18.4 [C t5] / 18.7 [CO]", "85.3 [C t6, C t5] / 85.7 [CO]"],
        ["DeepCT", "24.3", "90.9"],
        ["RocketQA*", "36.4", "–"],
        ["ANCE", "33.0", "95.9"],
        ["Condenser", "36.6", "97.4"],
    ]
    papers = ["C t6, C t5, CO t1", "C t6, CO t1", "C t6", "C t6, CO t1", "CO t1"]
    assert table.sources == [f"published, {source}" for source in papers]


def test_the_best_of_each_class_is_bold_and_measured_ones_are_a_class_of_their_own() -> None:
    rows = [measured("Condenser", 0.99), measured("MLM", 0.5)]
    table = comparison(layout(), rows, "test", title="study")
    assert [(block.heading, block.size, block.published) for block in table.blocks] == [
        ("published: lexical", 2, True),
        ("published: dense", 3, True),
        ("measured here: pydocs (test)", 2, False),
    ]
    assert [cells[0].best for cells in table.cells] == [False, True, False, False, True, True, False]
    text = markdown(table)
    assert "| *published: dense* " in text
    assert "***36.6***" in text, "published: in italics"
    assert "| *RocketQA\\** " in text
    assert f"**{table.cells[-2][0].text}**" in text
    assert f"*{table.cells[-1][0].text}*" not in text, "measured: upright"
    assert "| measured, 1 seed" in text
    assert all(cell.published == (i < 5) for i, cells in enumerate(table.cells) for cell in cells if cell.number)


def test_within_widens_what_counts_as_best_among_published_numbers_alone() -> None:
    given = {"a": {f"{value}": {"source": "s", "values": {"MRR": value}} for value in (30.0, 30.1, 29.9)}}
    rows = [measured("x", 0.3), measured("y", 0.301)]
    table = comparison(layout(published=given, within=0.1), rows, "test")
    assert [cells[0].best for cells in table.cells] == [
        True,
        True,
        False,
        *(cells[0].best for cells in table.cells[3:]),
    ]
    assert sum(cells[0].best for cells in table.cells[3:]) == 1
    assert "within 0.1 of it" in table.notes[0]


def test_the_best_may_be_the_lowest_or_of_no_interest() -> None:
    cells = [[Cell("1", number=1), Cell("1", number=1), Cell("1", number=1)], [Cell("2", number=2) for _ in range(3)]]
    mark_best(cells, ["highest", "lowest", "none"])
    assert [[cell.best for cell in line] for line in cells] == [[False, True, False], [True, False, False]]


def test_measured_lines_show_spread_seeds_and_significance() -> None:
    rows = [measured("MLM", 0.3, 1), measured("MLM", 0.3, 2), measured("Condenser", 0.5, 1), measured("x", 0.3, 3)]
    table = comparison(layout(), rows, "test", baseline="MLM")
    assert table.sources[-3:] == ["measured, 2 seeds", "measured, 1 seed", "measured, 1 seed"]
    assert "±" in table.cells[-3][0].text
    assert [cells[0].marked for cells in table.cells[-3:]] == [False, True, False]
    assert [(one.name, one.column) for one in table.comparisons] == [("Condenser", "MRR"), ("x", "MRR")]
    assert "± is the standard deviation over 2 seeds." in table.notes
    assert any("differs from MLM: paired t-test" in note for note in table.notes)


def test_a_baseline_that_was_not_measured_is_said() -> None:
    table = comparison(layout(), [measured("Condenser", 0.5)], "test", baseline="MLM")
    assert table.comparisons == []
    assert "No † is shown, because no measured row is called 'MLM'." in table.notes


def test_each_collection_is_a_block_and_splits_are_kept_apart() -> None:
    columns = {**COLUMNS, "DL19": {"metric": "MRR@10", "split": "dl19"}}
    rows = [
        measured("a", 0.3),
        measured("a", 0.4, split="dl19"),
        measured("a", 0.5, collection="squad"),
        measured("b", 0.1, split="dev"),
        measured("b", 0.7, metrics={"Hit@5": 0.7}),
    ]
    table = comparison(layout(columns=columns), rows, "test", baseline="a")
    assert [block.heading for block in table.blocks[2:]] == [
        "measured here: pydocs (test, dl19)",
        "measured here: squad (test)",
    ]
    assert [[cell.text != "–" for cell in cells] for cells in table.cells[5:]] == [
        [True, False, True],
        [True, False, False],
    ]
    assert "Measured, but with no number for these columns: b." in table.notes


def test_a_sweep_fills_the_columns_that_name_its_settings() -> None:
    def swept(name: str, level: float, *sizes: str, seed: int = 1) -> Row:
        label = f"train_queries={sizes[0]} · {name}" if len(sizes) == 1 else name
        settings = {"stage.finetune.train_queries": list(sizes)}
        return measured(label, level, seed, system=name, settings=settings)

    columns = {
        str(size): {"metric": "MRR@10", "where": {"stage.finetune.train_queries": size}} for size in (1000, 10000, None)
    }
    rows = [
        swept("BM25", 0.8, "1000", "null"),
        *(swept("MLM", 0.1, "1000", seed=seed) for seed in (1, 2)),
        swept("MLM", 0.4, "null"),
        swept("MLM", 0.2, "4000"),
        measured("of one run", 0.9),
    ]
    table = comparison(layout(columns=columns, published={}), rows, "test", baseline="BM25")
    names = [line[0] for line in lines(table)]
    assert names == ["BM25", "MLM"]
    assert [[cell.text != "–" for cell in cells] for cells in table.cells] == [[True, False, True], [True, False, True]]
    assert "±" in table.cells[1][0].text
    assert len(table.comparisons) == 2
    assert "of one run" in table.notes[-2]


def test_several_collections_fill_the_columns_that_name_them_and_their_average() -> None:
    names = ["scifact", "nfcorpus", "average"]
    columns = {name: {"metric": "MRR@10", "collection": name} for name in names}
    rows = [measured("a", 0.2, collection="scifact"), measured("a", 0.4, collection="nfcorpus")]
    table = comparison(layout(columns=columns, published={}), rows, "test")
    assert [block.heading for block in table.blocks] == ["measured here (test)"]
    assert [round(float(cell.text)) for cell in table.cells[0]] == [20, 40, 30]


def test_an_average_is_of_all_collections_that_the_columns_name_and_of_no_others() -> None:
    names = ["scifact", "nfcorpus", "cqadupstack", "average"]
    columns = {name: {"metric": "MRR@10", "collection": name} for name in names}
    levels = {"scifact": 0.1, "nfcorpus": 0.2, "cqadupstack/tex": 0.5, "cqadupstack/unix": 0.7, "elsewhere": 0.9}
    rows = [measured(name, level, collection=of) for name in ("a", "b") for of, level in levels.items()]
    rows = [row for row in rows if (row.name, row.collection) != ("b", "nfcorpus")]
    table = comparison(layout(columns=columns, published={}), rows, "test")
    numbers = {name: [cell.text for cell in cells] for name, cells in zip(table.names, table.cells, strict=True)}
    assert [round(float(text)) for text in numbers["a"]] == [10, 20, 60, 30]
    assert numbers["b"][1::2] == ["–", "–"]
    assert "No average of b: 2 of the 3 collections were measured." in table.notes
    assert "cqadupstack: the mean of cqadupstack/tex, cqadupstack/unix." in table.notes
    assert not [note for note in table.notes if note.startswith("No average of a")]
    few = comparison(layout(columns=columns, published={}), rows[:2], "test")
    assert [cell.text == "–" for cell in few.cells[0]] == [False, False, True, True]
    assert "No average of a: 2 of the 3 collections were measured." in few.notes
    one = comparison(layout(columns=columns, published={}), rows[:1], "test")
    assert "No average of a: 1 of the 3 collections was measured." in one.notes


def test_a_run_that_is_no_sweep_fills_the_columns_of_its_own_settings() -> None:
    key = "stage.finetune.train_queries"
    columns = {name: {"metric": "MRR@10", "where": {key: size}} for name, size in {"1K": 1000, "all": None}.items()}
    rows = [
        measured("BERT", 0.2, configs={key: ["null"]}),
        measured("small", 0.3, configs={key: ["1000"]}),
        measured("BM25", 0.4, configs={"stage.bm25.k1": ["0.9"]}),
        measured("gone", 0.5),
    ]
    table = comparison(layout(columns=columns, published={}), rows, "test")
    filled = {name: [cell.text != "–" for cell in cells] for name, cells in zip(table.names, table.cells, strict=True)}
    assert filled == {"BERT": [False, True], "small": [True, False], "BM25": [True, True]}
    assert "Measured, but with no number for these columns: gone." in table.notes


def test_settings_swept_together_fill_the_columns_of_one_and_are_told_elsewhere() -> None:
    def swept(size: str, epochs: str) -> Row:
        settings = {"stage.finetune.train_queries": [size], "stage.finetune.epochs": [epochs]}
        return measured(f"train_queries={size},epochs={epochs} · MLM", 0.3, system="MLM", settings=settings)

    sizes = {"1K": 1000, "all": None}
    columns = {
        name: {"metric": "MRR@10", "where": {"stage.finetune.train_queries": size}} for name, size in sizes.items()
    }
    rows = [swept("1000", "40"), swept("null", "3")]
    table = comparison(layout(columns=columns, published={}), rows, "test")
    assert table.names == ["MLM"]
    assert all(cell.text != "–" for cell in table.cells[0])
    plain = comparison(layout(columns={"M": {"metric": "MRR@10"}}, published={}), rows, "test")
    assert plain.names == ["train_queries=1000,epochs=40 · MLM", "train_queries=null,epochs=3 · MLM"]


def test_rows_with_an_ending_fill_columns_of_their_own_in_the_line_of_the_name_without_it() -> None:
    columns = {
        "round 1": {"metric": "MRR@10"},
        "round 2": {"metric": "MRR@10", "ending": " + hard negatives"},
    }
    rows = [
        measured("n=1 · a", 0.2, system="a"),
        measured("n=1 · a + hard negatives", 0.4, system="a + hard negatives"),
        measured("b + hard negatives", 0.6),
    ]
    table = comparison(layout(columns=columns, published={}), rows, "test", baseline="b + hard negatives")
    numbers = [
        [cell.text if cell.text == "–" else str(round(float(cell.text), -1)) for cell in line] for line in table.cells
    ]
    assert dict(zip(table.names, numbers, strict=True)) == {"n=1 · a": ["20.0", "40.0"], "b": ["–", "60.0"]}
    assert [(one.name, one.column) for one in table.comparisons] == [("n=1 · a", "round 2")]


def test_a_sample_of_candidates_never_fills_a_column_of_all_passages() -> None:
    columns = {"dev": {"metric": "MRR@10", "split": "dev-100"}, "full": {"metric": "MRR@10", "split": "test"}}
    rows = [measured("a", 0.9, split="dev-100"), measured("a", 0.2), measured("b", 0.9, split="test-100")]
    table = comparison(layout(columns=columns, published={}), rows, "test")
    assert table.names == ["a"]
    assert [round(float(cell.text), -1) for cell in table.cells[0]] == [90, 20]
    assert "Measured, but with no number for these columns: b." in table.notes


def test_a_collection_in_parts_fills_its_column_and_counts_once() -> None:
    columns = {name: {"metric": "MRR@10", "collection": name} for name in ("scifact", "cqadupstack", "average")}
    levels = {"scifact": 0.8, "cqadupstack/android": 0.3, "cqadupstack/english": 0.5}
    rows = [measured("a", level, collection=name) for name, level in levels.items()]
    rows.append(measured("b", 0.5, collection="cqadupstack/android"))
    table = comparison(layout(columns=columns, published={}), rows, "test")
    assert table.names == ["a"], "b lacks a part"
    assert [round(float(cell.text), -1) for cell in table.cells[0]] == [80, 40, 60]


def wide() -> Table:
    columns = {f"c{i}": {"published": "msmarco dev/MRR@10", "metric": "MRR@10"} for i in range(11)}
    return comparison(layout(columns=columns), [measured("a_b", 0.3), measured("c", 0.4)], "test", baseline="c")


def test_a_wide_table_is_turned_and_still_says_of_each_column_what_it_is() -> None:
    table = wide()
    assert table.turned
    assert table.header == [f"c{i}" for i in range(11)]
    grid = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in markdown(table).splitlines()[2:7]]
    assert grid[0][-3:] == ["*Condenser*", "a_b", "c"]
    assert grid[2][-3:] == ["published: dense", "measured here: pydocs (test)", "measured here: pydocs (test)"]
    papers = ["C t6, C t5, CO t1", "C t6, CO t1", "C t6", "C t6, CO t1", "CO t1"]
    assert grid[3] == ["source", *(f"published, {one}" for one in papers), "measured, 1 seed", "measured, 1 seed"]
    assert [row[0] for row in grid[4:]] == ["c0"], "the columns are lines"
    assert csv_text(table) == csv_text(replace(table, turned=False)), "CSV is not turned"
    assert r"\multicolumn{3}{c}{\textit{published: dense}}" in latex(table)
    assert r"\cmidrule(lr){4-6}" in latex(table)
    assert "in bold the best of each block" in table.notes[0]


@pytest.mark.parametrize(
    "table", [comparison(layout(), [measured("a, b", 0.3)], "test"), wide()], ids=["upright", "turned"]
)
def test_csv_reads_back_to_the_same_numbers(table: Table) -> None:
    header, *found = csv.reader(io.StringIO(csv_text(table)))
    expected = data(table)
    assert header[:3] == ["block", "row", "source"]
    kept = [at for at, name in enumerate(header) if not name.endswith((" printed", " p"))]
    assert header[kept.pop()] == "how it is measured"
    assert [line[-1] for line in found] == table.origins
    assert [header[at] for at in kept[3:]] == expected["columns"]
    wanted = [
        [block["heading"], row["name"], row["source"], *(cell["number"] for cell in row["cells"])]
        for block in expected["blocks"]
        for row in block["rows"]
    ]
    read = [[line[at] for at in kept] for line in found]
    assert [[*line[:3], *(float(text) if text else None for text in line[3:])] for line in read] == wanted
    assert records(table) == (header, found)


def test_latex_escapes_what_it_takes_for_commands() -> None:
    assert escape("50% & a_b #1 {x} $5 ~ ^ \\ <|> † ±–") == (
        r"50\% \& a\_b \#1 \{x\} \$5 \textasciitilde{} \textasciicircum{} \textbackslash{} "
        r"\textless{}\textbar{}\textgreater{} $^\dagger$ $\pm$--"
    )


def test_latex_is_a_booktabs_table_of_equally_long_lines() -> None:
    rows = [measured("MLM_1", 0.3, 1), measured("MLM_1", 0.3, 2), measured("100% & more", 0.5)]
    text = latex(comparison(layout(title="T_1"), rows, "test", baseline="MLM_1"))
    assert text.count(r"\midrule") == 3
    assert r"\caption{T\_1}" in text
    assert r"\textbf{\textit{36.6}}" in text
    assert r"MLM\_1 & " in text
    assert r"$\pm$" in text
    assert r"$^\dagger$" in text
    assert r"\resizebox" in text, "a wide table is set smaller"
    body = text.partition(r"\toprule")[2].partition(r"\bottomrule")[0].splitlines()
    cells = [line.replace(r"\&", "") for line in body if line.endswith(r"\\") and "multicolumn" not in line]
    assert {line.count("&") for line in cells} == {3}
    assert text.count("{") == text.count("}")


def test_rows_of_ones_own_stand_under_their_source() -> None:
    own = {"mine": {"my run": {"source": "thesis 2024", "values": {"MRR": "33.30"}}, "other": "CO/1/ANCE"}}
    table = comparison(layout(published=own), [], "test")
    assert lines(table) == [["my run", "33.30", "–"], ["other", "33.0", "95.9"]]
    assert table.sources == ["published, thesis 2024", "published, CO t1"]
    assert not table.origins[0], "nobody has said how it is measured"
    assert table.cells[0][0].best


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"published": {"x": {"a": "CO/1/BM52"}}}, "no row 'BM52' (did you mean 'BM25'?)"),
        ({"published": {"x": {"a": ["CO/7/BM25"]}}}, "CO has no table '7'"),
        ({"published": {"x": {"a": []}}}, "at least 1"),
        ({"columns": {"M": {"published": "msmarco dev/MRR@1"}}}, "(did you mean 'msmarco dev/MRR@10'?)"),
        ({"columns": {"M": {"metrik": "MRR@10"}}}, "metrik"),
        ({"columns": {}}, "published rows need columns"),
        (
            {"published": {"x": {"a": {"source": "s", "values": {"MMR": 1}}}}},
            "no column of the table (did you mean 'MRR'?)",
        ),
        ({"published": {"x": {"a": {"values": {"MRR": 1}}}}}, "source"),
        ({"level": 0}, "greater than 0"),
        ({"test": "z"}, "'randomisation' or 't'"),
    ],
)
def test_a_layout_with_a_fault_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        layout(**changes)
    assert said in str(caught.value)


def test_other_queries_of_two_systems_or_of_two_seeds_are_user_errors() -> None:
    fewer = measured("b", 0.3, ids=IDS[:-1])
    with pytest.raises(UserError, match="measured on different queries"):
        comparison(layout(), [measured("a", 0.3), fewer], "test", baseline="a")
    seeds = [measured("a", 0.3, 1), measured("a", 0.3, 2, ids=IDS[:-1]), measured("b", 0.3)]
    with pytest.raises(UserError, match="seeds of 'a' were measured on different queries"):
        comparison(layout(), seeds, "test", baseline="b")
    assert comparison(layout(), seeds, "test").comparisons == [], "without a test it is of no account"


def test_seeds_are_joined_by_query_and_not_by_place() -> None:
    one = measured("a", 0.3, 1)
    order = np.random.default_rng(0).permutation(len(IDS))
    shuffled = {"per_query": {"MRR@10": one.per_query["MRR@10"][order]}, "query_ids": [IDS[i] for i in order]}
    again = measured("a", 0.3, 2, metrics=one.metrics, **shuffled)
    base = measured("base", 0.25, 3)
    (alone,) = comparison(layout(), [one, base], "test", baseline="base").comparisons
    (both,) = comparison(layout(), [one, again, base], "test", baseline="base").comparisons
    assert both.p == pytest.approx(alone.p), "two seeds with the same numbers are as good as one"
    assert both.difference == pytest.approx(alone.difference)
