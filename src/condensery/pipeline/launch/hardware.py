"""The hardware of this machine, and the number of threads of a stage on it. Only the number of GPUs needs torch."""

import os
import platform
import sys
from contextlib import suppress
from typing import Any

from condensery.errors import UserError
from condensery.system.children import cores
from condensery.system.processor import of_the_processor

PROCESSES = 8  # maximum processes per core of a stage on a CPU
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")  # of numeric libraries
_ASKED = os.environ.get("OMP_NUM_THREADS", "")


def check_devices(accelerator: str, devices: int | str) -> None:
    """Check that this machine has the devices that ``trainer.accelerator`` and ``trainer.devices`` request.

    The check comes before every run, even if all stages are finished. So whether a command is accepted does not depend on
    the artifacts that exist.

    Raises:
        UserError: there are too few GPUs, or too many processes are requested on a CPU.
    """
    wanted = devices if isinstance(devices, int) else 1
    there = 0 if accelerator == "cpu" or (accelerator == "auto" and wanted == 1) else gpus_of_torch()
    if accelerator == "gpu" and not there:
        raise UserError("trainer.accelerator: gpu was asked for, but torch sees none; use cpu or auto")
    if there and wanted > there:
        raise UserError(f"trainer.devices: {wanted} GPUs are asked for, but torch sees {there}")
    number = cores()
    if not there and wanted > PROCESSES * number:
        most = f"at most {PROCESSES * number} are started on {number} {'core' if number == 1 else 'cores'}"
        raise UserError(f"trainer.devices: {wanted} processes are asked for, but {most}")


def threads_of_a_stage(threads: int | str, jobs: int) -> int:
    """Return the threads of each stage: as set, or the cores divided by ``jobs`` (at most ``OMP_NUM_THREADS``)."""
    if isinstance(threads, int):
        return threads
    share = max(1, cores() // jobs)
    return min(share, int(_ASKED)) if _ASKED.isdecimal() and int(_ASKED) else share


def limit_threads(threads: int) -> None:
    """Limit the numeric libraries of this process to ``threads`` threads, whether or not they are imported yet."""
    for variable in THREADS:
        os.environ[variable] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def gpus_of_torch() -> int:
    """Return the number of GPUs that torch sees."""
    import torch

    return torch.cuda.device_count()


def about_machine(threads: int) -> dict[str, str]:
    """Return a description of the machine, the threads and the GPUs of a stage, for its manifest."""
    return {**machine(), "threads": str(threads), "gpu": _gpus()}


def machine() -> dict[str, str]:
    """Return a readable description of this machine, without names of users or hosts."""
    description = {
        "processor": of_the_processor("model name") or platform.processor() or platform.machine(),
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
