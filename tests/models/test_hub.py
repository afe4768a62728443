"""A name on the hub stands wherever a folder does; what the released codes keep beside a backbone is loaded."""

import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import textbook
import torch
from error_lines import names
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import save_file
from small_runs import run_command
from torch import Tensor

from condensery.errors import UserError
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.pretraining import load_condenser, load_masked_autoencoder
from condensery.models.checkpoints.retrievers import load_any_retriever, load_biencoder
from condensery.models.checkpoints.sentence_transformers import write_modules
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.cross_encoder import load_cross_encoder
from condensery.models.masked_autoencoder import decoder_shape
from condensery.models.pooling import head_of
from condensery.models.vectors import DenseShape, VectorSettings

NAME = "somebody/model"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of ``somebody/model`` on a hub that gives those that are asked for."""
    served = tmp_path / "served"
    textbook.language_model(dropout=0.1).float().save_pretrained(served)

    def snapshot_download(
        name: str, *, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]
    ) -> str:
        if name != NAME:
            response: Any = type("Response", (), {"headers": {}, "request": None, "status_code": 404})()
            raise RepositoryNotFoundError(
                "404 Client Error. (Request ID: 1)\n\nRepository Not Found", response=response
            )
        for path in (path for path in served.rglob("*") if path.is_file()):
            file = path.relative_to(served).as_posix()
            wanted, refused = ([fnmatch(file, one) for one in some] for some in (allow_patterns, ignore_patterns))
            if any(wanted) and not any(refused):
                (tmp_path / "cache" / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, tmp_path / "cache" / file)
        return str(tmp_path / "cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return served


def test_a_name_is_taken_wherever_a_folder_is(hub: Path) -> None:
    write_modules(hub, 16, 24, VectorSettings("mean", True, "query: ", "passage: "))
    model, lengths = load_any_retriever(NAME)
    assert lengths == (24, 24)
    assert model.settings == VectorSettings("mean", True, "query: ", "passage: ")
    word = load_biencoder(hub).passage.model.embeddings.word_embeddings.weight
    assert torch.equal(model.passage.model.embeddings.word_embeddings.weight, word)
    for load in (
        lambda: load_biencoder(NAME, separate=True).query.model,
        lambda: load_condenser(NAME, textbook.vocabulary(), 1, None, True, None).encoder.model,
        lambda: (
            load_masked_autoencoder(NAME, textbook.vocabulary(), decoder_shape("masked"), "random", None).encoder.model
        ),
        lambda: load_cross_encoder(NAME).encoder.model,
    ):
        assert torch.equal(load().embeddings.word_embeddings.weight, word)


def test_pickled_weights_and_weights_of_other_programs_are_left_where_there_are_safetensors(
    hub: Path, tmp_path: Path
) -> None:
    for name in ("pytorch_model.bin", "tf_model.h5", "onnx/model.safetensors", "artifact.metadata"):
        (hub / name).parent.mkdir(exist_ok=True)
        (hub / name).write_bytes(b"x")
    folder = checkpoint_folder(NAME)
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "artifact.metadata",  # the settings of ColBERT, of its authors' code
        "config.json",
        "model.safetensors",
    ]
    shutil.rmtree(folder)
    (hub / "model.safetensors").unlink()
    assert (checkpoint_folder(NAME) / "pytorch_model.bin").exists()


@pytest.mark.parametrize("source", ["nobody/nothing", "outputs/artifacts/finetune/1", "./here"])
def test_what_is_neither_a_folder_nor_on_the_hub_is_one_line(source: str, hub: Path) -> None:
    with pytest.raises(UserError) as raised:
        load_any_retriever(source)
    names(str(raised.value), "backbone.name", source, "no such folder")


def test_without_a_network_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("An error happened while trying to locate the files.\nMore of it.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(UserError) as raised:
        load_any_retriever(NAME)
    names(str(raised.value), "backbone.name", NAME, "trying to locate", "can reach")


@pytest.mark.parametrize("text", ["A paragraph of a few words.\n", "\n"], ids=["text", "no text"])
def test_a_recipe_whose_model_cannot_be_had_ends_in_one_line_after_the_data_are_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    given = [f"data.root={tmp_path}", f"output_root={tmp_path / 'out'}", "backbone.name=nobody/nothing"]
    done = run_command("experiment=adapt", *given)
    assert (done.code, done.err.count("\n")) == (1, 1)
    right = text.startswith("A")
    assert done.err.startswith("error: backbone.name: cannot load 'nobody/nothing'" if right else f"error: {tmp_path}")
    assert done.computed == ["corpus", "as_it_is"], "what was started"


def _saved_as_released(folder: Path, layers: int) -> dict[str, Tensor]:
    """``model.pt`` as the papers' code saves it: the head as c_head, and a buffer of its training."""
    head = textbook.perturbed(Condenser(textbook.language_model().float(), CondenserShape(layers, 1, True)).head)  # type: ignore[arg-type]
    found = {f"c_head.{name}": value.detach() for name, value in head.state_dict().items()}
    torch.save({**found, "co_target": torch.arange(4)}, folder / "model.pt")
    return head.state_dict()


@pytest.mark.parametrize("source", [lambda hub: hub, lambda hub: NAME], ids=["folder", "name"])
def test_the_head_of_a_released_condenser_is_loaded(
    source: Callable[[Path], Path | str], hub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = _saved_as_released(hub, 2)
    found = load_condenser(source(hub), textbook.vocabulary(), 2, None, True, None).head.state_dict()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in wanted.items())
    assert f"{source(hub)}: the Condenser head of 2 layers is read from model.pt" in capsys.readouterr().out


def test_a_released_head_of_another_depth_is_one_line(hub: Path) -> None:
    _saved_as_released(hub, 2)
    with pytest.raises(UserError) as raised:
        load_condenser(hub, textbook.vocabulary(), 1, None, True, None)
    names(str(raised.value), f"{hub}/model.pt", "another shape", "set head_layers", "2 layers")


def test_a_checkpoint_without_a_head_says_that_it_is_new(hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_condenser(NAME, textbook.vocabulary(), 2, None, True, None)
    assert f"{NAME}: has no Condenser head; a random one of 2 layers is used" in capsys.readouterr().out


@pytest.mark.parametrize("pickled", [False, True])
def test_the_decoder_that_cot_mae_keeps_among_the_weights_is_loaded_and_retrieval_passes_over_it(
    pickled: bool, hub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    head = textbook.perturbed(
        Condenser(textbook.language_model().float(), CondenserShape(2, 1, True)).head
    ).state_dict()  # type: ignore[arg-type]
    weights = {**load_file(hub / "model.safetensors"), **{f"c_head.{name}": value for name, value in head.items()}}
    (hub / "model.safetensors").unlink()
    if pickled:
        torch.save(weights, hub / "pytorch_model.bin")
    else:
        save_file(weights, hub / "model.safetensors", {"format": "pt"})
    model = load_masked_autoencoder(NAME, textbook.vocabulary(), decoder_shape("masked"), "random", None)
    assert all(torch.equal(value, model.decoder.state_dict()[name]) for name, value in head.items())
    assert "the decoder of 2 layers is read from" in capsys.readouterr().out
    load_biencoder(NAME)
    load_cross_encoder(NAME)


def test_layers_behind_pooling_are_fetched_however_their_weights_were_saved(hub: Path) -> None:
    layers = [DenseShape(16, 8), DenseShape(8, 4, bias=False)]
    first, second = write_modules(hub, 16, 24, head=layers)
    weights = [layer.state_dict() for layer in head_of(layers)]
    torch.save(weights[0], first / "pytorch_model.bin")
    save_file(weights[1], second / "model.safetensors")
    found = load_any_retriever(NAME)[0]
    assert found.hidden_size == 4
    for layer, wanted in zip(found.passage.head, weights, strict=True):
        assert all(torch.equal(value, wanted[name]) for name, value in layer.state_dict().items())
