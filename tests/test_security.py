"""The promises of SECURITY.md, kept as a user would see them: a recipe, a checkpoint folder, a command."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import MODEL, PROJECT, Done, run_command

from condensery.pipeline import artifact_store

HARMLESS = "name: x\nstages: {corpus: {stage: corpus}}\n"


def recipe(folder: Path, text: str, *given: str, **others: str) -> Done:
    """Run a recipe of a stranger, up to the list of its stages; ``others`` are further files of theirs, ``/`` as ``__``."""
    for name, content in {"experiment__x": f"# @package _global_\n{text}", **others}.items():
        path = folder / "theirs" / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return run_command(
        "--config-dir", folder / "theirs", "experiment=x", "dry_run=plan", f"output_root={folder / 'out'}", *given
    )


def refused(done: Done, *wanted: str) -> None:
    assert done.code == 1, done.out
    assert done.err.startswith("error: "), done.err
    assert done.err.count("\n") == 1, done.err
    for words in wanted:
        assert words in done.err, done.err


def test_a_recipe_sets_no_environment_and_so_runs_no_command(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    settings = (
        f"{{GIT_CONFIG_COUNT: '1', GIT_CONFIG_KEY_0: core.fsmonitor, GIT_CONFIG_VALUE_0: 'touch {trace}; false'}}"
    )
    done = recipe(tmp_path, HARMLESS + f"hydra: {{job: {{env_set: {settings}}}}}\n", "dry_run=false")
    refused(done, "experiment/x.yaml: hydra.job.env_set.GIT_CONFIG_COUNT: a recipe may not set this")
    assert not trace.exists()
    assert not (tmp_path / "out").exists()


def test_a_recipe_loads_no_plugin(tmp_path: Path) -> None:
    (tmp_path / "strange.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    folder = tmp_path / "theirs" / "experiment"
    folder.mkdir(parents=True)
    text = f"# @package _global_\n{HARMLESS}hydra: {{job: {{env_set: {{CONDENSERY_STAGES: strange}}}}}}\n"
    (folder / "x.yaml").write_text(text)
    command = [
        sys.executable,
        str(PROJECT / "run.py"),
        "--config-dir",
        str(folder.parent),
        "experiment=x",
        "dry_run=plan",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    refused(Done(done.returncode, done.stdout, done.stderr), "hydra.job.env_set.CONDENSERY_STAGES")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    "setting",
    [
        "callbacks: {x: {_target_: pathlib.Path.touch, self: x}}",
        "callbacks: {x: {_target_: condensery.system.files.Path.write_text, self: x, data: y}}",
        "job_logging: {version: 1, handlers: {x: {'()': os.system, command: ls}}, root: {handlers: [x]}}",
        "job_logging: {version: 1, handlers: {x: {class: logging.FileHandler, filename: x}}, root: {handlers: [x]}}",
        "run: {dir: x}",
        "launcher: {_target_: hydra_plugins.x.Launcher}",
        "sweeper: {params: {++hydra.run.dir: x}}",
    ],
)
def test_a_recipe_has_nothing_called_and_names_no_folder(setting: str, tmp_path: Path) -> None:
    refused(recipe(tmp_path, f"{HARMLESS}hydra: {{{setting}}}\n"), "experiment/x.yaml: hydra.", "a recipe may not")


@pytest.mark.parametrize(
    ("text", "others", "wanted"),
    [
        ("defaults: [override /hydra/launcher: basic, _self_]", {}, "hydra/launcher: a recipe may not choose this"),
        (
            "defaults: [override /hydra/launcher: y, _self_]",
            {"hydra__launcher__y": "a: 1"},
            "hydra/launcher: a recipe may not",
        ),
        ("defaults: [/data@hydra.job.env_set: y, _self_]", {"data__y": "A: b"}, "data/y.yaml: hydra.job.env_set.A"),
        ("defaults: [/data@launcher: y, _self_]", {"data__y": "before: [b]"}, "data/y.yaml: launcher.before"),
        ("defaults: [override /launcher: y, _self_]", {"launcher__y": "setup: [b]"}, "launcher/y.yaml: launcher.setup"),
        ("name: x", {"experiment__x": "# @package hydra.job.env_set\nA: b"}, "experiment/x.yaml: hydra.job.env_set.A"),
        ("launcher: {kind: torchrun, nodes: 1, endpoint: null, before: [touch, x]}", {}, "launcher.before"),
        ("output_root: /tmp/elsewhere", {}, "output_root: a recipe may not set this"),
        ("defaults: [x]", {}, "form a circle"),
    ],
)
def test_there_is_no_way_around_it(text: str, others: dict[str, str], wanted: str, tmp_path: Path) -> None:
    text = text.replace("defaults: [override ", "defaults: [{override ").replace(", _self_]", "}, _self_]")
    text = text.replace("defaults: [/", "defaults: [{/")
    refused(recipe(tmp_path, text, **others), wanted)


def test_logging_and_logger_of_a_recipe_call_nothing(tmp_path: Path) -> None:
    refused(
        recipe(tmp_path, HARMLESS + "logger: {wandb: {_target_: os.system}}\n"), "logger.wandb._target_: unknown key"
    )


def test_the_command_line_is_the_persons_own(tmp_path: Path) -> None:
    given = ["hydra/job_logging=disabled", "+hydra.job.env_set.A=b", "launcher=torchrun", "launcher.before=[srun]"]
    assert "corpus" in recipe(tmp_path, HARMLESS, *given).sound().out
    sweep = "hydra: {sweeper: {params: {seed: '1,2'}}}\n"
    assert recipe(tmp_path, HARMLESS + sweep, "-m").sound().out.count("== job ") == 2
    refused(
        recipe(tmp_path, HARMLESS, "+hydra.callbacks.x._target_=condensery.system.files.shutil.copyfile"),
        "may not be called",
    )


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("callbacks: {x: {name: os.system}}", "trainer.callbacks.x: unknown 'name' 'os.system'"),
        (
            "callbacks: {x: {name: LambdaCallback, setup: os.system}}",
            "trainer.callbacks.x: unknown 'name' 'LambdaCallback'",
        ),
        ("callbacks: {x: {_target_: os.system}}", "trainer.callbacks.x: needs 'name'"),
        ("callbacks: {x: {name: RichModelSummary, _target_: os.system}}", "trainer.callbacks.x._target_: unknown key"),
        ("callbacks: {x: {name: ModelCheckpoint, dirpath: /tmp}}", "trainer.callbacks.x.dirpath: unknown key"),
        ("callbacks: {x: {name: ModelCheckpoint, filename: ../../x}}", "trainer.callbacks.x.filename: unknown key"),
        ("callbacks: {../x: {name: ModelCheckpoint}}", "must match"),
        ("flags: {profiler: {_target_: os.system}}", "trainer.flags.profiler: must be 'simple'"),
        ("flags: {default_root_dir: /tmp}", "trainer.flags: default_root_dir is not set here"),
        ("flags: {plugins: [os.system]}", "trainer.flags.plugins: unknown key"),
        ("flags: {model_registry: x}", "trainer.flags.model_registry: unknown key"),
    ],
)
def test_callbacks_and_flags_of_a_recipe_call_nothing_else_and_name_no_folder(
    setting: str, wanted: str, tmp_path: Path
) -> None:
    refused(recipe(tmp_path, f"{HARMLESS}trainer: {{{setting}}}\n"), wanted)


def test_a_recipe_reads_no_key_or_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "s3cret")
    for asked in ("${oc.env:SOME_TOKEN}", "${oc.decode:'\\${oc.env:SOME_TOKEN}'}", "${oc.${name}:SOME_TOKEN}"):
        done = recipe(tmp_path, HARMLESS + f'next: ["{asked}"]\n'.replace("\\$", "\\\\$"))
        refused(done, "experiment/x.yaml:4: ", "a recipe reads only keys of the config and variables CONDENSERY_*")
        assert "s3cret" not in done.out + done.err
    smuggled = "hydra: {sweeper: {params: {++next: '[${data.a}{oc.env:SOME_TOKEN}]'}}}\ndata: {a: $}\n"
    refused(recipe(tmp_path, HARMLESS + smuggled, "-m"), "plain values are expected")


def test_a_variable_of_ours_may_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDENSERY_MINE", "mine")
    text = HARMLESS.replace("name: x", "name: '${oc.env:CONDENSERY_MINE}-${oc.env:CONDENSERY_NIX,none}'")
    assert recipe(tmp_path, text).sound().out.startswith("mine-none in ")


def test_a_recipe_that_grows_without_bound_is_one_line(tmp_path: Path) -> None:
    doubled = "".join(f"  a{i}: '${{.a{i + 1}}}${{.a{i + 1}}}'\n" for i in range(40))
    refused(recipe(tmp_path, HARMLESS + f"data:\n{doubled}  a40: x\n"), "multiply")
    refused(recipe(tmp_path, "a: &a [*a]\n"), "experiment/x.yaml:2: the alias *a is inside")


def test_git_is_asked_without_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "trace"
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {trace}\nfalse\n")
    hook.chmod(0o755)
    project = tmp_path / "project"
    module = project / "src" / "condensery" / "pipeline" / "artifact_store.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    named = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["config", "core.fsmonitor", str(hook)]):
        subprocess.run(["git", "-C", str(project), *words], check=True, env={**os.environ, **named})
    monkeypatch.setattr(artifact_store, "__file__", str(module))
    for name, value in {"COUNT": "1", "KEY_0": "core.fsmonitor", "VALUE_0": str(hook)}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nix"))
    told = artifact_store._revision.__wrapped__()
    assert told is not None
    assert re.fullmatch(r"[0-9a-f]{40}", told)
    assert not trace.exists()


def test_every_test_that_security_md_names_is_there() -> None:
    text = (PROJECT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) >= 12
    for path, test in named:
        assert f"def {test}(" in (PROJECT / path).read_text(encoding="utf-8"), (path, test)
    assert len(re.findall(r"^- ", text, re.MULTILINE)) >= 12


@pytest.mark.parametrize("name", ["a.b", "../x", "os;x"])
def test_a_package_that_is_read_for_its_docstrings_is_not_imported(name: str, tmp_path: Path) -> None:
    done = recipe(tmp_path, HARMLESS + f"data: {{packages: ['{name}']}}\n", *MODEL)
    refused(done, "no package")
