"""What the machine is good at, found out without importing torch."""

import os
import platform
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any


def quick_precision(accelerator: str) -> str:
    """The precision that ``auto`` stands for: bf16 on a GPU or on a CPU with bf16 instructions, otherwise fp32."""
    gpu = accelerator == "gpu" or (accelerator == "auto" and _has_gpu())
    return "bf16" if gpu or _cpu_has_bf16() else "fp32"


def _has_gpu() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and any(Path("/dev").glob("nvidia[0-9]*"))


@cache
def _cpu_has_bf16() -> bool:
    """Whether the CPU multiplies bf16 itself (x86: AVX512-BF16 or AMX; ARM: bf16)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    flags = next((line.split() for line in lines if line.startswith(("flags", "Features"))), [])
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


@cache
def machine() -> dict[str, str]:
    """What a result was computed on, for people to read: no name of a user or host is in it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = {
        "processor": _processor() or platform.processor() or platform.machine(),
        "cores": str(cores),
        "system": f"{platform.system()} {platform.machine()}",
    }
    with suppress(OSError, ValueError, AttributeError):
        found["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    return found


def gpus() -> str:
    """The GPUs of this process, if torch is at work and sees some."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
