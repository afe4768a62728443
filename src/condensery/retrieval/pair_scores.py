"""Store a teacher's scores of (query, passage) pairs: as memory-mapped arrays for training, and as JSONL for exchange.

JSONL has one query per line: {"query_id": ..., "passage_ids": [...], "scores": [...]}. Scores from other programs are read
from a file in this format or from a TREC run file (``retrieval.runs``). Both formats are checked line by line.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.ranges import check_values
from condensery.retrieval.lookup import first_repeated, known_rows, query_and_ids, rows_of_lists
from condensery.retrieval.negative_pool import places_of
from condensery.retrieval.passage_lists import WRITTEN, PassageLists, in_rows, write_lists
from condensery.retrieval.runs import HIGHEST, read_run
from condensery.text.collection import Collection
from condensery.text.lines import field, read_objects

Ids = NDArray[np.int64]
FILE = "pair_scores.jsonl"


@dataclass(frozen=True)
class PairScores(PassageLists):
    """A teacher's scores for distillation (Hofstätter et al. 2020), for q queries with at most k passages each.

    ``PairScores.of`` builds the object from query ids and passage ids, and raises ``UserError`` for unknown ids.

    Attributes:
        query_rows: int64 (q,), row numbers of the queries in the collection, all distinct.
        passage_rows: int (q, k), row numbers of the passages, distinct within a query; -1 is padding, at any position.
        scores: float32 (q, k), the teacher's scores; NaN if the pair has no score.
    """

    scores: NDArray[np.float32]

    @classmethod
    def of(cls, scores: Mapping[str, Mapping[str, float]], collection: Collection) -> "PairScores":
        """Build the object from a mapping query id -> passage id -> score.

        Python's evaluation libraries use this format for runs.

        Raises:
            UserError: an id is unknown, a score is not a finite 32-bit number, or the mapping contains no score.
        """
        check_values(PairScores.of, {"collection": collection})
        if not isinstance(scores, Mapping) or not all(isinstance(own, Mapping) for own in scores.values()):
            raise UserError(f"the teacher's scores: give query id -> passage id -> score, not {shown(repr(scores))}")
        found = [
            (f"query {shown(str(query))!r}", str(query), list(map(str, own)), list(own.values()))
            for query, own in scores.items()
        ]
        return _of_lists(found, collection, "the teacher's scores")

    @property
    def filled(self) -> NDArray[np.bool_]:
        """Mask (q, k), True if the pair has a score."""
        return super().filled & ~np.isnan(self.scores)

    def of_queries(self, query_rows: Ids) -> "PairScores":
        """Return the scores of the queries ``query_rows`` (n,), in the order of ``query_rows``.

        Queries without scores are left out.
        """
        places = places_of(self.query_rows, query_rows)
        places = places[places >= 0]
        return PairScores(self.query_rows[places], self.passage_rows[places], self.scores[places])


class Teacher(Protocol):
    """Interface of a teacher, which scores passages for training queries. The training queries are numbered from 0."""

    def scored(self, chosen: Ids) -> tuple[Ids, Ids, NDArray[np.float32]]:
        """Return the s scored pairs of the queries ``chosen`` (b,), as three arrays (s,).

        The arrays hold, for each pair, the position of its query in ``chosen``, the row number of its passage, and its score.
        """


class TeacherScores:
    """A ``Teacher`` that looks up the scores of several sources, batch by batch.

    Args:
        sources: scores of (query, passage) pairs. If several sources contain a pair, the first source's score is used.
        query_rows: int64 (q,), row numbers of the training queries in the collection.
    """

    def __init__(self, sources: Sequence[PairScores], query_rows: Ids) -> None:
        self.sources = sources
        self.places = [places_of(source.query_rows, query_rows) for source in sources]

    def scored(self, chosen: Ids) -> tuple[Ids, Ids, NDArray[np.float32]]:
        """Return the s scored pairs of the queries ``chosen`` (b,), source by source, as in ``Teacher.scored``."""
        found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
        for source, places in zip(self.sources, self.places, strict=True):
            here = np.flatnonzero(places[chosen] >= 0)
            own = places[chosen][here]
            passages, scores = np.asarray(source.passage_rows[own]), np.asarray(source.scores[own])
            filled = (passages >= 0) & ~np.isnan(scores)
            found.append((here[np.nonzero(filled)[0]], passages[filled].astype(np.int64), scores[filled]))
        places_, rows, values = (np.concatenate(part) for part in zip(*found, strict=True))
        return places_, rows, values

    def content(self) -> dict[str, Any]:
        """Return the arrays on which the batches depend, as input of ``training.checkpoint_fingerprint``."""
        parts = ((source.passage_rows, source.scores) for source in self.sources)
        return {"places": self.places, "pairs": [part for both in parts for part in both]}


def save_pair_scores(folder: Path, pairs: PairScores, collection: Collection) -> None:
    """Write the scored pairs as an artifact: arrays (``queries.npy``, ``passages.npy``, ``scores.npy``) and JSONL.

    Scores are written exactly. A memory-mapped array is already a file of ``folder``, and is not written again.
    """
    pairs.save_arrays(folder)
    write_lists(folder / FILE, pairs.blocks(WRITTEN), collection, "passage_ids")


def read_pair_scores(path: Path, collection: Collection) -> PairScores:
    """Read a file of scored pairs, plain or .gz: JSONL if its name ends in .jsonl, otherwise a TREC run file.

    Raises:
        UserError: a line is malformed, an id is unknown, a pair or a query is repeated, or a score is missing or not a
            finite 32-bit number. The message names the line.
    """
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        return _of_lists([_parsed(*line) for line in read_objects(path)], collection, str(path))
    run = read_run(path, collection)
    return PairScores(run.query_rows, run.passage_rows, np.where(run.passage_rows >= 0, run.scores, np.float32(np.nan)))


Line = tuple[str, str, list[str], list[Any]]  # "file:line", query id, passage ids, scores


def _parsed(place: str, record: dict[str, Any]) -> Line:
    query, ids = query_and_ids(record, "passage_ids", place)
    scores = field(record, "scores", place, list)
    if len(ids) != len(scores):
        raise UserError(f"{place}: {len(ids)} passage_ids, but {len(scores)} scores; each passage needs one")
    return place, query, ids, scores


def _of_lists(lines: Sequence[Line], collection: Collection, where: str) -> PairScores:
    if not any(ids for _, _, ids, _ in lines):
        raise UserError(f"{where}: there are no scores; give at least one")
    places, names, lists, given = zip(*lines, strict=True)
    queries = known_rows(collection, "query", names, places.__getitem__)
    counts, passages = rows_of_lists(collection, places, lists)
    of_line = np.repeat(np.arange(len(lines)), counts)
    if (at := first_repeated(queries)) is not None:
        raise UserError(f"{places[at]}: query {shown(names[at])!r} already has a line; join the two lines")
    if (at := first_repeated((of_line << 32) + passages)) is not None:
        name = collection.passages.ids_at([passages[at]])[0]
        raise UserError(f"{places[int(of_line[at])]}: passage {shown(name)!r} occurs twice for its query")
    values = np.array([_score(one, place) for place, own in zip(places, given, strict=True) for one in own], np.float32)
    order = np.argsort(queries, kind="stable")
    return PairScores(queries[order], in_rows(counts, passages, -1)[order], in_rows(counts, values, np.nan)[order])


def _score(value: Any, place: str) -> float:
    value = value.item() if isinstance(value, np.generic) else value  # in np.float16, the bound below would be infinite
    number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
    if not number or not abs(value) <= HIGHEST:  # False for NaN
        raise UserError(
            f"{place}: a score must be a finite number of 32 bits, not {shown(json.dumps(value, default=str))}"
        )
    return float(value)
