"""The precision in which the processor or the GPUs of this machine compute fast, detected without importing torch."""

import os
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

_AMPERE, _VOLTA = (8, 0), (7, 0)  # compute capabilities


def quick_precision(accelerator: str) -> str:
    """Return the precision that ``auto`` stands for.

    It is bf16 on GPUs since Ampere and on CPUs that are fast at bf16, fp16 on GPUs with Volta's and Turing's tensor cores,
    and otherwise fp32. GPUs that are not visible here, such as the GPUs of a SLURM job, are assumed to support bf16.
    """
    if accelerator == "gpu" or (accelerator == "auto" and _has_gpu()):
        oldest = _oldest_gpu() or _AMPERE
        return "bf16" if oldest >= _AMPERE else "fp16" if oldest >= _VOLTA else "fp32"
    return "bf16" if _cpu_is_quick_at_bf16() else "fp32"


def _has_gpu() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1") and any(Path("/dev").glob("nvidia[0-9]*"))


@cache
def _oldest_gpu() -> tuple[int, int] | None:
    """Return the lowest compute capability among the GPUs of this process; None if nvidia-smi does not report it."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", *(["-i", wanted] if wanted else [])]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        capabilities = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.split()
        return min((int(major), int(minor)) for major, _, minor in (line.partition(".") for line in capabilities))
    return None


def _cpu_is_quick_at_bf16() -> bool:
    """Whether the CPU multiplies bf16 faster than fp32."""
    return _quick_at_bf16({*of_the_processor("flags").split(), *of_the_processor("Features").split()})


def _quick_at_bf16(flags: set[str]) -> bool:
    """Whether a CPU with these flags of /proc/cpuinfo multiplies bf16 faster than fp32 (x86: AVX512-BF16, AMX; ARM: bf16).

    Intel's processors with AMX do AVX512-BF16 at half the speed of fp32 (84 against 155 GFLOP/s per core, Sapphire Rapids).
    This matters if a virtual machine hides AMX. Such a processor is recognised by AVX512-FP16, which AMD lacks.
    """
    if "amx_bf16" in flags or "bf16" in flags:
        return True
    return "avx512_bf16" in flags and "avx512_fp16" not in flags


@cache
def of_the_processor(entry: str) -> str:
    """Return an entry of /proc/cpuinfo for the first core; empty if there is none."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(entry)), "")
    return ""
