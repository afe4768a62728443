"""The precision that ``auto`` stands for is what the hardware is quick at; devices that are not there are refused."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from condensery.errors import UserError
from condensery.pipeline.config import RootConfig
from condensery.pipeline.launch import hardware
from condensery.pipeline.launch.hardware import check_devices
from condensery.stages.launcher_config import LocalLauncher
from condensery.stages.trainer_options import TrainerFlags
from condensery.system import children, processor
from condensery.system.processor import quick_precision


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an NVIDIA driver, whose tool is to be written into the folder; its CPU has no bf16."""
    processor._oldest_gpu.cache_clear()
    monkeypatch.setattr(processor, "_has_gpu", lambda: True)
    monkeypatch.setattr(processor, "_cpu_is_quick_at_bf16", lambda: False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield tmp_path
    processor._oldest_gpu.cache_clear()


def write_tool(folder: Path, script: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)


@pytest.mark.parametrize(
    ("told", "precision"),
    [
        ("9.0", "bf16"),  # H200
        ("8.0\n8.0", "bf16"),  # A100
        ("12.0", "bf16"),
        ("7.5", "fp16"),  # T4
        ("7.0", "fp16"),  # V100
        ("6.1", "fp32"),  # GTX 1080: its fp16 is slower than its fp32
        ("9.0\n7.0", "fp16"),  # what all of them can
        ("No devices were found", "bf16"),
    ],
)
def test_gpus_get_what_all_of_them_are_quick_at(machine: Path, told: str, precision: str) -> None:
    write_tool(machine, f"cat <<END\n{told}\nEND")
    assert quick_precision("gpu") == quick_precision("auto") == precision
    assert quick_precision("cpu") == "fp32"


def test_only_the_gpus_of_this_process_count(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tool(machine, 'case "$*" in *"-i 1"*) echo 7.5;; *) echo 9.0;; esac')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert quick_precision("gpu") == "fp16"


def test_gpus_that_are_not_seen_here_are_taken_for_new_ones(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_has_gpu", lambda: False)
    assert quick_precision("gpu") == "bf16"  # of a SLURM job
    assert quick_precision("auto") == "fp32"
    processor._oldest_gpu.cache_clear()
    write_tool(machine, "exit 9")
    assert quick_precision("gpu") == "bf16"


@pytest.mark.parametrize(
    ("accelerator", "devices", "seen", "message"),
    [
        ("gpu", 1, 0, "trainer.accelerator: gpu was asked for, but torch sees none; use cpu or auto"),
        ("gpu", "auto", 0, "trainer.accelerator: gpu was asked for"),
        ("gpu", 4, 2, "trainer.devices: 4 GPUs are asked for, but torch sees 2"),
        ("auto", 4, 2, "trainer.devices: 4 GPUs are asked for, but torch sees 2"),
        ("auto", 99, 0, "trainer.devices: 99 processes are asked for, but at most 16 are started on 2 cores"),
        ("cpu", 17, 4, "trainer.devices: 17 processes are asked for, but at most 16 are started on 2 cores"),
        ("cpu", 16, 0, ""),
        ("auto", 2, 0, ""),
        ("auto", 2, 2, ""),
        ("gpu", 2, 2, ""),
        ("auto", 1, 0, ""),
        ("auto", "auto", 0, ""),
    ],
)
def test_devices_that_are_not_there_are_refused(
    monkeypatch: pytest.MonkeyPatch, accelerator: str, devices: int | str, seen: int, message: str
) -> None:
    monkeypatch.setattr(hardware, "cores", lambda: 2)
    monkeypatch.setattr(hardware, "gpus_of_torch", lambda: seen)
    if message:
        with pytest.raises(UserError, match=f"^{message}"):
            check_devices(accelerator, devices)
    else:
        check_devices(accelerator, devices)


@pytest.mark.parametrize(
    ("flags", "quick"),
    [
        ("avx2 avx512f", False),
        ("avx512f avx512_bf16", True),  # AMD since Zen 4, Intel's Cooper Lake
        ("avx512f avx512_bf16 avx512_fp16 amx_tile amx_bf16", True),
        ("avx512f avx512_bf16 avx512_fp16", False),  # AMX is hidden by a virtual machine
        ("asimd bf16", True),
    ],
)
def test_bf16_is_taken_where_a_processor_is_quick_at_it(flags: str, quick: bool) -> None:
    assert processor._quick_at_bf16(set(flags.split())) is quick


@pytest.mark.parametrize(
    ("quota", "number"),
    [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("9900000 100000", 8), (None, 8)],
)
def test_the_quota_of_a_container_limits_the_cores(
    quota: str | None, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children.os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(children, "QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert children.cores() == number


@pytest.mark.parametrize(("deterministic", "workspace"), [(True, ":4096:8"), ("warn", ":4096:8"), (None, None)])
def test_products_on_a_gpu_can_be_deterministic_from_the_first_stage_on(
    deterministic: Any, workspace: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    trainer = SimpleNamespace(accelerator="cpu", devices=1, threads=1, workers=0, compile=False)
    trainer.flags = TrainerFlags(deterministic=deterministic)
    logger = SimpleNamespace(check_installed=lambda: None, wandb=None, tensorboard=False, trackio=None)
    root: Any = SimpleNamespace(trainer=trainer, logger=logger, launcher=LocalLauncher(kind="local"), jobs=1)
    root.name, root.output_root = "x", Path("x")
    RootConfig.runtime(root)
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == workspace
