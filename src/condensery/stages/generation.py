"""Queries generated in shards, by this process or by several, so that an interrupted stage goes on where it stopped.

Passages are sorted by length and cut into batches once, whatever the number of workers; a shard is some batches that
follow each other. It is one file, which is there only when it is whole.
"""

import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from condensery.errors import UserError
from condensery.files import atomic, open_text, read_json, write_json
from condensery.progress import Task, progress

if TYPE_CHECKING:
    from condensery.models.generator import Generator, Sampling

_SHARDS = "generated"
Advance = Callable[[int, int], None]  # so many passages, so many queries


@dataclass(frozen=True)
class Plan:
    """All that a process needs to know.

    Attributes:
        passages: the artifact with the passages.
        folder: where the shards are written.
        source, revision, key: see ``load_generator``.
        precision: of the model.
        titles: whether the generator reads them.
        batch_size: passages that are sampled together.
        shard_size: passages a file, about; nothing else depends on it.
        sampling: how queries are drawn.
        devices: ``cpu``, ``cuda:0``, ...; worker i computes on number i modulo their count.
        threads: of a process.
    """

    passages: Path
    folder: Path
    source: str
    revision: str | None
    key: str
    precision: str
    titles: bool
    batch_size: int
    shard_size: int
    sampling: "Sampling"
    devices: tuple[str, ...]
    threads: int

    def path(self, shard: int) -> Path:
        """The file of a shard."""
        return self.folder / _SHARDS / f"{shard:06d}.jsonl"

    @property
    def batches_of_a_shard(self) -> int:
        """Batches a file, the last one apart."""
        return max(1, self.shard_size // self.batch_size)

    def batches(self, shard: int, order: np.ndarray) -> Iterator[np.ndarray]:
        """The rows of each batch of a shard; ``order``: all rows, longest first."""
        first = shard * self.batches_of_a_shard
        for batch in range(first, first + self.batches_of_a_shard):
            if rows := order[batch * self.batch_size : (batch + 1) * self.batch_size].tolist():
                yield np.asarray(rows)

    def rows(self, shard: int, order: np.ndarray) -> np.ndarray:
        """All rows of a shard."""
        size = self.batches_of_a_shard * self.batch_size
        return order[shard * size : (shard + 1) * size]


def order_of(passages: Path) -> np.ndarray:
    """The rows of all passages, longest first, equal ones in their order."""
    from condensery.stages.texts import Passages

    return np.argsort(-Passages(passages).store.lengths, kind="stable")


def generate(plan: Plan, workers: int, label: str) -> Iterator[tuple[int, str]]:
    """Generate what is not there yet, then yield (row of the passage, query) from all shards.

    Raises ``UserError`` where the model cannot be used, or a worker process dies.
    """
    order = order_of(plan.passages)
    shards = range(-(-len(order) // (plan.batches_of_a_shard * plan.batch_size)))
    _prepare(plan, len(order))
    left = [shard for shard in shards if not plan.path(shard).exists()]
    done = len(order) - sum(len(plan.rows(shard, order)) for shard in left)
    if left:
        with progress(label, len(order), "passages", done=done) as task:
            advance = _Rate(task)
            if workers == 1:
                _here(plan, left, order, advance)
            else:
                _in_processes(plan, left, order, min(workers, len(left)), advance)
    for shard in shards:
        with open_text(plan.path(shard)) as lines:
            for line in lines:
                row, queries = json.loads(line)
                for query in queries:
                    yield row, query


def remove_shards(folder: Path) -> None:
    """What is left of the work once the artifact is written."""
    shutil.rmtree(folder / _SHARDS, ignore_errors=True)


def _prepare(plan: Plan, passages: int) -> None:
    """Keep the shards that lie there where they are cut as these are, and remove them where they are not."""
    layout = {"passages": passages, "batch_size": plan.batch_size, "batches": plan.batches_of_a_shard}
    about = plan.folder / _SHARDS / "layout.json"
    if not about.exists() or read_json(about) != layout:
        remove_shards(plan.folder)
        about.parent.mkdir(parents=True)
        write_json(about, layout)


class _Rate:
    """Tells a task how many passages are done, and beside it how fast."""

    def __init__(self, task: Task) -> None:
        self.task, self.started = task, time.monotonic()
        self.passages = self.queries = 0

    def __call__(self, passages: int, queries: int) -> None:
        self.passages, self.queries = self.passages + passages, self.queries + queries
        seconds = max(time.monotonic() - self.started, 1e-9)
        self.task.note(f"{self.passages / seconds:,.1f} passages/s · {self.queries / seconds:,.1f} queries/s")
        self.task.advance(passages)


def _here(plan: Plan, shards: list[int], order: np.ndarray, advance: Advance) -> None:
    generator = _load(plan, 0)
    for shard in shards:
        _write_shard(plan, generator, shard, order, advance)


def _load(plan: Plan, worker: int) -> "Generator":
    from condensery.models.generator import load_generator

    generator = load_generator(plan.source, plan.key, plan.revision, plan.precision)
    generator.model.to(plan.devices[worker % len(plan.devices)])
    return generator


def _write_shard(plan: Plan, generator: "Generator", shard: int, order: np.ndarray, advance: Advance) -> None:
    """Sample the queries of a shard's passages; a line a passage: [row, [query, ...]]."""
    from condensery.stages.texts import Passages

    table = Passages(plan.passages).table
    with atomic(plan.path(shard)) as temporary, open(temporary, "w", encoding="utf-8") as lines:
        for rows in plan.batches(shard, order):
            texts = table.full_texts(rows, plan.titles)
            found = generator.sample(texts, rows.tolist(), plan.sampling)
            for row, queries in zip(rows.tolist(), found, strict=True):
                lines.write(json.dumps([row, queries], ensure_ascii=False) + "\n")
            advance(len(rows), sum(map(len, found)))


def _in_processes(plan: Plan, shards: list[int], order: np.ndarray, workers: int, advance: Advance) -> None:
    context = multiprocessing.get_context("spawn")
    numbers: Queue[int] = context.Queue()
    for worker in range(workers):
        numbers.put(worker)
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(plan, numbers))
    try:
        waiting: set[Future[int]] = {pool.submit(_work, shard) for shard in shards}
        while waiting:
            finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in finished:
                advance(future.result(), future.result() * plan.sampling.number)
    except BrokenProcessPool:
        raise UserError(
            f"{plan.key}: a process that generates queries died, perhaps for want of memory; run the same command to go"
            " on, with fewer workers or a smaller batch_size"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        numbers.close()


_own: dict[str, Any] = {}  # of this worker process: plan, generator, order


def _start(plan: Plan, numbers: "Queue[int]") -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _own["plan"], _own["number"] = plan, numbers.get()


def _end_with_parent() -> None:
    """A parent that is killed tells nobody; without this its workers would wait for ever, each with a model."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _work(shard: int) -> int:
    """Write one shard; how many passages it has. The model is loaded with the first, so that its faults are told."""
    import torch

    plan: Plan = _own["plan"]
    if "generator" not in _own:
        torch.set_num_threads(plan.threads)
        _own["generator"], _own["order"] = _load(plan, _own["number"]), order_of(plan.passages)
    _write_shard(plan, _own["generator"], shard, _own["order"], lambda passages, queries: None)
    return len(plan.rows(shard, _own["order"]))
