"""Whole recipes as tasks of a Ray cluster: the ids and bytes of a run without Ray, also where nodes are lost on the way."""

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from killed_runs import same_results, start
from small_runs import MODEL, Done, artifact_files, run_command

from condensery.system.files import read_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc"),
]
LONGER = [  # so that training takes long enough for a node to be lost in it
    "stage.pretrain_mlm.steps=60",
    "stage.finetune.steps=60",
    "stage.pretrain_mlm.checkpoint_every=5",
    "stage.finetune.checkpoint_every=5",
]
TWO = [  # processes that train together; without dropout, one of them begins like the other
    "experiment=short",
    "~stages.condenser",
    "~stages.cocondenser",
    "stages.round1.init=backbone",
    "trainer.devices=2",
    "trainer.threads=2",
    "stage.finetune.steps=30",
    "stage.finetune.checkpoint_every=5",
    "stage.finetune.validate_every=0",
]


class Cluster:
    """A head that computes nothing, and two nodes of one CPU; a node that is lost is followed by a new one."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as RayCluster

        self.ray = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.nodes = [self.ray.add_node(num_cpus=1) for _ in range(2)]

    def lose(self, process: int) -> None:
        """Lose the node of a process, with all that runs there, in the midst of its work."""
        os.kill(process, signal.SIGSTOP)
        raylet = parent_of(process)
        (node,) = (node for node in self.nodes if node.all_processes["raylet"][0].process.pid == raylet)
        workers = [int(one.name) for one in Path("/proc").glob("[0-9]*") if parent_of(int(one.name)) == raylet]
        self.nodes.remove(node)
        self.ray.remove_node(node, allow_graceful=False)
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        self.nodes.append(self.ray.add_node(num_cpus=1))


def parent_of(process: int) -> int:
    """The parent of a process; 0 where the process is gone."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def at_work(kind: str, root: Path, task: str, begun: str) -> int | None:
    """The process of a task of a stage of this kind, which has left the files ``begun`` so far; None where there is none."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            output = Path(os.readlink(process / "fd" / "1"))
            partial = output.parents[1] if len(output.parents) > 1 else output
            if output.match(f"{root}/artifacts/{kind}/*.partial/processes-*/output-{task}.txt") and [
                *partial.glob(begun)
            ]:
                return int(process.name)
    return None


def run_with_losses(
    cluster: Cluster, root: Path, recipe: list[str], stages: list[tuple[str, str, str]]
) -> tuple[str, Path]:
    """Run a recipe on the cluster; what it printed, and its folder.

    ``stages``: where a node is lost, in this order: the kind of a stage, the number of a task of it, and the files that the
    stage has left by then.
    """
    launcher = ["launcher=ray", f"launcher.address={cluster.ray.address}", "launcher.retries=1"]
    process = start(str(root), *recipe, *launcher, f"output_root={root}")
    for kind, task, begun in stages:
        while (found := at_work(kind, root, task, begun)) is None:
            assert process.poll() is None, f"no process at work in {kind}: {process.communicate()[0]}"
            time.sleep(0.005)
        cluster.lose(found)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    assert "(raylet)" not in out, "Ray's own lines are kept off the terminal"
    assert out.count("; the lost work is computed again") == len(stages), out
    (run,) = root.glob("runs/*")
    return out, run


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    found = Cluster()
    yield found
    found.ray.shutdown()


def graph(done: Done) -> dict[str, str]:
    """The ids of a run's artifacts."""
    return {name: node["id"] for name, node in read_json(done.folder / "graph.json").items()}


def test_the_smoke_recipe_has_the_ids_and_bytes_of_a_run_without_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    recipe = ["experiment=smoke", *MODEL, "stage.encode.shard_size=500"]
    local = run_command(*recipe, f"output_root={tmp_path / 'local'}").sound()
    on_ray = run_command(*recipe, "launcher=ray", f"output_root={tmp_path / 'ray'}").sound()
    assert on_ray.err == local.err == ""
    assert sorted(on_ray.computed) == sorted(local.computed)
    assert "[round1.index] 5 shards are computed in 5 tasks" in on_ray.out
    assert graph(on_ray) == graph(local)
    same_results(on_ray.folder, local.folder)


def test_lost_nodes_cost_what_they_were_at_and_change_nothing(
    cluster: Cluster, on_beir: list[str], tmp_path: Path
) -> None:
    recipe = ["experiment=tiny", *on_beir, *LONGER, "stage.encode.shard_size=20"]
    whole = run_command(*recipe, f"output_root={tmp_path / 'whole'}").sound()
    stages = [
        ("tokens", "0", "*"),
        ("mine", "0", "*"),
        ("pretrain_mlm", "0", "checkpoints/step=*.ckpt"),
        ("finetune", "0", "checkpoints/step=*.ckpt"),
        ("encode", "[1-9]", "passages/*.npy"),
    ]
    _, run = run_with_losses(cluster, tmp_path / "ray", recipe, stages)
    same_results(run, whole.folder)


def test_a_group_that_loses_a_node_goes_on_from_its_last_checkpoint(
    cluster: Cluster, on_beir: list[str], tmp_path: Path
) -> None:
    recipe = [*TWO, *on_beir]
    whole = run_command(*recipe, f"output_root={tmp_path / 'whole'}").sound()
    stages = [("finetune", "1", "checkpoints/step=*.ckpt")]
    out, run = run_with_losses(cluster, tmp_path / "ray", [*recipe, "launcher.num_cpus=1"], stages)
    assert re.search(r"^\[round1\] resumes from step \d+ of 30$", out, re.MULTILINE), out
    assert read_json(run / "stages" / "round1" / "manifest.json")["machine"]["processes"] == "2"
    mine, wanted = (
        {name: content for name, content in artifact_files(folder).items() if name.startswith("round1/")}
        for folder in (run, whole.folder)
    )
    assert "model.safetensors" in {Path(name).name for name in wanted}
    assert mine == wanted
