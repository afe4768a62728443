"""The trainings of the baselines go on with another number of processes, with the same batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_ance
import test_costa
import test_late_interaction
import test_nli
import test_rocketqa_v2
import test_seed
import test_simlm_pretraining
import textbook
import torch
import trainings
from other_processes import Run, Runs, check
from torch import distributed

from condensery.baselines.ance.refresh import Refresh
from condensery.baselines.late_interaction.training import LateInteractionModule
from condensery.baselines.splade.model import SparseEncoder, SpladeLoss
from condensery.baselines.splade.training import SpladeModule
from condensery.baselines.tas_b.batches import TopicOrder
from condensery.sharing import ProcessGroup
from condensery.stages.base import DistributedProcess, Runtime, Wandb
from condensery.stages.sharing import process_group
from condensery.tokens.tokenizer import train_wordpiece
from condensery.training.data.data_module import StepDataModule


def of_module(tested: Any) -> Any:
    """The module and the batches of a test of one baseline."""
    make = next(getattr(tested, name) for name in ("batches_of", "joint_batches", "batches") if hasattr(tested, name))
    return lambda folder, name: (tested.module(), StepDataModule(make(folder)), [])


def group() -> ProcessGroup:
    """The processes of this training."""
    joined = distributed.is_initialized()
    number = distributed.get_world_size() if joined else 1
    member = DistributedProcess(distributed.get_rank(), number, 0, number) if joined else None
    return process_group(
        Runtime("cpu", 1, 1, 0, Wandb(project="x", entity=None, enabled=False), "x", Path(), distributed=member)
    )


def ance(folder: Path, name: str) -> Run:
    """A refresh before the steps 0 and 4, whose lists the next attempt reads."""
    batches = test_ance.refreshed(folder, name=f"{name} refreshed")
    refresh = Refresh(batches, test_ance.DEPTH, folder / name, name, group, device="cpu")
    return test_ance.module(), StepDataModule(batches), [refresh]


def tas_b(folder: Path, name: str) -> Run:
    module, _, _ = trainings.run("biencoder", folder, dropout=0.0)
    order = TopicOrder.of(np.arange(13) % 3, 6, 2, seed=5)
    return module, StepDataModule(trainings.triple_batches(folder, order=order)), []


def late_interaction(folder: Path, name: str) -> Run:
    words = folder / "words"
    if not words.exists():
        train_wordpiece([*test_late_interaction.QUERIES, *test_late_interaction.PASSAGES] * 5, 120, words, warn=False)
    model = test_late_interaction.encoder(words, "coil").float().train()
    module = LateInteractionModule(model, **trainings.optimiser())
    return module, StepDataModule(trainings.triple_batches(folder)), []


def splade(folder: Path, name: str) -> Run:
    torch.manual_seed(1)
    model = SparseEncoder(textbook.language_model(dropout=0.0).float())
    module = SpladeModule(model, loss=SpladeLoss(1e-3, 1e-3, 4), **trainings.optimiser())
    return module, StepDataModule(trainings.triple_batches(folder)), []


RUNS: Runs = {
    "ance": ance,
    "tas_b": tas_b,
    "splade": splade,
    "late_interaction": late_interaction,
    **{
        tested.__name__: of_module(tested)
        for tested in (test_costa, test_nli, test_rocketqa_v2, test_seed, test_simlm_pretraining)
    },
}


@pytest.mark.slow
def test_stopped_trainings_go_on_with_another_number_of_processes(tmp_path: Path) -> None:
    check(RUNS, tmp_path, drawn={"test_simlm_pretraining"})
