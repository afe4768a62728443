"""A training says what it computes with, and refuses a precision that the device does not have."""

from pathlib import Path

import pytest
import torch
import trainings

from condensery.errors import UserError
from condensery.training import equipment as module_of_equipment
from condensery.training.equipment import equipment

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


def pretend(monkeypatch: pytest.MonkeyPatch, name: str, bf16: bool, kernel: str | None) -> None:
    """A GPU of this name."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    monkeypatch.setattr(module_of_equipment, "best_kernel", lambda device, dtype, size: kernel)


def test_a_gpu_is_named_with_all_that_is_used_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "NVIDIA H200", True, "FlashAttention")
    module, _, settings = trainings.run("cocondenser", tmp_path, precision="bf16")
    assert (
        equipment(module, settings.precision, GPU) == "NVIDIA H200, bf16, FlashAttention without padding, fused AdamW"
    )
    many = equipment(module, settings.precision, GPU, processes=8, compiled=True)
    assert many == "8 x NVIDIA H200, bf16, FlashAttention without padding, fused AdamW, compiled layers"


def test_a_gpu_without_bf16_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "Tesla V100", False, "memory-efficient attention")
    module, _, settings = trainings.run("biencoder", tmp_path, precision="fp16")
    assert equipment(module, settings.precision, GPU) == (
        "Tesla V100, fp16 with a loss scaler (it has no bf16), memory-efficient attention without padding, AdamW"
    )
    assert "fp32" in equipment(module, "fp32", GPU)
    with pytest.raises(
        UserError, match=r"^trainer\.precision: a Tesla V100 does not compute in bf16; use fp16 or fp32$"
    ):
        equipment(module, "bf16", GPU)


def test_a_cpu_says_how_many_threads_and_processes(tmp_path: Path) -> None:
    module, _, settings = trainings.run("condenser", tmp_path)
    threads = torch.get_num_threads()
    each = "1 thread" if threads == 1 else f"{threads} threads"
    assert equipment(module, settings.precision, CPU) == f"CPU ({each}), fp32, padded attention, fused AdamW"
    assert equipment(module, settings.precision, CPU, processes=2).startswith(f"CPU (2 processes of {each}), ")
