"""The precisions of Lightning's Trainer: every module trains in it, or says in one line in which it does."""

from pathlib import Path

import pytest
import torch
from test_modules import KINDS, RATE, trainer, weights

from condensery import BiEncoderModule, CoCondenserModule, UserError


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("precision", "dtype"), [("64-true", torch.float64), ("bf16-true", torch.bfloat16)])
def test_every_module_trains_and_validates_in_true_precisions(
    kind: str, precision: str, dtype: torch.dtype, world: Path, tmp_path: Path
) -> None:
    made = KINDS[kind]
    module = made.module(world / "bert", **RATE)
    before = weights(module)
    run = trainer(tmp_path, max_steps=2, precision=precision)
    run.fit(module, made.data(world))
    after = weights(module)
    assert {value.dtype for value in after.values() if value.is_floating_point()} == {dtype}
    assert any(not torch.equal(value, before[name].to(value.dtype)) for name, value in after.items())
    assert run.callback_metrics["train/loss"].isfinite()
    module.save_pretrained(tmp_path / "saved")
    made.module(tmp_path / "saved")
