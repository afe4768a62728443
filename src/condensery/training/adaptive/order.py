"""Adaptive batches (Zhao et al. 2023, §3.2), made by a separate process while training runs. This file imports no torch.

The separate process and the training processes communicate only through files in the stage's folder. To read a batch, a
training process waits until the file contains it. A run that was killed resumes with the existing files. The files are:

    00001.vectors.npz   vectors of the queries (t, d) and positives (u, d), encoded before the first step of epoch 1; deleted
                        when all batches of epoch 1 are made
    00001.batches       the pairs of batch 0, then of batch 1, ... as int32; the file grows as batches are made
    failed.txt          the reason why no more batches will be made

The batches of an epoch depend only on seed, epoch and similarities. They do not depend on the time or the process in which
they are made.

Symbols in shapes: t training pairs, u passages that are relevant to some query, d dimensions.
"""

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.system.children import Parent
from condensery.system.files import load_arrays, write_text
from condensery.training.adaptive.search import Ids, Scheduler
from condensery.training.data.training_queries import drawn_positives

Similarity = Literal["bm25", "encoder", "bm25_then_encoder"]
Vectors = NDArray[np.float32]

_PAUSE = 0.02  # seconds between two checks of a file


@dataclass(frozen=True)
class AdaptiveOrder:
    """An ``Order`` of hard batches. It is pickled for other processes, so ``lexical`` and ``dense`` must be picklable.

    Attributes:
        folder: folder of the files through which the processes communicate.
        positives, starts: see ``TrainingQueries``.
        batch_size, beam, seed: see ``Scheduler``.
        similarity: bm25 or encoder = this similarity in all epochs; bm25_then_encoder = BM25 in the first epoch, encoder in
            later epochs.
        lexical: function that returns the BM25 scores (t, u) of queries and positives.
        dense: function that returns the similarities (t, u) of query vectors (t, d) and vectors of positives (u, d).
        known: the passages that are excluded as negatives of each query, as ``TrainingQueries.no_negatives`` returns them;
            None = the query's positives.
    """

    folder: Path
    positives: Ids
    starts: Ids
    batch_size: int
    beam: int
    seed: int
    similarity: Similarity
    lexical: Callable[[], sparse.csr_matrix]
    dense: Callable[[Vectors, Vectors], sparse.csr_matrix]
    known: tuple[Ids, Ids] | None = None

    def __call__(self, step: int) -> tuple[int, Ids]:
        """Wait until the batch of a step is made; return the epoch of the step and the pairs (b,) of the batch.

        Raises:
            UserError: the process that makes the batches has failed.
        """
        items = self.items
        epoch, position = divmod(step, -(-items // self.batch_size))
        first = position * self.batch_size
        size = min(self.batch_size, items - first)
        while self._scheduled(epoch) < first + size:
            self.check()
            time.sleep(_PAUSE)
        return epoch, np.fromfile(self._batches(epoch), np.int32, size, offset=4 * first).astype(np.int64)

    @property
    def items(self) -> int:
        """The number t of training pairs in an epoch."""
        return len(self.starts) - 1

    @cached_property
    def passages(self) -> Ids:
        """The passages (u,) that are relevant to some query, ascending."""
        return np.unique(self.positives)

    def vectors(self, epoch: int) -> Path | None:
        """Return the path of the file with an epoch's vectors; None if no vectors are needed or all batches are made."""
        encoded = self.similarity == "encoder" or (self.similarity == "bm25_then_encoder" and epoch > 0)
        whole = self._scheduled(epoch) == self.items
        return self.folder / f"{epoch:05d}.vectors.npz" if encoded and not whole else None

    def make(self, epoch: int) -> None:
        """Wait for the vectors of an epoch, then make those batches of the epoch that do not exist yet."""
        items, vectors, path = self.items, self.vectors(epoch), self._batches(epoch)
        scheduled = self._scheduled(epoch)
        if scheduled == items:
            return
        similarity = self._dense(vectors) if vectors else self._lexical
        drawn = drawn_positives(self.positives, self.starts, np.arange(items), self.seed, epoch)  # (t,)
        passage = np.searchsorted(self.passages, drawn)  # (t,)
        scheduler = Scheduler(similarity, passage, self.batch_size, self.beam, self.seed, epoch)
        with open(path, "ab") as stream:
            stream.truncate(4 * (scheduled - scheduled % self.batch_size))
            for batch in scheduler.batches(np.fromfile(path, np.int32).astype(np.int64)):
                stream.write(batch.astype(np.int32).tobytes())
                stream.flush()
        if vectors:
            vectors.unlink()

    def check(self) -> None:
        """Raise ``UserError`` if the process that makes the batches has failed."""
        if self._failed.exists():
            raise UserError(self._failed.read_text(encoding="utf-8"))

    def fail(self, why: str) -> None:
        """Write the reason ``why`` no more batches will be made, for all processes that wait for a batch."""
        write_text(self._failed, f"adaptive batches: {why}")

    def begin(self) -> None:
        """Create the folder, and delete the failure message of an earlier run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._failed.unlink(missing_ok=True)

    @property
    def _failed(self) -> Path:
        return self.folder / "failed.txt"

    def _batches(self, epoch: int) -> Path:
        return self.folder / f"{epoch:05d}.batches"

    def _scheduled(self, epoch: int) -> int:
        """Return the number of pairs of an epoch that are in the file. A pair that is written only in part does not count."""
        path = self._batches(epoch)
        return path.stat().st_size // 4 if path.exists() else 0

    @cached_property
    def _lexical(self) -> sparse.csr_matrix:
        return self._negatives(self.lexical())

    def _dense(self, path: Path) -> sparse.csr_matrix:
        while not path.exists():
            time.sleep(_PAUSE)
        stored = load_arrays(path)
        return self._negatives(self.dense(stored["queries"], stored["passages"]))

    def _negatives(self, similarity: sparse.csr_matrix) -> sparse.csr_matrix:
        """Set the similarity to 0 if a passage is excluded as a negative of the query. Such pairs add no hardness."""
        passages, numbers = self.known or (self.positives, np.diff(self.starts))
        here = np.isin(passages, self.passages)
        place, queries = np.searchsorted(self.passages, passages[here]), np.repeat(np.arange(self.items), numbers)[here]
        known = sparse.csr_matrix((np.ones(len(place), np.float32), (queries, place)), shape=similarity.shape)
        negatives = (similarity - similarity.multiply(known)).tocsr()
        negatives.eliminate_zeros()
        return negatives


def make_all(parent: Parent, order: AdaptiveOrder, epochs: range) -> None:
    """Make the batches of the given epochs in order. The separate process runs this function."""
    parent.end_with()
    os.environ["CONDENSERY_PROGRESS"] = "off"  # only the training process writes to the terminal
    try:
        for epoch in epochs:
            order.make(epoch)
    except UserError as error:
        order.fail(str(error))
    except BaseException as error:
        traceback.print_exc()
        order.fail(f"{type(error).__name__}: {error}")
