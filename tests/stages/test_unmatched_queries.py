"""Stages that ask BM25 say so where most of their queries share no term with any passage."""

from pathlib import Path

import pytest
from single_stage import inputs, run_stage
from small_runs import Text

from condensery.retrieval.indexes.interface import UNMATCHED


def made(folder: Path, queries: list[str]) -> dict[str, Path]:
    texts = ["Bees dance in the sun.", "Iron rusts in damp air.", "Rain falls at night."]
    passages = [(f"p{at}", "", text, f"d{at}") for at, text in enumerate(texts)]
    made = inputs(folder / "in", Text(passages, [(f"q{at}", text, f"p{at}") for at, text in enumerate(queries)]))
    run_stage("bm25", folder / "artifacts" / "bm25" / "index", made)
    (folder / "artifacts" / "bm25" / "index" / "manifest.json").write_text('{"inputs": {}, "makes": "index"}')
    return {**made, "index": folder / "artifacts" / "bm25" / "index"}


@pytest.mark.parametrize(
    ("queries", "warned"), [(["蜜蜂跳舞", "железо", "rain"], True), (["bees", "iron", "дождь"], False)]
)
def test_evaluation_mining_and_reranking_warn(queries: list[str], warned: bool, tmp_path: Path) -> None:
    folders = made(tmp_path, queries)
    kinds = {
        "evaluate": {"split": "train", "metrics": ["MRR@10"], "index": "bm25"},
        "mine": {"retriever": "bm25"},
    }
    for kind, settings in kinds.items():
        read = {**folders, "retriever": folders["index"]}
        said = run_stage(kind, tmp_path / kind, read, **settings).get("warnings", [])
        assert [UNMATCHED in text for text in said] == [True] * warned, kind
