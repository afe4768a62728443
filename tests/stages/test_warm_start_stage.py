"""The stage ``warm_start``: what it writes, what starts from it, what it measures untrained, and what cannot be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from alone import run_stage
from safetensors.torch import load_file
from small import Done, artifact_files, door, metrics_of, some_text, write_marco
from test_bad_input import one_line
from transformers import AutoModel, AutoModelForMaskedLM

from condensery.errors import UserError
from condensery.files import read_json
from condensery.models.checkpoint import load_retriever
from condensery.stages.texts import Tokens
from condensery.tokens.cooccurrence import unigrams

BACKBONE: dict[str, Any] = {
    "name": None, "revision": None, "tokenizer": None, "vocab_size": 300, "family": "bert", "layers": 2, "hidden": 32,
    "heads": 2, "intermediate": 64, "max_positions": 64, "dropout": 0.1, "initializer_range": 0.02,
}  # fmt: skip
NOISE = "embeddings: false, unigram_bias: false, near_identity: 0, rare_tokens: 0, position_scale: 1"
WORDS = "embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def read(made: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders that the stage reads."""
    folder = tmp_path_factory.mktemp("tokens")
    run_stage("tokens", folder, made, workers=1)
    return {"tokenizer": made["tokenizer"], "tokens": folder}


def warm(folder: Path, read: Mapping[str, Path], /, **changes: Any) -> dict[str, Any]:
    return run_stage("warm_start", folder, read, **{"backbone": BACKBONE, "length": 64, **changes})


@pytest.fixture(scope="module")
def plain(read: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stage with its defaults."""
    folder = tmp_path_factory.mktemp("plain") / "warm"
    warm(folder, read)
    return folder


def test_it_is_the_same_bytes_each_time_and_others_with_another_seed(
    plain: Path, read: dict[str, Path], tmp_path: Path
) -> None:
    warm(tmp_path / "again", read)
    warm(tmp_path / "other", read, seed=2)
    weights = [
        (folder / "model.safetensors").read_bytes() for folder in (plain, tmp_path / "again", tmp_path / "other")
    ]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_it_opens_in_transformers_as_an_encoder_and_as_a_language_model(
    family: str, read: dict[str, Path], tmp_path: Path
) -> None:
    about = warm(tmp_path / "warm", read, backbone={**BACKBONE, "family": family}, length=48)
    tokens = Tokens(read["tokens"])
    counts = unigrams(tokens.documents, tokens.vocabulary.size)
    assert about == {"tokens": tokens.documents.token_count, "known_tokens": int((counts > 0).sum())}
    model = AutoModel.from_pretrained(tmp_path / "warm")
    language_model: Any = AutoModelForMaskedLM.from_pretrained(tmp_path / "warm")
    assert torch.equal(model.get_input_embeddings().weight, language_model.get_input_embeddings().weight)
    expected = torch.from_numpy((counts + 1) / (counts + 1).sum()).float()
    torch.testing.assert_close(language_model.get_output_embeddings().bias.exp(), expected)
    assert language_model.base_model.encoder.layer[1].attention.self.value.weight.diagonal().mean() > 0.9
    retriever = load_retriever(tmp_path / "warm")
    assert (retriever.query_length, retriever.passage_length) == (48, 48)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "embeddings": ({"embeddings": False}, WORDS),
    "window": ({"window": 2}, WORDS),
    "smoothing": ({"smoothing": 1.0}, WORDS),
    "unigram_bias": ({"unigram_bias": False}, "predictions.bias"),
    "near_identity": ({"near_identity": 0.0}, "attention.self.value.weight"),
    "random_share": ({"random_share": 0.9}, "attention.output.dense.weight"),
    "rare_tokens": ({"rare_tokens": 0.0}, "layer.0.attention.self.query.bias"),
    "position_scale": ({"position_scale": 1.0}, "position_embeddings.weight"),
}


@pytest.mark.parametrize("key", CHANGES)
def test_every_key_changes_the_weights_that_it_names(
    key: str, plain: Path, read: dict[str, Path], tmp_path: Path
) -> None:
    changes, name = CHANGES[key]
    about = warm(tmp_path / "warm", read, **changes)
    assert ("known_tokens" in about) == (key != "embeddings")
    before, after = load_file(plain / "model.safetensors"), load_file(tmp_path / "warm" / "model.safetensors")
    assert before.keys() == after.keys()
    differ = {one for one, value in before.items() if not torch.equal(value, after[one])}
    assert any(one.endswith(name) for one in differ)
    untouched = {one for one in before if "intermediate" in one or "layer.1.attention.self.key" in one}
    assert untouched, "what no part writes is drawn from the seed alone"
    assert not untouched & differ


def test_a_named_checkpoint_is_taken_as_it_is_and_a_line_says_so(
    plain: Path, read: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {**BACKBONE, "name": str(plain), "tokenizer": str(plain)}
    about = warm(tmp_path / "taken", read, backbone=named, length=32)
    line = f"[warm_start] {plain} is trained already, and is taken as it is"
    assert capsys.readouterr().out == f"{line}\n"
    assert about.keys() == {"tokens"}
    before, after = load_file(plain / "model.safetensors"), load_file(tmp_path / "taken" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    (plain / "condenser_head.safetensors").touch()
    try:
        warm(tmp_path / "with_head", read, backbone=named, length=32)
    finally:
        (plain / "condenser_head.safetensors").unlink()
    assert capsys.readouterr().out == f"{line}, but for condenser_head.safetensors, which init: backbone would read\n"


def test_a_named_checkpoint_with_too_few_positions_is_one_line(
    plain: Path, read: dict[str, Path], tmp_path: Path
) -> None:
    named = {**BACKBONE, "name": str(plain), "tokenizer": str(plain), "max_positions": 512}
    wanted = "^stages.warm_start: length=65 is longer than the backbone's 64 positions$"
    with pytest.raises(UserError, match=wanted):
        warm(tmp_path / "warm", read, backbone=named, length=65)


START = ("mlm", "condenser", "cocondenser", "round1")  # whatever can start from it


@pytest.fixture(scope="module")
def done(on_beir: list[str], tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The recipe ``short`` with all that trains started from it, and stopped where it began: the rate is next to 0."""
    kinds = ("pretrain_mlm", "pretrain_condenser", "pretrain_cocondenser", "finetune")
    few = [f"stage.{kind}.{key}" for kind in kinds for key in ("steps=1", "learning_rate=1e-9", "weight_decay=0")]
    return door(
        "experiment=short", *on_beir, *few,
        "stages.warm={stage: warm_start, length: 64}",
        f"stages.noise={{stage: warm_start, length: 64, {NOISE}}}",
        "stages.mlm={stage: pretrain_mlm, init: warm}",
        *(f"stages.{name}.init=warm" for name in START[1:]),
        "+table.rows.warm=warm", "+table.rows.noise=noise",
        f"output_root={tmp_path_factory.mktemp('warm')}",
    ).sound()  # fmt: skip


@pytest.mark.parametrize("name", START)
def test_training_starts_from_its_weights(name: str, done: Done) -> None:
    start, trained = (load_file(done.folder / "stages" / stage / "model.safetensors") for stage in ("warm", name))
    start = {key.removeprefix("bert."): value for key, value in start.items()}
    trained = {key.removeprefix("bert."): value for key, value in trained.items()}
    assert {key for key in start if not key.startswith("cls.")} <= trained.keys() <= start.keys()
    for key, value in trained.items():
        torch.testing.assert_close(value, start[key], rtol=0, atol=1e-6, msg=key)
    noise = load_file(done.folder / "stages" / "noise" / "model.safetensors")
    assert (trained[WORDS] - noise[f"bert.{WORDS}"]).abs().max() > 0.01


def test_masked_language_modelling_starts_from_the_unigrams(done: Done) -> None:
    def first_loss(name: str) -> float:
        header, first = (done.folder / "stages" / name / "logs" / "metrics.csv").read_text().splitlines()[:2]
        return float(dict(zip(header.split(","), first.split(","), strict=True))["train/mlm_late"])

    tokens = Tokens((done.folder / "stages" / "tokens").resolve())
    counts = unigrams(tokens.documents, tokens.vocabulary.size)
    share = counts[counts > 0] / counts.sum()
    entropy, uniform = -(share * torch.from_numpy(share).log().numpy()).sum(), torch.tensor(len(counts)).log()
    assert abs(first_loss("mlm") - entropy) < 0.4 < uniform - entropy


def test_untrained_it_is_a_row_that_finds_more_than_noise(done: Done) -> None:
    rows = metrics_of(done.folder)
    assert rows["warm"]["MRR@10"] > 2 * rows["noise"]["MRR@10"] > 0
    assert read_json(done.folder / "stages" / "warm" / "manifest.json")["metrics"]["known_tokens"] > 300
    assert "associations of" in done.out


def test_what_of_it_changes_is_computed_again_with_what_starts_from_it(done: Done, on_beir: list[str]) -> None:
    overrides = ["experiment=short", *on_beir, "dry_run=true", f"output_root={done.folder.parents[1]}"]
    stages = ["stages.warm={stage: warm_start, length: 64}", "stages.condenser.init=warm", "+table.rows.warm=warm"]
    shown = door(*overrides, *stages, "stages.warm.window=5").sound().out
    states = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "hit" in states["tokens"]
    assert "miss" in states["warm"]
    assert "miss" in states["condenser"]


def documents_of(done: Done) -> tuple[int, Tokens]:
    made = read_json(done.folder / "stages" / "warm" / "manifest.json")["metrics"]
    return made["tokens"], Tokens((done.folder / "stages" / "tokens").resolve())


def test_separate_documents_are_counted_where_there_are_such_and_else_each_passage_is_one(tmp_path: Path) -> None:
    root = write_marco(tmp_path / "in", some_text(documents=8))
    recipe = [
        "trainer=cpu", "backbone=tiny", "backbone.vocab_size=400", "backbone.hidden=32", "logger=csv", "data=msmarco",
        f"data.root={root}", "stages.corpus={stage: corpus}", "stages.tokenizer={stage: tokenizer}",
        "stages.tokens={stage: tokens, workers: 1}", "stages.warm={stage: warm_start}", f"output_root={tmp_path / 'out'}",
    ]  # fmt: skip
    counted, tokens = documents_of(door(*recipe).sound())
    assert (tokens.folder / "documents").is_dir()
    assert counted == tokens.documents.token_count != tokens.passages.token_count
    (root / "msmarco-docs.tsv").unlink()
    alone = door(*recipe).sound()
    counted, tokens = documents_of(alone)
    assert not (tokens.folder / "documents").exists()
    assert counted == tokens.passages.token_count
    assert (tokens.passages.document_starts == tokens.passages.starts).all()
    before = artifact_files(alone.folder)
    assert door(*recipe, "force=[warm]").sound().computed == ["warm"]
    assert artifact_files(alone.folder) == before


BAD = {
    "window: 0": "stages.warm.window: must be >= 1, got 0",
    "window: 41": "stages.warm.window: must be <= 40, got 41",
    "window: true": "stages.warm.window: must be a number, got true",
    "smoothing: 0": "stages.warm.smoothing: must be > 0, got 0",
    "smoothing: 1.5": "stages.warm.smoothing: must be <= 1, got 1.5",
    "near_identity: -1": "stages.warm.near_identity: must be >= 0, got -1",
    "rare_tokens: much": "stages.warm.rare_tokens: must be a number",
    "position_scale: .inf": "stages.warm.position_scale: must be a finite number",
    "embeddings: 3": "stages.warm.embeddings: must be true or false",
    "length: 65": "stages.warm: length=65 is longer than the backbone's 64 positions",
    "length: 7": "stages.warm.length: must be >= 8, got 7",
    "tokens: corpus": "stages.warm.tokens: the stage 'corpus' makes corpus, but tokens is needed here",
    "positions: 1": "stages.warm.positions",
    "backbone: {name: ./nix}": "backbone.name: ./nix: no such folder",
}


@pytest.mark.parametrize("setting", BAD)
def test_what_cannot_be_is_one_line(setting: str, on_beir: list[str], tmp_path: Path) -> None:
    settings = {"length": "32", **dict([setting.split(": ", 1)])}
    stage = ", ".join(f"{key}: {value}" for key, value in settings.items())
    arguments = [f"stages.warm={{stage: warm_start, {stage}}}", "dry_run=true", f"output_root={tmp_path}"]
    one_line(door("experiment=short", *on_beir, *arguments), BAD[setting])
