"""TensorBoard and Trackio get the curves where they are switched on, and a library that is missing is one line."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trainings
from small_runs import run_command

from condensery.training.loggers import other_loggers
from condensery.training.loop import fit
from condensery.training.wandb_run import Tracked


def tracked(folder: Path) -> Tracked:
    return Tracked(False, "tests", None, "study", "one", "pretrain", "id-one", {"steps": 3}, folder)


def test_trackio_gets_each_step_and_its_run_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: dict[str, Any] = {}
    logged: list[tuple[int, dict[str, float]]] = []
    ended: list[bool] = []
    run = SimpleNamespace(log=lambda metrics, step: logged.append((step, metrics)), finish=lambda: ended.append(True))

    def init(project: str, **given: Any) -> Any:
        begun.update(given, project=project)
        return run

    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(init=init))
    module, data, settings = trainings.run("cocondenser", tmp_path, steps=3)
    loggers = other_loggers(tracked(tmp_path), tmp_path / "one", 0, tensorboard=False, trackio="mine")
    fit(module, data, settings, tmp_path / "one", "one", loggers=loggers, sample=trainings.sample(tmp_path))
    assert (begun["project"], begun["name"], begun["group"]) == ("mine", "one id-one", "study")
    assert [step for step, metrics in logged if "train/loss" in metrics] == [0, 1, 2]
    assert ended == [True]


def test_tensorboard_gets_its_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    module, data, settings = trainings.run("cocondenser", tmp_path, steps=3)
    loggers = other_loggers(tracked(tmp_path), tmp_path / "one", 0, tensorboard=True, trackio=None)
    fit(module, data, settings, tmp_path / "one", "one", loggers=loggers, sample=trainings.sample(tmp_path))
    assert list((tmp_path / "one" / "logs" / "tensorboard").glob("events.*"))


@pytest.mark.parametrize("name", ["tensorboard", "trackio"])
def test_a_library_that_is_not_installed_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condensery.pipeline.config.find_spec", lambda module: None)
    done = run_command("experiment=smoke", f"logger={name}", f"output_root={tmp_path}")
    assert done.err == f"error: logger.{name}: {name} is not installed; pip install {name}, or condensery[{name}]\n"
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_an_unknown_logger_is_one_line(tmp_path: Path) -> None:
    done = run_command("experiment=smoke", "logger=tensorbord", f"output_root={tmp_path}")
    assert done.err == "error: logger=tensorbord: there is no such option (did you mean 'tensorboard'?)\n"
