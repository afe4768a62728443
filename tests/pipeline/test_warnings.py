"""What an artifact warns of is said in each run that uses it, in the notes of its table and on its page."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_commands import Command, Compose

from condensery.errors import UserError
from condensery.pipeline.launch import hardware
from condensery.pipeline.run import run

SAID = "107 queries of the split test are also in an earlier split"
LINE = f"[corpus] warning: {SAID}"
NOTE = f"Warning: toys: {SAID}."


@pytest.fixture
def _warns(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(f"some text\nwarning: {SAID}\n")


def folder_of(composed: Compose, *overrides: str) -> Path:
    folder = run(composed(*overrides)).folder
    assert folder is not None
    return folder


@pytest.mark.usefixtures("_warns")
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_warning_is_said_when_it_is_found_and_whenever_the_artifact_is_reused(
    composed: Compose, capsys: pytest.CaptureFixture[str], jobs: int
) -> None:
    for again in (False, True):
        folder = folder_of(composed, f"jobs={jobs}")
        lines = capsys.readouterr().out.splitlines()
        assert lines.count(LINE) == 1
        head = next(place for place, line in enumerate(lines) if " stages, " in line)
        assert (lines.index(LINE) == head + 1) == again, "before anything else, where it is known"
        assert lines.count(NOTE) == 1
        assert NOTE in (folder / "table.md").read_text()
        page = (folder / "index.html").read_text()
        assert page.count(SAID) == 2, "below the table and in a section of its own"
        assert "<h2>Warnings</h2>" in page
        results = json.loads((folder / "results.json").read_text())
        assert [row["warnings"] for row in results] == [[SAID]] * 4


@pytest.mark.usefixtures("_warns")
def test_a_finished_run_that_only_answers_says_it_too(
    composed: Compose, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condensery.pipeline.asking.answer", lambda *_: None)
    run(composed())
    capsys.readouterr()
    run(composed("ask=what"))
    out = capsys.readouterr().out
    assert "is complete" in out
    assert LINE in out.splitlines()


@pytest.mark.usefixtures("_warns")
def test_a_recipe_without_a_table_has_it_on_its_page(composed: Compose) -> None:
    rows = ["~table.rows.BM25", "~table.rows.plain", "~table.rows.better", "~table.rows.round2", "table.baseline=null"]
    assert SAID in (folder_of(composed, *rows) / "index.html").read_text()


@pytest.mark.usefixtures("_warns")
def test_the_joined_table_of_a_sweep_has_it_once(command: Command, tmp_path: Path) -> None:
    done = command("-m", "seed=1,2", "~table.rows.better", "~table.rows.round2")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "out" / "sweeps" / "toy"
    assert (folder / "table.md").read_text().count(SAID) == 1
    assert "<h2>Warnings</h2>" in (folder / "index.html").read_text()


def test_where_nothing_is_amiss_nothing_is_said(composed: Compose, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(composed)
    assert "warning: " not in capsys.readouterr().out.casefold()
    assert "Warning" not in (folder / "index.html").read_text() + (folder / "table.md").read_text()
    assert "warnings" not in (folder / "results.json").read_text()


def test_what_steers_a_terminal_is_not_printed(
    composed: Compose, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("warning: one\x1b[31m two\n")
    run(composed())
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("override", ["trainer.devices=1000", "trainer.accelerator=gpu"])
def test_devices_that_are_not_there_are_refused_though_all_is_at_hand(
    composed: Compose, override: str, monkeypatch: pytest.MonkeyPatch, computed: Callable[[], Any]
) -> None:
    monkeypatch.setattr(hardware, "gpus_of_torch", lambda: 0)
    monkeypatch.setattr(hardware, "cores", lambda: 2)
    run(composed())
    for more in ([], ["force=[plain]"], ["ask=what"]):
        with pytest.raises(UserError, match=r"^trainer\.(devices|accelerator): "):
            run(composed(override, *more))
    run(composed(override, "dry_run=plan"))  # it starts nothing
