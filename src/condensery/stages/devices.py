"""Which device a stage computes on."""

from contextlib import AbstractContextManager, nullcontext

import torch

from condensery.errors import UserError


def torch_device(accelerator: str) -> torch.device:
    """``auto`` takes a GPU where there is one. Raises ``UserError`` when ``gpu`` is asked for and there is none."""
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise UserError("trainer.accelerator: gpu was asked for, but torch sees none; use cpu or auto")
    return torch.device("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Mixed precision for inference; nothing for fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)
