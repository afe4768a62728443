"""The comparison of baselines runs to its table, which shows what each row costs, and to its figures."""

import csv
import json
from pathlib import Path

import pytest
from small_runs import MODEL, metrics_of, run_command, some_text, write_beir

from condensery.errors import UserError
from condensery.reporting.results import read_results

KINDS = (
    "finetune",
    "finetune_tas_b",
    "train_term_weights",
    "finetune_generator",
    "train_cross_encoder",
    "train_jointly",
)
KINDS += ("finetune_late_interaction", "finetune_splade")
FEW = [f"stage.{kind}.{key}" for kind in KINDS for key in ("steps=2", "batch_size=6")]
FEW += ["stages.clusters.clusters=3", "stages.coil.whole=32", "stages.queries.number=1", "stage.evaluate.timed=3"]
ROWS = ["BM25", "DeepCT", "docT5query", "bi-encoder", "+ hard negatives", "LED", "TAS-B", "TCT-ColBERT", "PAIR"]
ROWS += ["RocketQAv2", "ColBERT", "COIL", "ME-BERT", "SPLADE"]
COSTS = ["milliseconds a query", "bytes a passage", "CPU-seconds of training"]


@pytest.mark.slow
def test_each_row_has_its_quality_and_its_costs(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "beir", some_text(documents=12, seed=5))
    given = [
        "data=beir",
        f"data.root={root}",
        f"output_root={tmp_path / 'out'}",
        "logger=csv",
        *MODEL,
        *FEW,
        "seed=1,2",
    ]
    done = run_command("-m", "experiment=ablation/baselines", *given).sound()
    assert list(metrics_of(done.folder)) == ROWS
    numbers = {stage: done.computed.count(stage) for stage in ("bm25", "warm", "dense", "mined", "cross_encoder")}
    assert numbers == {"bm25": 1, "warm": 2, "dense": 2, "mined": 2, "cross_encoder": 2}
    rows = json.loads((done.folder / "results.json").read_text())
    costs = {row["row"]: row["costs"] for row in rows if row["seed"] == 1}
    assert all(list(of) == COSTS for of in costs.values())
    training = {row: of["CPU-seconds of training"] for row, of in costs.items()}
    assert training.pop("BM25") == 0
    assert all(training.values())
    assert training["TAS-B"] > training["bi-encoder"], "which gave it its negatives and its teacher"
    stored = {row: of["bytes a passage"] for row, of in costs.items()}
    assert stored["LED"] == stored["bi-encoder"]
    assert stored["ColBERT"] > stored["ME-BERT"]
    lines = list(csv.reader((done.folder / "table.csv").open()))
    assert set(COSTS) <= set(lines[0])
    for name in ("milliseconds", "bytes", "training", "training_dense"):
        points = list(csv.DictReader((done.folder / "figures" / f"{name}.csv").open()))
        assert {point["runs"] for point in points if point["line"] != "BM25"} == {"2"}
        assert all(float(point["x"]) > 0 for point in points if point["line"] != "BM25")


def test_a_cost_that_nobody_measured_is_a_dash_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "beir", some_text(documents=12, seed=5))
    given = ["data=beir", f"data.root={root}", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL]
    given += ["+stages.bm25={stage: bm25}", "+table.rows.BM25=bm25", f"table.costs=[{','.join(COSTS)}]"]
    untimed = run_command(*given).sound()
    (row,) = json.loads((untimed.folder / "results.json").read_text())
    assert list(row["costs"]) == COSTS[1:]
    index = untimed.folder / "stages" / "bm25"
    stored = sum(file.stat().st_size for file in index.iterdir() if file.name != "manifest.json")
    passages = json.loads((index / "index.json").read_text())["passages"]
    assert row["costs"]["bytes a passage"] == stored / passages
    assert "table.costs" in run_command(*given, "table.costs=[bytes]", "dry_run=plan").err
    row["costs"]["bytes a passage"] = "many"
    (untimed.folder / "results.json").write_text(json.dumps([row]))
    with pytest.raises(UserError, match="costs: bytes a passage: Input should be a valid number"):
        read_results(untimed.folder / "results.json")
