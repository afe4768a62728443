"""A package of one's own: the example adds a format, a loss and a stage, and its recipe runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PLUGIN = PROJECT / "examples" / "plugin"
LINES = [f"the {word} leaf falls on water number {n}" for n, word in enumerate(["red", "old", "wet", "last"] * 6)]


def condensery(folder: Path, *arguments: str, plugin: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PLUGIN), *sys.path]), "OMP_NUM_THREADS": "1"}
    environment |= {"CONDENSERY_STAGES": "haiku" if plugin else "", "WANDB_MODE": "disabled"}
    command = [sys.executable, "-m", "condensery", "--config-dir", PLUGIN / "conf", "experiment=haiku", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def poems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("poems")
    (folder / "poems.txt").write_text("\n".join(LINES) + "\n")
    (folder / "asked.txt").write_text("".join(" ".join(line.split()[1:3] + line.split()[-1:]) + "\n" for line in LINES))
    return folder


@pytest.mark.slow  # in ten lines of Python it runs below
def test_its_recipe_runs(poems: Path) -> None:
    done = condensery(poems, f"data.root={poems}", "jobs=1", "trainer=cpu", "trainer.precision=fp32")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (poems / "outputs" / "runs").iterdir()
    rows = {row["row"]: row["metrics"] for row in json.loads((run / "results.json").read_text())}
    assert rows.keys() == {"BM25", "margin"}
    assert rows["BM25"]["MRR@10"] > 0.5
    words = json.loads((run / "stages" / "words" / "words.json").read_text())
    assert words["leaf"] == len(LINES)
    curve = (run / "stages" / "tuned" / "logs" / "metrics.csv").read_text()
    assert "train/contrast" in curve


def test_without_the_environment_variable_nothing_of_it_is_known(poems: Path) -> None:
    done = condensery(poems, f"data.root={poems}", "dry_run=plan", plugin=False)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "stage.count_words: unknown kind of stage" in done.stderr


def test_the_table_of_a_recipe_in_ten_lines_of_python(poems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from condensery import UserError, run

    monkeypatch.chdir(poems)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PLUGIN), *sys.path]))
    monkeypatch.setenv("CONDENSERY_STAGES", "haiku")
    with pytest.raises(UserError, match="one run with key=value overrides"):
        run("haiku", ["-m"])
    with pytest.raises(UserError, match="experiment=haikuu: there is no such option"):
        run("haikuu")
    small = ["trainer=cpu", "trainer.precision=fp32", "jobs=1"]
    results = run("haiku", [f"data.root={poems}", *small], recipes=PLUGIN / "conf")
    assert [row.name for row in results] == ["BM25", "margin"]
    assert results["BM25"] == results[0].metrics
    with pytest.raises(UserError, match=r"results: there is no row 'BM52' \(did you mean 'BM25'"):
        results["BM52"]
    assert results.records()[0]["MRR@10"] == results["BM25"]["MRR@10"]
    assert (results.folder / "results.json").exists()
    assert str(results).splitlines()[1].startswith("BM25  ")
