"""What a training stage leaves in the memory of the process that runs the next stage."""

import gc
from pathlib import Path

import pytest
from small_runs import run_command

from condensery.training.modules.optimisation import TrainingModule


@pytest.mark.slow
def test_no_model_stays_in_memory_after_its_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's trainer and the module refer to each other. Python does not collect garbage by itself in this test."""
    monkeypatch.setattr("condensery.system.memory_growth._GROWN", -(1 << 40))  # the models of this test are small
    before = {id(one) for one in gc.get_objects() if isinstance(one, TrainingModule)}
    threshold = gc.get_threshold()
    gc.set_threshold(0)
    try:
        run_command(
            *("experiment=short", "~stages.condenser", "~stages.cocondenser", "stages.round1.init=backbone"),
            f"output_root={tmp_path}",
        ).sound()
        left = [
            type(one).__name__ for one in gc.get_objects() if isinstance(one, TrainingModule) and id(one) not in before
        ]
    finally:
        gc.set_threshold(*threshold)
    assert left == []
