"""Processes that need not import torch and Lightning anew, which takes five seconds each."""

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

# A fork of a process that has used a GPU, or of one that is not on Linux, cannot compute
METHOD = "fork" if sys.platform == "linux" and not torch.cuda.is_available() else "spawn"


def run_processes(number: int, work: Callable[..., None], *arguments: Any) -> None:
    """Call ``work(rank, *arguments)`` in ``number`` processes and wait for all; raises what one of them raised."""
    multiprocessing.start_processes(_begin, (work, *arguments), nprocs=number, start_method=METHOD)


def _begin(rank: int, work: Callable[..., None], *arguments: Any) -> None:
    """As in processes that were started alone, no two have drawn the same numbers before."""
    torch.set_num_threads(1)
    gc.freeze()  # a collection would copy all memory that is shared with the parent
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    work(rank, *arguments)


def run_process(work: Callable[..., None], *arguments: Any) -> int:
    """Call ``work(*arguments)`` in a process; its exit code, or less a signal's number."""
    process = multiprocessing.get_context(METHOD).Process(target=_alone, args=(work, *arguments))
    process.start()
    process.join()
    code: int = process.exitcode
    return code


def _alone(work: Callable[..., None], *arguments: Any) -> None:
    torch.set_num_threads(1)  # a fork lacks the threads of the parent, for which OpenMP would wait
    work(*arguments)


def peak_memory(work: Callable[[], object]) -> int:
    """Bytes that Python and NumPy hold at most while ``work()`` runs, beyond what they held before.

    A fork has no threads and frees no garbage of the tests that ran before in this process, whose memory would count too.
    """
    if METHOD != "fork":
        return _traced(work)
    with tempfile.NamedTemporaryFile("r") as file:
        assert run_process(_write_peak, work, file.name) == 0, "what was measured failed, see its traceback"
        return int(file.read())


def _write_peak(work: Callable[[], object], file: str) -> None:
    gc.freeze()  # as in _begin
    Path(file).write_text(str(_traced(work)))


def _traced(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def run_program(source: str, folder: Path) -> str:
    """Run a program in Python, with ``folder`` as the working folder, as ``python -c`` does; what it prints."""
    done = run_script("-c", source, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_script(*arguments: str | Path, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run ``python *arguments`` in ``folder``: a file, or ``-c`` and a program, with what is passed to it."""
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name, part) for part in ("stdout", "stderr")]
        code = run_process(_script, list(map(str, arguments)), folder or Path.cwd(), *files)
        return subprocess.CompletedProcess(arguments, code, *(path.read_text() for path in files))


def _script(arguments: list[str], folder: Path, stdout: Path, stderr: Path) -> None:
    os.chdir(folder)
    sys.argv, sys.stdout, sys.stderr = arguments, open(stdout, "w"), open(stderr, "w")  # noqa: SIM115 - until it ends
    if arguments[0] == "-c":
        exec(compile(arguments.pop(1), "<program>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")
