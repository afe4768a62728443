"""Of steps, epochs and token_budget the one counts that was set last."""

from pathlib import Path

import pytest
import yaml
from small_runs import run_command

RECIPE = """# @package _global_
defaults: [/base/small, _self_]
name: own
stage: {finetune: {epochs: 2}}
stages:
  tuned: {stage: finetune, init: backbone}
  longer: {stage: finetune, init: backbone, token_budget: 9000}
"""


@pytest.mark.parametrize(
    ("given", "kind", "stage"),
    [
        ([], (None, 2, None), (None, None, 9000)),
        (["stage.finetune.steps=7"], (7, None, None), (None, None, 9000)),
        (["stage.finetune.epochs=null", "stage.finetune.steps=7"], (7, None, None), (None, None, 9000)),
        (["stage.finetune={token_budget: 5}"], (None, None, 5), (None, None, 9000)),
        (["stages.longer.steps=3"], (None, 2, None), (3, None, None)),
        (["stages.longer.token_budget=null"], (None, 2, None), (None, None, None)),
        (["stage.finetune.steps=7", "stage.finetune.epochs=3"], (7, 3, None), (None, None, 9000)),
    ],
)
def test_who_sets_one_releases_the_others(
    given: list[str], kind: tuple[object, ...], stage: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "own.yaml").write_text(RECIPE)
    config = yaml.safe_load(run_command("--config-dir", tmp_path, "experiment=own", *given, "--cfg", "job").sound().out)

    def lengths(settings: dict[str, object]) -> tuple[object, ...]:
        return tuple(settings.get(key) for key in ("steps", "epochs", "token_budget"))

    assert lengths(config["stage"]["finetune"]) == kind
    assert lengths(config["stages"]["longer"]) == stage


def test_what_a_stage_sets_releases_what_its_kind_sets(tmp_path: Path) -> None:
    given = ["stages.mlm.epochs=2", "stage.pretrain_mlm.token_budget=100000", "dry_run=plan"]
    done = run_command("experiment=quickstart", *given, f"output_root={tmp_path}").sound()
    assert "mlm" in done.out


def test_two_at_once_are_still_refused(tmp_path: Path) -> None:
    given = ["stage.finetune.steps=7", "stage.finetune.epochs=3", "dry_run=plan", f"output_root={tmp_path}"]
    done = run_command("experiment=quickstart", *given)
    assert done.code == 1
    assert "give one of steps, epochs, token_budget" in done.err


def test_each_job_of_a_sweep_releases_for_itself(tmp_path: Path) -> None:
    sweep = ["-m", "++stage.finetune={epochs: 2},{token_budget: 9000}", "dry_run=plan", f"output_root={tmp_path}"]
    assert run_command("experiment=quickstart", *sweep).sound().out.count("== job ") == 2
