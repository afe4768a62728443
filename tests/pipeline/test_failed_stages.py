"""A failed cell does not stop the others: it is a dash with its reason, the exit code is 1, the next run makes up for it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_commands import Command, Compose

from condensery.pipeline.artifact_store import Store
from condensery.pipeline.graph import build
from condensery.pipeline.reports.report import draw_logs
from condensery.pipeline.reports.sweep_report import distinct_rows
from condensery.pipeline.run import run, run_all
from condensery.reporting.results import Row, read_results, write_results
from condensery.reporting.table import Significance, build_table

REASON = "text.txt:3: this text is not to be trained on"


def test_one_broken_stage_is_one_line_and_a_dash_in_the_table(command: Command, tmp_path: Path) -> None:
    done = command("stages.better.fail=user")
    assert done.returncode == 1
    assert done.stderr == f"error: {REASON}\n"
    assert f"[better] failed: {REASON}; stages that do not need it continue\n" in done.stdout
    folder = Path(done.stdout.splitlines()[-1])
    table = (folder / "table.md").read_text()
    assert f"– better, round2: the stage better failed: {REASON}." in table
    lines = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("|")}
    assert [cell.strip() for cell in lines["better"].split("|")[2:-1]] == ["–", "–"]
    assert "–" not in lines["plain"]
    results = json.loads((folder / "results.json").read_text())
    assert [(one["row"], bool(one["metrics"]), "failed" in one) for one in results] == [
        ("BM25", True, False), ("plain", True, False), ("better", False, True), ("round2", False, True),
    ]  # fmt: skip


def test_a_row_whose_deleted_input_fails_tells_that_failure(
    composed: Compose, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = composed("jobs=1")
    whole = run(before)
    for name in ("plain", "better"):  # deleted for want of space; their evaluations are still there
        shutil.rmtree(Store(tmp_path / "out").path(build(before).nodes[name]))
    monkeypatch.setenv("TOY_STOP", "plain")
    broken = run_all(before)
    assert str(broken.error) == "stopped at plain"
    why = "the stage plain failed: stopped at plain"
    assert {row.name: row.failed for row in broken.rows} == {
        row.name: "" if row.name == "BM25" else why for row in whole.rows
    }


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.usefixtures("curves")
def test_the_next_run_computes_only_what_failed(
    composed: Compose, monkeypatch: pytest.MonkeyPatch, computed: Callable[[], list[str]], tmp_path: Path, jobs: int
) -> None:
    monkeypatch.setenv("TOY_STOP", "plain.index bm25")
    broken = run_all(composed(f"jobs={jobs}"))
    assert sorted(broken.failures) == ["bm25", "plain.index"]
    assert (
        str(broken.error).splitlines() == [f"error: {name}: stopped at {name}" for name in (["bm25", "plain.index"])]
        or jobs == 2
    )
    assert {row.name: row.failed for row in broken.rows} == {
        "BM25": "the stage bm25 failed: stopped at bm25",
        "plain": "the stage plain.index failed: stopped at plain.index",
        "better": "", "round2": "",
    }  # fmt: skip
    assert broken.folder is not None
    assert "differs from plain" not in (broken.folder / "table.md").read_text(), "the baseline was not measured"
    picture = (broken.folder / "curves.png").stat().st_mtime_ns
    monkeypatch.delenv("TOY_STOP")
    (tmp_path / "ran.log").unlink()
    mended = run(composed(f"jobs={jobs}"))
    assert sorted(computed()) == ["bm25", "bm25.evaluation", "plain.evaluation", "plain.index"]
    assert not any(row.failed for row in mended.rows)
    assert mended.folder == broken.folder
    assert "–" not in (broken.folder / "table.md").read_text()
    assert (broken.folder / "curves.png").stat().st_mtime_ns == picture, "no training was added"


@pytest.mark.usefixtures("curves")
def test_curves_are_drawn_again_when_a_training_was_added(composed: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_STOP", "round2")
    folder = run_all(composed()).folder
    assert folder is not None
    picture = (folder / "curves.png").read_bytes()
    monkeypatch.delenv("TOY_STOP")
    run(composed())
    assert (folder / "curves.png").read_bytes() != picture


@pytest.mark.usefixtures("curves")
def test_curves_are_drawn_again_when_a_log_has_changed_whatever_the_clock_says(tmp_path: Path) -> None:
    log, picture = tmp_path / "metrics.csv", tmp_path / "curves.png"
    log.write_text("step,train/loss\n1,9\n2,5\n")
    draw_logs({"plain": log}, tmp_path)
    before = picture.read_bytes()
    os.utime(picture, (2**31, 2**31))
    draw_logs({"plain": log}, tmp_path)
    assert picture.stat().st_mtime == 2**31, "nothing has changed"
    log.write_text("step,train/loss\n1,9\n2,6\n")
    draw_logs({"plain": log}, tmp_path)
    assert picture.read_bytes() != before


def test_where_no_row_is_left_the_reason_is_all_that_is_said(command: Command, tmp_path: Path) -> None:
    assert command().returncode == 0
    (folder,) = (tmp_path / "out" / "runs").iterdir()
    for kind in ("toy_corpus", "toy_bm25", "toy_train", "toy_encode", "toy_evaluate", "toy_mine"):
        for manifest in (tmp_path / "out" / "artifacts" / kind).glob("*/manifest.json"):
            for path in manifest.parent.iterdir():
                path.unlink() if path.is_file() else [[p.unlink() for p in path.iterdir()], path.rmdir()]
            manifest.parent.rmdir()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TOY_STOP", "corpus")
        done = command()
    assert (done.returncode, done.stderr) == (1, "error: stopped at corpus\n")
    assert done.stdout.splitlines()[1:] == ["[corpus] starts"]
    assert not (folder / "table.md").exists(), "the table of an earlier run is not left to be taken for this one's"
    assert all(row.failed and not row.metrics for row in read_results(folder / "results.json"))


def test_a_sweep_shows_the_failed_cell_beside_the_others(command: Command, tmp_path: Path) -> None:
    done = command("-m", "seed=1,2", "stages.round2.fail=null,user")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: 2 of 4 jobs failed: seed=1 fail=user, seed=2 fail=user ({REASON})"
    table = (tmp_path / "out" / "sweeps" / "toy" / "table.md").read_text()
    assert f"– fail=user · round2: the stage round2 failed: {REASON}." in table
    line = next(line for line in table.splitlines() if line.startswith("| fail=user · round2"))
    assert [cell.strip() for cell in line.split("|")[2:-1]] == ["–", "–"]


def test_a_sweep_in_which_nothing_is_measured_keeps_no_rows_of_the_one_before(command: Command, tmp_path: Path) -> None:
    only = ("-m", "~table.rows.BM25", "~table.rows.plain", "~table.rows.better", "table.baseline=null")
    assert command(*only, "stages.round2.steps=1,2").returncode == 0
    folder = tmp_path / "out" / "sweeps" / "toy"
    assert all(row.metrics for row in read_results(folder / "results.json"))
    assert command(*only, "stages.round2.steps=1,2", "stages.round2.fail=user").returncode == 1
    assert [bool(row.failed) for row in read_results(folder / "results.json")] == [True, True]
    assert not (folder / "table.md").exists()


def row(name: str, **fields: Any) -> Row:
    metrics = {} if fields.get("failed") else {"M": 0.5}
    return Row(**({"name": name, "collection": "c", "split": "test", "metrics": metrics} | fields))


def test_a_failed_seed_is_told_and_the_others_counted() -> None:
    rows = [row("a", seed=1), row("b", seed=1), row("b", seed=2), row("b", seed=3, failed="it broke.")]
    table = build_table(rows, significance=Significance("a"))
    assert table.cells[1][0].text == "50.0 ± 0.0"
    assert "± is the standard deviation over 2 seeds." in table.notes
    assert "– b, seed 3: it broke." in table.notes


def test_a_failed_row_on_an_unknown_collection_is_named_after_its_job() -> None:
    found = [
        ("root=c", row("a", artifact="1")),
        ("root=d", row("a", artifact="2", collection="d")),
        ("root=e", row("a", artifact="3", collection="", failed="x")),
    ]
    assert [one.name for one in distinct_rows(found)] == ["a", "a", "root=e · a"]


def test_failed_rows_are_written_and_read_back(tmp_path: Path) -> None:
    rows = [row("a", seed=1), row("b", seed=1, failed="it broke")]
    write_results(tmp_path / "results.json", rows)
    assert read_results(tmp_path / "results.json") == rows


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_that_a_library_made_something_else_of_ends_the_run(
    jobs: int, monkeypatch: pytest.MonkeyPatch, composed: Compose, capfd: pytest.CaptureFixture[str]
) -> None:
    # as one in the middle of an import, which is an AttributeError of the module that was half there
    monkeypatch.setattr("condensery.system.signals._again", [KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):
        run_all(composed(f"jobs={jobs}"))
    assert "starts" not in capfd.readouterr().out, "no stage is begun"


@pytest.mark.parametrize("interrupted", [True, False])
def test_what_a_library_makes_of_an_interrupt_is_no_failure_of_the_stage(
    interrupted: bool, monkeypatch: pytest.MonkeyPatch, composed: Compose
) -> None:
    def ensure(*_: Any) -> bool:
        monkeypatch.setattr("condensery.system.signals._again", [KeyboardInterrupt] if interrupted else [])
        raise AttributeError("no attribute '_multiarray_umath'")

    monkeypatch.setattr("condensery.pipeline.artifact_store.Store.ensure", ensure)
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            run_all(composed())
    else:
        assert "_multiarray_umath" in str(run_all(composed()).error)
