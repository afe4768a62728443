"""What a run leaves and shows: its folder, its table."""

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from toy_commands import Compose

from condensery.pipeline.graph import build, can_answer
from condensery.pipeline.reports import study
from condensery.pipeline.reports.report import indexes_of
from condensery.pipeline.run import run, run_all
from condensery.reporting.results import Row
from condensery.system.files import write_json


@pytest.mark.usefixtures("curves")
def test_a_run_folder_holds_table_results_config_graph_and_curves(
    composed: Compose, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = run(composed())
    folder = finished.folder
    assert folder is not None
    out = capsys.readouterr().out
    assert out.rstrip().endswith(str(folder))
    assert "Recall@100" in out
    results = json.loads((folder / "results.json").read_text())
    assert [result["row"] for result in results] == ["BM25", "plain", "better", "round2"]
    assert set(results[0]) == {"row", "collection", "split", "metrics", "seed", "artifact"}
    assert (results[0]["collection"], results[0]["split"], results[0]["seed"]) == ("toys", "test", 1)
    assert "plain" in (folder / "table.md").read_text()
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    graph = json.loads((folder / "graph.json").read_text())
    assert graph["plain"]["kind"] == "toy_train"
    assert (folder / "stages" / "plain" / "weights.json").resolve() == Path(graph["plain"]["path"]) / "weights.json"
    config: Any = OmegaConf.load(folder / "config.yaml")
    assert config.stages.plain.backbone.size == 4


def test_the_same_command_lands_in_the_same_folder(composed: Compose) -> None:
    first = run(composed()).folder
    assert first is not None
    before = {path.name: path.read_bytes() for path in first.iterdir() if path.is_file()}
    assert run(composed()).folder == first
    assert {path.name: path.read_bytes() for path in first.iterdir() if path.is_file()} == before
    assert run(composed("seed=2")).folder != first


def test_a_recipe_without_a_table_runs_too(composed: Compose) -> None:
    rows = ["~table.rows.BM25", "~table.rows.plain", "~table.rows.better", "~table.rows.round2", "table.baseline=null"]
    assert run(composed(*rows)).rows == []


def test_a_run_says_what_its_table_shows_and_so_does_its_page(
    composed: Compose, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(composed()).folder
    assert folder is not None
    found = {one["row"]: one["metrics"]["MRR@10"] for one in json.loads((folder / "results.json").read_text())}
    best = max(found, key=lambda name: found[name])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{best} ")]
    assert re.match(r".* (is ahead of|has the highest MRR@10).*30 queries|.*\(p < 0\.01\)\.", line)
    assert f"{100 * found[best]:.1f} against " in line
    assert line in (folder / "index.html").read_text()
    assert line in (folder / "table.md").read_text()


def test_the_bm25_of_a_table_is_known_by_its_stage_and_not_by_its_name(tmp_path: Path) -> None:
    rows = [Row(name, "c", "test", {}, artifact=f"evaluate/{name}") for name in ("lexical", "gone", "sentences")]
    inputs = {"lexical": {"index": ["bm25/a"]}, "sentences": {"encoder": ["finetune/b"]}}
    for name, given in inputs.items():
        (tmp_path / "artifacts" / "evaluate" / name).mkdir(parents=True)
        write_json(tmp_path / "artifacts" / "evaluate" / name / "manifest.json", {"inputs": given})
    lost = Row("lost", "c", "test", {}, artifact="evaluate/lexical", failed="it broke")
    (found,) = indexes_of([*rows, lost], tmp_path).items()
    assert (found[0], found[1].kind) == ("evaluate/lexical", "bm25")


def test_a_run_ends_with_how_to_go_on(
    composed: Compose, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(study.COMMAND, "experiment=toy 'stages.plain.steps=1' seed=1")
    monkeypatch.setattr("condensery.pipeline.reports.study._python", lambda: "bin/py")
    finished = run(composed())
    called = f"CONDENSERY_STAGES=toys PYTHONPATH={shlex.quote(os.environ['PYTHONPATH'])} bin/py run.py"
    whole = f'Ask it:  {called} experiment=toy stages.plain.steps=1 seed=1 ask="what you look for"'
    assert capsys.readouterr().out.endswith(f"\n\n{whole}\n\n{finished.folder}\n")
    own = composed()
    own.next = ["Again:  {command}", "Other:  {program} experiment=x"]
    again = run(own)
    assert again.folder == finished.folder, "it changes no artifact and no run"
    lines = f"Again:  {called} experiment=toy stages.plain.steps=1 seed=1\nOther:  {called} experiment=x"
    assert capsys.readouterr().out.endswith(f"\n\n{lines}\n\n{finished.folder}\n")


def test_a_job_of_a_sweep_a_failed_run_and_a_question_do_not_say_how_to_go_on(
    composed: Compose, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(study.COMMAND, "experiment=toy")
    monkeypatch.setattr("condensery.pipeline.asking.answer", lambda *_: None)
    run_all(composed(), study.Job("toy", ["seed=1"]))
    run(composed("ask=what", "seed=2"))
    run_all(composed("stages.round2.fail=user", "seed=3"))
    assert "Ask it" not in capsys.readouterr().out
    run(composed())
    assert "Ask it" in capsys.readouterr().out


def test_only_what_can_be_asked_says_so(composed: Compose) -> None:
    rows = ["~table.rows.BM25", "~table.rows.plain", "~table.rows.better", "~table.rows.round2", "table.baseline=null"]
    assert can_answer(build(composed()))
    assert can_answer(build(composed(*rows))), "an encoder answers"
    stages = [f"~stages.{name}" for name in ("bm25", "plain", "better", "mined", "round2")]
    assert not can_answer(build(composed(*rows, *stages)))


def test_a_command_that_is_not_known_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(study.COMMAND, raising=False)
    assert study.going_on(["{command} ask=x", "read on"]) == ["read on"]


def test_python_is_called_as_a_shell_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CONDENSERY_STAGES")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my venv" / "python"))
    monkeypatch.setattr("shutil.which", lambda name: str(tmp_path / "my venv" / name))
    assert study.going_on(["{program}"]) == ["python run.py"]
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/python")
    assert study.going_on(["{program}"]) == ["'my venv/python' run.py"]
    monkeypatch.setattr(sys, "executable", "/opt/python3")
    assert study.going_on(["{program}"]) == ["/opt/python3 run.py"]
    monkeypatch.setenv("CONDENSERY_PROGRAM", "condensery")
    monkeypatch.setenv(study.COMMAND, "experiment=x")
    assert study.going_on(["{program} a=b", "{command}"]) == ["condensery a=b", "condensery experiment=x"]
