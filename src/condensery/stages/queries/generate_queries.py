"""Stage ``generate_queries``: generates queries for passages with a sequence-to-sequence model (Wu et al. 2023, §3.1).

Passages are sorted by length and divided into shards of batches, independently of the number of processes.
``condensery.sharing`` divides the shards among the processes. A restarted stage keeps the shards that an interrupted run has
finished.
"""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from condensery.models.generator import Sampling, load_generator
from condensery.models.precision import precision_on
from condensery.stages.base import Context
from condensery.stages.checks import model_folder
from condensery.stages.devices import torch_device
from condensery.stages.queries.config import GenerateQueriesConfig
from condensery.stages.queries.writing import write_queries
from condensery.stages.sharing import process_group
from condensery.system.files import atomic, read_json, write_json
from condensery.system.progress import progress
from condensery.text.lines import read_lines
from condensery.text.queries import Pair
from condensery.tokens.artifacts import Passages


def several_shards(config: GenerateQueriesConfig, context: Context) -> bool:
    """Return whether the passages make more than one shard."""
    return len(Passages(context.input("passages")).table) > max(config.shard_size, config.batch_size)


def generate_queries(config: GenerateQueriesConfig, context: Context) -> dict[str, Any]:
    """Write the queries of all passages. Raises ``UserError`` if the model cannot be used."""
    group, device = process_group(context.runtime), torch_device(context.runtime.accelerator).type
    precision_on(device, config.precision, context.place("precision"))
    shards = _Shards(config, context)
    with group.shards(shards.missing) as mine:
        if mine:
            _generate(shards, mine, config, context, device)
    group.leave_unless_rank_zero()
    counts = write_queries(shards.queries(), context)
    shards.remove()
    return counts


class _Shards:
    """The files of generated queries, one per shard.

    Attributes:
        rows: passage rows of each shard; over all shards, passages are sorted by length, longest first.
    """

    def __init__(self, config: GenerateQueriesConfig, context: Context) -> None:
        order = np.argsort(-Passages(context.input("passages")).store.lengths, kind="stable")
        batches = max(1, config.shard_size // config.batch_size)
        size = batches * config.batch_size
        self.rows = [order[first : first + size] for first in range(0, len(order), size)]
        self._folder = context.folder / "generated"
        self._layout = {"passages": len(order), "batch_size": config.batch_size, "batches": batches}

    def path(self, shard: int) -> Path:
        """Return the path of a shard's file."""
        return self._folder / f"{shard:06d}.jsonl"

    def missing(self) -> list[int]:
        """Return the indices of the missing shards, after removing shards with another layout."""
        about = self._folder / "layout.json"
        if not about.exists() or read_json(about) != self._layout:
            self.remove()
            about.parent.mkdir(parents=True)
            write_json(about, self._layout)
        return [shard for shard in range(len(self.rows)) if not self.path(shard).exists()]

    def queries(self) -> Iterator[Pair]:
        """Yield (passage row, query) for all shards."""
        for shard in range(len(self.rows)):
            for _, line in read_lines(self.path(shard), show=False):
                row, queries = json.loads(line)
                for query in queries:
                    yield row, query

    def remove(self) -> None:
        """Remove the shards, which are not needed after the artifact is written."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _generate(
    shards: _Shards, mine: Sequence[int], config: GenerateQueriesConfig, context: Context, device: str
) -> None:
    """Generate the queries of the shards ``mine``. Each line of a shard's file is for one passage: [row, [query, ...]]."""
    key = context.place("generator" if config.model is None else "model")
    source = str(model_folder(config.model) or config.model or context.input("generator"))
    table, number = Passages(context.input("passages")).table, sum(len(shards.rows[shard]) for shard in mine)
    sampling = Sampling(**config.values_of(*Sampling.__dataclass_fields__))
    began, done = time.monotonic(), 0
    with progress(context.stage_name, number, "passages") as task:
        generator = load_generator(source, key, config.revision, config.precision)
        generator.model.to(device)
        for shard in mine:
            rows = shards.rows[shard]
            with atomic(shards.path(shard)) as path, open(path, "w", encoding="utf-8") as lines:
                for first in range(0, len(rows), config.batch_size):
                    batch = rows[first : first + config.batch_size].tolist()
                    sampled = generator.sample(table.full_texts(batch, config.titles), batch, sampling)
                    for line in zip(batch, sampled, strict=True):
                        lines.write(json.dumps(line, ensure_ascii=False) + "\n")
                    done += len(batch)
                    rate = done / max(time.monotonic() - began, 1e-9)
                    task.note(f"{rate:,.1f} passages/s · {rate * config.number:,.1f} queries/s")
                    task.advance(len(batch))
