"""Queries generated in shards, by this process or by several, so that an interrupted stage goes on where it stopped.

Passages are sorted by length and cut into batches once, whatever the number of processes; a shard is some batches that
follow each other. See ``condensery.sharing``.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from condensery.models.generator import Generator, Sampling, load_generator
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.system.files import atomic, open_text, read_json, write_json
from condensery.system.progress import ProgressTask, progress
from condensery.tokens.artifacts import Passages

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
        device: ``cpu`` or ``cuda``.
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
    sampling: Sampling
    device: str

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

    def shards(self, passages: int) -> range:
        """The numbers of all shards of so many passages."""
        return range(-(-passages // (self.batches_of_a_shard * self.batch_size)))


def generate(plan: Plan, label: str, group: ProcessGroup = SINGLE_PROCESS) -> None:
    """Generate what is not there yet. Raises ``UserError`` where the model cannot be used."""
    order = np.argsort(-Passages(plan.passages).store.lengths, kind="stable")
    with group.shards(lambda: _missing(plan, len(order))) as mine:
        if mine:
            _generate(plan, mine, order, label)


def generated(plan: Plan) -> Iterator[tuple[int, str]]:
    """(row of the passage, query) of all shards."""
    for shard in plan.shards(len(Passages(plan.passages).table)):
        with open_text(plan.path(shard)) as lines:
            for line in lines:
                row, queries = json.loads(line)
                for query in queries:
                    yield row, query


def remove_shards(folder: Path) -> None:
    """What is left of the work once the artifact is written."""
    shutil.rmtree(folder / _SHARDS, ignore_errors=True)


def _missing(plan: Plan, passages: int) -> list[int]:
    """The shards that are not there yet; those that are cut otherwise are removed."""
    layout = {"passages": passages, "batch_size": plan.batch_size, "batches": plan.batches_of_a_shard}
    about = plan.folder / _SHARDS / "layout.json"
    if not about.exists() or read_json(about) != layout:
        remove_shards(plan.folder)
        about.parent.mkdir(parents=True)
        write_json(about, layout)
    return [shard for shard in plan.shards(passages) if not plan.path(shard).exists()]


class _Rate:
    """Tells a task how many passages are done, and beside it how fast."""

    def __init__(self, task: ProgressTask) -> None:
        self.task, self.started = task, time.monotonic()
        self.passages = self.queries = 0

    def __call__(self, passages: int, queries: int) -> None:
        self.passages, self.queries = self.passages + passages, self.queries + queries
        seconds = max(time.monotonic() - self.started, 1e-9)
        self.task.note(f"{self.passages / seconds:,.1f} passages/s · {self.queries / seconds:,.1f} queries/s")
        self.task.advance(passages)


def _generate(plan: Plan, shards: Sequence[int], order: np.ndarray, label: str) -> None:

    with progress(label, sum(len(plan.rows(shard, order)) for shard in shards), "passages") as task:
        advance = _Rate(task)
        generator = load_generator(plan.source, plan.key, plan.revision, plan.precision)
        generator.model.to(plan.device)
        for shard in shards:
            _write_shard(plan, generator, shard, order, advance)


def _write_shard(plan: Plan, generator: Generator, shard: int, order: np.ndarray, advance: Advance) -> None:
    """Sample the queries of a shard's passages; a line a passage: [row, [query, ...]]."""
    table = Passages(plan.passages).table
    with atomic(plan.path(shard)) as temporary, open(temporary, "w", encoding="utf-8") as lines:
        for rows in plan.batches(shard, order):
            texts = table.full_texts(rows, plan.titles)
            sampled = generator.sample(texts, rows.tolist(), plan.sampling)
            for row, queries in zip(rows.tolist(), sampled, strict=True):
                lines.write(json.dumps([row, queries], ensure_ascii=False) + "\n")
            advance(len(rows), sum(map(len, sampled)))
