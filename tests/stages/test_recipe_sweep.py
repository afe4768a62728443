"""A sweep over a hyper-parameter of fine-tuning: what comes before is computed once, one table joins the jobs."""

from pathlib import Path

from small import door

from condensery.files import read_json


def test_a_sweep_over_fine_tuning_shares_the_pretraining(on_beir: list[str], tmp_path: Path) -> None:
    arguments = ["-m", "experiment=short", *on_beir, f"output_root={tmp_path}"]
    swept = door(*arguments, "stage.finetune.learning_rate=1e-4,1e-3").sound()
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
    assert door(*arguments, "stage.finetune.learning_rate=1e-4,1e-3").sound().computed == []


def test_a_job_that_fails_hides_no_other(on_beir: list[str], tmp_path: Path) -> None:
    arguments = ["-m", "experiment=short", *on_beir, f"output_root={tmp_path}", "stages.condenser.skip_from=1,5"]
    swept = door(*arguments)
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
