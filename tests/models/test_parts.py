"""The backbone without the library computes what the library's does, and leaves to it what it does not know."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from condensery.models.encoder import Encoder
from condensery.models.parts import load_parts
from condensery.tokens.batches import Chunk

SIZE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
}


def _saved(folder: Path, family: str) -> Any:
    torch.manual_seed(3)
    if family == "bert":
        model: Any = BertModel(BertConfig(**SIZE, attn_implementation="eager"), add_pooling_layer=False)
    else:
        settings = RobertaConfig(**SIZE, type_vocab_size=1, pad_token_id=1, attn_implementation="eager")
        model = RobertaModel(settings, add_pooling_layer=False)
    for parameter in model.parameters():  # biases and norms as well
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_every_vector_is_the_librarys_to_the_bit(tmp_path: Path, family: str) -> None:
    model, parts = _saved(tmp_path, family), load_parts(tmp_path)
    assert parts is not None
    assert {name: value.shape for name, value in parts.state_dict().items()} == {
        name: value.shape for name, value in model.state_dict().items()
    }
    chunk = Chunk(torch.randint(5, 50, (3, 9)), torch.tensor([9, 7, 2]), torch.arange(3))
    with torch.no_grad():
        assert torch.equal(Encoder(parts).eval().cls(chunk), Encoder(model).eval().cls(chunk))


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "relu"},
        {"model_type": "distilbert"},
        {"is_decoder": True},
        {"position_embedding_type": "relative_key"},
        {"num_hidden_layers": 2},
        {"hidden_size": None},
    ],
)
def test_what_it_does_not_know_it_leaves_to_the_library(tmp_path: Path, change: dict[str, Any]) -> None:
    _saved(tmp_path, "bert")
    about = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(about | change))
    assert load_parts(tmp_path) is None


def test_a_broken_or_missing_checkpoint_is_left_to_the_library(tmp_path: Path) -> None:
    assert load_parts(tmp_path) is None
    _saved(tmp_path, "bert")
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    assert load_parts(tmp_path) is None
