"""The callback for adaptive batches in the training process (Zhao et al. 2023, §3.2)."""

import threading
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytorch_lightning as pl

from condensery.distributed import from_rank_zero, rank
from condensery.errors import UserError
from condensery.models.biencoder import PASSAGE, QUERY
from condensery.retrieval.finite import check_finite
from condensery.retrieval.indexes.encoding import encode_chunks
from condensery.system.children import Parent
from condensery.system.files import atomic
from condensery.system.signals import deaf_to_ctrl_c
from condensery.system.spawning import spawning
from condensery.training.adaptive.order import AdaptiveOrder, Vectors, make_all
from condensery.training.callbacks import evaluating
from condensery.training.data.steps import Ids
from condensery.training.data.triple_batches import TripleBatches
from condensery.training.validation import DIVERGING

_BLOCK = 4096  # number of texts that are sorted by length and encoded together


class AdaptiveBatches(pl.Callback):
    """Starts the process that makes the batches (Zhao et al. 2023), and re-encodes queries and positives after each epoch.

    With several training processes, only the first process does this work.
    """

    def __init__(self, order: AdaptiveOrder, batches: TripleBatches) -> None:
        self.order, self.batches = order, batches
        self.process: BaseProcess | None = None
        self.watch = threading.Thread(target=self._watch, daemon=True)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if rank() == 0:
            self._begin(trainer, pl_module)
        from_rank_zero(None)  # the other processes wait until ``_begin`` has deleted an earlier run's failure message

    def _begin(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        epoch, position = divmod(trainer.global_step, self.batches.steps_an_epoch())
        vectors = self.order.vectors(epoch)
        if vectors and position and not vectors.exists():
            raise UserError(f"{vectors}: no such file, and it cannot be made again; to restart, delete the checkpoints")
        self.order.begin()
        self._encode(trainer, pl_module, epoch)
        epochs = range(epoch, -(-trainer.max_steps // self.batches.steps_an_epoch()))
        context = spawning("batching=adaptive")
        self.process = context.Process(target=make_all, args=(Parent.here(), self.order, epochs), daemon=True)
        with deaf_to_ctrl_c():
            self.process.start()
        self.watch.start()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        epoch, position = divmod(trainer.global_step, self.batches.steps_an_epoch())
        if position == 0 and trainer.global_step < trainer.max_steps and rank() == 0:
            self._encode(trainer, pl_module, epoch)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            process.kill()
            self.watch.join()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")

    def _watch(self) -> None:
        """Report a failure if the batch-making process dies. Otherwise training would wait for batches for ever."""
        process = self.process
        assert process is not None
        process.join()
        if self.process is process and process.exitcode:
            self.order.fail(f"their process died (exit code {process.exitcode}), perhaps because memory was full")

    def _encode(self, trainer: pl.Trainer, module: Any, epoch: int) -> None:
        """Encode texts with the current weights, and write the vectors for an epoch, unless they exist or are not needed."""
        path = self.order.vectors(epoch)
        if path is None or path.exists():
            return
        batches = self.batches
        with evaluating(trainer, module):
            queries = self._vectors(module, QUERY, batches.training.rows)
            passages = self._vectors(module, PASSAGE, self.order.passages)
        with atomic(path) as temporary, open(temporary, "wb") as stream:
            np.savez(stream, queries=queries, passages=passages)

    def _vectors(self, module: Any, tower: int, rows: Ids) -> Vectors:
        """Return vectors (n, d) of the queries or passages ``rows`` (n,). Raises ``UserError`` if a vector is not finite."""
        reader, parts = self.batches.readers[tower], []
        for first in range(0, len(rows), _BLOCK):
            some = rows[first : first + _BLOCK]
            read = reader.chunks(some, self.batches.budget, tower)
            parts.append(encode_chunks(lambda chunk: module.vectors(chunk.to(module.device)), read, len(some)))
        vectors = np.concatenate(parts)
        what = "query" if tower == QUERY else "passage"
        check_finite(vectors, f"adaptive batches: the vector of {what} row", rows, DIVERGING)
        return vectors
