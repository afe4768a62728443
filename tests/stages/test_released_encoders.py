"""SPLADE and ColBERT that others trained, from the command line: rows, indexes, and what people get wrong."""

import json
import shutil
from pathlib import Path

import pytest
from error_lines import names
from released import released
from released_encoders import (
    ABOUT,
    PASSAGES,
    QUERIES,
    changed,
    colbert,
    hf_colbert,
    pylate,
    refused,
    splade,
)
from small_runs import costs, metrics_of, run_command
from test_bad_input import one_line

from condensery.baselines.released.config import SparseEncoderConfig, TokenEncoderConfig
from condensery.errors import UserError
from condensery.models.checkpoints.retrievers import load_any_retriever
from condensery.stages.base import Artifact
from condensery.stages.released.config import RetrieverConfig
from condensery.tokens.tokenizer import train_wordpiece


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_wordpiece([*QUERIES, *PASSAGES] * 5, 120, folder, warn=False)
    return folder


def test_each_stage_names_the_stages_of_the_other_models(tokenizer: Path, tmp_path: Path) -> None:
    """A folder of another kind of model ends the run before it begins, in one line that says what else there is."""
    folders = {
        "sparse_encoder": splade(tokenizer, tmp_path / "splade"),
        "token_encoder": colbert(tokenizer, tmp_path / "late"),
    }
    folders["pylate"] = pylate(tokenizer, tmp_path / "pylate")
    folders["authors"] = hf_colbert(tokenizer, tmp_path / "authors")
    folders["retriever"] = released(tmp_path / "dense", tokenizer)
    for kind in (SparseEncoderConfig, TokenEncoderConfig):
        for name, folder in folders.items():
            if name not in (kind.called[0], "pylate", "authors"):
                names(
                    refused(kind, folder)[0],
                    "modules.json",
                    "retriever, sparse_encoder, token_encoder and cross_encoder",
                )
    for name in ("sparse_encoder", "token_encoder", "pylate", "authors"):
        with pytest.raises(UserError) as raised:
            RetrieverConfig(folder=folders[name], query_length=None, passage_length=None).identity()
        named = ["config.json", "HF_ColBERT"] if name == "authors" else [ABOUT, "model_type"]
        names(str(raised.value), *named, "sparse_encoder, token_encoder and cross_encoder are the stages")
        with pytest.raises(UserError, match="are the stages"):
            load_any_retriever(folders[name])
    plain = tmp_path / "late" / "plain"
    names(refused(TokenEncoderConfig, plain)[0], str(plain / "modules.json"), "no such file", "a ColBERT is of pylate")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, on_beir: list[str], beir: Path) -> list[str]:
    """A recipe with both kinds of models as rows, with their own tokenizer."""
    folder = tmp_path_factory.mktemp("recipe")
    texts = [json.loads(line)["text"] for line in (beir / "corpus.jsonl").read_text().splitlines()]
    train_wordpiece(texts, 300, folder / "words")
    splade(folder / "words", folder / "splade", length=40)
    pylate(folder / "words", folder / "colbert", document_length=40)
    return [
        *on_beir,
        *("stages.corpus={stage: corpus}", f"stages.tokenizer={{stage: tokenizer, name: {folder / 'words'}}}"),
        *("stages.tokens={stage: tokens}", "stages.bm25={stage: bm25}"),
        f"stages.splade={{stage: sparse_encoder, folder: {folder / 'splade' / 'saved'}}}",
        f"stages.colbert={{stage: token_encoder, folder: {folder / 'colbert'}}}",
        "table.rows={BM25: bm25, SPLADE: splade, ColBERT: colbert}",
        *("logger=csv", "trainer=cpu", "trainer.precision=fp32"),
        f"output_root={folder / 'out'}",
    ]


def test_both_are_rows_by_their_folder_and_get_an_index(recipe: list[str]) -> None:
    planned = run_command(*recipe, "dry_run=true").sound()
    rows = costs(planned.out)
    assert {"splade.index", "colbert.index", "splade", "colbert"} <= set(rows)
    assert "unknown" not in " ".join(rows["splade"] + rows["colbert"]), "their sizes are known before the run"
    done = run_command(*recipe).sound()
    assert list(metrics_of(done.folder)) == ["BM25", "SPLADE", "ColBERT"]
    kinds = {Artifact((done.folder / "stages" / f"{name}.index").resolve()).kind for name in ("splade", "colbert")}
    assert kinds == {"splade_index", "late_interaction_index"}
    assert not run_command(*recipe).sound().computed


def test_its_id_is_of_the_content_and_not_of_the_path(recipe: list[str], tmp_path: Path) -> None:
    folder = Path(recipe[-1].partition("=")[2]).parent / "colbert"
    shutil.copytree(folder, tmp_path / "moved")
    moved, same = (TokenEncoderConfig(folder=one).identified_by({}) for one in (tmp_path / "moved", folder))
    assert moved == same
    changed(tmp_path / "moved" / ABOUT, query_length=20)
    assert TokenEncoderConfig(folder=tmp_path / "moved").identified_by({}) != same


@pytest.mark.parametrize(
    ("override", "place", "words"),
    [
        ("stages.splade.folder=./there", "stage.sparse_encoder.folder", ["no such folder", "a trained SPLADE"]),
        ("stages.colbert.folder=./there", "stage.token_encoder.folder", ["no such folder", "a trained ColBERT"]),
        ("stages.colbert.passage_length=2", "stages.colbert.passage_length", ["4"]),
        ("stages.colbert.passage_length=300", "stages.colbert.passage_length", ["300 is too large", "200 positions"]),
    ],
)
def test_what_cannot_be_is_one_line(recipe: list[str], override: str, place: str, words: list[str]) -> None:
    one_line(run_command(*recipe, override), place, *words)


def test_a_hub_name_without_network_is_one_line(recipe: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    one_line(run_command(*recipe, "stages.splade.folder=nobody/has-this", "table.rows={S: splade}"), "nobody/has-this")


@pytest.mark.parametrize("name", ["splade", "colbert"])
def test_tokens_of_another_tokenizer_are_one_line(recipe: list[str], name: str, tmp_path: Path) -> None:
    train_wordpiece([*QUERIES, *PASSAGES] * 5, 120, tmp_path / "others", warn=False)
    others = f"stages.others={{stage: tokenizer, name: {tmp_path / 'others'}}}"
    kind = {"splade": "splade_index", "colbert": "late_interaction_index"}[name]
    index = f"stages.index={{stage: {kind}, model: {name}, tokens: read}}"
    read = "stages.read={stage: tokens, tokenizer: others}"
    done = run_command(*recipe, others, read, index, "table.rows={X: index}")
    one_line(done, "stages.index.tokens", "tokenised with another tokenizer", "name those of the model")
