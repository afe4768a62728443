"""The small recipes of the distilled baselines run to their tables, and their students have learned from their teachers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from slow import slow_except
from small_runs import MODEL, amount, costs, metrics_of, run_command, some_text, write_beir

from condensery.models.checkpoints.retrievers import load_retriever
from condensery.models.cross_encoder import load_reranker
from condensery.system.files import read_json

TRAINED = ("pretrain_cocondenser", "finetune", "train_cross_encoder", "finetune_tas_b", "train_jointly")
FEW = [f"++stage.{kind}.{key}" for kind in TRAINED for key in ("steps=2", "epochs=null", "batch_size=6")]
GIVEN = {
    "tas_b": ["stages.clusters.clusters=3"],
    "pair": ["data.unlabelled_queries=8", "stage.pseudo_label.positive=0.3", "stage.pseudo_label.negative=0.3"],
    "rocketqa_v2": ["stage.rerank.depth=5"],
    "simlm": ["stage.rerank.depth=5"],
}
BASE = ["BM25", "round 1", "teacher: round 1 + BM25", "without a teacher"]
ROWS = {
    "tas_b": [
        *(*BASE, "margin-MSE", "+ topics (TAS)", "+ balanced margins (TAS-Balanced)"),
        "+ in-batch teacher (TAS-B)",
    ],
    "tct_colbert": [*BASE, "KL: its own passages", "TCT: the whole batch"],
    "led": [
        *(row for row in BASE if "teacher:" not in row),
        "+ BM25's negatives",
        "LED: + BM25's order",
        "KL: BM25's scores",
    ],
    "pair": [
        *("BM25", "round 1", "query-centric, pseudo-labels", "query-centric, then judged queries"),
        *("PAIR, pseudo-labels", "PAIR, then judged queries"),
    ],
    "rocketqa_v2": [
        *(*(row for row in BASE if "teacher:" not in row), "RocketQAv2 retriever"),
        *("round 1 + first re-ranker", "RocketQAv2 retriever + re-ranker"),
    ],
    "simlm": [
        *("BM25", "retriever 1 (BM25's negatives)", "retriever 2 (mined negatives)"),
        *("retriever 2 + re-ranker", "retriever 3 (distilled)"),
    ],
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A small collection, and one store for all recipes, which share their first stages."""
    folder = tmp_path_factory.mktemp("distilled")
    root = write_beir(folder / "beir", some_text(documents=24, seed=5))
    given = ["data=squad", f"data.root={root}", f"output_root={folder / 'out'}", "logger=csv", "backbone.dropout=0.0"]
    return [*given, *MODEL, *FEW]  # without dropout, whose draws differ from process to process


@pytest.mark.parametrize("recipe", slow_except(ROWS, "tct_colbert"))
def test_it_runs_to_its_table(recipe: str, given: list[str]) -> None:
    done = run_command(f"experiment={recipe}", *given, *GIVEN.get(recipe, [])).sound()
    found = metrics_of(done.folder)
    assert list(found) == ROWS[recipe]
    assert all(0 < value <= 1 for row in found.values() for value in row.values())
    stages = done.folder / "stages"
    if recipe == "rocketqa_v2":
        assert (stages / "joint" / "reranker" / "condensery.json").is_file()
        before, after = (load_reranker(stages / name).model.state_dict() for name in ("cross_encoder", "reranker"))
        assert any(not np.array_equal(one, after[name]) for name, one in before.items()), "it was trained further"
        assert load_retriever(stages / "joint").model.shared
        assert read_json(stages / "joint" / "manifest.json")["metrics"]["steps"] == 2
    if recipe == "tas_b":
        assert read_json(stages / "clusters" / "manifest.json")["metrics"]["clusters"] == 3
    again = run_command(f"experiment={recipe}", *given, *GIVEN.get(recipe, [])).sound()
    assert again.computed == [], "all is there already"


def test_the_scored_pairs_are_about_as_large_as_a_dry_run_expects(given: list[str], tmp_path: Path) -> None:
    command = ["experiment=tas_b", *given, *GIVEN["tas_b"]]
    done = run_command(*command).sound()
    expected = costs(run_command(*command, "dry_run=plan", f"output_root={tmp_path}").sound().out)["taught"][3]
    made = read_json(done.folder / "stages" / "taught" / "manifest.json")["files"]
    assert amount(expected) == pytest.approx(sum(made.values()), rel=0.6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "stage"), [("tas_b", "tas_b"), ("tct_colbert", "whole_batch"), ("rocketqa_v2", "joint")]
)
def test_two_processes_train_the_weights_of_one(recipe: str, stage: str, given: list[str]) -> None:
    command = [f"experiment={recipe}", *given, *GIVEN.get(recipe, [])]
    folder = run_command(*command).sound().folder / "stages" / stage
    one = {path.relative_to(folder): load_file(path) for path in folder.rglob("*.safetensors")}
    two = ["trainer.devices=2", "trainer.threads=2", f"force=[{stage}]"]
    folder = run_command(*command, *two).sound().folder / "stages" / stage
    assert read_json(folder / "manifest.json")["machine"]["processes"] == "2"
    assert len(one) == (2 if recipe == "rocketqa_v2" else 1), "the re-ranker too"
    for path, weights in one.items():
        other = load_file(folder / path)
        assert weights.keys() == other.keys()
        for name, weight in weights.items():
            if name.endswith("key.bias"):  # softmax does not depend on it, so that it moves by rounding alone
                continue
            torch.testing.assert_close(other[name], weight, rtol=1e-3, atol=2e-5, msg=f"{path}: {name}")
