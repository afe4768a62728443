"""The tower in NumPy gives the library's vectors, and leaves to the library what it does not know."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BertModel, RobertaConfig, RobertaForMaskedLM, RobertaModel

from condensery.errors import UserError
from condensery.models import query_tower
from condensery.models.biencoder import BiEncoder
from condensery.models.checkpoints.retrievers import SavedRetriever, save_retriever
from condensery.models.encoder import Encoder
from condensery.models.query_tower import gelu, load_query_tower, load_tower, read_weights

SIZE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}
LONGEST = 38  # RoBERTa counts positions from 2


def _saved(folder: Path, family: str = "bert", **changes: Any) -> Any:
    torch.manual_seed(3)
    size = SIZE | changes
    if family == "bert":
        model: Any = BertModel(BertConfig(**size, attn_implementation="eager"), add_pooling_layer=False)
    else:
        settings = RobertaConfig(**size, type_vocab_size=1, pad_token_id=1, attn_implementation="eager")
        model = RobertaModel(settings, add_pooling_layer=False)
    for parameter in model.parameters():  # biases and norms as well
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model.eval()


@torch.no_grad()
def _by_library(model: Any, ids: np.ndarray) -> np.ndarray:
    vector: np.ndarray = model(torch.from_numpy(ids)[None]).last_hidden_state[0, 0].float().numpy()
    return vector


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("shape", [(1, 1, 16), (3, 4, 16), (12, 2, 64)], ids=str)
def test_every_number_is_the_librarys(tmp_path: Path, family: str, shape: tuple[int, int, int]) -> None:
    layers, heads, hidden = shape
    size = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden}
    model, tower = _saved(tmp_path, family, **size), load_tower(tmp_path, LONGEST)
    assert tower is not None
    for length in (2, 3, 9, LONGEST):
        ids = np.random.default_rng(length).integers(5, 50, length)
        np.testing.assert_allclose(tower.cls(ids), _by_library(model, ids), atol=1e-5, rtol=0)
        assert tower.cls(ids).dtype == np.float32


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_pretrained_checkpoint_is_read_without_its_head(tmp_path: Path, family: str) -> None:
    torch.manual_seed(3)
    settings: Any = BertConfig(**SIZE) if family == "bert" else RobertaConfig(**SIZE, pad_token_id=1)
    model: Any = (BertForMaskedLM if family == "bert" else RobertaForMaskedLM)(settings).eval()
    model.save_pretrained(tmp_path)
    tower, ids = load_tower(tmp_path, LONGEST), np.arange(5, 20)
    assert tower is not None
    np.testing.assert_allclose(tower.cls(ids), _by_library(model.base_model, ids), atol=1e-5, rtol=0)


def test_gelu_is_the_exact_one() -> None:
    values = torch.linspace(-9, 9, 1000).reshape(10, 100)
    np.testing.assert_allclose(gelu(values.numpy()), torch.nn.functional.gelu(values), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_weights_stored_in_half_are_read_to_the_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    model = _saved(tmp_path).to(dtype)
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {dtype}
    found = read_weights(tmp_path / "model.safetensors")
    assert found.keys() == stored.keys()
    for name, value in stored.items():
        np.testing.assert_array_equal(found[name], value.float().numpy())
    tower, ids = load_tower(tmp_path, LONGEST), np.arange(5, 14)
    assert tower is not None
    np.testing.assert_allclose(tower.cls(ids), _by_library(model.float(), ids), atol=1e-5, rtol=0)


def test_weights_in_fp32_are_mapped_and_not_read(tmp_path: Path) -> None:
    _saved(tmp_path)
    base: Any = read_weights(tmp_path / "model.safetensors")["embeddings.word_embeddings.weight"]
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "relu"},
        {"model_type": "distilbert"},
        {"model_type": None},
        {"is_decoder": True},
        {"position_embedding_type": "relative_key"},
        {"quantization_config": {"bits": 4}},
        {"num_hidden_layers": 2},
        {"intermediate_size": 32},
        {"hidden_size": None},
        {"max_position_embeddings": LONGEST - 1},
    ],
    ids=str,
)
def test_what_it_does_not_know_it_leaves_to_the_library(tmp_path: Path, change: dict[str, Any]) -> None:
    _saved(tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    assert load_tower(tmp_path, LONGEST) is not None
    (tmp_path / "config.json").write_text(json.dumps(about | change))
    assert load_tower(tmp_path, LONGEST) is None


def test_a_longer_query_than_there_are_positions_is_left_to_the_library(tmp_path: Path) -> None:
    _saved(tmp_path, "roberta")
    assert load_tower(tmp_path, LONGEST) is not None
    assert load_tower(tmp_path, LONGEST + 1) is None


def test_a_broken_or_missing_checkpoint_is_left_to_the_library(tmp_path: Path) -> None:
    assert load_tower(tmp_path, 4) is None
    _saved(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    for broken in (
        b"",
        b"nonsense",
        whole[:-4],
        whole.replace(b'"F32"', b'"F64"', 1),
        b"\0" * 16,
        b"\2" + bytes(7) + b"[]",
    ):
        weights.write_bytes(broken)
        assert load_tower(tmp_path, 4) is None
    weights.write_bytes(whole)
    assert load_tower(tmp_path, 4) is not None


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_the_tower_of_queries_is_loaded_with_their_length(
    tmp_path: Path, wordpiece: Path, separate: bool, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if known:
        monkeypatch.setattr(query_tower, "_by_library", lambda _: pytest.fail("the library was asked"))
    torch.manual_seed(0)
    changes: dict[str, Any] = {"vocab_size": 130} if known else {"vocab_size": 130, "hidden_act": "relu"}
    towers = [Encoder(BertModel(BertConfig(**SIZE | changes), False)).eval() for _ in range(1 + separate)]
    save_retriever(SavedRetriever(BiEncoder(*towers), 7, 30), tmp_path, wordpiece)
    encode, length = load_query_tower(tmp_path)
    ids = np.arange(5, 12)
    assert length == 7
    np.testing.assert_allclose(encode(ids), _by_library(towers[0].model, ids), atol=1e-5, rtol=0)


def test_a_folder_that_is_no_checkpoint_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"condensery\.json: no such file"):
        load_query_tower(tmp_path)


def test_a_file_with_other_tensors_is_left_to_the_library(tmp_path: Path) -> None:
    _saved(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    save_file(stored | {"adapter.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert load_tower(tmp_path, 4) is None
