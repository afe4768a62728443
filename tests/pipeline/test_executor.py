"""Running the graph: side by side as one by one, and every way in which it can end before its time."""

import multiprocessing
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from slow import slow_except
from toy_commands import Command, Compose, Launch

from condensery.errors import DiskError, StageError, UserError, of_memory
from condensery.pipeline.executor import Worker, causes, chain_lengths
from condensery.pipeline.graph import build
from condensery.pipeline.launch.hardware import threads_of_a_stage
from condensery.pipeline.run import run

Contents = Callable[[Path], dict[str, bytes]]


@pytest.fixture
def bare(composed: Compose) -> Compose:
    """The toy recipe without its table: what is reported at the end is no matter here."""
    return lambda *overrides: composed(*overrides, recipe="bare")


def test_two_jobs_give_what_one_gives_and_share_the_threads(bare: Compose, tmp_path: Path, contents: Contents) -> None:
    run(bare())
    (tmp_path / "ran.log").unlink()
    run(bare("jobs=2", "trainer.threads=3", f"output_root={tmp_path / 'two'}"))
    assert contents(tmp_path / "two") == contents(tmp_path / "out")
    lines = [line.split() for line in (tmp_path / "ran.log").read_text().splitlines()]
    assert {(threads, variable) for _, threads, variable, _ in lines} == {("3", "3")}
    assert str(os.getpid()) not in {process for *_, process in lines}


def test_threads_are_divided_among_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condensery.pipeline.launch.hardware._ASKED", "")
    cores = len(os.sched_getaffinity(0))
    assert threads_of_a_stage("auto", 1) == cores
    assert threads_of_a_stage("auto", 2 * cores) == 1
    assert threads_of_a_stage(5, 2) == 5
    for asked in ("0", "²", "4,2", "many"):  # the numeric libraries ignore them or take the first
        monkeypatch.setattr("condensery.pipeline.launch.hardware._ASKED", asked)
        assert threads_of_a_stage("auto", 1) == cores
    monkeypatch.setattr("condensery.pipeline.launch.hardware._ASKED", "1")
    assert threads_of_a_stage("auto", 1) == 1


def test_the_longest_chain_comes_first(bare: Compose) -> None:
    length = chain_lengths(build(bare()))
    assert length["corpus"] > length["plain"] > length["better"] > length["round2"] == length["bm25"] == 1
    assert length["plain"] == 1 + length["better"]


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_what_does_not_need_a_failed_stage_is_made(bare: Compose, tmp_path: Path, jobs: int) -> None:
    other = ["stages.z={stage: toy_train, init: backbone}", "stages.z2={stage: toy_train, init: z}"]
    with pytest.raises(UserError, match=r"^text\.txt:3: this text is not to be trained on$"):
        run(bare(f"jobs={jobs}", "stages.plain.fail=user", *other))
    nodes = build(bare("stages.plain.fail=user", *other)).nodes
    made = {name for name, node in nodes.items() if (tmp_path / "out" / "artifacts" / node.reference).exists()}
    assert made == {"corpus", "bm25", "z", "z2"}


def test_what_cannot_be_made_is_known_with_its_cause(bare: Compose) -> None:
    graph = build(bare())
    assert causes(graph, {"better"}) == dict.fromkeys(("better", "better.index", "mined", "round2"), "better")
    assert causes(graph, {"plain", "mined"})["round2"] == "plain"
    assert causes(graph, set()) == {}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_full_disk_ends_the_run_at_once(
    bare: Compose, monkeypatch: pytest.MonkeyPatch, computed: Callable[[], list[str]], jobs: int
) -> None:
    monkeypatch.setenv("TOY_FULL", "bm25")
    with pytest.raises(DiskError, match="/full: no space is left on the disk"):
        run(bare(f"jobs={jobs}", "stages.plain.pause=60"))
    assert "better" not in computed()


def test_a_gpu_without_memory_is_one_line(bare: Compose) -> None:
    with pytest.raises(UserError, match=r"^stages\.plain: the GPU's memory is full; lower chunk_tokens"):
        run(bare("stages.plain.fail=gpu"))


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(12, "Cannot allocate memory"), RuntimeError("can't allocate memory: you")]
)
def test_a_machine_without_memory_is_one_line(error: Exception) -> None:
    assert "stages.plain: this machine's memory is full" in str(of_memory(error, "stages.plain"))
    assert of_memory(ValueError("memory"), "stages.plain") is None


@pytest.mark.slow
def test_a_worker_that_died_is_replaced(bare: Compose, tmp_path: Path) -> None:
    other = ["stages.z={stage: toy_train, init: backbone, pause: 0.1}", "stages.z2={stage: toy_train, init: z}"]
    config = bare(
        "jobs=2", "stages.plain.fail=dead", "stages.bm25={stage: toy_train, init: backbone, fail: dead}", *other
    )
    with pytest.raises(StageError) as caught:
        run(config)
    lines = str(caught.value).splitlines()
    assert [line.partition(": its process died")[0] for line in sorted(lines)] == [
        "error: bm25: stage bm25", "error: plain: stage plain",
    ]  # fmt: skip
    assert (tmp_path / "out" / "artifacts" / build(config).nodes["z2"].reference).exists()


def test_a_fault_of_ours_in_a_worker_keeps_its_traceback(bare: Compose) -> None:
    with pytest.raises(StageError, match="ZeroDivisionError: a fault of ours") as caught:
        run(bare("jobs=2", "stages.plain.fail=bug"))
    assert "toys.py" in str(caught.value)
    assert "in the stage plain" in str(caught.value)


def test_a_worker_that_dies_is_one_line_that_names_the_stage(bare: Compose) -> None:
    with pytest.raises(UserError, match=r"stage plain: its process died \(killed by signal 9"):
        run(bare("jobs=2", "stages.plain.fail=dead"))


def wait_for(stage: str, tmp_path: Path) -> list[int]:
    """Wait until a stage was started; the processes that computed stages so far."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        lines = (tmp_path / "ran.log").read_text().splitlines() if (tmp_path / "ran.log").exists() else []
        if any(line.startswith(stage + " ") for line in lines):
            return sorted({int(line.split()[-1]) for line in lines})
        time.sleep(0.02)
    raise AssertionError(f"{stage} did not start")


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_when_the_run_is_killed(launch: Launch, tmp_path: Path) -> None:
    process = launch("jobs=2", "stage.toy_train.pause=30", recipe="bare")
    workers = wait_for("plain", tmp_path)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 5
    while any(alive(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [worker for worker in workers if alive(worker)]


@pytest.mark.parametrize(
    ("number", "code", "jobs"),
    slow_except([(signal.SIGINT, 130, 2), (signal.SIGTERM, 143, 1), (signal.SIGHUP, 129, 2)], signal.SIGINT),
)
def test_ctrl_c_sigterm_and_the_end_of_the_terminal_end_in_one_line(
    number: int, code: int, jobs: int, launch: Launch, tmp_path: Path
) -> None:
    process = launch(f"jobs={jobs}", "stage.toy_train.pause=30", recipe="bare")
    workers = wait_for("plain", tmp_path)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert err == "interrupted; run the same command again to continue\n"
    assert not [worker for worker in workers if alive(worker)]


def _deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)


def test_a_second_ctrl_c_kills_all_workers_at_once() -> None:
    context = multiprocessing.get_context("fork")
    workers: list[Any] = [
        SimpleNamespace(process=context.Process(target=_deaf), connection=context.Pipe()[0], node="busy") for _ in "ab"
    ]
    for worker in workers:
        worker.process.start()
    time.sleep(0.1)  # until they are deaf
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            Worker.stop(workers)
        assert [worker.process.exitcode for worker in workers] == [-signal.SIGKILL] * 2
    finally:
        signal.signal(signal.SIGINT, before)
        for worker in workers:
            worker.process.kill()


@pytest.mark.parametrize("seconds", [pytest.param(0.0, marks=pytest.mark.slow), 0.1, 0.3])
def test_ctrl_c_of_a_terminal_ends_in_one_line_also_while_workers_start(seconds: float, launch: Launch) -> None:
    process = launch("jobs=2", "stage.toy_train.pause=30", recipe="bare", start_new_session=True)
    assert process.stdout is not None
    while "reused from" not in process.stdout.readline():  # workers start now
        assert process.poll() is None
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "interrupted; run the same command again to continue\n")


def test_ctrl_c_while_a_worker_is_started_leaves_none_behind(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSERY_STAGES", f"{os.environ['CONDENSERY_STAGES']},interrupting")
    process = launch("jobs=2", "stage.toy_train.pause=30", recipe="bare", start_new_session=True)
    _, err = process.communicate(timeout=20)  # a worker that nobody stops would be waited for
    assert (process.returncode, err) == (130, "interrupted; run the same command again to continue\n")


def test_killed_at_random_moments_it_ends_bit_identical(
    launch: Launch, command: Command, bare: Compose, tmp_path: Path, contents: Contents
) -> None:
    run(bare(f"output_root={tmp_path / 'whole'}"))
    draw = random.Random(7)
    for attempt in range(4):
        process = launch("stage.toy_train.pause=0.05", f"jobs={1 + attempt % 2}", recipe="bare")
        try:
            process.communicate(timeout=draw.uniform(0.6, 1.6))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    done = command(recipe="bare")
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
