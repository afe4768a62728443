"""Condenser is wired as the paper says, on BERT and on RoBERTa, for every shape of the head."""

import copy

import pytest
import textbook
import torch
from torch import nn

from condensery.errors import UserError
from condensery.models.condenser import Condenser, CondenserShape

LENGTHS = [12, 6, 9, 4]


def _model(family: str, shape: CondenserShape, dropout: float = 0.0) -> Condenser:
    model = Condenser(textbook.language_model(family, dropout=dropout), shape).double().train()
    textbook.perturbed(model.head)
    return model


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
@pytest.mark.parametrize("head_layers", [0, 1, 2, 3])
@pytest.mark.parametrize(("skip_from", "late_mlm"), [(0, True), (1, True), (2, False), (0, False)])
def test_losses_and_gradients_equal_the_textbooks(
    family: str, head_layers: int, skip_from: int, late_mlm: bool
) -> None:
    near = textbook.tolerance(family)
    model = _model(family, CondenserShape(head_layers, skip_from, late_mlm))
    reference = copy.deepcopy(nn.ModuleDict({"language_model": model.language_model, "head": model.head}))
    rows = textbook.rows(LENGTHS, without=[1])
    (chunk,) = rows.cut([len(LENGTHS)])
    vectors, losses = model.encode(chunk)
    ours = {name: loss.sum() for name, loss in losses.items()}
    language_model, head = reference["language_model"], reference["head"]
    late = late_mlm or not head_layers
    expected = textbook.condenser(language_model, list(head), skip_from, late, rows.padded)
    wanted = {"mlm_late": expected.late, "mlm_head": expected.head}
    assert ours.keys() == {name for name, part in wanted.items() if part is not None}
    torch.testing.assert_close(vectors, expected.cls, rtol=0, atol=10 * near)
    for name, loss in ours.items():
        torch.testing.assert_close(loss, wanted[name].sum(), rtol=10 * near, atol=0)
    weights = torch.linspace(-1, 1, vectors.numel()).double().view(vectors.shape)
    (sum(ours.values()) + (vectors * weights).sum()).backward()
    (sum(part.sum() for part in wanted.values() if part is not None) + (expected.cls * weights).sum()).backward()
    found = textbook.gradients(nn.ModuleDict({"language_model": model.language_model, "head": model.head}))
    assert textbook.worst(found, textbook.gradients(reference)) < 100 * near


@pytest.mark.parametrize("late_mlm", [True, False])
def test_the_late_cls_is_the_same_with_and_without_prediction_also_under_dropout(late_mlm: bool) -> None:
    model = _model("bert", CondenserShape(2, 1, late_mlm), dropout=0.3)
    (chunk,) = textbook.rows(LENGTHS).cut([4])
    torch.manual_seed(4)
    alone = model.vectors(chunk)
    torch.manual_seed(4)
    assert torch.equal(model.encode(chunk)[0], alone)


def test_a_chunk_without_masked_tokens_gives_empty_losses_that_can_be_differentiated() -> None:
    model = _model("bert", CondenserShape(2, 1, True))
    (chunk,) = textbook.rows([5, 4], without=[0, 1]).cut([2])
    vectors, losses = model.encode(chunk)
    assert {loss.shape for loss in losses.values()} == {(0,)}
    (vectors.sum() + sum(loss.sum() for loss in losses.values())).backward()
    assert all(torch.isfinite(gradient).all() for gradient in textbook.gradients(model).values())


def test_a_new_head_starts_as_the_backbone_does_and_is_a_function_of_the_seed() -> None:
    def head(seed: int) -> dict[str, torch.Tensor]:
        language_model = textbook.language_model(hidden=64)
        torch.manual_seed(seed)
        return Condenser(language_model, CondenserShape(2, 1, True)).head.state_dict()

    one, again, other = head(7), head(7), head(8)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["0.output.dense.weight"], other["0.output.dense.weight"])
    for name, value in one.items():
        if "LayerNorm.weight" in name:
            assert torch.equal(value, torch.ones_like(value))
        elif name.endswith("bias"):
            assert not value.any()
        else:
            assert float(value.std()) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("skip_from", [-1, 3, 12])
def test_a_head_that_skips_from_beyond_the_backbone_is_an_error(skip_from: int) -> None:
    with pytest.raises(UserError, match=r"skip_from: .* backbone of 3"):
        Condenser(textbook.language_model(), CondenserShape(1, skip_from, True))
    Condenser(textbook.language_model(), CondenserShape(0, skip_from, True))  # without a head it says nothing
