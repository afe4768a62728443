"""A sweep over a hyper-parameter of fine-tuning: what comes before is computed once, one table joins the jobs."""

from pathlib import Path

import pytest
from small_runs import run_command
from wandb_files import offline_runs

from condensery.system.files import read_json


@pytest.mark.slow
def test_a_sweep_over_fine_tuning_shares_the_pretraining(
    on_beir: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    given = [one for one in on_beir if not one.startswith("logger")]
    arguments = ["-m", "experiment=short", *given, "logger=wandb", f"output_root={tmp_path}"]
    swept = run_command(*arguments, "stage.finetune.learning_rate=1e-4,1e-3").sound()
    tuned = ["round1", "round1.index", "round1.evaluation"]
    shared = ["corpus", "tokenizer", "tokens", "bm25", "bm25_negatives", "condenser", "cocondenser", "bm25.evaluation"]
    first, second = swept.out.split("== job 1:")
    assert sorted(swept.computed) == sorted([*shared, *tuned, *tuned])
    assert [name for name in tuned if f"[{name}] done" in first] == tuned
    assert [name for name in tuned if f"[{name}] done" in second] == tuned
    folder = tmp_path / "sweeps" / "short"
    rows = read_json(folder / "results.json")
    dense = [row for row in rows if "coCondenser" in row["row"]]
    assert [row["row"] for row in dense] == ["learning_rate=0.0001 · coCondenser", "learning_rate=0.001 · coCondenser"]
    assert dense[0]["artifact"] != dense[1]["artifact"]
    bm25 = [row for row in rows if "BM25" in row["row"]]
    assert [row["row"] for row in bm25] == ["BM25"], "what the jobs have in common is there once"
    table = (folder / "table.md").read_text()
    assert all(row["row"] in table.replace("**", "") for row in rows)
    in_wandb = offline_runs(tmp_path)
    assert run_command(*arguments, "stage.finetune.learning_rate=1e-4,1e-3").sound().computed == []
    assert len(offline_runs(tmp_path)) == len(in_wandb), "the same results are logged once"
    assert {run.group for run in in_wandb} == {"short"}
    assert [(run.name, run.job_type) for run in in_wandb] == [
        ("condenser", "pretrain_condenser"),
        ("cocondenser", "pretrain_cocondenser"),
        ("round1 · learning_rate=0.0001", "finetune"),
        ("round1 · learning_rate=0.001", "finetune"),
        ("results", "results"),
    ]
    *trained, results = in_wandb
    assert all(run.curves["train/loss"] and run.exit_code == 0 for run in trained)
    assert [run.config["learning_rate"] for run in trained if run.job_type == "finetune"] == [1e-4, 1e-3]
    (written,) = (tmp_path / "wandb").glob(f"*-{results.id}")
    paths = {name.removesuffix("/path"): told[0][1] for name, told in results.curves.items() if name.endswith("/path")}
    tables = {name: read_json(written / "files" / path) for name, path in paths.items()}
    shown, numbers = sorted(tables, key=lambda name: name == "numbers")
    assert shown.startswith("short")
    assert [line[0] for line in tables[shown]["data"]] == [row["row"] for row in rows]
    assert {line[-1] for line in tables[numbers]["data"]} == {row["artifact"] for row in rows}
    page = (folder / "index.html").read_text()
    assert all(row["artifact"] in page for row in rows)
    examples = read_json(folder / "examples.json")
    assert (examples["job"], examples["best"], examples["other"]) == ("learning_rate=0.0001", "coCondenser", "BM25")
    assert "learning_rate=1e-4,1e-3" in page


def test_a_job_that_fails_hides_no_other(on_beir: list[str], tmp_path: Path) -> None:
    arguments = ["-m", "experiment=short", *on_beir, f"output_root={tmp_path}", "stages.condenser.skip_from=1,5"]
    swept = run_command(*arguments)
    assert swept.code == 1
    said = swept.err.splitlines()
    assert [line for line in said if not line.startswith("error: ")] == []
    assert said[-1].startswith("error: 1 of 2 jobs failed: skip_from=5")
    rows = read_json(tmp_path / "sweeps" / "short" / "results.json")
    assert {row["row"]: bool(row["metrics"]) for row in rows} == {
        "BM25": True,
        "skip_from=1 · coCondenser": True,
        "skip_from=5 · coCondenser": False,
    }
