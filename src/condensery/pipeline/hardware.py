"""What the machine is good at, found out without importing torch."""

import os
from functools import cache
from pathlib import Path


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
