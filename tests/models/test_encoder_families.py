"""ELECTRA, MPNet and CamemBERT are computed as the library computes them, and are trained and saved like BERT."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import textbook
import torch
from transformers import (
    CamembertConfig,
    CamembertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    MPNetConfig,
    MPNetForMaskedLM,
)

from condensery.errors import UserError
from condensery.models.attention import cls_entropy
from condensery.models.checkpoints.pretraining import load_condenser, save_pretraining_model
from condensery.models.checkpoints.retrievers import load_encoder, load_lm_head
from condensery.models.condenser import Condenser, condenser_shape
from condensery.models.encoder import Encoder, attend, plain_attention
from condensery.models.masked_autoencoder import DecoderShape, MaskedAutoEncoder
from condensery.models.packing import PackedLayout
from condensery.tokens.vocabulary import Vocabulary

NARROW = 8  # size of the embeddings, where it is not that of the states


def narrow(**about: Any) -> ElectraConfig:
    return ElectraConfig(embedding_size=NARROW, **about)


KINDS: dict[str, tuple[Any, Any]] = {
    "camembert": (CamembertConfig, CamembertForMaskedLM),
    "electra": (lambda **about: ElectraConfig(embedding_size=about["hidden_size"], **about), ElectraForMaskedLM),
    "narrow electra": (narrow, ElectraForMaskedLM),
    "mpnet": (MPNetConfig, MPNetForMaskedLM),
}
ROWS = [11, 4, 8, 11]


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small language model in float64, none of whose weights is 0 or 1."""
    monkeypatch.setitem(textbook.FAMILIES, request.param, KINDS[request.param])
    # MPNet counts id 1 as padding whatever its config says
    monkeypatch.setattr(textbook, "PAD", 1 if request.param == "mpnet" else textbook.PAD)
    return textbook.language_model(request.param)


def states_of(model: Any, rows: textbook.Rows) -> torch.Tensor:
    ids, attention, _ = rows.padded
    found: torch.Tensor = model.base_model(input_ids=ids, attention_mask=attention).last_hidden_state
    return found


def test_states_and_gradients_equal_the_librarys(model: Any) -> None:
    rows = textbook.rows(ROWS, without=[1])
    (chunk,) = rows.cut([len(ROWS)])
    _, _, labels = rows.padded
    ours = Encoder(copy.deepcopy(model.base_model))
    torch.manual_seed(0)
    of_cls, of_masked = torch.randn(len(ROWS), 16).double(), torch.randn(len(rows.masked), 16).double()
    states = states_of(model, rows)
    layout = PackedLayout(chunk)
    found, _ = ours(layout, layout.cls, layout.masked)
    wanted = torch.cat([states[:, 0], states[labels != -100]])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    for one in (found, wanted):
        (one * torch.cat([of_cls, of_masked])).sum().backward()
    theirs = textbook.gradients(model.base_model)
    assert textbook.worst(textbook.gradients(ours.model), theirs) < 1e-9
    assert all(value.abs().sum() > 0 for name, value in theirs.items() if "relative_attention_bias" in name)


def test_the_loss_of_masked_tokens_and_its_gradient_equal_the_librarys(model: Any) -> None:
    rows = textbook.rows(ROWS)
    (chunk,) = rows.cut([len(ROWS)])
    ids, attention, labels = rows.padded
    ours = Condenser(copy.deepcopy(model), condenser_shape(model, 0, None, late_mlm=True))
    _, losses = ours.encode(chunk)
    wanted = model(input_ids=ids, attention_mask=attention, labels=labels).loss
    torch.testing.assert_close(losses["mlm_late"].mean(), wanted, rtol=0, atol=1e-12)
    losses["mlm_late"].mean().backward()
    wanted.backward()
    assert textbook.worst(textbook.gradients(ours.language_model), textbook.gradients(model)) < 1e-9


def test_heads_and_decoders_of_pre_training_are_trained_on_them(model: Any) -> None:
    (chunk,) = textbook.rows(ROWS).cut([len(ROWS)])
    condenser = Condenser(copy.deepcopy(model), condenser_shape(model, 2, 1, late_mlm=True)).double()
    vectors, losses = condenser.encode(chunk)
    (vectors.sum() + sum(loss.sum() for loss in losses.values())).backward()
    assert set(losses) == {"mlm_late", "mlm_head"}
    own = list(condenser.head.parameters())
    assert own
    assert all(weight.grad is not None for weight in own)
    decoded = MaskedAutoEncoder(copy.deepcopy(model), DecoderShape("enhanced", 1, 0.5), "random").double()
    assert decoded.encoder.position_vectors(torch.arange(3)).shape == (3, 16)


def test_the_entropy_of_attention_is_that_of_the_librarys_weights(model: Any) -> None:
    model.eval()
    rows = textbook.rows(ROWS)
    (chunk,) = rows.cut([len(ROWS)])
    ids, attention, _ = rows.padded
    weights = model.base_model(input_ids=ids, attention_mask=attention, output_attentions=True).attentions
    wanted = torch.stack([torch.special.entr(one[:, :, 0]).sum(-1).mean(1) for one in weights])
    torch.testing.assert_close(cls_entropy(Encoder(model.base_model).eval(), chunk), wanted, rtol=0, atol=1e-9)


def test_a_bias_is_added_by_either_kernel() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    wanted = (query @ key.transpose(-1, -2) / 2 + bias).softmax(-1) @ value
    of_bias = torch.autograd.grad(wanted.square().sum(), bias)[0]
    for found in (attend(query, key, value, bias, 0.0), plain_attention(query, key, value, bias, 0.0)):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
        torch.testing.assert_close(torch.autograd.grad(found.square().sum(), bias)[0], of_bias, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_condenser_of_each_comes_back_with_its_weights(
    kind: str, words: Vocabulary, wordpiece: Path, tmp_path: Path
) -> None:
    config, family = KINDS[kind]
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    pad = 1 if kind == "mpnet" else words.pad
    model = family(config(vocab_size=words.size, max_position_embeddings=40, pad_token_id=pad, **sizes))
    made = Condenser(model, condenser_shape(model, 1, 1, late_mlm=True))
    save_pretraining_model(made, tmp_path, wordpiece, 20)
    again = load_condenser(tmp_path, words, 1, 1, late_mlm=True, dropout=None)
    for name, value in made.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    encoder = load_encoder(tmp_path)
    whole = load_lm_head(tmp_path, encoder)
    assert whole is not None
    assert whole.base_model is encoder.model
    assert whole.get_output_embeddings().weight is encoder.model.get_input_embeddings().weight
    for name, value in made.language_model.state_dict().items():
        assert torch.equal(whole.state_dict()[name], value), name
    assert load_encoder(tmp_path, dropout=0.3).family.attention_dropout(load_encoder(tmp_path, 0.3).layers[0]) == 0.3


def test_the_discriminator_of_an_electra_is_left_out_and_its_backbone_read(
    words: Vocabulary, wordpiece: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = ElectraForPreTraining(narrow(vocab_size=words.size, max_position_embeddings=40, **sizes))
    model.save_pretrained(tmp_path)
    found = load_encoder(tmp_path)
    for name, value in model.electra.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value), name
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", ["t5", "deberta-v2", "albert", 7, None, ["bert"]])
def test_a_family_that_is_not_known_is_one_line_that_names_those_that_are(kind: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "type_vocab_size": 0}))
    with pytest.raises(UserError, match=r"config\.json: model_type is .*use one of the families bert, .*mpnet"):
        load_encoder(tmp_path)


def test_an_mpnet_that_pads_with_another_id_is_one_line(tmp_path: Path) -> None:
    MPNetConfig(pad_token_id=0).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"config\.json: pad_token_id is 0; in an mpnet model it must be 1"):
        load_encoder(tmp_path)
