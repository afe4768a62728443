"""Start processes by fork, so that they need not import torch and Lightning, which takes five seconds per process."""

import gc
import os
import random
import runpy
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import multiprocessing

# A forked process cannot compute if the parent has used a GPU, or on a system other than Linux
METHOD = "fork" if sys.platform == "linux" and not torch.cuda.is_available() else "spawn"


def run_processes(number: int, work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(rank, *arguments)`` in ``number`` processes and wait for all. Raises the exception of a failed process."""
    multiprocessing.start_processes(_begin, (work, *arguments), nprocs=number, start_method=METHOD)


def _begin(rank: int, work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work`` with a different random state in each process. Forks would otherwise draw the same numbers."""
    torch.set_num_threads(1)
    gc.freeze()  # a collection would copy all memory that is shared with the parent
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    work(rank, *arguments)


def run_process(work: Callable[..., None], *arguments: Any) -> int:
    """Call ``work(*arguments)`` in a process. Return its exit code, which is negative for a signal."""
    process = multiprocessing.get_context(METHOD).Process(target=_alone, args=(work, *arguments))
    process.start()
    process.join()
    code: int = process.exitcode
    return code


def _alone(work: Callable[..., None], *arguments: Any) -> None:
    torch.set_num_threads(1)  # a fork lacks the threads of the parent, for which OpenMP would wait
    work(*arguments)


def peak_memory(work: Callable[[], object]) -> int:
    """Return the maximum memory in bytes that Python and NumPy allocate while ``work()`` runs.

    The memory is measured in a fork. A fork has no other threads, and frees no garbage of earlier tests, which would change
    the measurement.
    """
    if METHOD != "fork":
        return _traced(work)
    with tempfile.NamedTemporaryFile("r") as file:
        assert run_process(_write_peak, work, file.name) == 0, "what was measured failed, see its traceback"
        return int(file.read())


def _write_peak(work: Callable[[], object], file: str) -> None:
    gc.freeze()  # for the same reason as in _begin
    Path(file).write_text(str(_traced(work)))


def _traced(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def run_program(source: str, folder: Path) -> str:
    """Run a Python program as ``python -c`` does, with ``folder`` as the working folder. Return its output."""
    done = run_script("-c", source, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_script(*arguments: str | Path, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run ``python *arguments`` in ``folder``. The arguments are a file, or ``-c`` and a program, and its own arguments."""
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name, part) for part in ("stdout", "stderr")]
        code = run_process(_script, list(map(str, arguments)), folder or Path.cwd(), *files)
        return subprocess.CompletedProcess(arguments, code, *(path.read_text() for path in files))


def _script(arguments: list[str], folder: Path, stdout: Path, stderr: Path) -> None:
    os.chdir(folder)
    sys.argv, sys.stdout, sys.stderr = arguments, open(stdout, "w"), open(stderr, "w")  # noqa: SIM115 - open until the end
    if arguments[0] == "-c":
        exec(compile(arguments.pop(1), "<program>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")
