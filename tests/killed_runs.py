"""Helpers for tests of killed runs. All processes of a run inherit a mark in their environment, by which they are found."""

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from forked import METHOD
from small_runs import CONF, PROJECT, Done, artifact_files, half_written, run_command

MARK = "CONDENSERY_TEST_MARK"  # environment variable
PATIENCE = 10.0  # seconds until the child processes of a killed process must have ended and closed its output
SLOW = 60.0  # the same for a process that gets a signal which it can handle, because it first closes its work


def start(mark: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Start ``python run.py ...`` with the recipes of the tests, in its own process group. One pipe has all output."""
    return begin(mark, str(PROJECT / "run.py"), "--config-dir", str(CONF), *arguments, **environment)


def begin(mark: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    """Start any Python program in the same way as ``start``."""
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    whole = {**os.environ, MARK: mark, **environment}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # an ignored SIGINT would be inherited
    try:
        process = subprocess.Popen([sys.executable, *arguments], **pipe, text=True, env=whole)
    finally:
        signal.signal(signal.SIGINT, before)
    return process


def begun(out: str) -> list[str]:
    """Return the stages that start according to the output of a run, in order."""
    return re.findall(r"^\[(\S+)\] starts$", out, re.MULTILINE)


def alive(mark: str) -> list[int]:
    """Return the ids of the living processes with this mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in ("Z", "X") and f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def kill(
    process: "subprocess.Popen[str]",
    mark: str,
    by: signal.Signals = signal.SIGKILL,
    group: bool = False,
    patience: float | None = None,
) -> str:
    """Send a signal to the main process or to its group, check that no process is left, and return the output.

    If the signal goes to the main process alone, its child processes must end by themselves.

    ``patience``: seconds until all processes must have ended; None = ``PATIENCE`` or ``SLOW``.
    """
    patience = patience or (PATIENCE if by == signal.SIGKILL else SLOW)
    try:
        os.killpg(process.pid, by) if group else process.send_signal(by)
        try:
            out, _ = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"its output is held open by {described(mark)}") from None
        patience += time.monotonic()
        while alive(mark):
            assert time.monotonic() < patience, f"orphans: {described(mark)}"
            time.sleep(0.05)
        return out
    finally:
        for orphan in alive(mark):  # so that one fault does not make later tests fail
            os.kill(orphan, signal.SIGKILL)


def goes_on(done: Done, recipe: Sequence[str], root: Path, kinds: Sequence[str]) -> None:
    """Check that a run which is killed after a checkpoint resumes from it, and makes the same bytes as the run ``done``.

    The artifacts of ``done`` are reused, except the artifacts of the ``kinds``, which the run computes.
    """
    shutil.copytree(done.folder.parents[1] / "artifacts", root / "artifacts", symlinks=True)
    for kind in kinds:
        shutil.rmtree(root / "artifacts" / kind)
    arguments = [*recipe, f"output_root={root}"]
    process = multiprocessing.get_context(METHOD).Process(target=run_command, args=arguments)
    process.start()
    while not checkpoints(root) and process.is_alive():
        time.sleep(0.002)
    process.kill()
    process.join()
    assert checkpoints(root)
    again = run_command(*arguments).sound()
    assert "resumes from step 2 of 4" in again.out
    assert artifact_files(again.folder) == artifact_files(done.folder)
    assert not half_written(root)


def described(mark: str) -> list[str]:
    """Return the command lines of the processes with this mark."""
    found = []
    for process in alive(mark):
        command = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        found.append(f"{process} {command[:200]}")
    return found


def wait(process: "subprocess.Popen[str]", until: Callable[[], bool]) -> None:
    """Wait until ``until()`` is true or the process has ended."""
    patience = time.monotonic() + 120
    while not until() and process.poll() is None:
        assert time.monotonic() < patience
        time.sleep(0.002)


def checkpoints(root: Path) -> list[Path]:
    """Return the checkpoints from which an interrupted stage would resume."""
    return list(root.glob("artifacts/*/*.partial/checkpoints/step=*.ckpt"))


def same_results(run: Path, other: Path) -> None:
    """Check that all artifacts and the results of two runs are equal, byte by byte."""
    assert run.name == other.name
    mine, wanted = artifact_files(run), artifact_files(other)
    kinds = {Path(name).name for name in wanted}
    assert {"model.safetensors", "run.trec.gz", "negatives.jsonl", "passages.arrow", "tokens.bin"} <= kinds
    assert mine.keys() == wanted.keys()
    assert [name for name in wanted if mine[name] != wanted[name]] == []
    assert (run / "results.json").read_bytes() == (other / "results.json").read_bytes()
    assert not half_written(run.parents[1])
