"""Generation of queries in shards, by one or several processes; an interrupted stage goes on where it stopped.

Passages are sorted by length and cut into batches once, whatever the number of processes. A shard consists of consecutive
batches. ``condensery.sharing`` divides the shards among the processes.
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
Advance = Callable[[int, int], None]  # called with numbers of passages and queries


@dataclass(frozen=True)
class Plan:
    """The settings by which a process generates queries.

    Attributes:
        passages: the artifact with the passages.
        folder: the folder that holds the shards.
        source, revision, key: arguments of ``load_generator``.
        precision: of the model.
        titles: whether the generator reads titles.
        batch_size: passages that are sampled together.
        shard_size: approximate number of passages per file; nothing else depends on it.
        sampling: settings of the draws of queries.
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
        """Return the file of a shard."""
        return self.folder / _SHARDS / f"{shard:06d}.jsonl"

    @property
    def batches_of_a_shard(self) -> int:
        """Batches per file; the last file may have fewer."""
        return max(1, self.shard_size // self.batch_size)

    def batches(self, shard: int, order: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the rows of each batch of a shard; ``order`` has all rows, longest passage first."""
        first = shard * self.batches_of_a_shard
        for batch in range(first, first + self.batches_of_a_shard):
            if rows := order[batch * self.batch_size : (batch + 1) * self.batch_size].tolist():
                yield np.asarray(rows)

    def rows(self, shard: int, order: np.ndarray) -> np.ndarray:
        """Return all rows of a shard."""
        size = self.batches_of_a_shard * self.batch_size
        return order[shard * size : (shard + 1) * size]

    def shards(self, passages: int) -> range:
        """Return the numbers of all shards of ``passages`` passages."""
        return range(-(-passages // (self.batches_of_a_shard * self.batch_size)))


def generate(plan: Plan, label: str, group: ProcessGroup = SINGLE_PROCESS) -> None:
    """Generate the queries of the shards that do not exist yet.

    Args:
        plan: the settings.
        label: name of the progress bar.
        group: the processes that share the shards.

    Raises:
        UserError: the model cannot be used.
    """
    order = np.argsort(-Passages(plan.passages).store.lengths, kind="stable")
    with group.shards(lambda: _missing(plan, len(order))) as mine:
        if mine:
            _generate(plan, mine, order, label)


def generated(plan: Plan) -> Iterator[tuple[int, str]]:
    """Yield (row of the passage, query) of all shards."""
    for shard in plan.shards(len(Passages(plan.passages).table)):
        with open_text(plan.path(shard)) as lines:
            for line in lines:
                row, queries = json.loads(line)
                for query in queries:
                    yield row, query


def remove_shards(folder: Path) -> None:
    """Remove the shards, which are not needed once the artifact is written."""
    shutil.rmtree(folder / _SHARDS, ignore_errors=True)


def _missing(plan: Plan, passages: int) -> list[int]:
    """Return the numbers of missing shards, after removing shards with another layout."""
    layout = {"passages": passages, "batch_size": plan.batch_size, "batches": plan.batches_of_a_shard}
    about = plan.folder / _SHARDS / "layout.json"
    if not about.exists() or read_json(about) != layout:
        remove_shards(plan.folder)
        about.parent.mkdir(parents=True)
        write_json(about, layout)
    return [shard for shard in plan.shards(passages) if not plan.path(shard).exists()]


class _Rate:
    """Tells a progress task the number of passages done and the rate."""

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
    """Sample the queries of a shard's passages and write a line per passage: [row, [query, ...]]."""
    table = Passages(plan.passages).table
    with atomic(plan.path(shard)) as temporary, open(temporary, "w", encoding="utf-8") as lines:
        for rows in plan.batches(shard, order):
            texts = table.full_texts(rows, plan.titles)
            sampled = generator.sample(texts, rows.tolist(), plan.sampling)
            for row, queries in zip(rows.tolist(), sampled, strict=True):
                lines.write(json.dumps([row, queries], ensure_ascii=False) + "\n")
            advance(len(rows), sum(map(len, sampled)))
