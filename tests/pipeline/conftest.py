"""The toy recipe of ``tests/pipeline/conf``: composed in this process, or run as a user runs it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from small_runs import run_command
from toy_commands import Command, Compose, Launch

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    monkeypatch.setenv("CONDENSERY_STAGES", "toys")
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "ran.log"))
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")  # and so set back after the test
    (tmp_path / "text.txt").write_text("some text\n")


@pytest.fixture
def curves() -> None:
    """Curves are drawn in the tests that name this fixture, and in commands that run in processes of their own."""


@pytest.fixture(autouse=True)
def _few_curves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "curves" not in request.fixturenames:
        monkeypatch.setattr("condensery.pipeline.reports.report.draw_curves", lambda logs, stem: None)


@cache
def recipe_config(conf: Path, recipe: str) -> DictConfig:
    """A toy recipe as Hydra composes it, once for all tests."""
    with initialize_config_dir(str(conf), version_base="1.3"):
        return compose("config", [f"hydra.searchpath=[file://{HERE / 'conf'}]", f"experiment={recipe}"])


@pytest.fixture
def composed(project: Path, tmp_path: Path) -> Compose:
    """The composed toy recipe with overrides (``key=yaml`` or ``~key``); its output lies in ``tmp_path/out``."""

    def make(*overrides: str, recipe: str = "toy") -> DictConfig:
        given = [f"data.root={tmp_path / 'text.txt'}", f"output_root={tmp_path / 'out'}", *overrides]
        config = deepcopy(recipe_config(project / "conf", recipe))
        OmegaConf.set_struct(config, False)
        for removed in (override[1:] for override in given if override.startswith("~")):
            parent, _, key = removed.rpartition(".")
            del OmegaConf.select(config, parent)[key]
        config.merge_with_dotlist([one for one in given if not one.startswith("~")])
        return config

    return make


@pytest.fixture
def launch(project: Path, tmp_path: Path) -> Iterator[Launch]:
    """Start ``python run.py experiment=toy ...`` and return the process."""

    def start(*overrides: str, recipe: str = "toy", **how: Any) -> "subprocess.Popen[str]":
        command = [sys.executable, str(project / "run.py"), "--config-dir", str(HERE / "conf")]
        command += [f"experiment={recipe}"] if recipe else []
        given = [f"data.root={tmp_path / 'text.txt'}", f"output_root={tmp_path / 'out'}", *overrides]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*command, *given], **pipes, text=True, cwd=tmp_path, env=os.environ, **how)

    # tests that are themselves run in the background, or by nohup, inherit a SIGINT or SIGHUP that is ignored
    heard = ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL))
    before = {number: signal.signal(number, handler) for number, handler in heard}
    yield start
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Run ``python run.py experiment=toy ...`` to its end, in this process."""

    def run(*overrides: str, recipe: str = "toy") -> "subprocess.CompletedProcess[str]":
        given = [f"data.root={tmp_path / 'text.txt'}", f"output_root={tmp_path / 'out'}", *overrides]
        done = run_command("--config-dir", HERE / "conf", *([f"experiment={recipe}"] if recipe else []), *given)
        return subprocess.CompletedProcess([], done.code, done.out, done.err)

    return run


@pytest.fixture
def computed(tmp_path: Path) -> Callable[[], list[str]]:
    """The stages whose functions were called so far, in order."""

    def read() -> list[str]:
        log = tmp_path / "ran.log"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    return read


@pytest.fixture
def contents() -> Callable[[Path], dict[str, bytes]]:
    """The bytes of all artifacts under an output root, manifests apart."""

    def read(root: Path) -> dict[str, bytes]:
        files = sorted(path for path in (root / "artifacts").rglob("*") if path.is_file())
        return {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in files
            if path.suffix != ".lock" and path.name != "manifest.json"
        }

    return read
