"""Lightning's own callbacks and flags in our training loop, also across an interruption."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import test_resume
import test_several_processes
import torch
import trainings
from pytorch_lightning.callbacks import EarlyStopping, EMAWeightAveraging, LearningRateMonitor, ModelCheckpoint
from torch import Tensor

from condensery.errors import UserError
from condensery.training import callbacks
from condensery.training.loop import fit
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.resumption import first_step
from condensery.training.validation import mean_reciprocal_rank

# The rate rises for 5 steps of 20 and falls then; it is looked at after every fourth step, as it was in that step
STEPS, BEST, ENDED = 20, 8, 16
Weights = dict[str, Tensor]


def stopping() -> EarlyStopping:
    """Ends the training at the second validation in a row at which the rate is no higher."""
    return EarlyStopping("train/lr", mode="max", patience=2, check_on_train_epoch_end=False)


class Snapshots(pl.Callback):
    """The weights after every step; with ``at`` the run breaks after that step, with ``end`` when training has ended."""

    def __init__(self, at: int | None = None, end: bool = False) -> None:
        self.weights: dict[int, Weights] = {}
        self.at, self.end = at, end

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self.weights[trainer.global_step] = {name: w.detach().clone() for name, w in pl_module.named_parameters()}
        if trainer.global_step == self.at:
            raise trainings.InterruptionError

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.end:
            raise trainings.InterruptionError


def train(
    root: Path, name: str, callbacks: Sequence[pl.Callback], kind: str = "biencoder", **changes: Any
) -> tuple[TrainingModule, dict[str, float]]:
    """A run of 20 steps that is validated after every fourth, in what lies in its folder."""
    module, data, settings = trainings.run(kind, root, **{"steps": STEPS, **changes})
    values = fit(module, data, settings, root / name, name, sample=trainings.sample(root), callbacks=callbacks)
    return module, values


def equal(one: Weights, other: Weights) -> bool:
    return all(torch.equal(weight, other[name]) for name, weight in one.items())


def test_a_callback_ends_the_training_and_what_was_trained_is_the_result(tmp_path: Path) -> None:
    every = Snapshots()
    train(tmp_path, "whole", [every])
    module, values = train(tmp_path, "ended", [stopping()])
    assert module.global_step == ENDED
    assert equal(every.weights[ENDED], module.state_dict())
    assert not equal(every.weights[STEPS], module.state_dict())
    rows = test_resume._curves(tmp_path / "ended")
    assert [int(row["step"]) for row in rows] == list(range(ENDED))
    assert values["val/mrr@10"] == float(rows[-1]["val/mrr@10"])
    assert not (tmp_path / "ended" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("callbacks", "from_step"),
    [
        pytest.param([Snapshots(at=13)], 12, marks=pytest.mark.slow),
        ([Snapshots(at=10)], 8),
        pytest.param([Snapshots(end=True)], 12, marks=pytest.mark.slow),
    ],
    ids=["between two looks", "after the best", "when the end is known and no result written"],
)
def test_a_run_that_was_interrupted_ends_at_the_same_step_with_the_same_bits(
    callbacks: list[pl.Callback], from_step: int, tmp_path: Path
) -> None:
    whole, _ = train(tmp_path, "whole", [stopping()], checkpoint_every=4)
    with pytest.raises(trainings.InterruptionError):
        train(tmp_path, "parts", [stopping(), *callbacks], checkpoint_every=4)
    assert first_step(tmp_path / "parts") == from_step
    resumed, _ = train(tmp_path, "parts", [stopping()], checkpoint_every=4)
    assert resumed.global_step == ENDED
    assert equal(whole.state_dict(), resumed.state_dict())
    assert test_resume._curves(tmp_path / "whole") == test_resume._curves(tmp_path / "parts")


def test_a_signal_in_the_step_at_which_a_callback_ends_training_leaves_no_checkpoint_of_it(tmp_path: Path) -> None:
    class Asked(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
            pl_module.asked_to_leave = trainer.global_step == ENDED

    module, _ = train(tmp_path, "run", [stopping(), Asked()])
    assert module.global_step == ENDED
    assert first_step(tmp_path / "run") == 0


def test_early_stopping_by_the_validation_ends_at_the_first_that_is_good_enough(tmp_path: Path) -> None:
    good = EarlyStopping("val/mrr@10", mode="max", stopping_threshold=0.0, check_on_train_epoch_end=False)
    module, values = train(tmp_path, "run", [good])
    assert values["val/mrr@10"] > 0
    assert module.global_step == 4


def test_what_is_not_logged_cannot_be_monitored(tmp_path: Path) -> None:
    wrong = EarlyStopping("train/los", check_on_train_epoch_end=False)
    with pytest.raises(UserError, match=r"EarlyStopping monitors train/los, which is not logged \(did you mean 'train"):
        train(tmp_path, "run", [wrong])


def test_the_best_checkpoint_is_kept_with_the_weights_of_its_step(tmp_path: Path) -> None:
    every = Snapshots()
    best = ModelCheckpoint(tmp_path / "kept", monitor="train/lr", mode="max", save_on_train_epoch_end=False)
    train(tmp_path, "run", [best, every])
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [f"epoch=0-step={BEST}.ckpt"]
    kept = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    assert equal(every.weights[BEST], kept)
    module, *_ = trainings.run("biencoder", tmp_path)
    module.load_state_dict(kept)


def ema() -> EMAWeightAveraging:
    return EMAWeightAveraging(decay=0.8, update_starting_at_step=2)


def test_the_moving_average_of_the_weights_is_validated_and_is_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated: list[Weights] = []

    def watched(embed: Any, sample: Any) -> float:
        validated.append({name: w.detach().clone() for name, w in embed.__self__.named_parameters()})
        return mean_reciprocal_rank(embed, sample)

    monkeypatch.setattr("condensery.training.modules.optimisation.mean_reciprocal_rank", watched)
    every, plain = Snapshots(), Snapshots()
    train(tmp_path, "plain", [plain])
    validated.clear()
    module, _ = train(tmp_path, "averaged", [ema(), every])
    for step, weights in plain.weights.items():
        assert equal(weights, every.weights[step]), "training goes on from the weights, not from their average"
    average = dict(every.weights[3])
    for step in range(4, STEPS + 1):
        average = {name: 0.8 * mean + 0.2 * every.weights[step][name] for name, mean in average.items()}
        if step % 4 == 0:
            for name, mean in average.items():
                torch.testing.assert_close(validated[step // 4 - 1][name], mean)
    for name, mean in average.items():
        torch.testing.assert_close(module.state_dict()[name], mean)
    with pytest.raises(trainings.InterruptionError):
        train(tmp_path, "parts", [ema(), Snapshots(at=13)])
    resumed, _ = train(tmp_path, "parts", [ema()])
    assert equal(module.state_dict(), resumed.state_dict())


@pytest.mark.slow
def test_before_its_first_update_the_average_is_the_weights_themselves(tmp_path: Path) -> None:
    def late(begin: int = STEPS) -> EMAWeightAveraging:
        return callbacks.EMAWeightAveraging(decay=0.5, update_starting_at_step=begin)

    plain, _ = train(tmp_path, "plain", [])
    never, _ = train(tmp_path, "never", [late()])
    assert equal(dict(plain.named_parameters()), never.state_dict()), "not the weights of before the training"
    assert test_resume._curves(tmp_path / "plain") == test_resume._curves(tmp_path / "never")
    whole, _ = train(tmp_path, "whole", [late(10)])
    with pytest.raises(trainings.InterruptionError):
        train(tmp_path, "parts", [late(10), Snapshots(at=7)])
    resumed, _ = train(tmp_path, "parts", [late(10)])
    assert equal(whole.state_dict(), resumed.state_dict())


@pytest.mark.parametrize("name", ["sentences", "lists", "queries", "learned scores"])
def test_sentences_cross_encoders_and_generators_take_callbacks_too(name: str, tmp_path: Path) -> None:
    module, data, settings, _ = test_several_processes.RUNS[name](tmp_path)
    every = Snapshots()
    watching = LearningRateMonitor(logging_interval="step")
    fit(module, data, settings, tmp_path / "run", "x", callbacks=[EMAWeightAveraging(decay=0.5), watching, every])
    average = every.weights[1]
    for step in range(2, settings.steps + 1):
        average = {key: (mean + every.weights[step][key]) / 2 for key, mean in average.items()}
    for key, mean in average.items():
        torch.testing.assert_close(module.state_dict()[key], mean)
    assert not equal(every.weights[settings.steps], module.state_dict())
    assert "lr-AdamW/pg1" in test_resume._curves(tmp_path / "run")[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cocondenser", pytest.param("biencoder", marks=pytest.mark.slow)])
def test_callbacks_that_watch_change_nothing(kind: str, tmp_path: Path) -> None:
    plain, _ = train(tmp_path, "plain", [], kind, steps=6)
    flags = {"detect_anomaly": True, "benchmark": True, "deterministic": True, "profiler": "simple"}
    module, data, settings = trainings.run(kind, tmp_path, steps=6)
    watching = [LearningRateMonitor(logging_interval="step")]
    sample = trainings.sample(tmp_path)
    values = fit(module, data, settings, tmp_path / "run", "x", sample=sample, callbacks=watching, flags=flags)
    assert equal(plain.state_dict(), module.state_dict())
    assert values["lr-AdamW/pg1"] == pytest.approx(values["train/lr"])
    assert "backward" in (tmp_path / "run" / "logs" / "fit-profile.txt").read_text()
    assert not torch.are_deterministic_algorithms_enabled(), "it holds for this training"
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize(("name", "files"), [("advanced", "fit-profile.txt"), ("pytorch", "fit-profile*")])
def test_other_profilers_write_beside_the_logs(name: str, files: str, tmp_path: Path) -> None:
    module, data, settings = trainings.run("condenser", tmp_path, steps=6)
    fit(module, data, settings, tmp_path / "run", "x", flags={"profiler": name})
    assert any(path.stat().st_size for path in (tmp_path / "run" / "logs").glob(files))
    assert (tmp_path / "run" / "logs" / "metrics.csv").exists()


class Put(pl.Callback):
    """Does something of which torch has no deterministic kind."""

    def on_train_batch_start(self, *_: Any) -> None:
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))


def test_an_operation_that_cannot_be_deterministic_is_one_line(tmp_path: Path) -> None:
    module, data, settings = trainings.run("condenser", tmp_path, steps=2)
    with pytest.raises(
        UserError, match=r"^trainer\.flags\.deterministic: put_ does not have a .*; set it to warn"
    ) as raised:
        fit(module, data, settings, tmp_path / "run", "x", callbacks=[Put()], flags={"deterministic": True})
    assert "\n" not in str(raised.value)
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        fit(module, data, settings, tmp_path / "warned", "x", callbacks=[Put()], flags={"deterministic": "warn"})


def test_a_copy_of_a_checkpoint_is_none(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for name in ("step=2.ckpt", "step=10.ckpt", "step=30 (1).ckpt", "step=.ckpt", "step=last.ckpt"):
        (tmp_path / "checkpoints" / name).touch()
    assert first_step(tmp_path) == 10
