"""A recipe on two processes: the same artifacts and the same table as on one."""

from pathlib import Path

import pytest
from killed_runs import checkpoints, kill, same_results, start, wait
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
    recipe = [*RECIPE, *TWO, *on_beir, "backbone.dropout=0.1", "stage.finetune.steps=60"]
    whole = run_command(*recipe, f"output_root={tmp_path / 'whole'}").sound()
    tmp_path = tmp_path / "killed"
    arguments = [*recipe, f"output_root={tmp_path}"]
    process = start(str(tmp_path), *arguments)
    wait(process, lambda: bool(checkpoints(tmp_path)))
    kill(process, str(tmp_path))
    assert len(checkpoints(tmp_path)) == 1
    same_results(run_command(*arguments).sound().folder, whole.folder)
