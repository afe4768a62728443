"""The stage ``warm_start``: what it writes, what starts from it, what it measures untrained, and what cannot be."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from single_stage import run_stage
from small_runs import MODEL, Done, metrics_of, run_command, some_text
from test_bad_input import one_line
from transformers import AutoModel, AutoModelForMaskedLM

from condensery.errors import UserError
from condensery.models.checkpoints.retrievers import load_retriever
from condensery.system.files import read_json
from condensery.text.records import Document, Passage
from condensery.text.writer import CollectionWriter
from condensery.tokens.artifacts import Tokens
from condensery.tokens.cooccurrence import unigrams

BACKBONE: dict[str, Any] = {
    "name": None, "revision": None, "tokenizer": None, "vocab_size": 300, "family": "bert", "layers": 2, "hidden": 32,
    "heads": 2, "intermediate": 64, "max_positions": 64, "dropout": 0.1, "initializer_range": 0.02,
}  # fmt: skip
NOISE = "vectors: null, unigram_bias: false, near_identity: 0, rare_tokens: 0, position_scale: 1"
WORDS = "embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def read(made: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders that the stage reads."""
    folder = tmp_path_factory.mktemp("tokens")
    run_stage("tokens", folder, made, workers=1)
    decompose(folder.with_name("vectors"), folder)
    return {"tokenizer": made["tokenizer"], "tokens": folder, "vectors": folder.with_name("vectors")}


def decompose(folder: Path, tokens: Path, **changes: Any) -> dict[str, Any]:
    return run_stage("token_vectors", folder, {"tokens": tokens}, **{"dim": BACKBONE["hidden"], **changes})


def warm(folder: Path, read: Mapping[str, Path], /, **changes: Any) -> dict[str, Any]:
    return run_stage(
        "warm_start", folder, read, **{"backbone": BACKBONE, "length": 64, "vectors": "vectors", **changes}
    )


@pytest.fixture(scope="module")
def plain(read: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stage with its defaults."""
    folder = tmp_path_factory.mktemp("plain") / "warm"
    warm(folder, read)
    return folder


def test_vectors_are_the_same_bytes_each_time(read: dict[str, Path], tmp_path: Path) -> None:
    about = decompose(tmp_path / "again", read["tokens"])
    assert about["tokens"] == Tokens(read["tokens"]).documents.token_count
    assert about["associations"] > 0
    for name in ("left.npy", "values.npy"):
        assert (tmp_path / "again" / name).read_bytes() == (read["vectors"] / name).read_bytes()


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
    "vectors": ({"vectors": None}, WORDS),
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
    if key in ("window", "smoothing"):
        decompose(tmp_path / "vectors", read["tokens"], **changes)
        read, changes = {**read, "vectors": tmp_path / "vectors"}, {}
    about = warm(tmp_path / "warm", read, **changes)
    assert ("known_tokens" in about) == (key != "vectors")
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
    line = f"[warm_start] {plain} is already trained, and is saved unchanged"
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
    assert (
        capsys.readouterr().out
        == f"{line} without condenser_head.safetensors; a stage with `init: backbone` reads it\n"
    )


def test_a_named_checkpoint_with_too_few_positions_is_one_line(
    plain: Path, read: dict[str, Path], tmp_path: Path
) -> None:
    named = {**BACKBONE, "name": str(plain), "tokenizer": str(plain), "max_positions": 512}
    wanted = "^stages.warm_start.length: 65 is too large; the model has 64 positions$"
    with pytest.raises(UserError, match=wanted):
        warm(tmp_path / "warm", read, backbone=named, length=65)


AT_REST = {"steps": 1, "epochs": None, "token_budget": None, "learning_rate": 1e-9, "weight_decay": 0.0}


def assert_starts_from(start: Path, trained: Path) -> None:
    """That a training whose rate was next to 0 left the weights of ``start`` in its encoder."""
    wanted, found = (
        {name.removeprefix("bert."): value for name, value in load_file(folder / "model.safetensors").items()}
        for folder in (start, trained)
    )
    assert {name for name in wanted if not name.startswith("cls.")} <= found.keys() <= wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", ["pretrain_mlm", "pretrain_condenser", "pretrain_cocondenser"])
def test_pretraining_starts_from_its_weights(
    kind: str, plain: Path, made: Mapping[str, Path], read: dict[str, Path], tmp_path: Path
) -> None:
    sizes = {"length": 32, "min_length": 8, "batch_size": 8, "chunk_tokens": 256, "validate_every": 0, "log_every": 1}
    inputs = {**read, "corpus": made["corpus"], "init": plain}
    run_stage(kind, tmp_path / "trained", inputs, init="warm", backbone=BACKBONE, **sizes, **AT_REST)
    assert_starts_from(plain, tmp_path / "trained")
    loss = "train/mlm_late"
    header, first = (tmp_path / "trained" / "logs" / "metrics.csv").read_text().splitlines()[:2]
    began = float(dict(zip(header.split(","), first.split(","), strict=True))[loss])
    tokens = Tokens(read["tokens"])
    counts = unigrams(tokens.documents, tokens.vocabulary.size)
    share = counts[counts > 0] / counts.sum()
    entropy, uniform = float(-(share * np.log(share)).sum()), float(np.log(len(counts)))
    assert abs(began - entropy) < 0.4 < uniform - entropy, "a model that knows nothing but unigrams"


@pytest.fixture(scope="module")
def done(on_beir: list[str], tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A recipe that measures it untrained, and the same without all that is warm; fine-tuning starts from it."""
    sizes = "query_length: 16, passage_length: 32, batch_size: 8, chunk_tokens: 256, negatives: [], validate_every: 0"
    rest = ", ".join(f"{key}: {'null' if value is None else value}" for key, value in AT_REST.items())
    return run_command(
        *on_beir, *MODEL, "logger=csv", "stages.corpus={stage: corpus}", "stages.tokenizer={stage: tokenizer}",
        "stages.tokens={stage: tokens, workers: 1}",
        "stages.warm={stage: warm_start, length: 64}",
        f"stages.noise={{stage: warm_start, length: 64, {NOISE}}}",
        f"stages.tuned={{stage: finetune, init: warm, {sizes}, {rest}}}",
        "+table.rows.warm=warm", "+table.rows.noise=noise",
        f"output_root={tmp_path_factory.mktemp('warm')}",
    ).sound()  # fmt: skip


def test_fine_tuning_starts_from_its_weights(done: Done) -> None:
    assert_starts_from(done.folder / "stages" / "warm", done.folder / "stages" / "tuned")


def test_untrained_it_is_a_row_that_finds_more_than_noise(done: Done) -> None:
    rows = metrics_of(done.folder)
    assert rows["warm"]["MRR@10"] > 2 * rows["noise"]["MRR@10"] > 0
    assert read_json(done.folder / "stages" / "warm" / "manifest.json")["metrics"]["known_tokens"] > 300


@pytest.mark.parametrize("separate", [True, False])
def test_separate_documents_are_counted_where_there_are_such_and_else_each_passage_is_one(
    separate: bool, made: Mapping[str, Path], tmp_path: Path
) -> None:
    text = some_text(documents=3)
    with CollectionWriter(tmp_path / "corpus", "apart") as writer:
        for name, title, words, document in text.passages:
            writer.add_passage(Passage(name, title, words, None))
            if separate:
                writer.add_document(Document(f"of-{name}-in-{document}", title, [words, words]))
    read = {"corpus": tmp_path / "corpus", "tokenizer": made["tokenizer"], "tokens": tmp_path / "tokens"}
    run_stage("tokens", tmp_path / "tokens", read, workers=1)
    counted, tokens = decompose(tmp_path / "vectors", read["tokens"])["tokens"], Tokens(tmp_path / "tokens")
    assert counted == tokens.documents.token_count == (1 + separate) * tokens.passages.token_count
    assert len(tokens.documents.document_starts) == len(text.passages) + 1


NOT_DECOMPOSED: dict[str, tuple[dict[str, Any], str]] = {
    "no window": ({"window": 0}, "window\n  Input should be greater than or equal to 1"),
    "a window whose unit is not exact": ({"window": 41}, "window\n  Input should be less than or equal to 40"),
    "true": ({"window": True}, "must be a number, got true"),
    "no smoothing": ({"smoothing": 0}, "smoothing\n  Input should be greater than 0"),
    "a power above 1": ({"smoothing": 1.5}, "smoothing\n  Input should be less than or equal to 1"),
    "no dimension": ({"dim": 0}, "dim\n  Input should be greater than or equal to 1"),
}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "less than nothing": ({"near_identity": -1}, "near_identity\n  Input should be greater than or equal to 0"),
    "a share below 0": ({"random_share": -0.1}, "random_share\n  Input should be greater than or equal to 0"),
    "infinite": ({"position_scale": float("inf")}, "position_scale\n  Input should be a finite number"),
    "a word": ({"rare_tokens": "much"}, "rare_tokens\n  Input should be a valid number"),
    "neither yes nor no": ({"unigram_bias": 3}, "unigram_bias\n  Input should be a valid boolean"),
    "longer than positions": ({"length": 65}, "length=65 is longer than the backbone's 64 positions"),
    "too short": ({"length": 7}, "length\n  Input should be greater than or equal to 8"),
    "unknown": ({"positions": 1}, "positions\n  Extra inputs are not permitted"),
}


@pytest.mark.parametrize("name", NOT_DECOMPOSED)
def test_vectors_that_cannot_be_are_refused(name: str, read: dict[str, Path], tmp_path: Path) -> None:
    changes, message = NOT_DECOMPOSED[name]
    with pytest.raises(ValidationError, match=re.escape(message)):
        decompose(tmp_path / "vectors", read["tokens"], **changes)


@pytest.mark.parametrize("name", BAD)
def test_values_that_cannot_be_are_refused(name: str, read: dict[str, Path], tmp_path: Path) -> None:
    changes, message = BAD[name]
    with pytest.raises(ValidationError) as refused:
        warm(tmp_path / "warm", read, **changes)
    assert message in str(refused.value)
    assert refused.value.error_count() == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("near_identity: -1", "stages.warm.near_identity: must be >= 0, got -1"),
        (
            "vectors: small",
            "stages.warm.vectors: small has 8 dimensions, the model 32; set the dim of small to 32",
        ),
        ("backbone: {name: ./nix}", "stages.warm.backbone.name: ./nix: no such folder"),
    ],
)
def test_in_a_recipe_that_is_one_line(setting: str, message: str, tmp_path: Path) -> None:
    stages = (
        "stages.corpus={stage: corpus}", "stages.tokenizer={stage: tokenizer}", "stages.tokens={stage: tokens}",
        "stages.small={stage: token_vectors, dim: 8}",
    )  # fmt: skip
    given = ("data=pydocs_stdlib", *MODEL, "logger=csv", *stages, f"stages.warm={{stage: warm_start, {setting}}}")
    one_line(run_command(*given, "dry_run=plan", f"output_root={tmp_path}"), message)
