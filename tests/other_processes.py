"""Helpers for tests with a changing number of processes: a training is stopped, and resumes with another number."""

import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from forked import run_processes
from torch import Tensor, distributed

from condensery.training.data.data_module import StepDataModule
from condensery.training.loop import fit
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.resumption import last_checkpoint
from condensery.training.settings import LoopSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "benchmarks"))
import batch_digests

STEPS, EVERY = 8, 2  # steps of a training, and steps between two checkpoints
ATTEMPTS = {3: 2, 5: 1, STEPS: 4}  # the step at which each attempt is stopped -> its number of processes
UNSEEN = ("key.bias", "classifier.classifier.bias")  # the softmax ignores these biases: only rounding changes them
Run = tuple[TrainingModule, StepDataModule, list[pl.Callback]]
Runs = Mapping[str, Callable[[Path, str], Run]]  # called with a folder for all runs and the name of one run


class Stop(pl.Callback):
    """Stops a training after a step, before the checkpoint of this step is written."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step < STEPS:
            raise InterruptedError


def train(made: Callable[[Path, str], Run], folder: Path, name: str, last: int = STEPS) -> dict[str, Tensor]:
    """Start or resume a training, up to the step ``last``. Return the weights."""
    module, data, callbacks = made(folder, name)
    settings = LoopSettings(STEPS, checkpoint_every=EVERY)
    try:
        fit(module, data, settings, folder / name, name, callbacks=[Stop(last), *callbacks])
    except InterruptedError:
        found = last_checkpoint(folder / name)
        assert found
        assert found.name == f"step={last - last % EVERY}.ckpt"
    return module.state_dict()


def attempt(rank: int, runs: Runs, folder: Path, last: int) -> None:
    """Run all trainings up to the step ``last``, as one of the processes of this attempt."""
    number = ATTEMPTS[last]
    if number > 1:
        distributed.init_process_group("gloo", f"file://{folder}/meeting-{last}", rank=rank, world_size=number)
    weights = {name: train(made, folder, f"changed {name}", last) for name, made in runs.items()}
    torch.save(weights, folder / f"{last}-{rank}.pt")
    if number > 1:
        distributed.destroy_process_group()


def check(runs: Runs, folder: Path, drawn: Collection[str] = ()) -> None:
    """Check that trainings on 2, 1 and 4 processes have the batches of one process, and nearly the same weights.

    ``drawn``: trainings whose random numbers differ between processes, so that their weights are not compared.
    """
    begin = {
        name: made(folder, "begin")[0].state_dict() for name, made in runs.items()
    }  # also writes the files that all runs read
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(batch_digests.FOLDER, str(folder / "digests"))
        patch.setattr(TrainingModule, "training_step", batch_digests.noting(TrainingModule.training_step))
        whole = {name: train(made, folder, f"whole {name}") for name, made in runs.items()}
        for last, number in ATTEMPTS.items():
            run_processes(number, attempt, runs, folder, last)
    noted = batch_digests.noted(folder / "digests")
    for name in runs:
        mine, its = noted[f"whole {name}"], noted[f"changed {name}"]
        assert sorted(mine) == list(range(STEPS)), name
        different = {batch for batches in mine.values() for batch in batches}
        assert all(len(batches) == 1 for batches in mine.values())
        assert len(different) > 1, name
        assert its == mine, name
        files = [path.stem.split("-")[1] for path in (folder / "digests" / f"changed {name}").glob("*.jsonl")]
        assert sorted(files) == ["1", "2", "2", "4", "4", "4", "4"]
        first, *others = (torch.load(folder / f"{STEPS}-{rank}.pt")[name] for rank in range(ATTEMPTS[STEPS]))
        for other in others:
            assert all(torch.equal(value, other[key]) for key, value in first.items()), name
        if name not in drawn:
            names = [key for key in begin[name] if not key.endswith(UNSEEN)]
            pairs = [(first[key] - whole[name][key], whole[name][key] - begin[name][key]) for key in names]
            off, moved = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
            assert float(off.norm() / moved.norm()) < 3e-4, name
