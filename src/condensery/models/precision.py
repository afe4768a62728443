"""The values of the key ``precision``: fp32, and mixed precision in bf16 or fp16."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

import torch
from torch import nn

from condensery.errors import UserError, shown
from condensery.models.linear import Linear
from condensery.system.processor import quick_precision

Model = TypeVar("Model", bound=nn.Module)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device | str, precision: str) -> torch.autocast:
    """Return the autocast context of a precision. The context for fp32 switches autocast off.

    Args:
        device: the device of the computation, or its type, such as "cuda".
        precision: a key of ``DTYPES``.
    """
    return torch.autocast(torch.device(device).type, DTYPES[precision], enabled=precision != "fp32")


@contextmanager
def inference(device: torch.device | str, precision: str) -> Iterator[None]:
    """Context manager for inference in a precision, without gradients. ``with_cast_weights`` makes inference faster."""
    with torch.inference_mode(), autocast(device, precision):
        yield


def with_cast_weights(model: Model, precision: str) -> Model:
    """Return a copy of a model whose linear layers hold their weights in ``precision``; in fp32, return the model itself.

    The copy is for ``inference``, where autocast would cast the weights again for each chunk. The results are the same to
    the last bit. The copy shares all other parameters with the model.
    """
    if precision == "fp32":
        return model
    copied = copy.deepcopy(model, {id(shared): shared for shared in chain(model.parameters(), model.buffers())})
    for place, layer in copied.named_modules():
        # the head of a cross-encoder computes in fp32
        if type(layer) in (nn.Linear, Linear) and not place.startswith("classifier.classifier"):
            for name, weight in list(layer.named_parameters(recurse=False)):
                if weight.dtype == torch.float32:  # autocast does not cast float64
                    setattr(layer, name, nn.Parameter(weight.detach().to(DTYPES[precision]), requires_grad=False))
    return copied


def precision_on(device: torch.device | str, precision: str, name: str = "precision") -> str:
    """Return the precision in which ``device`` computes: ``precision``, or for ``auto`` the default of the device.

    Args:
        device: the device of the computation, or its type, such as "cuda".
        precision: a key of ``DTYPES``, or ``auto``.
        name: beginning of the error message.

    Raises:
        UserError: the precision is unknown, or the device does not support it.
    """
    kind = torch.device(device).type
    if precision == "auto":
        return quick_precision("gpu" if kind == "cuda" else "cpu") if kind in ("cpu", "cuda") else "fp32"
    if precision not in DTYPES:
        raise UserError(f"{name} must be one of auto, {', '.join(DTYPES)}, not {shown(repr(precision))}")
    if precision == "fp16" and kind == "cpu":
        raise UserError(f"{name}: fp16 needs a GPU; use bf16 or fp32 on a CPU")
    if precision == "bf16" and not has_bf16(device):
        raise UserError(f"{name}: a {torch.cuda.get_device_name(device)} does not compute in bf16; use fp16 or fp32")
    return precision


def has_bf16(device: torch.device | str) -> bool:
    """Return whether a device computes in bf16 itself, without emulation; GPUs before Ampere emulate it."""
    return torch.device(device).type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
