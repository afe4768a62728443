"""Whoever is killed leaves no process behind, of any kind, and no one who holds its output open."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killed_runs import alive, begin, kill

from condensery.system.children import guarded

ALONE = "TEST_ENDS_BY"  # see parent_programs.py, which is not for import: it would add a stage to those of all tests
PARENTS = Path(__file__).with_name("parent_programs.py")
KINDS = {  # how many processes there are at least, the parent among them
    "tokenising": 3,
    "tokenising_on": 3,
    "reading_docstrings": 3,
    "reading_docstrings_beside_a_thread": 3,
    "making_batches": 3,
    "stage_process": 5,
    "several_devices": 3,
    "foreign_program": 4,
    "thread": 2,
}

LIKE_OTHERS = {"tokenising_on", "reading_docstrings_beside_a_thread", "making_batches", "several_devices"}

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")


def started(kind: str, folder: Path, **environment: str) -> "subprocess.Popen[str]":
    """A parent of this kind, whose children are at work."""
    paths = [str(PARENTS.parent), str(PARENTS.parents[1] / "src")]
    process = begin(str(folder), str(PARENTS), kind, str(folder), PYTHONPATH=os.pathsep.join(paths), **environment)
    assert process.stdout is not None
    said = []
    while (line := process.stdout.readline()) != "ready\n":
        said.append(line)
        assert line, "".join(said)
    return process


def left_by(kind: str, folder: Path, processes: int, patience: float | None = None, **environment: str) -> None:
    """Kill such a parent; none is left behind."""
    process = started(kind, folder, **environment)
    try:
        deadline = time.monotonic() + 10
        while len(alive(str(folder))) < processes:
            assert time.monotonic() < deadline, "the test starts too little"
            time.sleep(0.05)
    finally:
        kill(process, str(folder), patience=patience)


@needs_proc
@pytest.mark.parametrize(
    "kind", [pytest.param(one, marks=pytest.mark.slow) if one in LIKE_OTHERS else one for one in KINDS]
)
def test_no_child_outlives_a_parent_that_is_killed(kind: str, tmp_path: Path) -> None:
    left_by(kind, tmp_path / "x", KINDS[kind])


@needs_proc
@pytest.mark.parametrize(
    "way", ["watch", pytest.param("kernel", marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux"))]
)
@pytest.mark.parametrize(
    "kind", ["tokenising", pytest.param("reading_docstrings", marks=pytest.mark.slow), "stage_process"]
)
def test_each_of_the_two_ways_is_enough(kind: str, way: str, tmp_path: Path) -> None:
    left_by(kind, tmp_path / "x", KINDS[kind], **{ALONE: way})


@needs_proc
def test_workers_that_wait_for_tasks_outlive_it_where_nothing_ends_them(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="its output is held open by"):
        left_by("tokenising", tmp_path / "x", KINDS["tokenising"], patience=3.0, **{ALONE: "nothing"})


@needs_proc
@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone can do it")
def test_one_that_computes_without_a_pause_ends_as_well(tmp_path: Path) -> None:
    left_by("computing", tmp_path / "x", 2)


@needs_proc
def test_the_service_of_wandb_ends_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_SERVICE", raising=False)  # of an earlier test in this process: it would be used
    left_by("tracking", tmp_path / "x", 2, WANDB_MODE="offline")


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "processes"), [("torchrun", 3), ("compiling", 1)])
def test_what_other_libraries_start_ends_as_well(kind: str, processes: int, tmp_path: Path) -> None:
    left_by(kind, tmp_path / "x", processes)


@needs_proc
def test_a_process_whose_parent_is_gone_before_it_begins_ends_at_once(tmp_path: Path) -> None:
    code = "from condensery.system.children import Parent; Parent(1234567, True).end_with(); print('goes on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


@pytest.mark.parametrize(("code", "ends"), [("exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9), ("", 0)])
def test_a_guarded_program_ends_as_it_would_alone(code: str, ends: int) -> None:
    command = guarded([sys.executable, "-c", code])
    assert subprocess.run(command, start_new_session=True, timeout=30).returncode == ends


def test_a_guarded_program_is_asked_to_end_before_it_is_made_to() -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(print('ended'))); print('on', flush=True)"
    command = guarded([sys.executable, "-c", f"{code}; time.sleep(600)"])
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    begun = time.monotonic()
    process.terminate()
    assert process.communicate(timeout=30)[0] == "ended\n"
    assert time.monotonic() - begun < 2.5
