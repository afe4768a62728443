"""Compute large arrays shard by shard and write them to disk. Only one shard is in memory at a time.

After an interruption, the complete shards are reused. Several processes may share the shards (``condensery.sharing``).
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.finite import check_scores
from condensery.retrieval.ranking import Ranking
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.system.files import atomic, load_array, new_array, read_json, write_json
from condensery.system.progress import ProgressTask, progress

SHARD = 16_384  # queries per shard; changes the last bits of scores, because rounding depends on the shapes of matrices

# rows of a shard -> arrays by name; the function advances the progress bar
Work = Callable[[slice, ProgressTask], dict[str, NDArray[Any]]]
Ids = NDArray[np.int64]
# query rows (b,) -> scores (b, depth), passage rows (b, depth) and further arrays by name, if there are any; the function
# advances the progress bar
Rank = Callable[[Ids, ProgressTask], tuple[Any, ...]]


def compute_in_shards(
    work: Work,
    number: int,
    path: Path,
    label: str,
    *,
    size: int = SHARD,
    group: ProcessGroup = SINGLE_PROCESS,
    unit: str = "queries",
    amount: Callable[[slice], int] | None = None,
) -> None:
    """Compute arrays of ``number`` rows in shards, and write each array as a file into the folder of ``path``.

    An interrupted attempt is continued. If ``path`` exists, the arrays are complete and nothing is computed. Shards that an
    earlier attempt wrote with another ``size`` are recomputed.

    Args:
        work: computes the arrays of one shard and returns them by name. One of the names is the stem of ``path``.
        number: total number of rows.
        path: the file of one of the arrays. It is written last, so if it exists, all arrays are complete.
        label: label of the progress bar.
        size: rows per shard.
        group: the processes that share the shards.
        unit: unit of the progress bar.
        amount: returns the number of units in a shard, for the progress bar; None = the shard's number of rows.
    """
    parts = path.with_suffix(".parts")
    layout = {"rows": number, "size": size}
    plan = [slice(first, min(first + size, number)) for first in range(0, max(number, 1), size)]
    shards = [parts / f"{shard:05d}" for shard in range(len(plan))]

    def left() -> list[int]:
        if path.exists():
            return []
        if not (parts / "layout.json").exists() or read_json(parts / "layout.json") != layout:
            shutil.rmtree(parts, ignore_errors=True)
            write_json(parts / "layout.json", layout)
        return [shard for shard in range(len(plan)) if not shards[shard].exists()]

    def join() -> None:
        if not path.exists():
            names = {file.name for file in shards[0].iterdir()} - {path.name}
            for name in [*sorted(names), path.name]:
                _join([shard / name for shard in shards], path.with_name(name))
        shutil.rmtree(parts, ignore_errors=True)

    with group.shards(left) as mine:
        total = sum(amount(plan[shard]) if amount else plan[shard].stop - plan[shard].start for shard in mine)
        with progress(label, total, unit) as task:
            for shard in mine:
                arrays = work(plan[shard], task)
                with atomic(shards[shard]) as temporary:
                    temporary.mkdir()
                    for name, array in arrays.items():
                        np.save(temporary / f"{name}.npy", array)
    group.from_rank_zero(join)


def _join(parts: Sequence[Path], path: Path) -> None:
    """Concatenate the arrays in the files ``parts`` into the file ``path``, with one array at a time in memory."""
    first, rows = load_array(parts[0], mapped=True), [len(load_array(part, mapped=True)) for part in parts]
    with atomic(path) as temporary:
        joined = new_array(temporary, first.dtype, (sum(rows), *first.shape[1:]))
        for part, stop in zip(parts, np.cumsum(rows), strict=True):
            array = load_array(part)
            joined[stop - len(array) : stop] = array
        joined.flush()


def rank_in_shards(
    rank: Rank, query_rows: Ids, folder: Path, label: str, size: int = SHARD, group: ProcessGroup = SINGLE_PROCESS
) -> None:
    """Rank passages for all queries (n,) and write the rankings into ``folder``. An interrupted attempt is continued.

    The files are ``queries.npy`` int64 (n,), ``passages.npy`` int32 (n, depth) and ``scores.npy`` float32 (n, depth).
    ``Run.mapped`` opens them. Each further array has its own file, with the arrays of all shards concatenated.

    Args:
        rank: ranks passages for the queries of a shard.
        query_rows: int64 (n,), row numbers of the queries.
        folder: folder of the arrays.
        label: label of the progress bar and beginning of error messages.
        size: queries per shard.
        group: the processes that share the shards.

    Raises:
        UserError: a score is not finite.
    """

    def ranked(part: slice, task: ProgressTask) -> dict[str, NDArray[Any]]:
        rows = query_rows[part]
        scores, passages, *further = rank(rows, task)
        check_scores(scores, passages, f"{label}: a score of query row", rows)
        return {"passages": passages.astype(np.int32), "scores": scores, **dict(*further), "queries": rows}

    compute_in_shards(ranked, len(query_rows), folder / "queries.npy", label, size=size, group=group)


def padded(rankings: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]], depth: int) -> Ranking:
    """Stack the first ``depth`` results of n rankings into arrays: scores (n, depth) and row numbers (n, depth).

    Shorter rankings are padded with score -inf and row -1.
    """
    scores = np.full((len(rankings), depth), -np.inf, np.float32)
    rows = np.full((len(rankings), depth), -1, np.int64)
    for i, (own, passages) in enumerate(rankings):
        number = min(depth, len(passages))
        scores[i, :number], rows[i, :number] = own[:number], passages[:number]
    return scores, rows
