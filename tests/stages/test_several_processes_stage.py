"""A recipe on two processes: the same artifacts and the same table as on one."""

import os
import re
import subprocess
from pathlib import Path

import other_processes
import pytest
import torch
from killed_runs import checkpoints, kill, same_results, start, wait
from safetensors.torch import load_file
from small_runs import Done, metrics_of, run_command

from condensery.system.files import read_json

pytestmark = pytest.mark.slow  # tests/training and tests/pipeline have its parts

RECIPE = [  # without dropout, whose draws differ from process to process
    "experiment=short",
    "~stages.condenser",
    "~stages.cocondenser",
    "stages.round1.init=backbone",
    "backbone.dropout=0.0",
]
BENCHMARKS = str(Path(other_processes.batch_digests.__file__).parent)
TWO = ["trainer.devices=2", "trainer.threads=2"]


@pytest.fixture(scope="module")
def on_one(on_beir: list[str], tmp_path_factory: pytest.TempPathFactory) -> Done:
    return run_command(*RECIPE, *on_beir, f"output_root={tmp_path_factory.mktemp('one')}").sound()


@pytest.fixture(scope="module")
def on_two(on_beir: list[str], tmp_path_factory: pytest.TempPathFactory) -> Done:
    return run_command(*RECIPE, *TWO, *on_beir, f"output_root={tmp_path_factory.mktemp('two')}").sound()


def test_artifacts_and_table_are_those_of_one_process(on_one: Done, on_two: Done) -> None:
    assert on_one.folder.name == on_two.folder.name
    one, two = (read_json(done.folder / "graph.json") for done in (on_one, on_two))
    assert {name: node["id"] for name, node in one.items()} == {name: node["id"] for name, node in two.items()}
    table, other = metrics_of(on_one.folder), metrics_of(on_two.folder)
    assert table.keys() == other.keys()
    for row, metrics in table.items():  # of a model so little trained rounding may swap two passages
        assert other[row] == pytest.approx(metrics, abs=0.005), row
    folders = [done.folder / "stages" / "round1" for done in (on_one, on_two)]
    files = [sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) for folder in folders]
    assert files[0] == files[1], "the other process wrote something"
    mine, its = (read_json(folder / "manifest.json") for folder in folders)
    assert its["machine"]["processes"] == "2"
    assert its["metrics"]["train/loss"] == pytest.approx(mine["metrics"]["train/loss"], rel=1e-5)


def test_nothing_but_the_lines_of_progress_is_printed(on_one: Done, on_two: Done) -> None:
    assert on_two.err == on_one.err == ""
    assert on_two.computed == on_one.computed


def test_a_sweep_starts_processes_for_each_stage_of_each_job(on_two: Done, on_beir: list[str], tmp_path: Path) -> None:
    rates = "stage.finetune.learning_rate=1.0e-3,2.0e-3"
    done = run_command("-m", *RECIPE, *TWO, *on_beir, rates, f"output_root={tmp_path}").sound()
    assert done.computed.count("tokens") == 1
    assert done.computed.count("round1") == 2
    assert len(list(tmp_path.glob("artifacts/finetune/*/manifest.json"))) == 2


def test_killed_after_a_checkpoint_it_ends_with_the_bits_of_an_uninterrupted_run(
    on_beir: list[str], tmp_path: Path
) -> None:
    recipe = [*RECIPE[:-1], "backbone.dropout=0.1", *TWO, *on_beir, "stage.finetune.steps=60"]
    whole = run_command(*recipe, f"output_root={tmp_path / 'whole'}").sound()
    tmp_path = tmp_path / "killed"
    arguments = [*recipe, f"output_root={tmp_path}"]
    process = start(str(tmp_path), *arguments)
    wait(process, lambda: bool(checkpoints(tmp_path)))
    kill(process, str(tmp_path))
    assert len(checkpoints(tmp_path)) == 1
    same_results(run_command(*arguments).sound().folder, whole.folder)


def test_killed_it_goes_on_with_other_numbers_of_processes(on_beir: list[str], tmp_path: Path) -> None:
    trained = ("pretrain_cocondenser", "finetune")
    often = [
        f"stage.{kind}.{key}" for kind in trained for key in ("steps=40", "checkpoint_every=3", "validate_every=0")
    ]
    recipe = ["experiment=short", "~stages.condenser", "stages.cocondenser.init=backbone", "backbone.dropout=0.0"]

    def begun(name: str, number: int) -> "subprocess.Popen[str]":
        root, folders = tmp_path / name, (BENCHMARKS, os.environ.get("PYTHONPATH", ""))
        noting = {"CONDENSERY_STAGES": "batch_digests", "PYTHONPATH": os.pathsep.join(filter(None, folders))}
        noting[other_processes.batch_digests.FOLDER] = str(tmp_path / f"{name} batches")
        given = [*recipe, *often, *on_beir, f"output_root={root}", f"trainer.devices={number}"]
        return start(str(root), *given, **noting)

    whole = begun("whole", 1)
    out, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, out
    seen: set[Path] = set()
    for number in (2, 1, 4, 1, 2):
        process = begun("killed", number)
        wait(process, lambda: bool({*checkpoints(tmp_path / "killed")} - seen))
        seen.update(checkpoints(tmp_path / "killed"))
        kill(process, str(tmp_path / "killed"))
    last = begun("killed", 4)
    out, _ = last.communicate(timeout=300)
    assert last.returncode == 0, out
    mine, its = (other_processes.batch_digests.noted(tmp_path / f"{name} batches") for name in ("whole", "killed"))
    assert [len(steps) for steps in mine.values()] == [40, 40]
    assert its == mine
    changes = []
    for kind in trained:
        (one,), (other,) = (
            (tmp_path / name / "artifacts" / kind).glob("*/manifest.json") for name in ("whole", "killed")
        )
        assert one.parent.name == other.parent.name
        changes += read_json(other)["metrics"]["trained_on"].split("; ")[1:]
        weights, others = (load_file(path.with_name("model.safetensors")) for path in (one, other))
        names = [name for name in weights if not name.endswith(other_processes.UNSEEN)]
        off = torch.cat([(others[name] - weights[name]).flatten() for name in names])
        assert float(off.norm() / torch.cat([weights[name].flatten() for name in names]).norm()) < 1e-3
    assert changes
    assert all(re.fullmatch(r"processes: [124] up to step \d+, then [124]", change) for change in changes)
