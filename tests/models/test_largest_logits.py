"""The largest logit of each text, and its gradients."""

import pytest
import torch
from torch import nn

from condensery.models.largest_logits import largest_logits

TEXTS = [slice(0, 3), slice(4, 5), slice(5, 11)]  # token 3 belongs to no text


@pytest.mark.parametrize("least", [0.0, -torch.inf, 5.0], ids=["relu", "all", "few"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_values_and_gradients_are_those_of_plain_operations(least: float, with_bias: bool) -> None:
    torch.manual_seed(1)
    layer = nn.Linear(6, 40, bias=with_bias, dtype=torch.float64)
    nn.init.normal_(layer.weight)
    states = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    scale = torch.randn(3, 40, dtype=torch.float64)
    weights = [states, *layer.parameters()]
    wanted = torch.stack([layer(states[text]).max(dim=0).values for text in TEXTS]).clamp(min=least)
    of_wanted = torch.autograd.grad((wanted * scale).square().sum(), weights)
    found = largest_logits(states, layer, TEXTS, least)
    assert (4 * int((found > least).sum(dim=1).max()) <= 40) == (least == 5.0)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    for one, other in zip(torch.autograd.grad((found * scale).square().sum(), weights), of_wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_under_autocast_the_gradients_agree_up_to_rounding() -> None:
    torch.manual_seed(1)
    layer, states = nn.Linear(6, 40), torch.randn(11, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        largest_logits(states, layer, TEXTS).sum().backward()
    assert layer.weight.grad is not None
    found = layer.weight.grad.clone()
    layer.zero_grad()
    torch.stack([layer(states[text]).amax(dim=0) for text in TEXTS]).sum().backward()
    assert layer.weight.dtype == found.dtype == torch.float32
    differing = (found - layer.weight.grad).norm() / layer.weight.grad.norm()
    assert differing < 0.2  # where two logits are almost equal, another token has the gradient


def test_a_text_without_a_logit_above_the_bound_has_no_gradient() -> None:
    layer, states = nn.Linear(6, 40), torch.randn(11, 6, requires_grad=True)
    found = largest_logits(states, layer, TEXTS, least=100.0)
    found.sum().backward()
    assert (found == 100).all()
    assert states.grad is not None
    assert not states.grad.any()
