"""What a run leaves and shows: its folder, its table, the best retriever's answers."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from toy_commands import Compose

from condensery.errors import UserError
from condensery.pipeline import report
from condensery.pipeline.graph import build
from condensery.pipeline.run import run
from condensery.pipeline.store import Store
from condensery.reporting.results import Row


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
    finished = run(composed(*rows))
    assert finished.rows == []
    with pytest.raises(UserError, match="ask: this run has no table"):
        run(composed(*rows, "ask=what"))


def test_of_equal_rows_the_later_is_the_best() -> None:
    rows = [
        Row(name, "toys", "test", {"MRR@10": value}) for name, value in (("a", 0.5), ("b", 0.7), ("c", 0.7), ("d", 0.1))
    ]
    assert report.best_row(rows) == "c"


def test_the_folders_behind_a_row_are_found_through_the_manifests(composed: Compose, tmp_path: Path) -> None:
    run(composed())
    graph, store = build(composed()), Store(tmp_path / "out")
    dense = report.retriever_of(graph, store, "round2")
    assert dense.index.path == store.path(graph.nodes["round2.index"])
    assert dense.encoder is not None
    assert dense.encoder.path == store.path(graph.nodes["round2"])
    assert dense.collection.path == store.path(graph.nodes["corpus"])
    assert report.retriever_of(graph, store, "BM25").encoder is None


def test_ask_searches_with_the_best_row(composed: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("condensery.text.collection.Collection", lambda folder: SimpleNamespace(folder=folder))
    monkeypatch.setattr("condensery.retrieval.index.open_index", lambda folder, collection: folder)
    monkeypatch.setattr("condensery.reporting.ask.ask", lambda *arguments: asked.update(arguments=arguments) or [])
    monkeypatch.setattr("condensery.pipeline.report.query_encoder", lambda folder: folder)
    finished = run(composed("ask=read a json file"))
    best = report.best_row(finished.rows)
    found = report.retriever_of(build(composed()), Store(tmp_path / "out"), best)
    text, index, collection, k, encode = asked["arguments"]
    assert (text, k) == ("read a json file", 5)
    assert (index, collection.folder) == (found.index.path, found.collection.path)
    assert encode == (found.encoder.path if found.encoder else None)


def test_a_query_is_encoded_as_transformers_does(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

    from condensery.models.biencoder import BiEncoder
    from condensery.models.checkpoint import Retriever, save_retriever
    from condensery.models.encoder import Encoder
    from condensery.tokens.tokenizer import train_wordpiece

    train_wordpiece(["read a json file", "write a file of text", "parse json text"] * 20, 120, tmp_path / "words")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(BertConfig(vocab_size=len(AutoTokenizer.from_pretrained(tmp_path / "words")), **size), False)
    save_retriever(Retriever(BiEncoder(Encoder(model)), 12, 12), tmp_path / "model", tmp_path / "words")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "model")("read a json file", return_tensors="pt")
    with torch.no_grad():
        wanted = AutoModel.from_pretrained(tmp_path / "model", add_pooling_layer=False)(**tokens).last_hidden_state[
            0, 0
        ]
    found = report.query_encoder(tmp_path / "model")("read a json file")
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)
