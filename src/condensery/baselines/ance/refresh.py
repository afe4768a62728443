"""The refresh of ANCE: the passages are encoded with the current weights, and the next queries' negatives are mined."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
from numpy.typing import NDArray
from torch import Tensor

from condensery.baselines.ance.batches import RefreshedBatches
from condensery.distributed import copy_first_weights
from condensery.errors import UserError
from condensery.models.biencoder import PASSAGE, QUERY
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.encoding import EncoderInput, Encoding, encode_chunks, write_dense_index
from condensery.retrieval.no_negatives import packed
from condensery.retrieval.shards import padded, rank_in_shards
from condensery.sharing import ProcessGroup
from condensery.system.progress import ProgressTask
from condensery.tokens.batches import Chunk
from condensery.training.callbacks import evaluating
from condensery.training.data.steps import Ids
from condensery.training.resumption import first_step

SHARD = 20_000  # passages per file of vectors, and queries per shard of a search
INDEX = "index"  # subfolder of a refresh, removed once its queries are searched


@dataclass(eq=False)
class Refresh(pl.Callback):
    """Mines negatives before the first step and after every ``batches.every`` steps, for the steps up to the next refresh.

    The processes divide the passages and the queries among themselves. A resumed run keeps the lists that the killed run has
    written, because it would mine the same lists again with the same weights.

    Attributes:
        batches: the batches, which say which queries come next.
        depth: negatives of each query.
        stage: folder of the stage, with the checkpoints.
        label: name of the stage, shown beside the progress.
        group: function that returns the processes of this training.
        threads: CPU threads of the search.
        device: device of the search; None = a GPU if there is one.
    """

    batches: RefreshedBatches
    depth: int
    stage: Path
    label: str
    group: Callable[[], ProcessGroup]
    threads: int = 1
    device: str | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self.batches.waits = True  # before the loader's workers begin

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        refresh, begun = divmod(trainer.global_step, self.batches.every)
        if begun and not self.batches.there(refresh):
            raise UserError(f"{self.batches.place(refresh)}: missing, and its step is past; delete the checkpoints")
        copy_first_weights(pl_module)  # the module does this only after the callbacks
        self._refresh(trainer, pl_module, refresh)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        refresh, begun = divmod(trainer.global_step, self.batches.every)
        if not begun and trainer.global_step < trainer.max_steps:
            self._refresh(trainer, pl_module, refresh)

    def _refresh(self, trainer: pl.Trainer, module: Any, refresh: int) -> None:
        """Mine with the current weights, unless the lists are complete. Remove the refreshes that no resumed run can need."""
        group, since = self.group(), time.monotonic()
        if group.from_rank_zero(lambda: self.batches.there(refresh)):
            return
        chosen = self.batches.asked(refresh, trainer.max_steps)  # (n,)
        with evaluating(trainer, module):
            self._mine(module, refresh, chosen, group)
        if group.rank == 0:
            shutil.rmtree(self.batches.place(refresh) / INDEX, ignore_errors=True)
            for number in range(first_step(self.stage) // self.batches.every):
                shutil.rmtree(self.batches.place(number), ignore_errors=True)
            message = f"negatives of {len(chosen):,} queries mined again in {time.monotonic() - since:,.0f} s"
            print(f"[{self.label}] step {trainer.global_step:,}: {message}", flush=True)

    def _mine(self, module: Any, refresh: int, chosen: Ids, group: ProcessGroup) -> None:
        """Write the ``depth`` best negatives of the training queries ``chosen`` (n,) into the folder of the refresh."""
        triples, folder = self.batches.triples, self.batches.place(refresh)
        training, label, budget = triples.training, f"{self.label}, refresh {refresh}", self.batches.budget

        def vectors(chunk: Chunk) -> Tensor:
            found: Tensor = module.vectors(chunk.to(module.device))
            return found

        encoding = Encoding(folder / INDEX, SHARD, budget, group=group, label=label, encoder="in training")
        encoding.passages(vectors, EncoderInput(triples.readers[PASSAGE]))
        group.from_rank_zero(lambda: write_dense_index(folder / INDEX))
        index = DenseIndex(folder / INDEX, self.threads, device=self.device)
        k = min(self.depth + int(training.no_negative_numbers()[chosen].max()), len(index))
        rows = training.rows[chosen]  # (n,), ascending

        def ranked(part: Ids, task: ProgressTask) -> tuple[NDArray[Any], ...]:
            numbers = chosen[np.searchsorted(rows, part)]
            queries = encode_chunks(vectors, triples.readers[QUERY].chunks(part, budget, QUERY), len(part))
            scores, found = index.search_vectors(queries, k, task)  # (m, k) each
            free = self._free(numbers, found)  # (m, k)
            return padded([(s[kept], f[kept]) for s, f, kept in zip(scores, found, free, strict=True)], self.depth)

        rank_in_shards(ranked, rows, folder, label, size=SHARD, group=group)

    def _free(self, chosen: Ids, found: Ids) -> NDArray[np.bool_]:
        """Return a mask (m, k): True if a passage in ``found`` (m, k) may be a negative of its query in ``chosen`` (m,)."""
        training = self.batches.triples.training
        excluded, numbers = training.no_negatives(chosen)
        named = found if training.known is None else training.known.passages.first(found)  # (m, k)
        places = np.arange(len(chosen))
        known = np.isin(packed(places[:, None], named), packed(np.repeat(places, numbers), excluded))
        return (found >= 0) & ~known
