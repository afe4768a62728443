"""``trainer.flags`` and ``trainer.callbacks``: what recipes may give, what it changes, and what comes of it."""

import csv
import inspect
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import pytorch_lightning as pl
import torch
from error_lines import names
from pydantic import TypeAdapter, ValidationError
from small_runs import Done, run_command

from condensery.stages.trainer_options import INSTEAD, Callback, TrainerFlags, identity
from condensery.stages.training import _callbacks
from condensery.system.files import read_json
from condensery.training.callbacks import EMAWeightAveraging

ALLOWED = {one.__name__: one for one in get_args(get_args(Callback)[0])}
STOP = "stop: {name: EarlyStopping, monitor: val/mrr@10, mode: max, stopping_threshold: 0.0}"
RATE = "rate: {name: LearningRateMonitor, logging_interval: step}"
BEST = "best: {name: ModelCheckpoint, monitor: val/mrr@10, mode: max}"
SHORT = ["experiment=short", "~stages.condenser", "~stages.cocondenser", "stages.round1.init=backbone"]


def test_flags_and_callbacks_are_lightnings() -> None:
    assert {*TrainerFlags.model_fields} < {*inspect.signature(pl.Trainer).parameters}
    assert {*TrainerFlags.model_fields} == {"benchmark", "detect_anomaly", "deterministic", "profiler"}, (
        "a flag that changes a result must enter the ids"
    )
    assert {*ALLOWED} < {*pl.callbacks.__all__}
    assert {*INSTEAD} < {*inspect.signature(pl.Trainer).parameters} - {*TrainerFlags.model_fields}


@pytest.mark.parametrize("name", sorted({*pl.callbacks.__all__} - {*ALLOWED}))
def test_no_other_callback_of_lightning_is_taken(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        TypeAdapter(Callback).validate_python({"name": name, "monitor": "val/mrr@10"})


@pytest.mark.parametrize("name", sorted({*inspect.signature(pl.Trainer).parameters} - {*TrainerFlags.model_fields}))
def test_no_other_flag_of_lightning_is_taken(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        TrainerFlags.model_validate({name: None})


@pytest.mark.parametrize("name", ALLOWED)
def test_arguments_and_their_defaults_are_lightnings(name: str, tmp_path: Path) -> None:
    theirs = inspect.signature(getattr(pl.callbacks, name)).parameters
    for key, field in ALLOWED[name].model_fields.items():
        if key != "name" and not field.is_required() and (name, key) != ("DeviceStatsMonitor", "cpu_stats"):
            assert field.default == theirs[key].default, key
    given: dict[str, Any] = {"name": name, **({"monitor": "val/mrr@10"} if "monitor" in theirs else {})}
    getattr(pl.callbacks, name)(**ALLOWED[name](**given).arguments(tmp_path, validated=True))


def test_the_average_is_that_of_this_package(tmp_path: Path) -> None:
    stage: Any = SimpleNamespace(callbacks={"mean": ALLOWED["EMAWeightAveraging"](name="EMAWeightAveraging")})
    context: Any = SimpleNamespace(folder=tmp_path)
    (callback,) = _callbacks(stage, context, validated=True)
    assert type(callback) is EMAWeightAveraging


def dry(*given: str) -> Done:
    return run_command("dry_run=plan", "output_root=/nowhere/at/all", *given)


FAULTS = [  # what is given, the place that the line names, what else it says
    ("trainer.flags.max_steps=3", "trainer.flags", "max_steps", "use steps, epochs or token_budget"),
    ("trainer.flags.gradient_clip_val=1.0", "trainer.flags", "gradient_clip_val", "use max_grad_norm"),
    ("trainer.flags.devices=2", "trainer.flags", "use trainer.devices"),
    ("trainer.flags.barebones=true", "trainer.flags.barebones", "unknown key", "known: benchmark, detect_anomaly"),
    ("trainer.flags.detect_anomoly=true", "trainer.flags.detect_anomoly", "unknown key", "'detect_anomaly'"),
    ("trainer.flags.detect_anomaly=1", "trainer.flags.detect_anomaly", "true or false", "got 1"),
    ("trainer.flags.profiler=out.txt", "trainer.flags.profiler", "'simple'", "'advanced'", "'pytorch'"),
    ("trainer.callbacks.x={name: LambdaCallback}", "trainer.callbacks.x", "'LambdaCallback'", "known: 'EarlyStopping'"),
    ("trainer.callbacks.x={name: Timer}", "trainer.callbacks.x", "'Timer'", "known: 'EarlyStopping'"),
    ("trainer.callbacks.x={name: Erly}", "trainer.callbacks.x", "'Erly'", "known: 'EarlyStopping'"),
    ("trainer.callbacks.x={patience: 1}", "trainer.callbacks.x", "needs 'name'"),
    ("trainer.callbacks.x={name: EarlyStopping}", "trainer.callbacks.x.monitor", "needs a value"),
    ("trainer.callbacks.x={name: EarlyStopping, monitor: mrr}", "trainer.callbacks.x.monitor", "'mrr'", "give val/"),
    (
        *("trainer.callbacks.x={name: RichModelSummary, max_depth: true}", "trainer.callbacks.x.max_depth"),
        *("whole number", "got true"),
    ),
    ("trainer.callbacks.x={name: ModelCheckpoint, save_top_k: 3}", "trainer.callbacks.x", "give a monitor", "=-1"),
    (
        "trainer.callbacks.x={name: ModelCheckpoint, monitor: val/mrr@10, every_n_train_steps: 5}",
        *("trainer.callbacks.x", "at each validation", "leave every_n_train_steps out"),
    ),
    ("stages.round1.callbacks.x={name: EarlyStopping, patienc: 1}", "stages.round1.callbacks.x.patienc", "unknown key"),
    (
        "trainer.callbacks={a: {name: EMAWeightAveraging}, b: {name: EMAWeightAveraging, decay: 0.9}}",
        *("trainer.callbacks", "a and b", "leave one out"),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
def test_what_cannot_be_given_is_one_line_before_anything_is_computed(fault: tuple[str, ...]) -> None:
    given, place, *words = fault
    done = dry(*SHORT, given)
    assert done.code == 1, done.out
    assert done.err.startswith("error: ")
    names(done.err, place, *words)


@cache
def ids(*given: str) -> dict[str, str]:
    """The artifact ids of the stages of a recipe; the bi-encoder ``round1`` and the cross-encoder ``other`` begin alone."""
    done = dry("experiment=reranked", "stages.round1.init=backbone", "stages.other.validate_every=0", *given).sound()
    return dict(re.findall(r"^│ (\S+) +│ \S+ +│ (\w{16}) ", done.out, re.MULTILINE))


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def test_ids_change_with_what_can_change_the_result_and_with_nothing_else() -> None:
    assert identity({}, (1, 2, 3)) == [], "ids of before there were callbacks remain"
    plain = ids()
    assert {"round1", "other", "tokens"} <= plain.keys()
    watching = f"trainer.callbacks={{{RATE}, sizes: {{name: RichModelSummary}}, device: {{name: DeviceStatsMonitor}}}}"
    flags = "trainer.flags={deterministic: true, benchmark: true, detect_anomaly: true, profiler: simple}"
    assert ids(watching, flags) == plain
    stopped = ids(f"trainer.callbacks={{{STOP}}}")
    assert "round1" in changed(plain, stopped)
    assert "other" not in changed(plain, stopped), "it is not validated, so nothing ends it"
    assert "tokens" not in changed(plain, stopped)
    averaged = changed(plain, ids("trainer.callbacks.mean={name: EMAWeightAveraging}"))
    assert {"round1", "other"} <= averaged
    assert not {"corpus", "tokenizer", "tokens", "bm25"} & averaged


def test_ids_do_not_depend_on_how_a_callback_is_written() -> None:
    stopped = ids("trainer.callbacks.stop={name: EarlyStopping, monitor: val/mrr@10, mode: max}")
    assert ids("trainer.callbacks.end={name: EarlyStopping, mode: max, monitor: val/mrr@10, patience: 3}") == stopped
    assert ids("trainer.callbacks.stop={name: EarlyStopping, monitor: val/mrr@10, mode: min}") != stopped
    assert ids("trainer.callbacks={stop: null}") == ids()
    alone = ids("stages.round1.callbacks={stop: {name: EarlyStopping, monitor: val/mrr@10, mode: max}}")
    assert alone["round1"] == stopped["round1"]


def test_how_a_stage_is_validated_counts_where_that_can_end_it() -> None:
    other = "stages.round1.validation_passages=20"
    assert ids(other) == ids()
    stop = f"trainer.callbacks={{{STOP}}}"
    assert "round1" in changed(ids(stop), ids(stop, other))
    off = "stages.round1.validate_every=0"
    assert ids(stop, off)["round1"] == ids()["round1"], "never asked"


def test_a_recipe_with_callbacks_and_flags(on_beir: list[str], tmp_path: Path) -> None:
    recipe = [*SHORT, *on_beir, f"output_root={tmp_path}"]
    given = [f"trainer.callbacks={{{STOP}, {RATE}, {BEST}}}", "trainer.flags={profiler: simple, deterministic: true}"]
    done = run_command(*recipe, *given).sound()
    assert done.err == ""
    assert "[round1] a callback ended the training at step 3 of 6" in done.out
    stage = done.folder / "stages" / "round1"
    manifest = read_json(stage / "manifest.json")
    assert manifest["metrics"]["steps"] == 3
    assert manifest["metrics"]["val/mrr@10"] > 0
    assert manifest["config"]["callbacks"]["stop"]["patience"] == 3, "as Lightning has it"
    rows = list(csv.DictReader((stage / "logs" / "metrics.csv").read_text().splitlines()))
    rates = [[float(row[name]) for row in rows] for name in ("lr-AdamW/pg1", "train/lr")]
    assert rates[0] == pytest.approx(rates[1], rel=1e-6)
    assert len(rows) == 3
    assert "training_step" in (stage / "logs" / "fit-profile.txt").read_text()
    kept = list((stage / "saved_checkpoints" / "best").iterdir())
    assert [path.name for path in kept] == ["epoch=0-step=3.ckpt"]
    assert torch.load(kept[0], weights_only=True)["global_step"] == 3
    plain = run_command(*recipe).sound()
    assert plain.computed[0] == "round1", "what it reads is there"
    assert read_json(plain.folder / "stages" / "round1" / "manifest.json")["metrics"]["steps"] == 6
    watched = run_command(*recipe, f"trainer.callbacks={{{RATE}}}", given[1]).sound()
    assert watched.computed == []


def test_without_dev_queries_early_stopping_says_that_it_does_nothing(on_beir: list[str], tmp_path: Path) -> None:
    without = ["data.splits.dev=null", "data.dev_queries=0"]
    done = run_command(*SHORT, *on_beir, *without, f"trainer.callbacks={{{STOP}}}", f"output_root={tmp_path}").sound()
    assert "[round1] EarlyStopping has no effect: this stage is not validated" in done.out
    assert read_json(done.folder / "stages" / "round1" / "manifest.json")["metrics"]["steps"] == 6


@pytest.mark.slow
def test_two_processes_end_together(on_beir: list[str], tmp_path: Path) -> None:
    recipe = [*SHORT, *on_beir, "backbone.dropout=0.0", "stage.finetune.validate_every=2"]
    averaged = f"trainer.callbacks={{{STOP}, {RATE}, mean: {{name: EMAWeightAveraging, decay: 0.5}}}}"
    weights = []
    for number in (1, 2):
        root = tmp_path / str(number)
        devices = [f"trainer.devices={number}", f"trainer.threads={number}", "trainer.flags.detect_anomaly=true"]
        done = run_command(*recipe, averaged, *devices, f"output_root={root}").sound()
        manifest = read_json(done.folder / "stages" / "round1" / "manifest.json")
        assert manifest["metrics"]["steps"] == 2
        weights.append(manifest["metrics"]["val/mrr@10"])
    assert weights[1] == pytest.approx(weights[0], abs=0.01)


def test_a_callback_that_no_stage_would_ask_is_refused() -> None:
    done = dry(*SHORT, f"trainer.callbacks={{{STOP}}}", "stage.finetune.validate_every=0")
    names(done.err, "trainer.callbacks.stop", "validate_every")
