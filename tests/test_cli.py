"""The door: help, what is not imported, where output goes, and every fault in one line."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from condensery.cli import prepared
from condensery.errors import UserError
from condensery.pipeline.complaints import in_one_line

TOYS = Path(__file__).parent / "pipeline"
HEAVY = {
    "torch", "pytorch_lightning", "transformers", "tokenizers", "faiss", "datasets", "pyarrow", "pandas", "numpy", "scipy",
    "bm25s", "ir_measures", "matplotlib", "wandb",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TOYS), prepend=os.pathsep)
    monkeypatch.setenv("CONDENSERY_STAGES", "toys")


def door(
    project: Path, cwd: Path, *arguments: str, watch: bool = False, recipe: str = "toy"
) -> "subprocess.CompletedProcess[str]":
    """Run ``run.py``; with ``watch`` the last line of stdout tells the heavy modules that were imported."""
    script = [str(project / "run.py")]
    if watch:
        code = (
            "import runpy, sys\nsys.argv = sys.argv[1:]\n"
            "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
            f"finally:\n    print({HEAVY} & set(sys.modules))"
        )
        script = ["-c", code, *script]
    command = [sys.executable, *script, "--config-dir", str(TOYS / "conf"), f"experiment={recipe}", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


def test_help_lists_recipes_and_keys(project: Path, tmp_path: Path) -> None:
    done = door(project, tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert "experiment: " in done.stdout
    for word in ("toy", "jobs=2", "force=[", "output_root=DIR", "dry_run=true", 'ask="'):
        assert word in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["--cfg", "job"], ["dry_run=true"]])
def test_nothing_heavy_is_imported_before_the_work(
    arguments: list[str], project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONDENSERY_STAGES")
    given = [f"output_root={tmp_path / 'out'}", *arguments]
    done = door(project, tmp_path, *given, watch=True, recipe="quickstart")
    assert done.stdout.splitlines()[-1] == "set()", done.stdout + done.stderr


def test_one_job_of_a_sweep_says_that_it_is_alone(project: Path, tmp_path: Path) -> None:
    done = door(project, tmp_path, "dry_run=true", f"output_root={tmp_path}", recipe="ablation/rocketqa")
    assert done.stdout.startswith("this recipe is a sweep over seed: -m runs all jobs"), done.stdout + done.stderr


def test_what_is_started_again_has_imported_nothing_yet(project: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\ndef started(*_):\n    print({'hydra', 'omegaconf', 'yaml'} & set(sys.modules), flush=True)\n"
        "    os._exit(0)\nos.execve = started\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    environment.pop("GLIBC_TUNABLES", None)
    command = [sys.executable, str(project / "run.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout == "set()\n", done.stdout[:300] + done.stderr


def test_output_lies_beside_run_py_wherever_it_is_called_from(project: Path, tmp_path: Path) -> None:
    done = door(project, tmp_path, "--cfg", "job", "--resolve")
    assert f"output_root: {project / 'outputs'}" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seeed=1"], "error: seeed: unknown key (did you mean 'seed'?)"),
        (["stages.plain.learning_rte=1", "data.root=x"], "error: stages.plain.learning_rte: unknown key (did you mean"),
        (["experiment=smoka"], "error: experiment=smoka: there is no such option (did you mean 'smoke'?)"),
        (["seed=[1"], "error: seed=[1: not of the form key=value"),
        (["seed"], "error: seed: not of the form key=value"),
        (["ask=", "data.root=x"], "error: ask: the text is empty"),
        (
            ["stages.plane.steps=1", "data.root=x"],
            "error: stages.plane: not a stage of the recipe (did you mean 'plain'?)",
        ),
        (["output_root=/proc/nix"], "error: /proc/nix: no folder can be made here"),
        (["seed=1,2"], "error: Ambiguous value for argument 'seed=1,2'"),
        (["data.root=/nix"], "error: /nix: no such file"),
        ([f"seed=-{'9' * 4000}", "data.root=x"], "error: seed: "),
        (["data.root=${nix}"], "error: data.root: Interpolation key 'nix' not found"),
        (["stages=[a]"], "error: stages: is a list or a mapping where the other is needed"),
        (["table.rows=[a]"], "error: table.rows: is a list or a mapping where the other is needed"),
        (["data.root=${oc.env:HOME}"], "error: data.root: ${oc.env:HOME}: only variables CONDENSERY_* are read"),
    ],
)
def test_a_fault_is_one_line_and_exit_code_1(arguments: list[str], message: str, project: Path, tmp_path: Path) -> None:
    done = door(project, tmp_path, f"output_root={tmp_path / 'out'}", *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 1000


def test_a_broken_config_file_is_named_with_its_line(project: Path, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "broken.yaml").write_text("# @package _global_\nname: [x\nseed: 1\n")
    command = [sys.executable, str(project / "run.py"), "--config-dir", str(tmp_path), "experiment=broken"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path / 'experiment' / 'broken.yaml'}:")
    assert done.stderr.count("\n") == 1


def test_a_fault_of_ours_keeps_its_traceback(project: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text")
    given = [f"data.root={tmp_path / 'text.txt'}", f"output_root={tmp_path / 'out'}", "stages.plain.fail=bug"]
    done = door(project, tmp_path, *given)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert "ZeroDivisionError: a fault of ours\n(in the stage plain" in done.stderr
    assert "hydra/_internal" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["+hydra.callbacks.x._target_=pathlib.Path.touch", "+hydra.callbacks.x.self=x"],
            "hydra.callbacks.x._target_: ",
        ),
        (["-m", "+hydra.launcher.x={_target_: pathlib.Path.touch}"], "hydra.launcher.x._target_: pathlib.Path.touch"),
        (["-m", "hydra.launcher._target_=os.system"], "Invalid plugin 'os.system'"),
        (["-m", "name=../../x"], "name: must match ^[A-Za-z0-9]"),
    ],
)
def test_nothing_foreign_is_called_and_no_other_folder_is_touched(
    arguments: list[str], message: str, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "x" / "jobs").mkdir(parents=True)  # where the sweep `../../x` would clear away
    done = door(project, tmp_path, f"output_root={tmp_path / 'out'}", f"data.root={tmp_path}", *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir() if path.name != "out"] == ["x"]
    assert (tmp_path / "x" / "jobs").is_dir()


def test_the_command_line_is_made_ready_for_hydra() -> None:
    given = ["experiment=x", "stages.a.steps=1,2", "data.root=d", "data=beir", "hydra.verbose=true", "-m"]
    wanted = ["-m", "experiment=x", "++stages.a.steps=1,2", "++data.root=d", "data=beir", "hydra.verbose=true"]
    assert prepared(given) == wanted
    assert prepared(["output_root=~/x"]) == [f"output_root={os.path.expanduser('~/x')}"]


@pytest.mark.parametrize(
    "text",
    [
        "it's a file",
        "C++ (advanced)",
        'say "hi"',
        "{}",
        "a, b",
        "of ${seed}?",
        "a\\b",
        "x\\\\",
        "\\${x}",
        "-",
        "true",
        "a='b'",
    ],
)
def test_a_question_is_taken_as_it_is_typed(text: str) -> None:
    (override,) = OverridesParser.create().parse_overrides(prepared([f"ask={text}"]))
    assert not override.is_sweep_override()
    config = OmegaConf.create({"ask": None, "seed": 1})
    OmegaConf.update(config, "ask", str(override.value()))
    assert config.ask == text


def test_null_asks_nothing_and_what_is_quoted_for_hydra_is_let_be() -> None:
    assert prepared(["ask=null", "ask='a, b'", 'ask="a"']) == ["ask=null", "ask='a, b'", 'ask="a"']


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_closed_disk_is_one_line(number: int) -> None:
    line = in_one_line(OSError(number, os.strerror(number), "/data/x"))
    assert line is not None
    assert line.startswith("error: /data/x: ")
    assert "\n" not in line


def test_only_foreseeable_faults_lose_their_traceback() -> None:
    assert in_one_line(UserError("a:1: wrong\nsecond")) == "error: a:1: wrong second"
    assert in_one_line(UserError(f"/a/b: {'x' * 300} is long")) == f"error: /a/b: {'x' * 40}… (300 characters) is long"
    assert in_one_line(ValueError("x")) is None
    assert in_one_line(OSError(errno.EIO, "x")) is None


def test_every_stage_with_defaults_is_loaded_by_the_root(project: Path) -> None:
    root = OmegaConf.load(project / "conf" / "config.yaml")
    loaded = next(entry.stage for entry in root.defaults if isinstance(entry, dict | type(root)) and "stage" in entry)
    assert sorted(loaded) == sorted(path.stem for path in (project / "conf" / "stage").glob("*.yaml"))


def test_without_an_experiment_it_asks_for_one(project: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(project / "run.py"), f"output_root={tmp_path / 'out'}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("error: experiment: which recipe? Give experiment=NAME")
    assert not (tmp_path / "out" / "runs").exists()
