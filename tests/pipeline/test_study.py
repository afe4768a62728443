"""What a run knows of how it was asked for, and the page that tells it."""

import shlex
from pathlib import Path

import pytest
from toy_commands import Command, Compose

from condensery.pipeline.graph import build
from condensery.pipeline.reports import study
from condensery.pipeline.run import run, run_all

COMMENT = """# @package _global_
# Is it better? The same stages
# on other text.
#   python run.py -m experiment=x
#   python run.py -m experiment=x data.root=DIR
#
# And a second paragraph.
defaults: [_self_]
# not this
"""


def test_the_comment_of_a_recipe_is_its_question() -> None:
    assert study.paragraphs(COMMENT) == [
        "Is it better? The same stages on other text.",
        "  python run.py -m experiment=x\n  python run.py -m experiment=x data.root=DIR",
        "And a second paragraph.",
    ]
    assert study.paragraphs("name: x\n# no\n") == []


def test_commands_are_as_typed_but_for_what_was_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(study.COMMAND, raising=False)
    assert study.command() == ""
    monkeypatch.setenv(study.COMMAND, "")
    words = ["-m", "--config-dir", "a b", "experiment=x", "seed=1,2", "ask=what is it", "force=[a]", "~table.rows.y"]
    monkeypatch.setenv(study.COMMAND, shlex.join(words))
    assert study.command() == "python run.py -m --config-dir 'a b' experiment=x seed=1,2 '~table.rows.y'"
    assert study.command(["experiment=x", "seed=2"]) == "python run.py --config-dir 'a b' experiment=x seed=2"


def test_a_stage_is_labelled_with_the_swept_overrides_that_reach_it(
    composed: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(study.SWEPT, "seed stages.better.steps stage.toy_mine.depth table.split")
    job = ["experiment=toy", "seed=2", "stages.better.steps=3", "stage.toy_mine.depth=9", "table.split=dev", "jobs=2"]
    found = study.labels(build(composed()), job)
    assert found["plain"] == "seed=2"
    assert found["better"] == "seed=2 steps=3"
    assert found["round2"] == "seed=2 steps=3 depth=9"
    monkeypatch.setenv(study.SWEPT, "")
    assert study.labels(build(composed()), job) == {}


def test_what_is_swept_is_known_from_the_overrides() -> None:
    given = ["experiment=x", "seed=1,2", "++stages.a.rate=0.1", "data=a,b", "table.metrics=[MRR@10,NDCG@10]"]
    assert study.swept_keys(given) == ["seed", "data"]


def test_the_folders_of_a_user_are_shortened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/max")
    monkeypatch.setenv("CONDENSERY_HOME", "/home/max/condensery")
    root = Path("/data/out")
    text = "/data/out/artifacts/a: /home/max/condensery/conf and /home/max/x, not /home/maximilian or /data/outer"
    assert study.tidied(text, root) == "out/artifacts/a: ./conf and ~/x, not /home/maximilian or /data/outer"


def test_the_page_of_a_run_tells_numbers_artifacts_and_machine(composed: Compose, tmp_path: Path) -> None:
    finished = run(composed())
    assert finished.folder is not None
    page = (finished.folder / "index.html").read_text()
    for row in finished.rows:
        assert row.artifact in page
        assert f"{100 * row.metrics['MRR@10']:.1f}" in page
    for wanted in ("processor", "cores", "precision", "hydra-core", "config.yaml", "stage: toy_train"):
        assert wanted in page, wanted
    assert str(tmp_path / "out") not in page
    assert str(Path.home()) not in page or str(tmp_path).startswith(str(Path.home()))


def test_the_page_of_a_run_lists_what_failed(composed: Compose) -> None:
    finished = run_all(composed("stages.better.fail=user"))
    assert finished.folder is not None
    page = (finished.folder / "index.html").read_text()
    assert "<b>better (6 stages after it not computed)</b>: text.txt:3: this text is not to be trained on</li>" in page
    assert page.count("<td>not computed</td>") == 6


def test_the_page_of_a_sweep_shows_all_its_runs(command: Command, tmp_path: Path) -> None:
    done = command("-m", "seed=1,2", "stages.better.fail=null,user")
    assert done.returncode == 1
    page = (tmp_path / "out" / "sweeps" / "toy" / "index.html").read_text()
    assert "A study of 4 runs" in page
    assert "The bare recipe with a table." in page, "the comment of the recipe"
    assert page.count("<summary>config.yaml of seed=") == 4
    assert "'stages.better.fail=null,user'" in page.replace("&#x27;", "'") or "stages.better.fail=null,user" in page
    assert "stages.better.fail=user" in page
    assert "fail=user · better" in page
    assert page.count("<code>toy_bm25/") == 1, "an artifact that jobs share is listed once"
