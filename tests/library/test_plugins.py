"""A package of one's own: the example adds a format, a loss and a stage, and its recipe runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from runpy import run_module

import pytest

from condensery.errors import UserError
from condensery.losses import registry as losses
from condensery.stages.checks import plugin_code
from condensery.stages.registry import _import_plugin, registry
from condensery.text import config as formats

PROJECT = Path(__file__).parents[2]
PLUGIN = PROJECT / "examples" / "plugin"
HEAD = """
from typing import Any
from condensery.losses.registry import register
from condensery.stages.base import Context, StageConfig
from condensery.stages.registry import stage
from condensery.text.formats import register_format
from condensery.text.source import DataConfig

class Config(StageConfig):
    pass

"""
STAGE = """
@stage("broken", version=1, makes="words")
def broken(config: Config, context: Context) -> None: ...
"""
BROKEN = {  # content of the module -> the end of the error line; {} is the module's file
    "def (:": "broken: SyntaxError: invalid syntax (broken.py, line 12)",
    "import nowhere": "{}:12: ModuleNotFoundError: No module named 'nowhere'",
    "exit(3)": "{}:12: SystemExit: 3",
    "def f(): raise KeyError('a')\nf()": "{}:12: KeyError: 'a'",
    STAGE.replace("broken", "bm25"): "two stages are called 'bm25': ",
    STAGE.replace(": Config", ""): "stage 'broken': the class of its argument config must be a subclass of StageConfig",
    STAGE.replace(
        "Config,", "Any,"
    ): "stage 'broken': the class of its argument config must be a subclass of StageConfig",
    STAGE.replace(
        "=1", "='1'"
    ): "stage 'broken': kind and makes must match ^[A-Za-z0-9][A-Za-z0-9_-]*$, and version must be",
    STAGE.replace('"broken"', '"../x"'): "stage '../x': kind and makes must match ",
    "@register('info_nce')\ndef loss(): ...": "two losses have the name 'info_nce': Condensery's and ",
    "class Lines(DataConfig):\n    format: str = 'lines'\nregister_format(Lines, print)": (
        'Lines: its field format must be as in format: Literal["name"] = "name"'
    ),
}
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


@pytest.mark.slow
def test_the_table_of_a_recipe_in_ten_lines_of_python(poems: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from condensery import UserError, run

    monkeypatch.chdir(poems)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PLUGIN), *sys.path]))
    monkeypatch.setenv("CONDENSERY_STAGES", "haiku")
    with pytest.raises(UserError, match="give only key=value; for a sweep, use"):
        run("haiku", ["-m"])
    with pytest.raises(UserError, match="run: override: a list of strings is expected, not one str"):
        run("haiku", "seed=2")
    with pytest.raises(UserError, match="unknown key"):  # a generator is read once
        run("quickstart", (one for one in ["sed=2", "dry_run=plan"]))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="run: no results, exit code 0"):
        run("quickstart", ["dry_run=plan"])
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


@pytest.mark.parametrize("content", BROKEN)
def test_a_module_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    registry()
    (tmp_path / "broken.py").write_text(HEAD + content)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError) as refused:
        _import_plugin("broken")
    assert str(refused.value).startswith("CONDENSERY_STAGES: ")
    assert BROKEN[content].format(tmp_path / "broken.py") in str(refused.value)


def test_a_name_of_a_file_is_told_to_be_no_module() -> None:
    for name in ("haikus.py", "nowhere.x"):
        with pytest.raises(
            UserError,
            match=rf"there is no module '{name}'; write its name without .py, and add its folder to PYTHONPATH",
        ):
            _import_plugin(name)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_a_format_has_no_name_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(formats.ADDED, "beir", formats.FORMATS["beir"])
    with pytest.raises(UserError, match="format 'beir': a format of Condensery has this name; rename yours"):
        run_module("condensery.text.config")


def test_what_a_plugin_is_changed_to_changes_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_LOSSES", dict(losses._LOSSES))
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "changing.py"
    file.write_text(f"{HEAD}@register('changing')\ndef changing(): ...")
    _import_plugin("changing")

    def identity(loss: losses.Named) -> list[str]:
        return (
            registry()["finetune"].config.model_construct(loss=loss, layer_decay=1, callbacks={}, init="a").identity()
        )

    before, inside = identity("changing"), {"name": "matryoshka", "dimensions": [8], "loss": "changing"}
    assert len(before) == 1
    assert identity(inside) == before
    file.write_text(file.read_text() + "  # changed")
    assert identity("changing") != before
    assert identity(inside) == identity("changing")
    assert identity("info_nce") == plugin_code(formats.FORMATS["beir"]) == [], "the version of our stages counts"
    monkeypatch.setitem(formats.FORMATS, "own", (sys.modules["changing"].Config, print))
    corpus = registry()["corpus"].config
    source = corpus.model_construct(data=formats.FORMATS["text"][0].model_construct(format="own"))
    assert source.identity() == identity("changing")
