"""The hardware of this machine and its capabilities, detected without importing torch, and the threads of a stage on it."""

import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.system.children import cores

PROCESSES = 8  # maximum processes per core of a stage on a CPU
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")  # of numeric libraries
_ASKED = os.environ.get("OMP_NUM_THREADS", "")
_AMPERE, _VOLTA = (8, 0), (7, 0)  # compute capabilities


def quick_precision(accelerator: str) -> str:
    """Return the precision that ``auto`` stands for.

    It is bf16 on GPUs since Ampere and on CPUs that are fast at bf16, fp16 on GPUs with Volta's and Turing's tensor cores,
    and otherwise fp32. GPUs that are not visible here, such as those of a SLURM job, are assumed to support bf16.
    """
    if accelerator == "gpu" or (accelerator == "auto" and _has_gpu()):
        oldest = _oldest_gpu() or _AMPERE
        return "bf16" if oldest >= _AMPERE else "fp16" if oldest >= _VOLTA else "fp32"
    return "bf16" if _cpu_is_quick_at_bf16() else "fp32"


def check_devices(accelerator: str, devices: int | str) -> None:
    """Check that this machine has the devices that ``trainer.accelerator`` and ``trainer.devices`` request.

    The check comes before every run, even if all stages are finished, so that a command is accepted or refused
    independently of finished work.

    Raises:
        UserError: there are too few GPUs, or too many processes are requested on a CPU.
    """
    wanted = devices if isinstance(devices, int) else 1
    there = 0 if accelerator == "cpu" or (accelerator == "auto" and wanted == 1) else _gpus_of_torch()
    if accelerator == "gpu" and not there:
        raise UserError("trainer.accelerator: gpu was asked for, but torch sees none; use cpu or auto")
    if there and wanted > there:
        raise UserError(f"trainer.devices: {wanted} GPUs are asked for, and torch sees {there}")
    number = cores()
    if not there and wanted > PROCESSES * number:
        most = f"at most {PROCESSES * number} are started on {number} {'core' if number == 1 else 'cores'}"
        raise UserError(f"trainer.devices: {wanted} processes are asked for, but {most}")


def threads_of_a_stage(threads: int | str, jobs: int) -> int:
    """Return the threads of each stage: as set, or the cores divided by ``jobs`` (at most ``OMP_NUM_THREADS``)."""
    if isinstance(threads, int):
        return threads
    share = max(1, cores() // jobs)
    return min(share, int(_ASKED)) if _ASKED.isdigit() and int(_ASKED) else share


def limit_threads(threads: int) -> None:
    """Limit the numeric libraries of this process to ``threads`` threads, whether or not they are imported yet."""
    for variable in THREADS:
        os.environ[variable] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def _gpus_of_torch() -> int:
    import torch

    return torch.cuda.device_count()


def _has_gpu() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and any(Path("/dev").glob("nvidia[0-9]*"))


@cache
def _oldest_gpu() -> tuple[int, int] | None:
    """Return the lowest compute capability among the GPUs of this process; None where nvidia-smi does not report it."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", *(["-i", wanted] if wanted else [])]
    try:
        capabilities = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()
        return min((int(major), int(minor)) for major, _, minor in (line.partition(".") for line in capabilities))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


@cache
def _cpu_is_quick_at_bf16() -> bool:
    """Whether the CPU multiplies bf16 faster than fp32."""
    return _quick_at_bf16({*_of_the_processor("flags").split(), *_of_the_processor("Features").split()})


def _quick_at_bf16(flags: set[str]) -> bool:
    """Whether a CPU with these flags of /proc/cpuinfo multiplies bf16 faster than fp32 (x86: AVX512-BF16, AMX; ARM: bf16).

    Intel's processors with AMX do AVX512-BF16 at half the speed of fp32 (84 against 155 GFLOP/s per core, Sapphire Rapids).
    This matters where a virtual machine hides AMX. Such a processor is recognised by AVX512-FP16, which AMD's lack.
    """
    if "amx_bf16" in flags or "bf16" in flags:
        return True
    return "avx512_bf16" in flags and "avx512_fp16" not in flags


def about_machine(threads: int) -> dict[str, str]:
    """Return a description of the machine, the threads and the GPUs of a stage, for its manifest."""
    return {**machine(), "threads": str(threads), "gpu": _gpus()}


@cache
def machine() -> dict[str, str]:
    """Return a readable description of this machine, without names of users or hosts."""
    description = {
        "processor": _of_the_processor("model name") or platform.processor() or platform.machine(),
        "cores": str(cores()),
        "system": f"{platform.system()} {platform.machine()}",
    }
    with suppress(OSError, ValueError, AttributeError):
        description["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    return description


def _gpus() -> str:
    """Return the names of the GPUs of this process; empty if torch is not imported or sees none."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


@cache
def _of_the_processor(entry: str) -> str:
    """Return an entry of /proc/cpuinfo for the first core; empty where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(entry)), "")
