"""Every row of the papers' tables has a recipe that measures it, or a reason why none does; tables and a page say which."""

import re
import runpy
import shlex
from pathlib import Path

import conf_pages
import pytest
import yaml
from omegaconf._utils import get_yaml_loader
from shipped_tables import NAMES, config_of, from_nothing
from small_runs import PROJECT

from condensery.errors import UserError
from condensery.reporting.comparison import RECIPE, comparison
from condensery.reporting.html_page import results_table
from condensery.reporting.published import FOLDER, PublishedTable, papers, read_paper
from condensery.reporting.results import Row
from condensery.reporting.table_formats import csv_text, latex, markdown, show

TABLES = {f"{key}/{number}": table for key, paper in papers().items() for number, table in paper.tables.items()}
COMMANDS = sorted({command for table in TABLES.values() for command in table.measured})
NEEDED = {"C": range(1, 9), "CO": range(1, 4), "A": range(1, 5), "Q": range(1, 5)}
PAGE = runpy.run_path(str(PROJECT / ".ci" / "rows_page.py"))


def test_all_tables_of_the_papers_are_here() -> None:
    assert {f"{key}/{number}" for key, numbers in NEEDED.items() for number in numbers} <= TABLES.keys()


@pytest.mark.parametrize("name", TABLES)
def test_a_row_has_a_recipe_or_a_reason(name: str) -> None:
    table = TABLES[name]
    by_recipe = {row for own in table.measured.values() for row in own}
    assert by_recipe | table.not_measured.keys() == table.by_row().keys()
    assert by_recipe.isdisjoint(table.not_measured)
    assert all(len(reason.split()) > 4 for reason in table.not_measured.values()), "a reason is a sentence"
    for reason in table.not_measured.values():
        assert all((PROJECT / "conf" / "experiment" / f"{recipe}.yaml").exists() for recipe in RECIPE.findall(reason))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_a_recipe_and_its_rows(command: str) -> None:
    """tests/test_docs.py composes the commands, which stand in docs/rows.md."""
    (name,) = RECIPE.findall(command)
    recipe = conf_pages.read(PROJECT / "conf" / "experiment" / f"{name}.yaml").whole()
    words = shlex.split(command)
    swept = recipe.get("hydra", {}).get("sweeper", {}).get("params") or any(
        "," in word for word in words if word.startswith("table.split=")
    )
    assert words[:2] == ["python", "run.py"]
    assert bool(swept) == ("-m" in words), "a sweep needs -m"
    if " backbone.name=" in command:
        assert recipe["backbone"]["tokenizer"] == "${backbone.name}", "each checkpoint with its own tokenizer"
    rows = {row for table in TABLES.values() for row in table.measured.get(command, {}).values()}
    shown = {label for label, stage in recipe["table"]["rows"].items() if stage}
    assert rows <= shown, f"{name} has the rows {sorted(shown)}"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_a_rectangle_whose_rows_have_names_of_their_own(name: str) -> None:
    names = [row for rows in TABLES[name].rows.values() for row in rows]
    assert len(names) == len({*names})
    assert {len(values) for values in TABLES[name].by_row().values()} == {len(TABLES[name].columns)}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_no_key_of_a_paper_comes_twice(path: Path) -> None:
    assert yaml.load(path.read_text(encoding="utf-8"), Loader=get_yaml_loader())  # refuses such a key


@pytest.mark.parametrize(
    ("given", "said"),
    [("measured: {x: a}", "tables.1.measured.x")],
)
def test_a_wrong_entry_is_named(given: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "paper.yaml"
    head = 'key: X\ntitle: T\nauthors: [A]\nyear: null\nvenue: V\ntables:\n  "1":\n    caption: c\n    of: x dev\n'
    path.write_text(f"{head}    columns: [{{metric: M}}]\n    rows: {{one: {{a: [1], b: [2]}}}}\n    {given}\n")
    with pytest.raises(UserError) as caught:
        read_paper(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_table_says_of_each_published_row_how_it_is_measured(name: str) -> None:
    table = from_nothing(name)
    config = config_of(name)
    studies = {study.replace("-", "/", 1) if study.startswith("ablation-") else study for study in config.studies}
    for label, origin in zip(table.names, table.origins, strict=True):
        reason = origin.startswith("not measured: ")
        assert reason or origin.startswith("python run.py "), label
        found = set() if reason else set(RECIPE.findall(origin))
        assert found <= studies or not found & studies, f"{label}: those of other tables are left out"
    text = markdown(table)
    for origin in table.origins:
        assert origin.removeprefix("not measured: ").split(" or ")[0].replace("*", "\\*") in text.replace("\\_", "_")


def test_a_command_of_another_collection_does_not_measure_a_row() -> None:
    for name, row in (("nq", "ANCE"), ("nq", "DPR-PAQ, BERT-large"), ("triviaqa", "ANCE")):
        table = from_nothing(name)
        origin = table.origins[table.names.index(row)]
        assert origin.startswith("not measured: "), (name, row)
        assert "its recipe is of MS MARCO" in origin
    table = from_nothing("msmarco")
    assert table.origins[table.names.index("ANCE")].startswith("python run.py -m experiment=ance_msmarco ")


@pytest.mark.parametrize("name", TABLES)
def test_what_a_recipe_leaves_out_of_a_row_is_on_the_page(name: str) -> None:
    table = TABLES[name]
    by_recipe = {row for own in table.measured.values() for row in own}
    assert table.in_part.keys() <= by_recipe, "a row without a recipe has its reason in `not_measured`"
    assert all(f"<br>not measured: {missing} |" in PAGE["page"]() for missing in table.in_part.values())


def measured_rows() -> list[Row]:
    kinds = {"test": "3f", "dl19": "4a"}
    metrics = {"MRR@10": 0.3, "Recall@50": 0.5, "Recall@1000": 0.9, "NDCG@10": 0.6, "Hit@20": 0.6, "Hit@5": 0.4}
    return [
        Row("BERT", "msmarco", split, metrics, seed=seed, artifact=f"evaluate/{8 * kind}{seed}")
        for split, kind in kinds.items()
        for seed in (1, 2)
    ]


@pytest.mark.parametrize("name", ["msmarco", "rocketqa_comparison", "nq", "query_as_context"])
def test_every_format_says_which_rows_are_measured_and_by_what(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(name)
    table = comparison(config, measured_rows(), "test", None, "", config.studies)
    show(table)
    shown = {
        "terminal": capsys.readouterr().out,
        "Markdown": markdown(table).replace("\\_", "_"),
        "LaTeX": latex(table).replace("\\_", "_").replace("{[}", "["),
        "HTML": str(results_table(table)),
        "CSV": csv_text(table),
    }
    commands = {one for origin in table.origins if origin.startswith("python") for one in origin.split(" or ")}
    assert commands
    seeds = ["seed 1 evaluate/3f3f3f3f3f3f3f3f1", "seed 2 evaluate/3f3f3f3f3f3f3f3f2"]
    for kind, text in shown.items():
        assert "measured, 2 seeds" in text, kind
        assert "published, C t" in text or "published, Q t" in text, kind
        assert all(seed in text for seed in seeds), kind
        for command in commands:
            assert command in text, (kind, command)
    if name == "msmarco":  # two splits
        assert "seed 1 evaluate/3f3f3f3f3f3f3f3f1, evaluate/4a4a4a4a4a4a4a4a1; seed 2 " in shown["CSV"]
        assert (
            "Measured: BERT: seed 1 evaluate/3f3f3f3f3f3f3f3f1, evaluate/4a4a4a4a4a4a4a4a1; seed 2 "
            in shown["terminal"]
        )


def test_rows_of_one_name_are_told_apart() -> None:
    notes = from_nothing("low_data_nq").notes
    assert any(note.startswith("To measure BM25; BERT; ICT; Condenser: python run.py -m") for note in notes)
    notes = from_nothing("abs_models").notes
    assert any("To measure 10,000 training queries: BERT; " in note for note in notes)


def test_the_page_has_every_row_and_is_that_of_the_files() -> None:
    text = (PROJECT / "docs" / "rows.md").read_text()
    assert text == PAGE["page"](), "run `make conf`"
    for key, paper in papers().items():
        part = text.split(f"\n## {key}\n")[1].split("\n## ")[0]
        for number, table in paper.tables.items():
            section = part.split(f"\n### Table {number}: ")[1].split("\n### ")[0]
            lines = re.findall(r"^\| (.*?) \| (.*) \|$", section, re.MULTILINE)[1:]
            assert len(lines) == len(table.by_row())
            assert all(said.startswith(("[", "none: ")) for _, said in lines)


def test_the_page_of_another_table_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["rows_page.py", "--check"])
    assert PAGE["main"]() == 0
    other = PublishedTable.model_validate(yaml.safe_load("{caption: c, of: x, columns: [], rows: {}}"))
    paper = next(iter(papers().values()))
    monkeypatch.setitem(paper.tables, "99", other)
    assert PAGE["main"]() == 1
    assert "run `make conf`" in capsys.readouterr().err
