"""The encoder computes what the library's models compute, though only where the result is read."""

import copy

import pytest
import textbook
import torch
from torch import Tensor, nn
from transformers import ModernBertConfig, ModernBertModel
from transformers.activations import ACT2FN

from condensery.errors import UserError
from condensery.models.encoder import Encoder
from condensery.models.packing import PackedLayout
from condensery.models.pooling import head_of, pool
from condensery.models.vectors import POOLED, DenseShape, Pooling, VectorSettings

LENGTHS = {"padded": [12, 5, 9, 3, 12], "mostly padding": [30, 3, 4, 3, 5], "of one length": [7, 7, 7]}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))
@pytest.mark.parametrize("family", [*textbook.FAMILIES, *textbook.LATER])
def test_cls_and_masked_positions_equal_the_librarys(family: str, lengths: list[int]) -> None:
    model = textbook.language_model(family, dropout=0.3).base_model.eval()
    rows = textbook.rows(lengths)
    (chunk,) = rows.cut([len(lengths)])
    ids, attention, labels = rows.padded
    found = model(input_ids=ids, attention_mask=attention, output_hidden_states=True)
    last, early_states, near = found.last_hidden_state, found.hidden_states[1], textbook.tolerance(family)
    encoder = Encoder(model).eval()
    layout = PackedLayout(chunk)
    hidden, early = encoder(layout, layout.cls, layout.masked, skip=1)
    assert early is not None
    torch.testing.assert_close(hidden[: len(chunk)], last[:, 0], rtol=0, atol=near)
    torch.testing.assert_close(encoder.cls(chunk), last[:, 0], rtol=0, atol=near)
    torch.testing.assert_close(hidden[len(chunk) :], last[labels != -100], rtol=0, atol=near)
    real = attention.bool()
    torch.testing.assert_close(layout.tokens.pad(early)[real], early_states[real], rtol=0, atol=near)


def by_definition(states: Tensor, pooling: str) -> Tensor:
    """One vector (d,) of the states (n, d) of a row without padding."""
    places = torch.arange(1, len(states) + 1).double()[:, None]
    return {
        "cls": lambda: states[0],
        "mean": lambda: states.mean(dim=0),
        "max": lambda: states.amax(dim=0),
        "last": lambda: states[-1],
        "weighted_mean": lambda: (states * places).sum(dim=0) / places.sum(),
        "mean_sqrt_len": lambda: states.sum(dim=0) / len(states) ** 0.5,
    }[pooling]()


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("pooling", POOLED)
def test_poolings_read_real_tokens_alone_and_have_the_gradient_of_the_librarys_states(
    pooling: Pooling, normalise: bool, lengths: list[int]
) -> None:
    library = textbook.language_model("bert").base_model
    ours = Encoder(copy.deepcopy(library), VectorSettings(pooling, normalise))
    rows = textbook.rows(lengths)
    (chunk,) = rows.cut([len(lengths)])
    ids, attention, _ = rows.padded
    states = library(input_ids=ids, attention_mask=attention).last_hidden_state
    wanted = torch.stack([by_definition(row[:length], pooling) for row, length in zip(states, lengths, strict=True)])
    if normalise:
        wanted = wanted / wanted.norm(dim=1, keepdim=True)
    found = ours.vectors(chunk)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weights = torch.linspace(-1, 1, found.numel()).double().view(found.shape)
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    assert textbook.worst(textbook.gradients(ours.model), textbook.gradients(library)) < 1e-9


@pytest.mark.parametrize("mixed", [False, True], ids=["float64", "bf16"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("family", [*textbook.FAMILIES, *textbook.LATER])
def test_inference_overwrites_nothing_that_is_read_again(family: str, activation: str, mixed: bool) -> None:
    model = textbook.language_model(family, dropout=0.3).base_model.eval()
    encoder = Encoder(model.float() if mixed else model, VectorSettings("mean")).eval()
    for layer in encoder.layers:
        if hasattr(layer, "intermediate"):
            layer.intermediate.intermediate_act_fn = ACT2FN[activation]
    (chunk,) = textbook.rows(LENGTHS["padded"]).cut([5])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        wanted = encoder.vectors(chunk), encoder.cls(chunk)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    for _ in range(2):
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            found = encoder.vectors(chunk), encoder.cls(chunk)
        near = 5e-2 if mixed else 1e-12  # in bf16 attention has another kernel
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=near)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_the_weights_of_a_long_row_are_whole_numbers_in_half_precision_too() -> None:
    states = torch.ones(1, 600, 1, dtype=torch.bfloat16)
    states[0, 300:] = -1
    real, lengths = torch.ones(1, 600, dtype=torch.bool), torch.tensor([600])
    wanted = (300 * 301 - 600 * 601 / 2) / (600 * 601 / 2)
    assert pool(states, real, lengths, "weighted_mean").item() == pytest.approx(wanted, rel=1e-2)
    assert pool(states, real, lengths, "weighted_mean").dtype == torch.bfloat16


def test_layers_behind_pooling_come_before_the_cut_and_the_normalisation() -> None:
    head = head_of([DenseShape(16, 12, activation="GELU"), None, DenseShape(12, 8, bias=False, activation="ReLU")])
    ours = Encoder(
        textbook.language_model("bert").base_model, VectorSettings("mean", True, truncate_dim=5), head.double()
    )
    (chunk,) = textbook.rows([7, 4]).cut([2])
    states = Encoder(ours.model, VectorSettings("mean")).vectors(chunk)
    first, _, last = head
    wanted = nn.functional.gelu(states @ first.linear.weight.T + first.linear.bias)
    wanted = torch.relu((wanted / wanted.norm(dim=1, keepdim=True)) @ last.linear.weight.T)[:, :5]
    found = ours.vectors(chunk)
    torch.testing.assert_close(found, wanted / wanted.norm(dim=1, keepdim=True), rtol=0, atol=1e-12)
    assert ours.dimensions == found.shape[1] == 5
    found.square().mul(torch.arange(5)).sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in head.parameters())


@pytest.mark.parametrize("family", [*textbook.FAMILIES, *textbook.LATER])
def test_computing_only_the_positions_that_are_read_gives_the_gradient_of_computing_all(family: str) -> None:
    library = textbook.language_model(family).base_model
    ours = Encoder(copy.deepcopy(library))
    rows = textbook.rows([11, 4, 8], without=[1])
    (chunk,) = rows.cut([3])
    ids, attention, labels = rows.padded
    torch.manual_seed(0)
    of_cls, of_masked = torch.randn(3, 16).double(), torch.randn(len(rows.masked), 16).double()

    def total(cls: Tensor, masked: Tensor) -> Tensor:
        return (cls * of_cls).sum() + (masked * of_masked).sum()

    states = library(input_ids=ids, attention_mask=attention).last_hidden_state
    total(states[:, 0], states[labels != -100]).backward()
    layout = PackedLayout(chunk)
    hidden, _ = ours(layout, layout.cls, layout.masked)
    total(hidden[:3], hidden[3:]).backward()
    assert textbook.worst(textbook.gradients(ours.model), textbook.gradients(library)) < 1e3 * textbook.tolerance(
        family
    )


def test_the_dropout_of_cls_is_the_same_whether_masked_tokens_are_read_or_not() -> None:
    encoder = Encoder(textbook.language_model(dropout=0.2).base_model)
    (chunk,) = textbook.rows([9, 12, 5, 7]).cut([4])
    torch.manual_seed(1)
    alone = encoder.cls(chunk)
    torch.manual_seed(1)
    layout = PackedLayout(chunk)
    with_masked, _ = encoder(layout, layout.cls, layout.masked)
    assert torch.equal(alone, with_masked[:4])
    assert not torch.equal(alone, encoder.cls(chunk)), "dropout is off"


def test_a_row_longer_than_the_backbones_positions_is_an_error_of_one_line() -> None:
    encoder = Encoder(textbook.language_model("bert").base_model)
    encoder.cls(textbook.rows([40]).chunks()[0])
    with pytest.raises(UserError, match=r"41 tokens.* 40 positions") as raised:
        encoder.cls(textbook.rows([41]).chunks()[0])
    assert "\n" not in str(raised.value)
    roberta = Encoder(textbook.language_model("roberta").base_model)  # its first two positions are of padding
    roberta.cls(textbook.rows([38]).chunks()[0])
    with pytest.raises(UserError, match=r"39 tokens.* 38 positions"):
        roberta.cls(textbook.rows([39]).chunks()[0])


def test_rows_of_thousands_of_tokens_are_read_by_a_modernbert_as_the_library_reads_them() -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 8}
    torch.manual_seed(0)
    model = ModernBertModel(ModernBertConfig(vocab_size=textbook.SIZE, pad_token_id=textbook.PAD, **sizes)).eval()
    textbook.perturbed(model)
    encoder, rows = Encoder(model).eval(), textbook.rows([1500, 1100])
    (chunk,) = rows.cut([2])
    ids, attention, _ = rows.padded
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=attention).last_hidden_state[:, 0]
        torch.testing.assert_close(encoder.cls(chunk), wanted, rtol=0, atol=1e-4)
    assert encoder.longest == 8192


def test_what_is_too_far_away_for_local_attention_is_not_seen() -> None:
    encoder = Encoder(textbook.language_model("modernbert").base_model.eval())
    layers = encoder.model.layers  # the first sees all
    del layers[0]
    (chunk,) = textbook.rows([30]).cut([1])
    layout = PackedLayout(chunk)
    before = encoder(layout)[0]
    layout.input_ids[20] += 1 if layout.input_ids[20] < textbook.SIZE - 1 else -1
    changed = (encoder(layout)[0] - before).abs().max(dim=1).values > 0
    assert changed.nonzero()[:, 0].tolist() == list(range(16, 25))  # two layers of two tokens on either side
