"""The values of the key ``precision``: fp32, and mixed precision in bf16 or fp16."""

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device | str, precision: str) -> torch.autocast:
    """Return the autocast context of a precision; for fp32 it has no effect.

    Args:
        device: the device that computes, or its type.
        precision: a key of ``DTYPES``.
    """
    return torch.autocast(torch.device(device).type, DTYPES[precision], enabled=precision != "fp32")
