"""Linear layers whose matrix products have few shapes on a CPU.

In bf16 on a CPU, a kernel is compiled for each shape of a matrix product. Compiling takes milliseconds, often longer than the
product itself. The number of tokens differs between chunks, so it is rounded up to a multiple of ``ROWS``.
"""

import torch
from torch import Tensor, nn

ROWS = 32  # the number of rows of a matrix product is a multiple of this number


def with_rows_of_zeros(states: Tensor) -> Tensor:
    """Add rows of zeros up to a multiple of ``ROWS``: (k, d) -> (m, d)."""
    return nn.functional.pad(states, (0, 0, 0, -len(states) % ROWS))


class Linear(nn.Linear):
    """A ``torch.nn.Linear`` that adds rows of zeros to its input under autocast on a CPU, and removes them from its output.

    The values and gradients are those of ``torch.nn.Linear``, up to rounding in bf16.
    """

    def forward(self, input: Tensor) -> Tensor:
        compiles = input.device.type == "cpu" and torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
        if compiles and input.dim() == 2:
            return super().forward(with_rows_of_zeros(input))[: len(input)]
        return super().forward(input)


def use_few_shapes(module: nn.Module) -> None:
    """Turn every ``torch.nn.Linear`` in ``module`` into a ``Linear``, in place."""
    for part in module.modules():
        if type(part) is nn.Linear:
            part.__class__ = Linear
