"""Interpolation between the weights before and after training."""

import copy

import torch
from torch import nn

from condensery.errors import UserError
from condensery.models.biencoder import BiEncoder


def blended(start: BiEncoder, trained: BiEncoder, share: float) -> BiEncoder:
    """Return a retriever with the weights (1 - share) * start + share * trained (WiSE-FT: Wortsman et al. 2022, eq. 1).

    The result has as many towers as ``trained``. If ``start`` has one tower and ``trained`` has two, the tower of ``start``
    is interpolated with each tower of ``trained``.

    Args:
        start, trained: the retriever before and after training, with weights of the same shapes. Neither retriever is
            changed.
        share: weight of the trained retriever in the average, 0 to 1.

    Raises:
        UserError: the shapes of the retrievers differ, or only ``start`` has two towers.
    """
    if trained.shared and not start.shared:
        raise UserError("the initial retriever has two towers and the trained one has one; both need the same number")
    result = copy.deepcopy(trained)
    _blend(result.passage, start.passage, share)
    if not result.shared:
        _blend(result.query, start.query, share)
    return result


def same_weights(first: nn.Module, second: nn.Module) -> bool:
    """Return whether two modules have bitwise the same weights, in the precision of the first module."""
    mine, theirs = first.state_dict(), second.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(own, theirs[name].to(own)) for name, own in mine.items())


@torch.no_grad()
def _blend(module: nn.Module, start: nn.Module, share: float) -> None:
    mine, theirs = module.state_dict(), start.state_dict()
    if {name: value.shape for name, value in mine.items()} != {name: value.shape for name, value in theirs.items()}:
        raise UserError("the initial and the trained retriever differ in shape; give two retrievers of the same shape")
    for name, value in mine.items():  # the values share memory with the module's weights
        first = theirs[name].to(value.device)  # ``start`` may be on a GPU, where it was evaluated
        if value.is_floating_point() and not torch.equal(value, first):
            value.copy_(torch.lerp(first, value, share))
