"""Losses by name: what a loss of one's own may leave out, and what is found before a run begins."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from condensery import RetrievalLoss, UserError
from condensery.losses import registry
from condensery.losses.matryoshka import Matryoshka
from condensery.losses.registry import check_loss, make_loss, register
from condensery.ranges import Positive


class Plain(RetrievalLoss):
    """Takes no option, not even a temperature."""

    def forward(self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
        return (queries @ passages.T).mean()


def hinge(margin: Positive, hardest: int = 3, scale: float = 1.0) -> Plain:
    loss = Plain()
    loss.margin = torch.tensor(margin)
    return loss


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_LOSSES", {"matryoshka": Matryoshka})
    register("plain")(Plain)
    register("hinge")(hinge)


@pytest.mark.parametrize("loss", ["plain", {"name": "hinge", "margin": 0.5}])
def test_a_loss_without_a_temperature_is_not_given_one(loss: Any) -> None:
    assert isinstance(make_loss(loss, temperature=4.0), Plain)
    inside = make_loss({"name": "matryoshka", "dims": [4], "loss": loss}, temperature=4.0)
    assert torch.isfinite(inside(torch.ones(2, 4), torch.ones(3, 4), torch.tensor([0, 2])))


@pytest.mark.parametrize("made", [check_loss, make_loss])
@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("hinge", "hinge needs a value of 'margin': {name: hinge, margin: ...}"),
        ("matryoshka", "matryoshka needs a value of 'dims': {name: matryoshka, dims: ...}"),
        ({"name": "hinge", "margin": -1}, "hinge: margin must be a number > 0, not -1"),
        ({"name": "hinge", "margin": 1, "hardest": "x"}, "hinge: hardest must be a whole number, not 'x'"),
        ({"name": "hinge", "margin": 1, "hardest": 2.5}, "hinge: hardest must be a whole number, not 2.5"),
        ({"name": "hinge", "margin": 1, "scale": "x"}, "hinge: scale must be a number, not 'x'"),
        ({"name": "plain", "margin": 1}, "plain has no option 'margin'"),
        ("trplet", "there is no loss 'trplet'; for one of your own, set CONDENSERY_STAGES to the module"),
        ("info_nze", "there is no loss 'info_nze' (did you mean 'info_nce'?)"),
    ],
)
def test_a_fault_is_found_before_a_run_begins(made: Callable[[Any], Any], loss: Any, said: str) -> None:
    with pytest.raises((ValueError, UserError)) as raised:
        made(loss)
    assert str(raised.value).removeprefix("loss: ").startswith(said)
