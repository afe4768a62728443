"""Scores of pairs from files: every fault has its line, and what is written reads back to the last bit."""

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from condensery import UserError
from condensery.retrieval.pair_scores import (
    FILE,
    PairScores,
    TeacherScores,
    read_pair_scores,
    save_pair_scores,
)
from condensery.text.collection import Collection

RUN = "q1 Q0 p5 1 2.5 x\nq1 Q0 p7 2 -1e3 x\nq0 Q0 p9 1 0.1 x\n"
GOOD: dict[str, Any] = {"query_id": "q1", "passage_ids": ["p5", "p7"], "scores": [2.5, 1]}


def by_pair(pairs: PairScores) -> dict[tuple[int, int], float]:
    return {
        (query, int(passage)): float(score)
        for query, passages, scores, filled in zip(
            pairs.query_rows.tolist(), pairs.passage_rows, pairs.scores, pairs.filled, strict=True
        )
        for passage, score in zip(passages[filled], scores[filled], strict=True)
    }


def test_a_run_file_and_jsonl_are_read_alike(tmp_path: Path, collection: Collection) -> None:
    run, lines = tmp_path / "a.trec.gz", tmp_path / "a.jsonl.gz"
    run.write_bytes(gzip.compress(RUN.encode()))
    records = [{**GOOD, "scores": [2.5, -1e3]}, {"query_id": "q0", "passage_ids": ["p9"], "scores": [0.1]}]
    lines.write_bytes(gzip.compress("".join(f"{json.dumps(one)}\n" for one in records).encode()))
    wanted = {(1, 5): 2.5, (1, 7): -1e3, (0, 9): float(np.float32(0.1))}
    ids = {"q1": {"p5": 2.5, "p7": np.float64(-1e3)}, "q0": {"p9": 0.1}}
    for read in (
        read_pair_scores(run, collection),
        read_pair_scores(lines, collection),
        PairScores.of(ids, collection),
    ):
        assert by_pair(read) == wanted
        assert read.query_rows.tolist() == [0, 1]
        assert np.isnan(read.scores[read.passage_rows < 0]).all()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("q1 Q0 p6 3 x", "a.run:4: expected 6 columns (query Q0 passage rank score tag), found 5"),
        ("q1 Q0 p6 3 nan x", "a.run:4: the score must be a finite number of 32 bits, not 'nan'"),
        ("q1 Q0 p6 3 inf x", "a.run:4: the score must be a finite number of 32 bits, not 'inf'"),
        ("q1 Q0 p6 3 high x", "a.run:4: the score must be a finite number of 32 bits, not 'high'"),
        ("q99 Q0 p6 3 1 x", "a.run:4: query 'q99' is unknown"),
        ("q1 Q0 p99 3 1 x", "a.run:4: passage 'p99' is unknown"),
        ("q1 Q0 p5 3 1 x", "a.run:4: passage 'p5' occurs twice for query 'q1'"),
    ],
)
def test_a_fault_of_a_foreign_run_is_one_line(line: str, said: str, tmp_path: Path, collection: Collection) -> None:
    path = tmp_path / "a.run"
    path.write_text(RUN + line + "\n")
    with pytest.raises(UserError) as failed:
        read_pair_scores(path, collection)
    assert said in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scores": [1.0]}, "a.jsonl:2: 2 passage_ids, but 1 scores; each passage needs one"),
        ({"scores": [1.0, None]}, "a.jsonl:2: a score must be a finite number of 32 bits, not null"),
        ({"scores": [1.0, float("nan")]}, "a.jsonl:2: a score must be a finite number of 32 bits, not NaN"),
        ({"scores": [1.0, True]}, "a.jsonl:2: a score must be a finite number of 32 bits, not true"),
        ({"scores": [1.0, "2"]}, "a.jsonl:2: a score must be a finite number of 32 bits"),
        ({"scores": [1.0, 1e39]}, "a.jsonl:2: a score must be a finite number of 32 bits"),
        ({"scores": [1.0, 10**400]}, "a.jsonl:2: a score must be a finite number of 32 bits"),
        ({"scores": None}, 'a.jsonl:2: the field "scores" is missing'),
        ({"query_id": "q99"}, "a.jsonl:2: query 'q99' is unknown"),
        ({"query_id": "q1"}, "a.jsonl:2: query 'q1' already has a line"),
        ({"passage_ids": ["p1", "p99"]}, "a.jsonl:2: passage 'p99' is unknown"),
        ({"passage_ids": ["p1", "p1"]}, "a.jsonl:2: passage 'p1' occurs twice for its query"),
        ({"passage_ids": ["p1", 2]}, "a.jsonl:2: passage_ids must be a list of strings"),
    ],
)
def test_a_fault_of_a_line_is_named(changes: dict[str, Any], said: str, tmp_path: Path, collection: Collection) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps({**GOOD, 'query_id': 'q2', **changes})}\n")
    with pytest.raises(UserError) as failed:
        read_pair_scores(path, collection)
    assert said in str(failed.value)


@pytest.mark.parametrize("name", ["a.run", "a.jsonl"])
def test_an_empty_file_is_refused(name: str, tmp_path: Path, collection: Collection) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(UserError, match="no scores"):
        read_pair_scores(tmp_path / name, collection)


def test_scores_by_id_are_checked(collection: Collection) -> None:
    with pytest.raises(UserError, match="query 'q1': passage 'p99' is unknown"):
        PairScores.of({"q1": {"p99": 1.0}}, collection)
    with pytest.raises(UserError, match="query 'q1': a score must be a finite number"):
        PairScores.of({"q1": {"p1": float("inf")}}, collection)
    with pytest.raises(UserError, match="no scores"):
        PairScores.of({}, collection)


def test_what_is_written_reads_back_to_the_last_bit(tmp_path: Path, collection: Collection) -> None:
    scores = np.array([[1 / 3, np.nan, 1e-30], [np.nan, 7.0, np.nan]], np.float32)
    pairs = PairScores(np.array([2, 5]), np.array([[4, 8, 6], [-1, 3, -1]], np.int32), scores)
    save_pair_scores(tmp_path, pairs, collection)
    opened = PairScores.mapped(tmp_path)
    assert isinstance(opened.scores, np.memmap)
    again = pickle.loads(pickle.dumps(opened))
    assert isinstance(again.scores, np.memmap)
    for read in (opened, again, read_pair_scores(tmp_path / FILE, collection)):
        assert by_pair(read) == by_pair(pairs)


def test_the_first_of_several_sources_counts_where_both_have_a_pair() -> None:
    nan = np.nan
    one = PairScores(np.array([7, 3]), np.array([[1, 2], [4, -1]]), np.array([[1.0, nan], [4.0, nan]], np.float32))
    other = PairScores(np.array([3, 5]), np.array([[4, 9], [8, -1]]), np.array([[-4.0, 9.0], [8.0, nan]], np.float32))
    teacher = TeacherScores([one, other], np.array([3, 5, 6, 7]))
    places, passages, scores = teacher.scored(np.array([3, 0, 2]))
    assert list(zip(places.tolist(), passages.tolist(), scores.tolist(), strict=True)) == [
        (0, 1, 1.0), (1, 4, 4.0), (1, 4, -4.0), (1, 9, 9.0)
    ]  # fmt: skip
