"""A Condenser head without weights of its own, which is trained alone in the first steps."""

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import trainings
from torch import Tensor

from condensery.errors import UserError
from condensery.losses.gradient_cache import backpropagate
from condensery.training.learning_rate import linear_schedule
from condensery.training.loop import fit
from condensery.training.modules.pretraining import CoCondenserModule

FIRST = 7  # steps of the head in ``trainings.run("head_first", ...)``, of 12


class Weights(pl.Callback):
    """The weights before training and after each step."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Tensor]] = []

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.kept.append({name: value.detach().clone() for name, value in module.named_parameters()})

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        assert all(weight.requires_grad for weight in module.parameters())
        self.on_train_start(trainer, module)

    def moved(self, step: int) -> set[str]:
        """Names of the weights that step ``step`` (from 0) changed."""
        before, after = self.kept[step : step + 2]
        return {name for name, value in after.items() if not torch.equal(value, before[name])}


def trained(folder: Path, loaded: bool = False, **changes: Any) -> tuple[CoCondenserModule, Weights]:
    module, data, settings = trainings.run("head_first", folder, checkpoint_every=0, **changes)
    assert isinstance(module, CoCondenserModule)
    if loaded:
        module.model.layers_loaded = True
        module = CoCondenserModule(module.model, head_steps=FIRST, **trainings.optimiser())
    weights = Weights()
    fit(module, data, settings, folder / "run", "head", callbacks=[weights])
    return module, weights


def test_only_the_head_moves_in_the_first_steps_and_then_everything(tmp_path: Path) -> None:
    module, weights = trained(tmp_path)
    every = dict(module.named_parameters())
    head = {name for name in every if name.startswith("model.head.")}
    still = {name for name in every if name.endswith("key.bias")}  # softmax does not depend on it
    for step in range(12):
        moved = weights.moved(step)
        if step < FIRST:
            assert moved <= head
            assert head - moved <= still
        else:
            assert every.keys() - moved <= still, step


def test_a_head_of_the_checkpoint_is_trained_with_the_backbone_from_the_first_step(tmp_path: Path) -> None:
    module, weights = trained(tmp_path, loaded=True, steps=3)
    assert module.first_steps == 0
    assert any(name.startswith("model.encoder.") for name in weights.moved(0))


def test_the_frozen_backbone_leaves_the_gradient_of_the_head_and_the_losses_as_they_are(tmp_path: Path) -> None:
    module, data, _ = trainings.run("head_first", tmp_path, dropout=0.0)
    batch = data.batches.batch(0)
    found = []
    for frozen in (False, True):
        module.zero_grad()
        module.requires_grad_(not frozen)
        module.model.head.requires_grad_()  # type: ignore[union-attr]
        encoder, contrast = module.objective(batch)
        losses = backpropagate(encoder, batch.chunks, contrast)
        head = {name: weight.grad for name, weight in module.model.head.named_parameters()}  # type: ignore[union-attr]
        found.append((losses, head))
    (losses, whole), (same, alone) = found
    assert losses.keys() == same.keys() == {"contrast", "mlm_head", "mlm_late"}
    assert all(torch.allclose(value, same[name]) for name, value in losses.items())
    assert all(value is not None and torch.allclose(value, alone[name], atol=1e-7) for name, value in whole.items())


def test_the_rate_rises_and_falls_in_the_first_steps_and_again_in_the_others() -> None:
    rates = [linear_schedule(step, 12, 0.25, FIRST) for step in range(13)]
    first, others = ([linear_schedule(step, number, 0.25) for step in range(number)] for number in (FIRST, 12 - FIRST))
    assert rates == [*first, *others, 0.0]


def test_no_step_for_the_backbone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^head_steps: 7 must be below the number of all steps, 7$"):
        trained(tmp_path, steps=FIRST)
