"""Describes the equipment of a training run in one line: devices, precision, attention kernel and optimiser."""

import torch

from condensery.models.encoder import Encoder
from condensery.models.precision import DTYPES, has_bf16, precision_on
from condensery.models.varlen import best_kernel
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.settings import Precision


def equipment(
    module: TrainingModule, precision: Precision, device: torch.device, processes: int = 1, compiled: bool = False
) -> str:
    """Return one line that names devices, precision, attention kernel and optimiser, and says whether layers are compiled."""
    parts = [_devices(device, processes), _precision(precision, device), *_attention(module, precision, device)]
    parts.append("AdamW" if precision == "fp16" else "fused AdamW")
    return ", ".join([*parts, *(["compiled layers"] if compiled else [])])


def _devices(device: torch.device, processes: int) -> str:
    if device.type == "cpu":
        threads = torch.get_num_threads()
        each = f"{threads} {'thread' if threads == 1 else 'threads'}"
        return f"CPU ({each})" if processes == 1 else f"CPU ({processes} processes of {each})"
    name = torch.cuda.get_device_name(device)
    return name if processes == 1 else f"{processes} x {name}"


def _precision(precision: Precision, device: torch.device) -> str:
    if precision_on(device, precision, "trainer.precision") != "fp16":
        return precision
    return "fp16 with a loss scaler" + ("" if has_bf16(device) else " (it has no bf16)")


def _attention(module: TrainingModule, precision: Precision, device: torch.device) -> list[str]:
    """Return the description of the attention as a list of one string. The list is empty if the module has no encoder."""
    encoder = next((part for part in module.modules() if isinstance(part, Encoder)), None)
    if encoder is None:
        return []
    config = encoder.model.config
    kernel = best_kernel(device, DTYPES[precision], config.hidden_size // config.num_attention_heads)
    return [f"{kernel} without padding" if kernel else "padded attention"]
