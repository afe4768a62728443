"""Sweeps: one joined table, shared stages computed once, a failed job beside the results of the others."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import wandb
from omegaconf import OmegaConf
from small_runs import run_command
from toy_commands import Command, Compose

from condensery.pipeline.executor import execute
from condensery.pipeline.reports.study import SWEPT
from condensery.pipeline.reports.sweep_report import (
    distinct_rows,
    labels_of,
    of_systems,
    settings_of,
    with_settings,
    without_seed,
)
from condensery.pipeline.run import run
from condensery.pipeline.sweep import RECORDS, JoinedTable
from condensery.reporting.results import Row
from condensery.system.files import write_json
from condensery.training.wandb_run import Tracked, start


def test_jobs_share_stages_and_end_in_one_table(
    command: Command, computed: Callable[[], list[str]], tmp_path: Path
) -> None:
    done = command("-m", "stages.round2.steps=1,2", "seed=1,2")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    ran = computed()
    assert [ran.count(stage) for stage in ("corpus", "bm25", "plain", "round2")] == [1, 1, 2, 4]
    folder = tmp_path / "out" / "sweeps" / "toy"
    rows = json.loads((folder / "results.json").read_text())
    assert Counter(row["row"] for row in rows) == {
        "BM25": 1,  # the same in all jobs, as in those of a seed what precedes round2
        "plain": 2,
        "better": 2,
        "steps=1 · round2": 2,
        "steps=2 · round2": 2,
    }
    assert {row["seed"] for row in rows} == {1, 2}
    table = (folder / "table.md").read_text()
    assert "steps=1 · round2" in table
    assert "steps=2 · round2" in table
    assert "±" in table
    assert "± is the standard deviation over 2 seeds." in table
    assert "No score differs from plain: " in table
    assert done.stdout.rstrip().endswith(str(folder))
    said = re.findall(r"^.+ (?:is ahead of|has the highest MRR@10, ).+$", done.stdout, re.MULTILINE)
    assert len(said) == 1, "of all jobs together"
    assert said[-1] in (folder / "index.html").read_text()
    assert "Ask it" not in done.stdout


def test_a_failed_job_hides_no_other(command: Command, tmp_path: Path) -> None:
    done = command("-m", "stages.plain.fail=user,null", "~table.rows.better", "~table.rows.round2")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: text.txt:3: this text is not to be trained on",
        "error: 1 of 2 jobs failed: fail=user (text.txt:3: this text is not to be trained on)",
    ]
    rows = json.loads((tmp_path / "out" / "sweeps" / "toy" / "results.json").read_text())
    assert {row["row"]: bool(row["metrics"]) for row in rows} == {
        "BM25": True,
        "fail=user · plain": False,
        "fail=null · plain": True,
    }


def test_each_job_in_one_process_says_that_wandb_is_offline(
    composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def executed(*given: Any) -> Any:
        for name in ("one", "two"):
            assert start(Tracked("auto", "project", None, "study", name, "finetune", name, {}, tmp_path)) is None
        return execute(*given)

    def no_answer(**_: Any) -> None:
        raise wandb.Error("enough")

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb, "init", no_answer)
    monkeypatch.setattr("condensery.pipeline.run.execute", executed)
    for _ in range(2):
        run(composed())
        assert capsys.readouterr().out.count(f"logs are in {tmp_path}/wandb") == 1


def test_a_dry_run_leaves_the_jobs_of_a_running_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RECORDS, "")
    monkeypatch.setenv(SWEPT, "")
    of_hydra = {"sweep": {"dir": str(tmp_path)}, "overrides": {"task": []}}
    config = OmegaConf.create({"name": "toy", "output_root": str(tmp_path), "hydra": of_hydra})
    sweep, dry_run = JoinedTable(), JoinedTable()
    sweep.on_multirun_start(config)
    kept = Path(os.environ[RECORDS]) / "0000.json"
    write_json(kept, {})
    dry_run.on_multirun_start(config)
    write_json(Path(os.environ[RECORDS]) / "0000.json", {"folder": None, "error": None})
    dry_run.on_multirun_end(config)
    assert list(tmp_path.rglob("*.json")) == [kept]


@pytest.mark.parametrize("swept", [["experiment=smoke", "name=a,b"], ["experiment=smoke,quickstart"]])
def test_a_job_has_no_folder_in_that_of_the_sweeps(swept: list[str], tmp_path: Path) -> None:
    run_command("-m", *swept, "dry_run=plan", f"output_root={tmp_path / 'out'}").sound()
    assert not [*tmp_path.glob("out/*")]


def test_a_sweep_over_no_values_is_an_error(command: Command) -> None:
    done = command("-m", "stages.plain.steps=glob(*)")
    assert (done.returncode, done.stderr) == (
        1,
        "error: stages.plain.steps: a sweep over no values has no job; give values\n",
    )


def test_a_label_is_what_tells_the_jobs_apart() -> None:
    jobs = [["experiment=x", "stages.a.steps=1", "seed=1"], ["experiment=x", "stages.a.steps=2", "seed=1"]]
    assert labels_of(jobs) == ["steps=1", "steps=2"]
    assert labels_of([["experiment=x"]]) == [""]
    assert without_seed("steps=1 seed=3") == "steps=1"


def test_settings_that_are_swept_together_are_one_word_and_told_one_by_one() -> None:
    few = "stage.finetune={train_queries:1000,epochs:40,adaptive:{beam:2},labels:null}"
    assert settings_of(few) == {
        "stage.finetune.train_queries": "1000",
        "stage.finetune.epochs": "40",
        "stage.finetune.adaptive.beam": "2",
        "stage.finetune.labels": "null",
    }
    assert settings_of("stages.a.steps=1") == {"stages.a.steps": "1"}
    assert labels_of([[few], ["stage.finetune={train_queries:null,epochs:3}"]]) == [
        "train_queries=1000,epochs=40,beam=2,labels=null",
        "train_queries=null,epochs=3",
    ]


def test_a_row_tells_what_was_swept_and_not_what_all_jobs_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWEPT, "stage.finetune seed")
    jobs = [["stage.read_sts.root=/home/me/stsb", f"stage.finetune={{train_queries:{n}}}", "seed=1"] for n in (9, 99)]
    own, shared = Row("a", "", "", {}, artifact="x"), Row("b", "", "", {}, artifact="y")
    row, other = with_settings(
        [replace(own, system="a"), replace(shared, system="b")],
        [(jobs[0], own), (jobs[0], shared), (jobs[1], shared)],
    )
    assert row.settings == {"stage.finetune.train_queries": ["9"]}
    assert other.settings == {"stage.finetune.train_queries": ["9", "99"]}


def test_what_is_measured_on_does_not_tell_systems_apart() -> None:
    on = ["table.split=dl19", "stage.evaluate={split:dev,candidates:bm25}", "stage.evaluate.candidates_number=9"]
    assert of_systems([["n=1", one] for one in on]) == [["n=1"]] * 3
    deeper = ["stage.evaluate={split:dev,depth:9}", "stage.evaluate.depth=9"]
    assert of_systems([[one] for one in deeper]) == [[one] for one in deeper]
    pools = [["stage.evaluate.candidates=bm25"], ["stage.evaluate.candidates=dense"]]
    assert of_systems(pools) == pools, "numbers on other candidates of the same split are others"
    assert of_systems([pools[0], ["stage.evaluate.candidates=null"]]) == [[], []]


def test_a_row_is_named_after_its_job_only_where_the_sweep_made_a_difference() -> None:
    def row(name: str, seed: int, artifact: str) -> Row:
        return Row(name, "toys", "test", {"MRR@10": 0.5}, seed=seed, artifact=artifact)

    jobs = [("n=1 seed=1", 1, "a"), ("n=1 seed=2", 2, "b"), ("n=2 seed=1", 1, "c"), ("n=2 seed=2", 2, "d")]
    found = [
        (label, one)
        for label, seed, mine in jobs
        for one in (row("BM25", seed, "lexical"), row("shared", seed, f"s{seed}"), row("tuned", seed, mine))
    ]
    assert [(one.name, one.artifact) for one in distinct_rows(found)] == [
        ("BM25", "lexical"), ("shared", "s1"), ("n=1 · tuned", "a"), ("shared", "s2"), ("n=1 · tuned", "b"),
        ("n=2 · tuned", "c"), ("n=2 · tuned", "d"),
    ]  # fmt: skip
    alone = distinct_rows([("seed=1", row("tuned", 1, "a")), ("seed=2", row("tuned", 2, "b"))])
    assert [one.name for one in alone] == ["tuned", "tuned"], "of a sweep over seeds nothing needs to be told"


def test_a_sweep_may_stand_in_the_recipe(command: Command, tmp_path: Path) -> None:
    done = command("-m", recipe="seeds")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out" / "sweeps" / "seeds" / "results.json").read_text())
    assert Counter(row["row"] for row in rows) == {"BM25": 1, "plain": 2, "better": 2, "round2": 2}
    table = (tmp_path / "out" / "sweeps" / "seeds" / "table.md").read_text()
    assert table.count("±") == 3 * 2 + 1, "three rows of two metrics, and the note"


def test_rows_on_several_collections_or_splits_keep_their_name() -> None:
    def row(artifact: str, **where: str) -> Row:
        return Row(**({"name": "a", "collection": "c", "split": "test"} | where), metrics={"M": 0.5}, artifact=artifact)

    found = [("root=c", row("1")), ("root=d", row("2", collection="d")), ("root=e", row("3", split="dl19"))]
    assert [one.name for one in distinct_rows(found)] == ["a", "a", "a"]
    assert {one.name for one in distinct_rows([*found, ("x", row("4"))])} == {
        "root=c · a",
        "root=d · a",
        "root=e · a",
        "x · a",
    }
