"""Read and write TREC run files, the exchange format of rankings: ``query_id Q0 passage_id rank score tag``.

A file is plain or .gz. An evaluator such as trec_eval ignores the rank column: it sorts by score, and breaks ties by passage
id, descending.
"""

import gzip
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.retrieval.finite import check_scores
from condensery.retrieval.lookup import known_rows
from condensery.retrieval.passage_lists import WRITTEN, PassageLists, in_rows
from condensery.retrieval.ranking import strictly_falling
from condensery.system.files import atomic
from condensery.system.inputs import readable
from condensery.text.collection import Collection
from condensery.text.lines import decimal, integer, read_lines, without_blank_end

HIGHEST = float(np.finfo(np.float32).max)
BLOCK = 1 << 20  # bytes that ``rankings_of`` decompresses and searches at a time


@dataclass(frozen=True)
class Run(PassageLists):
    """Rankings: the k best passages of each query, best first. Padding at the end has row number -1 and score -inf."""

    scores: NDArray[np.float32]


def write_run(path: Path, run: Run, collection: Collection, tag: str = "condensery") -> None:
    """Write a run atomically, compressed if its name ends in .gz.

    Scores are written exactly, except for ties. Of two equal scores of a query, the lower-ranked score is written as the
    next float32 below (``strictly_falling``), so that every evaluator sees the same order.

    Raises:
        UserError: a score is not finite.
    """
    with atomic(path) as temporary, _writer(temporary, path.suffix == ".gz") as stream:
        for block in run.blocks(WRITTEN):
            queries = collection.queries.ids_at(block.query_rows)
            check_scores(block.scores, block.passage_rows, f"{path.name}: a score of query", queries)
            falling = strictly_falling(block.scores)
            passages = iter(collection.passages.ids_at(block.passage_rows[block.filled]))
            for at, (query, number) in enumerate(zip(queries, block.filled.sum(axis=1).tolist(), strict=True)):
                # astype(str) of a float32 gives the shortest string that parses to the same number
                texts = falling[at, :number].astype("U32").tolist()
                ranked = zip(islice(passages, number), range(1, number + 1), texts, strict=True)
                before, behind = f"{query} Q0 ", f" {tag}\n"
                stream.write("".join([f"{before}{passage} {rank} {score}{behind}" for passage, rank, score in ranked]))


@contextmanager
def _writer(path: Path, compress: bool) -> Iterator[TextIO]:
    with open(path, "wb") as raw:
        # The gzip header holds no file name and no time, so that the same run gives the same bytes.
        packed: Any = gzip.GzipFile("", "wb", 3, raw, mtime=0) if compress else raw
        with io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as stream:
            yield stream


def read_run(path: Path, collection: Collection) -> Run:
    """Read a run file of this project or of another tool.

    Queries are sorted by row number. Passages are sorted by score, and passages with equal scores by the rank column. For a
    run of this project, this is the order in which it was written. trec_eval ignores the rank column and breaks ties by
    passage id, so it may order the ties of another tool's run differently.

    Raises:
        UserError: the file is empty, a line does not have 6 columns, a score or a rank is not a number, an id is unknown, or
            a passage is repeated for a query. Unless the file is empty, the message names the line.
    """
    queries, passages, ranks, scores = _columns(path)
    if not queries:
        raise UserError(f"{path}: no scores, the file is empty")
    query_rows = known_rows(collection, "query", queries, lambda at: f"{path}:{at + 1}")
    passage_rows = known_rows(collection, "passage", passages, lambda at: f"{path}:{at + 1}")
    order = np.lexsort((passage_rows, query_rows))
    twice = (np.diff(query_rows[order]) == 0) & (np.diff(passage_rows[order]) == 0)
    if twice.any():
        line = int(order[1:][twice].min())
        raise UserError(
            f"{path}:{line + 1}: passage {shown(passages[line])!r} occurs twice for query {shown(queries[line])!r}"
        )
    order = np.lexsort((ranks, -scores, query_rows))
    unique, counts = np.unique(query_rows, return_counts=True)
    values = in_rows(counts, scores[order].astype(np.float32), -np.inf)
    return Run(unique, in_rows(counts, passage_rows[order], -1), values)


def rankings_of(path: Path, query_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the passage ids of a few queries, best first, from a compressed run that ``write_run`` wrote.

    The file is searched in large blocks, because this is faster than line by line. A query that is not in the run gets an
    empty list.

    Raises:
        UserError: the file is missing or damaged.
    """
    rankings: dict[str, list[str]] = {query: [] for query in query_ids}
    wanted = b"|".join(re.escape(query.encode()) for query in rankings)
    passages = re.compile(rb"^(%s) Q0 (\S+)" % wanted, re.MULTILINE)
    with readable(path), gzip.open(path) as stream:
        rest = b""
        while block := stream.read(BLOCK):
            lines, _, rest = (rest + block).rpartition(b"\n")
            for query, passage in passages.findall(lines):
                rankings[query.decode()].append(passage.decode(errors="replace"))
    return rankings


def _columns(path: Path) -> tuple[list[str], list[str], NDArray[np.int64], NDArray[np.float64]]:
    queries: list[str] = []
    passages: list[str] = []
    ranks: list[int] = []
    scores: list[float] = []
    for place, line in without_blank_end(read_lines(path)):
        fields = line.split()
        if len(fields) != 6:
            columns = "query Q0 passage rank score tag"
            raise UserError(f"{place}: expected 6 columns ({columns}), found {len(fields)}")
        ranks.append(integer(fields[3], "rank", place))
        scores.append(decimal(fields[4]))
        if not abs(scores[-1]) <= HIGHEST:
            raise UserError(f"{place}: the score must be a finite number of 32 bits, not {shown(fields[4])!r}")
        queries.append(fields[0])
        passages.append(fields[2])
    return queries, passages, np.array(ranks, np.int64), np.array(scores, np.float64)
