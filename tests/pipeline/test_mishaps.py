"""What happens to a run from outside: a disk that is full or closed, another run on its store, a clock that jumps.

Each time the run ends with one line or goes on rightly, and the same command later ends with the bits of a run that was
left alone: nothing half-written is taken for finished.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_executor import wait_for
from toy_commands import Command, Compose, Launch

from condensery.errors import UserError, of_the_disk
from condensery.pipeline.artifact_store import Store
from condensery.pipeline.graph import build
from condensery.pipeline.run import run

Contents = Callable[[Path], dict[str, bytes]]
PAGE = 4096  # bytes, in which a disk in memory is filled


@pytest.fixture
def bare(composed: Compose) -> Compose:
    return lambda *overrides: composed(*overrides, recipe="bare")


@pytest.fixture
def whole(bare: Compose, tmp_path: Path, contents: Contents) -> dict[str, bytes]:
    """The artifacts of a run that was left alone."""
    run(bare(f"output_root={tmp_path / 'whole'}"))
    (tmp_path / "ran.log").unlink()
    return contents(tmp_path / "whole")


def mount(options: str, folder: Path) -> None:
    """A disk in memory; the test is skipped where none can be mounted."""
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte where runs write to."""
    folder = tmp_path / "out"
    folder.mkdir()
    mount("size=1m", folder)
    yield folder
    while folder.is_mount():
        subprocess.run(["umount", "-l", str(folder)], check=True)


def ended_in_one_line(done: "subprocess.CompletedProcess[str]", said: str) -> None:
    assert done.returncode == 1, done.stdout
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: "), done.stderr
    assert said in done.stderr, done.stderr


def half_finished(root: Path) -> list[Path]:
    """Artifacts under their final name that are not as a manifest says."""
    folders = [path for path in root.glob("artifacts/*/*") if path.is_dir() and path.suffix != ".partial"]
    return [path for path in folders if not (path / "manifest.json").exists()]


@pytest.mark.usefixtures("curves")
def test_a_disk_that_is_full_at_any_moment_ends_it_in_one_line_and_it_goes_on_when_there_is_space(
    bare: Compose, disk: Path, whole: dict[str, bytes], contents: Contents
) -> None:
    tries = faults = 0
    for tries, left in enumerate(range(4, 400, 12)):  # noqa: B007  (pages); the run gets a little further each time
        free = shutil.disk_usage(disk).free
        (disk / "filler").write_bytes(bytes(max(0, free - left * PAGE)))
        try:
            run(bare())
        except (UserError, OSError) as error:
            faults += "no space is left on the disk" in str(of_the_disk(error) or error)
        else:
            break
        finally:
            (disk / "filler").unlink()
        assert not half_finished(disk)
        made = {name: content for name, content in contents(disk).items() if ".partial/" not in name}
        assert made.items() <= whole.items()
    assert faults == tries >= 3
    assert contents(disk) == whole


def test_a_disk_that_is_full_is_one_line(command: Command, disk: Path) -> None:
    (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - 8 * PAGE))
    ended_in_one_line(command(recipe="bare"), ": no space is left on the disk")


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_disk_that_becomes_read_only_is_one_line_and_it_goes_on_later(
    jobs: int, launch: Launch, command: Command, disk: Path, tmp_path: Path, whole: dict[str, bytes], contents: Contents
) -> None:
    process = launch(f"jobs={jobs}", "stage.toy_train.pause=1.5", recipe="bare")
    wait_for("plain", tmp_path)
    for options in (["--bind", str(disk)], ["-o", "remount,bind,ro"]):  # over it: the disk itself is busy
        subprocess.run(["mount", *options, str(disk)], check=True)
    out, err = process.communicate(timeout=60)
    ended_in_one_line(subprocess.CompletedProcess([], process.returncode, out, err), ": the file system is read-only")
    ended_in_one_line(command(f"jobs={jobs}", recipe="bare"), ": the file system is read-only")
    assert not half_finished(disk)
    subprocess.run(["umount", str(disk)], check=True)
    assert command(recipe="bare").returncode == 0
    assert contents(disk) == whole


@pytest.mark.skipif(sys.platform == "win32", reason="needs ulimit")
def test_a_file_that_is_larger_than_is_allowed_is_one_line(project: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("x" * 30_000)  # a toy copies it
    arguments = [
        "--config-dir",
        str(Path(__file__).parent / "conf"),
        "experiment=bare",
        f"output_root={tmp_path / 'out'}",
    ]
    script = f'ulimit -f 8; exec "{sys.executable}" "{project / "run.py"}" "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "run", *arguments, f"data.root={tmp_path / 'text.txt'}"],
        capture_output=True, text=True, cwd=tmp_path, env=os.environ, timeout=120,
    )  # fmt: skip
    ended_in_one_line(done, ": the file is larger than this disk, or `ulimit -f`, allows")


def test_a_run_that_waits_for_another_goes_on_with_its_work_when_that_is_killed(
    launch: Launch, bare: Compose, tmp_path: Path, whole: dict[str, bytes], contents: Contents
) -> None:
    first = launch("stage.toy_train.pause=2", recipe="bare")
    wait_for("plain", tmp_path)
    second = launch("stage.toy_train.pause=0", recipe="bare")
    assert second.stdout is not None
    while "another process computes this stage; waiting for it" not in (line := second.stdout.readline()):
        assert line, "it did not wait"
    node = build(bare()).nodes["plain"]
    checkpoint = Store(tmp_path / "out").partial(node) / "checkpoint.json"
    until = time.monotonic() + 20
    while not checkpoint.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    first.kill()
    first.communicate(timeout=20)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, out + err
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("jump", [-3600, pytest.param(3600, marks=pytest.mark.slow)])
def test_a_clock_that_jumps_changes_nothing(
    jump: int,
    bare: Compose,
    tmp_path: Path,
    whole: dict[str, bytes],
    contents: Contents,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, calls = time.time, iter(range(10**9))

    def jumping() -> float:
        return now() + jump * (next(calls) % 3)  # there and back, from call to call

    monkeypatch.setenv("TOY_STOP", "better:2")
    with pytest.raises(UserError, match="stopped at better:2"):
        run(bare())
    monkeypatch.setenv("TOY_STOP", "better:1")  # would stop a start from nothing
    monkeypatch.setattr(time, "time", jumping)
    monkeypatch.setattr(time, "time_ns", lambda: int(jumping() * 1e9))
    for path in (tmp_path / "out").rglob("*"):  # what was written before the jump
        os.utime(path, (now() - jump, now() - jump), follow_symlinks=False)
    run(bare())
    run(bare())
    assert contents(tmp_path / "out") == whole
