"""The LightningDataModules: for pre-training on spans, on passages with queries, and for fine-tuning on queries."""

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from condensery.training.batches import SpanBatch, SpanBatches, StepDataset, StepSampler, TripleBatch, TripleBatches


class _StepDataModule(pl.LightningDataModule):
    """Hands the batch of each step to the trainer, from the step at which the trainer stands."""

    def __init__(self, batches: SpanBatches | TripleBatches, steps: int, workers: int) -> None:
        super().__init__()
        self.batches, self.steps, self.workers = batches, steps, workers

    def train_dataloader(self) -> DataLoader[SpanBatch | TripleBatch]:
        first = self.trainer.global_step if self.trainer else 0
        return DataLoader(
            StepDataset(self.batches, self.steps),
            batch_size=None,
            sampler=StepSampler(first, self.steps),
            num_workers=self.workers,
            multiprocessing_context="spawn" if self.workers else None,
            persistent_workers=False,
        )

    def transfer_batch_to_device(
        self, batch: SpanBatch | TripleBatch, device: torch.device, dataloader_idx: int
    ) -> SpanBatch | TripleBatch:
        return batch.to(device)


class SpanPairDataModule(_StepDataModule):
    """Masked spans for Condenser and MLM, pairs of spans for coCondenser and CoT-MAE, sentences and passages for ICT."""

    def __init__(self, batches: SpanBatches, steps: int, workers: int = 0) -> None:
        super().__init__(batches, steps, workers)


class PassageQueryDataModule(SpanPairDataModule):
    """Passages with one of their queries each, for query-as-context pre-training."""


class TripleDataModule(_StepDataModule):
    """Queries with a positive and hard negatives each, for the bi-encoder."""

    def __init__(self, batches: TripleBatches, steps: int, workers: int = 0) -> None:
        super().__init__(batches, steps, workers)
