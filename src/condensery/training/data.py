"""The LightningDataModules: for pre-training on spans, on passages with queries, and for fine-tuning on queries."""

from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from condensery.children import Parent
from condensery.objectives.cross_batch import processes, rank
from condensery.signals import deaf_to_ctrl_c
from condensery.training.batches import Batch, Batches, Share, StepDataset, StepSampler, begin_worker


class StepDataModule(pl.LightningDataModule):
    """Hands the batch of each step to the trainer, from the step at which the trainer stands."""

    def __init__(self, batches: Batches, steps: int, workers: int = 0) -> None:
        super().__init__()
        self.batches, self.steps, self.workers = batches, steps, workers

    def train_dataloader(self) -> DataLoader[Batch]:
        first = self.trainer.global_step if self.trainer else 0
        return _Loader(
            StepDataset(self.batches, self.steps, Share(rank(), processes())),
            batch_size=None,
            sampler=StepSampler(first, self.steps),
            num_workers=self.workers,
            multiprocessing_context="spawn" if self.workers else None,
            worker_init_fn=partial(begin_worker, Parent.here()),
            persistent_workers=False,
        )

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        return batch.to(device)


class _Loader(DataLoader[Batch]):
    """Its worker processes pass over Ctrl-C."""

    def __iter__(self) -> Any:
        with deaf_to_ctrl_c():
            return super().__iter__()


class SpanPairDataModule(StepDataModule):
    """Masked spans for Condenser and MLM, pairs of spans for coCondenser and CoT-MAE, sentences and passages for ICT."""


class PassageQueryDataModule(SpanPairDataModule):
    """Passages with one of their queries each, for query-as-context pre-training."""


class TripleDataModule(StepDataModule):
    """Queries with a positive and hard negatives each, for the bi-encoder."""
