"""Files of a checkpoint that are cut off are refused before anything is computed."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from error_lines import names
from safetensors.torch import save_file

from condensery.errors import UserError
from condensery.models.checkpoints.whole import check_whole
from condensery.stages.checks import check_checkpoint
from condensery.stages.released.config import content_of_checkpoint

TENSORS = {"a": torch.arange(1_000.0), "b": torch.arange(500)}
SHARDS = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint's files, as far as they are looked at."""
    save_file(TENSORS, tmp_path / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text(json.dumps({"model_type": "bert", "vocab": {"word": 1}}))
    return tmp_path


def _cut(path: Path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def _pickled(folder: Path, share: float) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(TENSORS, folder / "pytorch_model.bin")
    _cut(folder / "pytorch_model.bin", share)


def _in_shards(folder: Path, number: int) -> None:
    for name in SHARDS[:number]:
        save_file(TENSORS, folder / name)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": dict(zip("ab", SHARDS, strict=True))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


DAMAGE: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "weights cut in the tensors": (lambda one: _cut(one / "model.safetensors", 0.6), ["model.safetensors", "cut off"]),
    "weights cut in the header": (lambda one: _cut(one / "model.safetensors", 0.01), ["model.safetensors", "cut off"]),
    "weights cut to three bytes": (lambda one: _cut(one / "model.safetensors", 0.0003), ["model.safetensors"]),
    "empty weights": (lambda one: _cut(one / "model.safetensors", 0), ["model.safetensors", "download"]),
    "pickled weights, cut": (lambda one: _pickled(one, 0.7), ["pytorch_model.bin", "cut off after"]),
    "pickled weights, empty": (lambda one: _pickled(one, 0), ["pytorch_model.bin", "after 0 bytes"]),
    "a missing shard": (lambda one: _in_shards(one, 1), [SHARDS[1], "no such file", "model.safetensors.index.json"]),
    "a config that is no JSON": (lambda one: _cut(one / "config.json", 0.5), ["config.json", "not valid JSON"]),
    "a tokenizer cut off": (lambda one: _cut(one / "tokenizer.json", 0.5), ["tokenizer.json", "not valid JSON"]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_named_before_the_stage_runs(damage: str, folder: Path) -> None:
    content_of_checkpoint(folder, "stage.retriever.folder", "a trained retriever")
    check_checkpoint(str(folder), "backbone.name")
    break_it, words = DAMAGE[damage]
    break_it(folder)
    with pytest.raises(UserError) as retriever:
        content_of_checkpoint(folder, "stage.retriever.folder", "a trained retriever")
    with pytest.raises(UserError) as backbone:
        check_checkpoint(str(folder), "backbone.name")
    for caught in (retriever, backbone):
        names(str(caught.value), str(folder), *words)


def test_whole_files_of_all_forms_are_accepted(folder: Path) -> None:
    """Weights in shards, an index of shards that are not read, pickles of old releases of torch, and no tensors at all."""
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model-1.bin"}}))
    torch.save(TENSORS, folder / "old.bin", _use_new_zipfile_serialization=False)
    torch.save(TENSORS, folder / "new.bin")
    save_file({}, folder / "none.safetensors")
    check_whole(folder.iterdir())
    _in_shards(folder, 2)
    check_whole(folder.iterdir())
