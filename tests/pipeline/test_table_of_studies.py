"""Tables with published numbers: from nothing, from a sweep, and from what earlier runs left."""

import csv
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy_commands import Command, Compose

from condensery.errors import UserError
from condensery.pipeline.graph import build
from condensery.pipeline.reports import table_of_studies
from condensery.pipeline.run import run
from condensery.reporting.comparison import comparison
from condensery.reporting.published import find
from condensery.reporting.results import Row
from condensery.reporting.table_layout import TableLayout

OWN = {
    "columns": {"MRR": {"published": "msmarco dev/MRR@10", "metric": "MRR@10"}},
    "published": {"dense": {"Condenser": "CO/1/Condenser"}},
}


def read(path: Path) -> list[list[str]]:
    with open(path, encoding="utf-8", newline="") as stream:
        return list(csv.reader(stream))


@pytest.mark.slow
def test_a_users_own_table_stands_alone_is_filled_by_a_sweep_and_written_again_from_what_it_left(
    command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    alone = command("table=own", recipe="")
    assert alone.returncode == 0, alone.stderr
    assert "nothing is measured yet; to measure it, run: python run.py -m experiment=toy table=own" in alone.stdout
    folder = out / "tables" / "own"
    assert alone.stdout.rstrip().endswith(str(folder))
    published = [
        ["block", "row", "source", "MRR@10, 1 step", "MRR@10, 2 steps", "how it is measured"],
        ["published: dense", "Condenser", "published, CO t1", "36.6", "", " or ".join(find("CO/1/Condenser").commands)],
        ["published: dense", "mine", "published, my thesis", "33.3", "", ""],
    ]
    assert read(folder / "table.csv") == published

    swept = command("-m", "table=own", "stages.round2.steps=1,2", "seed=1,2")
    assert swept.returncode == 0, swept.stderr
    assert {path.name for path in (out / "sweeps" / "toy").glob("table.*")} == {"table.md", "table.tex", "table.csv"}
    whole = read(out / "sweeps" / "toy" / "table.csv")
    beside = (" ±", " p")
    lines = [[cell for name, cell in zip(whole[0], line, strict=True) if not name.endswith(beside)] for line in whole]
    assert lines[:3] == published
    assert all(re.fullmatch(r"\d+\.\d+|", cell) for line in whole[1:] for cell in line[3:-1])
    assert all(re.fullmatch(r"seed \d toy_evaluate/[0-9a-f]{16}.*", line[-1]) for line in whole[3:])
    assert [line[:3] for line in lines[3:]] == [
        ["measured here: toys (test)", "BM25", "measured, 1 seed"],
        *(["measured here: toys (test)", name, "measured, 2 seeds"] for name in ("plain", "better", "round2")),
    ]
    assert all("" not in line for line in lines[3:])
    results = {entry["row"]: entry for entry in json.loads((out / "sweeps" / "toy" / "results.json").read_text())}
    assert results["steps=2 · round2"]["system"] == "round2"
    assert results["steps=2 · round2"]["settings"] == {"stages.round2.steps": ["2"]}
    assert results["BM25"]["settings"] == {"stages.round2.steps": ["1", "2"]}
    assert "No score differs from plain: paired randomisation test" in swept.stdout

    again = command("table=own", "table.baseline=plain", "table.studies=[toy,tyo]", recipe="")
    assert again.returncode == 0, again.stderr
    assert (folder / "table.csv").read_text() == (out / "sweeps" / "toy" / "table.csv").read_text()
    assert re.findall("nothing is measured.*", again.stdout) == [f"nothing is measured yet of tyo in {out}"]


def test_rows_of_two_studies_are_one_only_where_they_are_the_same() -> None:
    def row(name: str, artifact: str, seed: int = 1, score: float = 0.5, **more: Any) -> Row:
        return Row(name, "toys", "test", {"MRR@10": score}, seed=seed, artifact=artifact, **more)

    found = table_of_studies.of_studies(
        {
            "first": [row("BM25", "a"), row("BERT", "b"), row("BERT", "c", seed=2), row("x", "d")],
            "second": [
                row("BM25", "e"),  # on another copy of the collection
                row("BERT", "b"),
                row("BERT", "f", seed=3),
                row("x", "g", seed=2),  # made how? no seed says
                row("y · x", "h", score=0.4, system="x"),
            ],
            "third": [replace(row("x", "i", score=0.1), collection="others"), row("y · x", "j", score=0.3, system="x")],
        }
    )
    assert [(one.name, one.artifact, one.system) for one in found] == [
        *[("BM25", "a", ""), ("BERT", "b", ""), ("BERT", "c", ""), ("BERT", "f", ""), ("x", "d", "")],
        *[("second · x", "g", "x"), ("y · x", "h", "x"), ("x", "i", ""), ("third · y · x", "j", "x")],
    ]
    swept = {"settings": {"stage.finetune.steps": ["9"]}, "system": "x"}
    apart = {"first": [row("steps=9 · x", "a", **swept)], "second": [row("x", "b"), row("z", "c")]}
    assert [one.name for one in table_of_studies.of_studies(apart)] == ["steps=9 · x", "second · x", "z"]
    reused = {"first": [row("steps=9 · x", "a", **swept)], "second": [row("x", "a", seed=2), row("z", "c")]}
    assert [one.name for one in table_of_studies.of_studies(reused)] == ["steps=9 · x", "z"]
    hard = "x + hard negatives"  # a small collection may give two systems the same number, but not two of them
    steps = {
        "first": [row("x", "a"), row(hard, "b", score=0.6)],
        "second": [row("x", "c"), row(hard, "d", score=0.7)],
    }
    assert [one.name for one in table_of_studies.of_studies(steps)] == ["x", hard, "second · x", f"second · {hard}"]
    columns = {"MRR": {"metric": "MRR@10", "collection": "toys"}}
    layout = TableLayout(title=None, columns=columns, published={}, within=0, test="t", level=0.01)
    table = comparison(layout, found, "test")
    assert dict(zip(table.names, table.sources, strict=True))["BERT"] == "measured, 3 seeds"
    assert dict(zip(table.names, table.sources, strict=True))["BM25"] == "measured, 1 seed"


def test_of_runs_the_last_is_shown_whatever_the_clock_says_and_only_those_of_the_study(
    composed: Compose, tmp_path: Path
) -> None:
    older, newer = run(composed()).folder, run(composed("seed=2")).folder
    run(composed("name=toy-other"))
    assert older
    assert newer
    os.utime(newer / "results.json", (1, 1))
    rows = table_of_studies.measured(tmp_path / "out", "toy")
    assert {row.seed for row in rows} == {2}
    assert all(len(row.query_ids) for row in rows)
    run(composed())
    os.utime(older / "results.json", (0, 0))
    assert {row.seed for row in table_of_studies.measured(tmp_path / "out", "toy")} == {1}
    assert table_of_studies.measured(tmp_path / "out", "to") == []
    assert {row.seed for row in table_of_studies.measured(tmp_path / "out", newer.name)} == {2}, "a run by its folder"


def test_numbers_must_be_those_of_their_queries_and_stay_where_these_are_gone(
    composed: Compose, tmp_path: Path
) -> None:
    folder = run(composed()).folder
    assert folder
    written = (folder / "results.json").read_text()
    entries = json.loads(written)
    metric = next(iter(entries[2]["metrics"]))
    entries[2]["metrics"][metric] += 0.001
    (folder / "results.json").write_text(json.dumps(entries))
    with pytest.raises(UserError, match=f"better: its {metric} is not the mean over the queries of .*; run the study"):
        table_of_studies.measured(tmp_path / "out", "toy")
    (folder / "results.json").write_text(written)
    for path in (tmp_path / "out" / "artifacts").rglob("evaluation.npz"):
        path.unlink()
    rows = table_of_studies.measured(tmp_path / "out", "toy")
    assert [row.name for row in rows] == ["BM25", "plain", "better", "round2"]
    assert all(not row.per_query for row in rows)


def test_a_run_stands_beside_published_rows_where_its_table_has_them(composed: Compose) -> None:
    config = composed()
    config.table.columns, config.table.published = OWN["columns"], OWN["published"]
    folder = run(config).folder
    assert folder
    text = (folder / "table.md").read_text()
    assert "*published: dense*" in text
    assert "measured here: toys (test)" in text
    assert folder == run(composed()).folder, "what stands beside the rows makes no other run"


def test_a_dry_run_of_a_table_writes_nothing(
    composed: Compose, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = composed("dry_run=plan")
    config.stages, config.table.rows, config.table.baseline = {}, {}, None
    config.table.columns, config.table.published = OWN["columns"], OWN["published"]
    assert run(config).folder is None
    assert "36.6" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_a_table_without_rows_of_any_kind_is_a_user_error(composed: Compose) -> None:
    config = composed("table.studies=[toy]")
    config.stages, config.table.rows, config.table.baseline = {}, {}, None
    with pytest.raises(UserError, match=r"table\.studies: nothing is measured yet of toy"):
        run(config)
    run(composed("name=toys"))
    with pytest.raises(UserError, match=r"nothing is measured yet of toy in .* \(did you mean 'toys'\?\)"):
        run(config)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "published",
            {"dense": {"x": "CO/1/BM52"}},
            "table.published: 'CO/1/BM52': table 1 of CO has no row 'BM52' (did",
        ),
        ("published", {"dense": {"x": "CX/1/BM25"}}, "there is no paper 'CX' (known: A, C, CO, E, Q)"),
        ("columns", {"MRR": {"published": "msmarco dev/MRR"}}, "(did you mean 'msmarco dev/MRR@10'?)"),
        ("columns", {"MRR": {"metrics": "MRR@10"}}, "table.columns.MRR.metrics: unknown key"),
        ("test", "z", "table.test: must be 'randomisation' or 't', got 'z'"),
        ("within", -1, "table.within: must be >= 0"),
    ],
)
def test_a_fault_of_a_table_is_said_in_one_line_before_any_work(
    composed: Compose, key: str, value: object, said: str
) -> None:
    config = composed()
    config.table.columns, config.table.published = OWN["columns"], OWN["published"]
    config.table[key] = value
    with pytest.raises(UserError) as caught:
        build(config)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_cannot_be_written_elsewhere_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = SimpleNamespace(runtime=SimpleNamespace(choices={"table": "../table/msmarco"}))
    monkeypatch.setattr(table_of_studies, "HydraConfig", SimpleNamespace(initialized=lambda: True, get=lambda: chosen))
    with pytest.raises(UserError, match=r"^table=\.\./table/msmarco: must be the name of an option"):
        table_of_studies._name()
    chosen.runtime.choices["table"] = "mine/x"
    assert table_of_studies._name() == "mine/x"
