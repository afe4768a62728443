"""Under autocast on a CPU, products with weights have few shapes, and the same values and gradients."""

from typing import Any

import pytest
import textbook
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from condensery.losses.mlm import MaskedPrediction
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.linear import ROWS, Linear, use_few_shapes


@pytest.mark.parametrize("shape", [(0, 6), (5, 6), (ROWS, 6), (2 * ROWS + 1, 6), (2, 5, 6)])
def test_values_and_gradients_are_torchs(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, states = nn.Linear(6, 4), torch.randn(shape, requires_grad=True)

    def outcome() -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            result = layer(states)
        return result, *torch.autograd.grad(result.float().square().sum(), [states, *layer.parameters()])

    wanted = outcome()
    use_few_shapes(layer)
    assert type(layer) is Linear
    for one, other in zip(outcome(), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


class Products(TorchDispatchMode):
    """Records the shapes of the matrices that are multiplied; attention, which multiplies batches of them, apart."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[torch.Size] = set()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            self.shapes |= {matrix.shape for matrix in arguments[-2:]}
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("lengths", [[12, 30, 9, 4], [21, 33, 17, 18, 5], [7, 7, 7]])
def test_pre_training_multiplies_multiples_of_as_many_rows(lengths: list[int]) -> None:
    model = Condenser(textbook.language_model(dropout=0.1), CondenserShape(2, 1, late_mlm=True)).float().train()
    own = {side for weight in model.parameters() for side in weight.shape} | {1}
    rows = textbook.rows(lengths)
    with Products() as products, torch.autocast("cpu", torch.bfloat16):
        vectors, losses = MaskedPrediction(model, 10).encode(rows.cut([len(lengths)])[0])
        (vectors.sum() + sum(losses.values())).backward()
    assert products.shapes
    assert {side for shape in products.shapes for side in shape if side not in own and side % ROWS} == set()
