"""A stage in several processes: what they return, how they fail, and that none is left behind."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from toy_commands import Compose

from condensery.errors import UserError
from condensery.pipeline.graph import build
from condensery.pipeline.launch.processes import ProcessError, compute, processes_a_node
from condensery.retrieval import shards as shards_module
from condensery.stages.base import Context, Runtime, Wandb
from condensery.stages.launcher_config import Launcher, LocalLauncher, SlurmLauncher, TorchrunLauncher
from condensery.stages.registry import registry

HERE = Path(__file__).parent
LOCAL = LocalLauncher(kind="local")
TORCHRUN = TorchrunLauncher(kind="torchrun", nodes=1, endpoint=None, before=[])
SLURM = SlurmLauncher(
    kind="slurm",
    cluster="local",
    nodes=1,
    partition=None,
    account=None,
    hours=1,
    cpus_per_process=3,
    memory=None,
    setup=[],
    options={},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """That of a stage."""
    (tmp_path / "stage").mkdir()
    return tmp_path / "stage"


def run(folder: Path, act: str, launcher: Launcher = LOCAL, devices: int = 2, threads: int = 5) -> Any:
    """Let so many processes act; what the first returns, and where."""
    return run_toy("toy_together", folder, {"act": act}, launcher, devices, threads)


def run_toy(
    kind: str, folder: Path, config: dict[str, Any], launcher: Launcher = LOCAL, devices: int = 2, threads: int = 5
) -> Any:
    """The same with any toy."""
    runtime = Runtime(
        "cpu", devices, threads, 0, Wandb(project="x", entity=None, enabled=False), "x", folder, launcher=launcher
    )
    stage = registry()[kind]
    return compute(stage, stage.config.model_validate(config), Context("toy", folder, runtime, {}))


def numbers(folder: Path) -> dict[str, list[str]]:
    """What the processes left: rank -> process id and threads."""
    return {path.stem: path.read_text().split() for path in folder.glob("*.txt")}


def ended(folder: Path) -> bool:
    """Whether none of the processes lives."""

    def lives(process: str) -> bool:
        try:
            return (Path("/proc") / process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    found = [process for process, _ in numbers(folder).values()]
    until = time.monotonic() + 60
    while any(map(lives, found)) and time.monotonic() < until:
        time.sleep(0.1)
    return bool(found) and not any(map(lives, found))


def test_all_compute_the_first_returns_and_threads_are_shared(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    summary, where = run(folder, "go well")
    assert summary == {"processes": 2, "local": 2}
    assert (where["processes"], where["threads"]) == ("2", "2")
    assert {rank: threads for rank, (_, threads) in numbers(folder).items()} == {"0": "2", "1": "2"}
    assert sorted(path.name for path in folder.iterdir()) == ["0.txt", "1.txt", "weights.json"], "only the result"
    assert capfd.readouterr().out == "process 0 at work\n"


def test_one_process_is_this_process(folder: Path) -> None:
    summary, where = run(folder, "go well", devices=1)
    assert summary == {"processes": 1}
    assert "processes" not in where


@pytest.mark.slow
def test_a_shared_search_that_goes_on_where_one_process_stopped_ends_with_the_same_bytes(tmp_path: Path) -> None:
    folders = {name: tmp_path / name / "stage" for name in ("one", "two")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    summary, _ = run_toy("toy_shared", folders["one"], {"queries": 9}, devices=1)
    assert summary == {"queries": 9}
    shards = [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    again = folders["two"]  # as one process leaves it that is killed behind its second shard
    (again / "processes-killed").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "_join", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_toy("toy_shared", again, {"queries": 9}, devices=1)
    for number in (2, 3, 4):
        shutil.rmtree(again / "queries.parts" / f"{number:05d}")
    (again.parent / "searched-0.txt").unlink()
    summary, where = run_toy("toy_shared", again, {"queries": 9})
    assert (summary, where["processes"]) == ({"queries": 9}, "2")
    searched = [(again.parent / f"searched-{rank}.txt").read_text().splitlines() for rank in range(2)]
    assert searched == [[str(shards[2]), str(shards[4])], [str(shards[3])]]
    mine, wanted = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (again, folders["one"]))
    assert mine == wanted, "and nothing else, of the attempt that was killed either"


def test_where_sharing_does_not_pay_no_process_is_started(folder: Path) -> None:
    summary, where = run_toy("toy_shared", folder, {"queries": 2})
    assert summary == {"queries": 2}
    assert "processes" not in where


@pytest.mark.parametrize("act", ["all fail", "one fails"])
def test_what_a_user_can_mend_is_said_once_and_ends_all(act: str, folder: Path) -> None:
    with pytest.raises(UserError, match=r"^text\.txt:3: this text is not to be trained on$"):
        run(folder, act)
    assert ended(folder)


def test_a_fault_of_ours_keeps_its_traceback(folder: Path) -> None:
    with pytest.raises(ProcessError, match=r"^process 1 of 2: ZeroDivisionError: a fault of ours$") as raised:
        run(folder, "a fault of ours")
    assert "toys.py" in str(raised.value.__cause__)
    assert ended(folder)


def test_a_process_that_dies_is_one_line(folder: Path) -> None:
    text = (
        r"^stage toy: process 1 of 2 died \(killed by signal 9, perhaps because memory was full\); run the same command"
    )
    with pytest.raises(UserError, match=text):
        run(folder, "one dies")
    assert ended(folder)


def test_processes_that_leave_nothing_are_not_taken_for_a_result(folder: Path) -> None:
    with pytest.raises(UserError, match=r"^stage toy: its processes ended without a result; run"):
        run(folder, "no result")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_they_end_with_the_pipeline_and_the_next_attempt_begins_anew(number: signal.Signals, folder: Path) -> None:
    script = "import sys; from pathlib import Path; from test_processes import run; run(Path(sys.argv[1]), 'wait')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1] / "src")])}
    command = [sys.executable, "-c", f"import signal; signal.signal(2, signal.default_int_handler); {script}"]
    pipeline = subprocess.Popen([*command, str(folder)], env=environment, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while len(numbers(folder)) < 2 or not all(numbers(folder).values()):
        assert time.monotonic() < until
        time.sleep(0.05)
    pipeline.send_signal(number)
    assert ended(folder), "also where nobody has asked for the pipeline's exit code"
    pipeline.wait()
    assert len(list(folder.glob("processes-*"))) == 1
    assert run(folder, "go well")[0]["processes"] == 2
    assert not list(folder.glob("processes-*"))


@pytest.mark.slow
def test_torchrun_starts_the_same(folder: Path) -> None:
    assert run(folder, "go well", TORCHRUN)[0] == {"processes": 2, "local": 2}
    with pytest.raises(UserError, match="not to be trained on"):
        run(folder, "one fails", TORCHRUN)
    assert ended(folder)


@pytest.mark.slow
def test_torchrun_on_several_nodes_of_which_a_command_starts_each(folder: Path) -> None:
    """Two nodes on one machine: the command is run twice, as ``srun`` would run it on two."""
    twice = "import subprocess, sys; ps = [subprocess.Popen(sys.argv[1:]) for _ in range(2)]; [p.wait() for p in ps]"
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    before = [sys.executable, "-c", twice]
    nodes = TorchrunLauncher(kind="torchrun", nodes=2, endpoint=f"127.0.0.1:{port}", before=before)
    assert run(folder, "go well", nodes)[0] == {"processes": 4, "local": 2}
    assert set(numbers(folder)) == {"0", "1", "2", "3"}


def test_a_command_before_torchrun_that_is_not_there_is_one_line(folder: Path) -> None:
    missing = TORCHRUN.model_copy(update={"before": ["no-such-command"]})
    with pytest.raises(UserError, match=r"^launcher\.before: no-such-command: no such command$"):
        run(folder, "go well", missing)


def test_submitit_starts_the_same_as_a_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert run(folder, "go well", SLURM)[0] == {"processes": 2, "local": 2}
    assert {rank: threads for rank, (_, threads) in numbers(folder).items()} == {"0": "3", "1": "3"}
    with pytest.raises(UserError, match=r"^text\.txt:3: this text is not to be trained on$"):
        run(folder, "one fails", SLURM)
    assert ended(folder)


@pytest.mark.slow
def test_jobs_that_reach_their_time_limit_are_followed_by_others_as_long_as_they_get_further(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with pytest.raises(
        UserError, match=r"^stage toy: job \d+ ended \(\w+\); its log: .*; run the same command to resume$"
    ):
        run(folder, "reach the time limit", SLURM)  # the third gets no further
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step=1.ckpt"]
    assert capfd.readouterr().out.count("it made progress, so another job resumes") == 2
    assert len(list(folder.glob("processes-*/job/*.out"))) == 6, "logs of jobs that the lines name are gone"
    assert ended(folder)
    assert run(folder, "reach the time limit", SLURM)[0] == {"processes": 2, "local": 2}
    assert not list(folder.glob("processes-*"))


def test_a_job_that_cannot_be_submitted_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    with pytest.raises(UserError, match=r"^launcher: the job cannot be submitted \(.*only one node.*\)$"):
        run(folder, "go well", SLURM.model_copy(update={"nodes": 2}))
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"^launcher: slurm needs submitit; pip install submitit$"):
        run(folder, "go well", SLURM)


def test_auto_is_the_gpus_or_one_process(folder: Path) -> None:
    runtime = Runtime("cpu", "auto", 1, 0, Wandb(project="x", entity=None, enabled=False), "x", folder)
    assert processes_a_node(runtime) == 1
    job = Runtime("gpu", "auto", 1, 0, Wandb(project="x", entity=None, enabled=False), "x", folder, launcher=SLURM)
    with pytest.raises(UserError, match=r"^trainer\.devices: auto is unknown before"):
        processes_a_node(job)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["launcher.nodes=2"], r"^launcher\.nodes: unknown key"),
        (["launcher.kind=mpi"], r"^launcher: unknown 'kind' 'mpi'"),
        (
            ["launcher={kind: torchrun, nodes: 2, endpoint: null, before: []}"],
            r"^launcher: several nodes need .*endpoint",
        ),
    ],
)
def test_a_bad_launcher_is_one_line(composed: Compose, overrides: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line) as raised:
        build(composed(*overrides))
    assert "\n" not in str(raised.value)


def test_how_processes_are_started_changes_no_artifact(composed: Compose) -> None:
    one = build(composed())
    two = build(composed("trainer.devices=2", "launcher={kind: torchrun, nodes: 2, endpoint: a:1, before: []}"))
    assert {name: node.id for name, node in one.nodes.items()} == {name: node.id for name, node in two.nodes.items()}
