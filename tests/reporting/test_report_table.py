"""The table: order, marks, dashes and notes; results.json beside it."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from condensery.errors import UserError
from condensery.reporting.results import Row, read_results, write_results
from condensery.reporting.table import Significance, build_table
from condensery.reporting.table_formats import markdown, show
from condensery.system.files import read_json, write_json

QUERIES = 400


def row(name: str, level: float, seed: int | None = 0, **changes: object) -> Row:
    values = np.clip(np.random.default_rng(7).random(QUERIES) * 0.5 + level, 0, 1)  # same queries are hard for all
    values = np.clip(values + 0.05 * np.random.default_rng((seed or 0) + 1).normal(size=QUERIES), 0, 1)
    fields: dict[str, object] = {
        "name": name,
        "collection": "pydocs",
        "split": "test",
        "metrics": {"MRR@10": float(values.mean()), "Recall@100": level},
        "per_query": {"MRR@10": values},
        "query_ids": [f"q{i}" for i in range(QUERIES)],
        "seed": seed,
        "artifact": f"{name}-{seed}",
    }
    return Row(**{**fields, **changes})  # type: ignore[arg-type]


def test_markdown_shows_percent_best_dash_and_significance() -> None:
    rows = [
        row("MLM", 0.10),
        row("BM25", 0.40, metrics={"MRR@10": 0.38249}),
        row("coCondenser", 0.20, metrics={"MRR@10": 0.175, "Recall@100": 0.566}),
        row("MLM | again", 0.10, seed=5, metrics={"MRR@10": 0.1, "Recall@100": 0.566}),
    ]
    table = build_table(rows, ["MRR@10", "Recall@100", "NDCG@10"], Significance("MLM"), title="quickstart")
    lines = markdown(table).splitlines()
    assert lines[0] == f"## quickstart · pydocs, test ({QUERIES} queries)"
    cells = [[cell.strip() for cell in line.replace("\\|", "/").split("|")[1:-1]] for line in lines[2:8]]
    mlm = f"{100 * rows[0].metrics['MRR@10']:.1f}"
    assert cells == [
        ["", "MRR@10", "Recall@100", "NDCG@10"],
        ["-" * len(cells[1][0]), *(("-" * (len(one) - 1) + ":") for one in cells[1][1:])],
        ["MLM", mlm, "10.0", "–"],
        ["BM25", "**38.2**†", "–", "–"],
        ["coCondenser", "17.5†", "**56.6**", "–"],
        ["MLM / again", "10.0", "**56.6**", "–"],
    ]
    text = markdown(table)
    assert "† differs from MLM: paired randomisation test" in text
    assert "Holm-corrected over the 3 tests" in text
    assert "over the 1 test of" in markdown(build_table(rows[:2], ["MRR@10"], Significance("MLM"), title="x"))
    assert [(one.name, one.p < 0.01) for one in table.comparisons] == [
        ("BM25", True), ("coCondenser", True), ("MLM | again", False),
    ]  # fmt: skip
    differences = [one for one in lines if one.startswith("| BM25") and "+30" in one]
    assert len(differences) == 1
    cells = [cell.strip() for cell in differences[0].strip("|").split("|")]
    assert cells == ["BM25", "MRR@10", "+30.0", "+30.0 to +30.0", "0.0003", "0.0001"], "the same of every query"


def test_every_line_of_the_markdown_grid_is_equally_wide() -> None:
    lines = markdown(build_table([row("a", 0.1), row("a long name", 0.2)], significance=Significance("a"))).splitlines()
    grids = "\n".join(lines).split("\n\n")
    for grid in (grid.splitlines() for grid in grids if grid.startswith("|")):
        assert len({len(line) for line in grid}) == 1


def test_rows_stand_in_the_order_of_the_recipe_and_seeds_are_one_row() -> None:
    rows = [row("z", 0.2, seed=1), row("a", 0.1, seed=1), row("z", 0.3, seed=2), row("a", 0.15, seed=2)]
    table = build_table(rows, ["Recall@100"])
    assert table.names == ["z", "a"]
    assert [cells[0].text for cells in table.cells] == ["25.0 ± 7.1", "12.5 ± 3.5"]
    assert [cells[0].best for cells in table.cells] == [True, False]
    assert any("seeds" in note for note in table.notes)


@pytest.mark.parametrize("costs", [["bytes a passage"], ["bytes a passage", "CPU-seconds of training"]])
def test_only_a_table_with_the_cost_of_training_says_what_that_counts(costs: list[str]) -> None:
    table = build_table([row("a", 0.1, costs=dict.fromkeys(costs, 2.0))], ["Recall@100"], costs=costs)
    (note,) = (note for note in table.notes if note.startswith(f"Not in percent: {', '.join(costs)}."))
    assert ("Training is the sum over all models of a row." in note) == (len(costs) == 2)


def test_several_collections_get_columns_of_their_own() -> None:
    rows = [row("a", 0.1), row("a", 0.2, collection="squad", split="dev"), row("b", 0.3)]
    table = build_table(rows, ["Recall@100"])
    assert table.header == ["pydocs test Recall@100", "squad dev Recall@100"]
    assert [[cell.text for cell in cells] for cells in table.cells] == [["10.0", "20.0"], ["30.0", "–"]]


def test_collections_have_an_average_for_each_seed_and_for_systems_that_were_measured_on_all() -> None:
    measured = [(0.1, 0.3, 1), (0.2, 0.6, 2)]
    rows = [row("a", value, seed=seed) for value, _, seed in measured]
    rows += [row("a", value, collection="squad", seed=seed) for _, value, seed in measured] + [row("b", 0.5)]
    table = build_table(rows, ["Recall@100"])
    assert table.header == ["pydocs test Recall@100", "squad test Recall@100", "average test Recall@100"]
    assert [cell.text for cell in table.cells[0]] == ["15.0 ± 7.1", "45.0 ± 21.2", "30.0 ± 14.1"]
    assert [cell.text for cell in table.cells[1]] == ["50.0", "–", "–"]


def test_parts_of_a_collection_count_as_one_in_the_average() -> None:
    levels = {"cqadupstack/tex": 0.1, "cqadupstack/unix": 0.3, "scifact": 0.6}
    table = build_table([row("a", value, collection=name) for name, value in levels.items()], ["Recall@100"])
    assert [cell.text for cell in table.cells[0]] == ["10.0", "30.0", "60.0", "40.0"]


def test_a_wide_table_has_a_line_for_each_collection() -> None:
    rows = [
        row(name, value, collection=f"set{at}") for at in range(12) for name, value in (("a", 0.1), ("b", 0.1 * at))
    ]
    table = build_table(rows, ["Recall@100"])
    assert table.names == ["a", "b"]
    assert table.header == [*(f"set{at} test Recall@100" for at in range(12)), "average test Recall@100"]
    assert [line[3].text for line in table.cells] == ["10.0", "30.0"]
    assert [line[3].best for line in table.cells] == [False, True]
    assert re.search(r"^\| set3 test Recall@100 +\| +10.0 \| +\*\*30.0\*\* \|$", markdown(table), re.M)
    assert table.notes[0] == "In percent; the best of each line in bold."
    for terminal, note in ((True, table.notes[0]), (False, "In percent.")):
        stream = io.StringIO()
        show(table, Console(file=stream, width=400, force_terminal=terminal, no_color=True))
        assert note in [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in stream.getvalue().splitlines()]
    assert len(build_table(rows, ["MRR@10"], Significance("a")).comparisons) == 12, "an average has no queries"


def test_a_row_without_values_for_each_query_is_not_tested() -> None:
    table = build_table([row("a", 0.1), row("b", 0.4, per_query={})], significance=Significance("a"))
    assert table.comparisons == []
    assert "†" not in markdown(table)


def test_the_terminal_shows_the_same_numbers() -> None:
    stream = io.StringIO()
    table = build_table([row("MLM", 0.1), row("BM25", 0.4)], significance=Significance("MLM"))
    show(table, Console(file=stream, width=100))
    text = stream.getvalue()
    for expected in ("MLM", "BM25", table.cells[0][0].text, table.cells[1][0].text + "†", "differs from MLM"):
        assert expected in text


def test_a_baseline_that_differs_between_the_jobs_of_a_sweep_is_that_of_each_job() -> None:
    def swept(label: str, system: str, level: float) -> Row:
        return row(f"{label} · {system}" if label else system, level, system=system)

    rows = [
        swept("steps=10", "MLM", 0.1),
        swept("steps=10", "Condenser", 0.3),
        swept("steps=20", "MLM", 0.4),
        swept("steps=20", "Condenser", 0.2),
        swept("", "BM25", 0.4),
    ]
    table = build_table(rows, ["MRR@10"], Significance("MLM"))
    assert [(one.name, one.difference > 0) for one in table.comparisons] == [
        ("steps=10 · Condenser", True),
        ("steps=20 · Condenser", False),
    ]
    assert [cells[0].marked for cells in table.cells] == [False, True, False, True, False]
    assert "differs from MLM of the same settings: " in table.notes[-1]
    common = build_table(rows, ["MRR@10"], Significance("BM25"))
    assert len(common.comparisons) == 4
    assert "differs from BM25: " in common.notes[-1]


def test_an_unknown_baseline_no_rows_and_other_queries_are_user_errors() -> None:
    with pytest.raises(UserError, match=r"'BERT'.*MLM"):
        build_table([row("MLM", 0.1)], significance=Significance("BERT"))
    with pytest.raises(UserError, match="no result"):
        build_table([])
    other = row("b", 0.1, query_ids=[f"x{i}" for i in range(QUERIES)])
    with pytest.raises(UserError, match="different queries"):
        build_table([row("a", 0.1), other], significance=Significance("a"))


def test_results_are_the_documented_list_and_read_back(tmp_path: Path) -> None:
    rows = [row("MLM", 0.1), row("BM25", 0.4, seed=None)]
    write_results(tmp_path / "results.json", rows)
    entries = read_json(tmp_path / "results.json")
    assert [list(entry) for entry in entries] == [["row", "collection", "split", "metrics", "seed", "artifact"]] * 2
    assert read_results(tmp_path / "results.json") == rows


def entry(artifact: object) -> dict[str, object]:
    return {"row": "a", "collection": "c", "split": "test", "metrics": {}, "seed": 1, "artifact": artifact}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "array"),
        ([1], "results.json: 0: "),
        ([{"row": "a"}], "results.json: 0: collection: Field required"),
        (
            [{**entry("a/b"), "row": "b"}, {"row": "a", "collection": "c", "split": "test", "metrics": {}}],
            "1: seed: Field",
        ),
        ([entry(3)], "results.json: 0: artifact: Input should be a valid string"),
        (
            [entry("evaluate/aa"), entry("../../x")],
            r"results\.json: entry 1: '\.\./\.\./x' does not name a file or folder in",
        ),
        ([entry("/etc")], r"entry 0: '/etc' does not name a file or folder in artifacts; was it edited by hand\?"),
    ],
)
def test_broken_results_are_user_errors(tmp_path: Path, content: object, message: str) -> None:
    write_json(tmp_path / "results.json", content)
    with pytest.raises(UserError, match=message):
        read_results(tmp_path / "results.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metrics": {"MRR@10": {}}}, "metrics: MRR@10: Input should be a valid number"),
        ({"metrics": {"MRR@10": True}}, "metrics: MRR@10: Input should be a valid number"),
        ({"metrics": {"MRR@10": float("nan")}}, "metrics: MRR@10: Input should be less than or equal to 1000000"),
        ({"settings": {"seed": 1}}, "settings: seed: Input should be a valid array"),
        ({"warnings": [None]}, "warnings: 0: Input should be a valid string"),
    ],
)
def test_results_that_are_no_numbers_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    row = {"row": "a", "collection": "c", "split": "test", "metrics": {"MRR@10": 0.5}, "seed": 1, "artifact": ""}
    path = tmp_path / "results.json"
    path.write_text(json.dumps([row]))
    assert read_results(path)[0].metrics == {"MRR@10": 0.5}
    path.write_text(json.dumps([row | change]))
    with pytest.raises(UserError, match=f"{path}: 0: {said}"):
        read_results(path)
