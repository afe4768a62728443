"""Rank any number of queries shard by shard on disk. A restart keeps complete shards, and memory holds one shard.

Several processes may share the shards (``condensery.sharing``).
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.finite import check_scores
from condensery.retrieval.ranking import Ranking
from condensery.retrieval.runs import Run
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.system.files import atomic, load_array, load_arrays, new_array
from condensery.system.progress import ProgressTask, progress

SHARD = 16_384  # queries ranked at a time; changes the last bits of scores (a matrix product rounds by its shape)
PARTS, QUERIES = "shards", "queries.npy"  # the folder of finished shards; the file that is written last

# query rows (b,) -> scores (b, depth) and passage rows (b, depth), and any further arrays; it advances the task
Rank = Callable[[NDArray[np.int64], ProgressTask], tuple[NDArray[Any], ...]]


def rank_in_shards(
    rank: Rank,
    query_rows: NDArray[np.int64],
    depth: int,
    folder: Path,
    label: str,
    size: int = SHARD,
    group: ProcessGroup = SINGLE_PROCESS,
    further: Sequence[str] = (),
) -> None:
    """Rank all queries (n,) into ``folder``, or continue an interrupted attempt there.

    It writes ``queries.npy`` (n,), ``passages.npy`` (n, depth) int32 and ``scores.npy`` (n, depth) float32, which
    ``open_ranking`` opens, and a file for each further array.

    Args:
        rank: ranks some queries.
        query_rows: (n,).
        depth: passages of each ranking.
        folder: gets the arrays.
        label: shown with the progress and in errors.
        size: queries of a shard.
        group: the processes that share the shards.
        further: names of the further arrays that ``rank`` returns; those of all shards are concatenated.

    Raises:
        UserError: a score is not finite.
    """
    starts = range(0, len(query_rows), size)

    def path(number: int) -> Path:
        return folder / PARTS / f"{number:05d}.npz"

    def left() -> list[int]:
        joined = (folder / QUERIES).exists()  # written last, so all else is complete
        return [number for number in range(len(starts)) if not joined and not path(number).exists()]

    with group.shards(left) as mine:
        rows = {number: query_rows[starts[number] : starts[number] + size] for number in mine}
        with progress(label, sum(map(len, rows.values())), "queries") as task:
            for number in mine:
                scores, passages, *others = rank(rows[number], task)
                check_scores(scores, passages, f"{label}: a score of query row", rows[number])
                with atomic(path(number)) as temporary, open(temporary, "wb") as stream:
                    named: dict[str, Any] = dict(zip(further, others, strict=True))
                    np.savez(stream, scores=scores, passages=passages.astype(np.int32), **named)

    def join() -> None:
        if not (folder / QUERIES).exists():
            _join([path(number) for number in range(len(starts))], query_rows, depth, folder, further)
        shutil.rmtree(folder / PARTS, ignore_errors=True)

    group.from_rank_zero(join)


def _join(
    shards: Sequence[Path], query_rows: NDArray[np.int64], depth: int, folder: Path, further: Sequence[str]
) -> None:
    """Concatenate the shards, with one at a time in memory."""
    for name, kind in (("passages", np.int32), ("scores", np.float32)):
        with atomic(folder / f"{name}.npy") as temporary:
            joined = new_array(temporary, kind, (len(query_rows), depth))
            first = 0
            for shard in shards:
                part = load_arrays(shard)[name]
                joined[first : first + len(part)] = part
                first += len(part)
            joined.flush()
    for name in further:
        with atomic(folder / f"{name}.npy") as temporary, open(temporary, "wb") as stream:
            np.save(stream, np.concatenate([load_arrays(shard)[name] for shard in shards]))
    with atomic(folder / QUERIES) as temporary, open(temporary, "wb") as stream:
        np.save(stream, query_rows)


def open_ranking(folder: Path) -> Run:
    """Open the ranking that ``rank_in_shards`` wrote, memory-mapped."""
    passages, scores = (load_array(folder / f"{name}.npy", mapped=True) for name in ("passages", "scores"))
    return Run(load_array(folder / QUERIES), passages, scores)


def padded(rankings: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]], depth: int) -> Ranking:
    """Join n rankings into arrays (n, depth): the first ``depth`` of each, padded with -inf and -1."""
    scores = np.full((len(rankings), depth), -np.inf, np.float32)
    rows = np.full((len(rankings), depth), -1, np.int64)
    for i, (own, passages) in enumerate(rankings):
        number = min(depth, len(passages))
        scores[i, :number], rows[i, :number] = own[:number], passages[:number]
    return scores, rows
