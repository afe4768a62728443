"""Record digests of the batches that a run trains on, to compare runs on different numbers of processes.

A run records them if three variables are set: ``CONDENSERY_STAGES`` names this module, ``PYTHONPATH`` has its folder, and
``CONDENSERY_DIGESTS`` names a folder. Each process then writes a file there, with a line before each optimisation step:

    STAGE/ATTEMPT-PROCESSES-RANK.jsonl   [step, [digest, ...]]

STAGE is the id of the stage's artifact. ATTEMPT is a number that the processes of one attempt at the stage share. A batch has
a digest for each text with its masked tokens, and for each relation of two texts, such as a query and its positive. The
digests depend neither on chunks nor on the order. A passage that several processes read has one digest. So all processes
together have the digests that a single process would have for this batch.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from condensery.distributed import from_rank_zero, processes, rank
from condensery.tokens.batches import Chunk
from condensery.training.data.steps import Batch
from condensery.training.modules.optimisation import TrainingModule

FOLDER = "CONDENSERY_DIGESTS"
IGNORED = -100  # label of padding
Steps = dict[int, set[frozenset[str]]]


def digests(batch: Batch) -> set[str]:
    """Return the digests of a batch, or of a process's share of it."""
    rows = {row: _row(chunk, place) for chunk in batch.chunks for place, row in enumerate(chunk.rows.tolist())}
    return {*rows.values(), *map(_digest, _relations(vars(batch), rows))}


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _row(chunk: Chunk, place: int) -> str:
    """Return the digest of one row of a chunk, without its padding."""
    width, fields = chunk.input_ids.shape[1], vars(chunk)
    found: dict[str, Any] = {"ids": chunk.input_ids[place, : int(chunk.lengths[place])].tolist(), "tower": chunk.tower}
    if chunk.masked is not None and chunk.targets is not None:
        here = chunk.masked // width == place
        found["masked"] = (chunk.masked[here] % width).tolist(), chunk.targets[here].tolist()
    for name in {"second", "spans", "labels"} & fields.keys():
        if fields[name] is not None:
            own = fields[name][place]
            found[name] = own[own != IGNORED].tolist()
    if chunk.context is not None:
        found["context"] = _row(chunk.context, place)
    return _digest(sorted(found.items()))


def _relations(fields: dict[str, Any], rows: dict[int, str]) -> Iterator[Any]:
    """Yield the relations of a batch's rows: positives and negatives of queries, pairs of a list, scores."""
    queries = len(fields.get("positive", ()))
    if queries:  # frozen passages are not encoded, so the chunks have no rows of them
        rows |= {queries + place: f"passage {row}" for place, row in enumerate(fields["passages"].tolist())}
    for name in ("positive", "hard", "listed"):
        for query, places in enumerate(fields.get(name, ())):
            first = len(fields[name])
            yield name, rows[query], [rows[first + place] for place in places.reshape(-1).tolist()]
    for query, passage in fields.get("judged", torch.empty(0, 2)).tolist():
        yield "judged", rows[query], passage
    scores = fields.get("scores")
    if scores is not None and queries:
        for (query, passage), score in zip(fields["scored"].tolist(), scores.tolist(), strict=True):
            yield "scored", rows[query], passage, score
    elif scores is not None:  # a task on sentences has scores, and no queries
        for first, score in enumerate(scores.tolist()):
            yield "example", [rows[row] for row in range(first, len(rows), len(scores))], score
    for first in range(fields.get("lists", 0)):
        yield "list", [rows[first * fields["size"] + place] for place in range(fields["size"])]


def noting(step: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Wrap ``TrainingModule.training_step`` so that it first notes the digests of its batch."""

    def training_step(self: TrainingModule, batch: Batch, batch_idx: int) -> torch.Tensor:
        trainer: Any = self.trainer
        if not hasattr(trainer, "noted"):
            folder = Path(os.environ[FOLDER]) / Path(trainer.default_root_dir).name.partition(".")[0]
            folder.mkdir(parents=True, exist_ok=True)
            attempt = from_rank_zero(uuid.uuid4().hex)
            trainer.noted = folder / f"{attempt}-{processes()}-{rank()}.jsonl"
        with open(trainer.noted, "a", encoding="utf-8") as stream:
            stream.write(json.dumps([self.global_step, sorted(digests(batch))]) + "\n")
        return step(self, batch, batch_idx)

    return training_step


def noted(folder: Path) -> dict[str, Steps]:
    """Return the digests that all processes of an attempt have noted: stage -> step -> the different batches."""
    found: dict[str, Steps] = {}
    for first in sorted(folder.glob("*/*-0.jsonl")):
        attempt, number, _ = first.stem.split("-")
        parts = [_lines(first.with_name(f"{attempt}-{number}-{one}.jsonl")) for one in range(int(number))]
        steps = found.setdefault(first.parent.name, {})
        for step in set.intersection(*map(set, parts)):
            steps.setdefault(step, set()).add(frozenset().union(*(part[step] for part in parts)))
    return found


def _lines(path: Path) -> dict[int, list[str]]:
    """Return the complete lines of a file. The last line of a killed process may be incomplete and is ignored."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return dict(json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n"))


if FOLDER in os.environ:
    TrainingModule.training_step = noting(TrainingModule.training_step)  # type: ignore[method-assign]
