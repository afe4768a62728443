"""Sweeps: one joined table, shared stages computed once, a failed job beside the results of the others."""

import json
from collections.abc import Callable
from pathlib import Path

from toy_commands import Command

from condensery.pipeline.sweep import labels_of, without_seed


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
    assert len(rows) == 16
    assert {row["seed"] for row in rows} == {1, 2}
    table = (folder / "table.md").read_text()
    assert "steps=1 · round2" in table
    assert "steps=2 · round2" in table
    assert "±" in table
    assert done.stdout.rstrip().endswith(str(folder))


def test_a_failed_job_hides_no_other(command: Command, tmp_path: Path) -> None:
    done = command("-m", "stages.plain.fail=user,null", "~table.rows.better", "~table.rows.round2")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: text.txt:3: this text is not to be trained on",
        "error: 1 of 2 jobs failed: fail=user",
    ]
    rows = json.loads((tmp_path / "out" / "sweeps" / "toy" / "results.json").read_text())
    assert {row["row"] for row in rows} == {f"fail=null · {name}" for name in ("BM25", "plain")}


def test_a_label_is_what_tells_the_jobs_apart() -> None:
    jobs = [["experiment=x", "stages.a.steps=1", "seed=1"], ["experiment=x", "stages.a.steps=2", "seed=1"]]
    assert labels_of(jobs) == ["steps=1", "steps=2"]
    assert labels_of([["experiment=x"]]) == [""]
    assert without_seed("steps=1 seed=3") == "steps=1"
