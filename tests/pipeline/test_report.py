"""What a run leaves and shows: its folder, its table."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from toy_commands import Compose

from condensery.pipeline.run import run


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
