"""Stages as tasks of a Ray cluster of two nodes: what they return, how they fail, and what a lost node costs."""

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from killed_runs import MARK, alive, described
from toy_commands import Compose, Launch

from condensery.errors import UserError
from condensery.pipeline.launch import on_ray
from condensery.pipeline.launch.stage_process import StageCall
from condensery.pipeline.run import run
from condensery.sharing import NotRankZero, ShardsLeft, ShardTask, TaskGroup
from condensery.stages.base import Context, Runtime, StageConfig, Wandb
from condensery.stages.launcher_config import RayLauncher, Resources
from condensery.stages.registry import registry
from condensery.system.children import Parent
from condensery.system.files import read_json
from condensery.system.seconds import Seconds

Contents = Callable[[Path], dict[str, bytes]]


def test_tasks_compute_their_shards_and_the_first_goes_on_behind_them() -> None:
    """Two series of shards: the second task of each stage is told what the first one knows, and does not look itself."""
    written: dict[str, set[int]] = {"a": set(), "b": set()}
    looked: list[int] = []

    def stage(group: TaskGroup) -> str:
        for name, number in (("a", 1), ("b", 3)):
            secret = group.from_rank_zero(lambda name=name: looked.append(group.rank) or f"about {name}")
            with group.shards(lambda name=name, n=number: [i for i in range(n) if i not in written[name]]) as mine:
                written[name] |= {*mine} if secret == f"about {name}" else set()
        group.leave_unless_rank_zero()
        return "done"

    with pytest.raises(ShardsLeft) as left:
        stage(TaskGroup.of(ShardTask()))
    assert (written["a"], written["b"]) == ({0}, set()), "a single shard is not worth a task"
    agreed = left.value.agreed
    assert agreed == ["about a", [0], "about b", [0, 1, 2]]
    for shards in ([2], [0, 1]):
        with pytest.raises(NotRankZero):
            stage(TaskGroup.of(ShardTask(agreed, shards)))
    assert written["b"] == {0, 1, 2}
    assert stage(TaskGroup.of(ShardTask(agreed))) == "done"
    assert looked == [0] * 4


def test_shards_that_a_shared_disk_shows_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    seen = iter([[0, 1, 2], [2], []])
    with TaskGroup.of(ShardTask([[0, 1, 2]])).shards(lambda: next(seen)) as mine:
        assert mine == []
    with TaskGroup.of(ShardTask([[0, 1]])).shards(lambda: [2]) as mine:
        assert mine == [2], "one that nobody has computed is not waited for"


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    """A cluster of two nodes, each with one CPU."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # other tests run beside it
        cluster = cluster_utils.Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


def ray_launcher(address: str | None, **keys: Any) -> RayLauncher:
    """The launcher with its defaults, but for these keys."""
    return RayLauncher(kind="ray", **{"address": address, "stages": {}, "retries": 1, **keys})


def in_recipe(address: str, **keys: Any) -> str:
    """The override that chooses this launcher."""
    return f"launcher={json.dumps(ray_launcher(address, **keys).model_dump())}"


@pytest.fixture
def act(two_nodes: Any, tmp_path: Path) -> Callable[..., Any]:
    """Let a toy stage be computed on the cluster; what it returns, and where."""
    folder = tmp_path / "stage"
    folder.mkdir()

    def compute(kind: str, config: dict[str, Any], devices: int = 1, threads: int = 1, **keys: Any) -> Any:
        launcher, stage = ray_launcher(two_nodes.address, **keys), registry()[kind]
        runtime = Runtime(
            "cpu", devices, threads, 0, Wandb(project="x", entity=None, enabled=False), "x", folder, launcher=launcher
        )
        with on_ray.cluster(launcher, threads):
            seconds = Seconds(folder)
            context = Context("toy", folder, runtime, {})
            result = on_ray.compute(stage, stage.config.model_validate(config), context, seconds)
        seconds.total()
        return result

    return compute


def test_a_recipe_has_the_ids_and_bytes_of_a_run_without_ray(
    two_nodes: Any, composed: Compose, tmp_path: Path, contents: Contents, capfd: pytest.CaptureFixture[str]
) -> None:
    run(composed(recipe="bare"))
    capfd.readouterr()
    run(composed(in_recipe(two_nodes.address), f"output_root={tmp_path / 'ray'}", recipe="bare"))
    assert contents(tmp_path / "ray") == contents(tmp_path / "out")
    out, err = capfd.readouterr()
    assert err == ""
    printed = (
        r"\[[a-z0-9.]+\] (starts|done in 0:\d\d)|7 stages, 0 of them reused from .*||" + re.escape(str(tmp_path)) + ".*"
    )
    assert [line for line in out.splitlines() if not re.fullmatch(printed, line)] == [], "something of Ray's is printed"
    assert out.index("[bm25] starts") < out.index("[plain] done"), "what does not wait for another runs beside it"
    (manifest,) = (tmp_path / "ray" / "artifacts" / "toy_corpus").glob("*/manifest.json")
    assert read_json(manifest)["wall_seconds"] > 0


def test_shards_are_tasks_and_their_bytes_those_of_one_process(
    act: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert act("toy_shared", {"queries": 9})[0] == {"queries": 9}
    assert "[toy] 5 shards are computed in 5 tasks\n" in capfd.readouterr().out
    assert not (tmp_path / "searched-0.txt").exists(), "the first task computes none"
    searched = (tmp_path / "searched-1.txt").read_text().splitlines()
    assert sorted(searched) == ["[0, 1]", "[2, 3]", "[4, 5]", "[6, 7]", "[8]"]
    one = tmp_path / "one"
    one.mkdir()
    runtime = Runtime("cpu", 1, 1, 0, Wandb(project="x", entity=None, enabled=False), "x", one)
    stage = registry()["toy_shared"]
    stage.function(stage.config.model_validate({"queries": 9}), Context("toy", one, runtime, {}))
    mine, wanted = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in (tmp_path / "stage", one))
    assert mine == wanted


@pytest.mark.slow
def test_a_group_meets_over_the_nodes(act: Callable[..., Any], capfd: pytest.CaptureFixture[str]) -> None:
    summary, where = act("toy_together", {"act": "go well"}, devices=2, threads=2)
    assert summary == {"processes": 2, "local": 1}, "one process on each node"
    assert (where["processes"], where["threads"]) == ("2", "1")
    assert capfd.readouterr().out == "process 0 at work\n"


@pytest.mark.slow
@pytest.mark.parametrize("act_", ["all fail", "one fails"])
def test_what_a_user_can_mend_is_said_once(act: Callable[..., Any], act_: str) -> None:
    with pytest.raises(UserError, match=r"^text\.txt:3: this text is not to be trained on$"):
        act("toy_together", {"act": act_}, devices=2, threads=2)


@pytest.mark.slow
def test_a_process_that_dies_again_and_again_is_one_line(
    act: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        UserError, match=r"^stage toy: a process died, perhaps because memory was full; run the same command"
    ):
        act("toy_together", {"act": "one dies"}, devices=2, threads=2)
    assert (
        capfd.readouterr().out.count("a process died, perhaps because memory was full; the lost work is computed again")
        == 1
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_of_ray_is_left_when_the_command_ends(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv(MARK, str(tmp_path))  # every process of the cluster inherits it
    process = launch("launcher=ray", "stage.toy_train.pause=30", recipe="bare")
    until = time.monotonic() + 300
    while not list(tmp_path.glob("out/artifacts/toy_train/*.partial/checkpoint.json")):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert len(alive(str(tmp_path))) > 3, "the command, and what runs on the cluster"
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert err == ("" if number == signal.SIGKILL else "interrupted; run the same command again to continue\n")
    until = time.monotonic() + 150  # an agent of Ray looks for its killed cluster for a minute
    while alive(str(tmp_path)):
        assert time.monotonic() < until, described(str(tmp_path))
        time.sleep(0.1)


@pytest.mark.slow
def test_what_this_machine_has_no_room_for_is_one_line(composed: Compose, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(
        UserError, match=r"^launcher: stage corpus: the cluster has no room for 1 x \(CPU 1, memory 1e\+15\)"
    ):
        run(composed(in_recipe(None, memory=1e6), recipe="bare"))


def test_a_node_that_does_not_see_the_store_is_one_line(tmp_path: Path) -> None:
    context = Context(
        "toy", tmp_path, Runtime("cpu", 1, 1, 0, Wandb(project="x", entity=None, enabled=False), "x", tmp_path), {}
    )
    call = StageCall("toy_shared", {"queries": 2}, context, "head", Parent.here())
    outcome = on_ray.take_part(call, on_ray.Part(0, ShardTask()), tmp_path / "elsewhere", str(tmp_path), True)
    assert outcome.failure is not None
    assert outcome.failure["kind"] == "user"
    assert re.fullmatch(
        r"output_root: node \S+ does not see \S+/elsewhere; it must be on a file system of all nodes",
        outcome.failure["text"],
    )


def test_what_is_missing_or_misspelt_is_one_line_before_anything_starts(
    composed: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    misspelt = {"toy_encod": {"num_cpus": 2}}
    with pytest.raises(
        UserError, match=r"^launcher\.stages: 'toy_encod' is neither .* \(did you mean 'toy_encode'\?\)$"
    ):
        run(composed(in_recipe("auto", stages=misspelt), recipe="bare"))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"^launcher: ray is not installed; pip install condensery\[ray\]$"):
        run(composed(in_recipe("auto"), recipe="bare"))


@pytest.mark.parametrize(
    ("kind", "accelerator", "devices", "wanted"),
    [
        ("toy_train", "cpu", 1, (6, 0, 0)),
        ("toy_train", "auto", 1, (6, 1, 0)),
        ("corpus", "auto", 1, (6, 0, 0)),  # it only reads text
        ("toy_bm25", "gpu", 1, (6, 0, 0)),
        ("toy_mine", "cpu", 1, (8, 0, 32e9)),
        ("toy_together", "gpu", 4, (1.5, 1, 0)),
        ("toy_together", "auto", "auto", (2, 1, 0)),  # all GPUs of the cluster
    ],
)
def test_resources_are_those_of_the_stage(
    kind: str,
    accelerator: str,
    devices: Any,
    wanted: tuple[float, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = SimpleNamespace(cluster_resources=lambda: {"CPU": 12.0, "GPU": 3.0})
    monkeypatch.setattr(on_ray, "_ray", lambda: cluster)
    mine = {"toy_mine": Resources(num_cpus=4, memory=32), "mined": Resources(num_cpus=8)}
    launcher = ray_launcher("auto", stages={"toy_bm25": Resources(num_gpus=0), **mine})
    runtime = Runtime(
        accelerator, devices, 6, 0, Wandb(project="x", entity=None, enabled=False), "x", tmp_path, launcher=launcher
    )
    name = "mined" if kind == "toy_mine" else "other"
    tasks = on_ray.Tasks(registry()[kind], StageConfig(), Context(name, tmp_path, runtime, {}))
    assert tuple(tasks.wanted.values()) == wanted
    assert tasks.call.context.runtime.threads == max(1, int(wanted[0]))
