"""The encoder computes what the library's models compute, though only where the result is read."""

import copy

import pytest
import textbook
import torch
from torch import Tensor
from transformers import ModernBertConfig, ModernBertModel

from condensery.errors import UserError
from condensery.models.encoder import Encoder
from condensery.models.packing import PackedLayout
from condensery.models.vectors import VectorSettings

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


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=list(LENGTHS))
@pytest.mark.parametrize("normalise", [False, True])
def test_the_mean_is_over_real_tokens_and_has_the_gradient_of_the_librarys_states(
    normalise: bool, lengths: list[int]
) -> None:
    library = textbook.language_model("bert").base_model
    ours = Encoder(copy.deepcopy(library), VectorSettings("mean", normalise))
    rows = textbook.rows(lengths)
    (chunk,) = rows.cut([len(lengths)])
    ids, attention, _ = rows.padded
    states = library(input_ids=ids, attention_mask=attention).last_hidden_state
    wanted = torch.stack([row[:length].mean(dim=0) for row, length in zip(states, lengths, strict=True)])
    if normalise:
        wanted = wanted / wanted.norm(dim=1, keepdim=True)
    found = ours.vectors(chunk)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    weights = torch.linspace(-1, 1, found.numel()).double().view(found.shape)
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    assert textbook.worst(textbook.gradients(ours.model), textbook.gradients(library)) < 1e-9


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
