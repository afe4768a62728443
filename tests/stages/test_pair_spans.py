"""Where the two spans of a pair are taken from: ``pairs_within`` of the stages that pre-train on pairs."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_lines import names
from single_stage import run_stage
from small_runs import Done, run_command

from condensery.tokens.artifacts import Tokens
from condensery.tokens.spans import RandomWindows, SentencePacked
from condensery.tokens.store import TokenStore
from condensery.training.data import spans as data
from condensery.training.data.sources import SpanPairs

BACKBONE: dict[str, Any] = {
    "name": None, "revision": None, "tokenizer": None, "vocab_size": 300, "family": "bert", "layers": 2, "hidden": 32,
    "heads": 2, "intermediate": 64, "max_positions": 64, "dropout": 0.1, "initializer_range": 0.02,
}  # fmt: skip
LENGTH, MINIMUM, SHORT = 32, 8, 0.1
KINDS = ("pretrain_cocondenser", "pretrain_cotmae")


@pytest.fixture(scope="module")
def read(made: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders that the stages read: 8 documents of 3 passages."""
    folder = tmp_path_factory.mktemp("tokens")
    run_stage("tokens", folder, made, workers=1)
    return {"corpus": made["corpus"], "tokenizer": made["tokenizer"], "tokens": folder}


def pretrain(kind: str, folder: Path, read: Mapping[str, Path], **changes: Any) -> dict[str, Any]:
    """Two steps of 4 pairs; what the manifest would say of them."""
    few = {"length": LENGTH, "min_length": MINIMUM, "short_probability": SHORT, "steps": 2, "epochs": None}
    few |= {"batch_size": 4, "backbone": BACKBONE, "validate_every": 0}
    return run_stage(kind, folder, read, **{**few, **changes})


def texts_of(store: TokenStore, pairs: np.ndarray) -> np.ndarray:
    """The text that each end of each span lies in: (n, 4) of pairs (n, 2, 2)."""
    places = np.concatenate([pairs[:, :, 0], pairs.sum(axis=2) - 1], axis=1)
    return np.searchsorted(store.starts, places, side="right") - 1


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[SpanPairs]:
    """The pairs of every training of the test, one after the other."""
    found: list[SpanPairs] = []

    class Noted(SpanPairs):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            found.append(self)

    monkeypatch.setattr(data, "SpanPairs", Noted)
    return found


@pytest.mark.parametrize("spans", ["sentences", "windows"])
@pytest.mark.parametrize("kind", KINDS)
def test_both_spans_of_a_pair_are_of_one_document_or_of_one_passage(
    kind: str, spans: str, read: dict[str, Path], tmp_path: Path, trained_on: list[SpanPairs]
) -> None:
    store, items, weights = Tokens(read["tokens"]).documents, {}, {}
    for within in ("document", "passage"):
        items[within] = pretrain(kind, tmp_path / within, read, pairs_within=within, spans=spans)["items"]
        weights[within] = (tmp_path / within / "model.safetensors").read_bytes()
    assert items == {"document": 8, "passage": 24}
    documents, passages = (
        np.concatenate([one.spans.pairs(epoch, np.arange(one.items)) for epoch in range(20)]) for one in trained_on
    )
    ends = texts_of(store, passages)
    assert (ends == ends[:, :1]).all(), "a pair runs over two passages"
    assert set(ends[:, 0]) == set(range(24))
    ends = texts_of(store, documents)
    assert (ends // 3 == ends[:, :1] // 3).all(), "a pair runs over two documents"
    assert (ends != ends[:, :1]).any(), "these pairs are within passages too, and so prove nothing"
    assert weights["document"] != weights["passage"]


@pytest.mark.parametrize("spans", ["sentences", "windows"])
def test_without_the_key_pairs_are_those_of_the_documents(
    spans: str, read: dict[str, Path], tmp_path: Path, trained_on: list[SpanPairs]
) -> None:
    pretrain(KINDS[0], tmp_path / "default", read, spans=spans)
    store = Tokens(read["tokens"]).documents
    windows = spans == "windows"
    wanted = RandomWindows(store, LENGTH, 1, MINIMUM) if windows else SentencePacked(store, LENGTH, SHORT, 1, MINIMUM)
    for epoch in range(3):
        assert np.array_equal(trained_on[0].spans.pairs(epoch, np.arange(8)), wanted.pairs(epoch, np.arange(8)))


def test_processes_that_prepare_the_data_draw_the_same_pairs(read: dict[str, Path], tmp_path: Path) -> None:
    weights = []
    for workers in (0, 1):
        pretrain(KINDS[0], tmp_path / f"{workers}", read, data_workers=workers, pairs_within="passage")
        weights.append((tmp_path / f"{workers}" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def ids_of(done: Done) -> dict[str, str]:
    """The artifact id of each stage that a dry run lists."""
    return dict(re.findall(r"^\W*(\S+) .* ([0-9a-f]{16}) ", done.out, re.MULTILINE))


def test_another_place_for_pairs_is_another_artifact_and_an_unknown_one_is_named(
    on_beir: list[str], tmp_path: Path
) -> None:
    given = ["experiment=short", *on_beir, f"output_root={tmp_path}", "dry_run=plan"]
    before = ids_of(run_command(*given).sound())
    key = "stage.pretrain_cocondenser.pairs_within"
    after = ids_of(run_command(*given, f"{key}=passage").sound())
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"cocondenser", "round1", "round1.index", "round1.evaluation"}
    assert ids_of(run_command(*given, f"{key}=document").sound()) == before
    names(run_command(*given, f"{key}=text").err, key, "'document'", "'passage'", "'text'")
