"""Negatives from files: every fault has its line, triples become distinct negatives."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from condensery.errors import UserError
from condensery.retrieval import negatives
from condensery.retrieval.negatives import _Distinct, from_triples, read_negatives
from condensery.text.collection import Collection

GOOD = '{"query_id": "q1", "negative_ids": ["p5", "p7"], "scores": [2.0, 1.0]}\n'


def test_lines_of_different_depth_are_padded(tmp_path: Path, collection: Collection) -> None:
    path = tmp_path / "n.jsonl.gz"
    text = GOOD + '{"query_id": "q0", "negative_ids": ["p9"]}\n{"query_id": "q3", "negative_ids": []}\n'
    path.write_bytes(gzip.compress(text.encode()))
    read = read_negatives(path, collection)
    assert read.query_rows.tolist() == [1, 0, 3]
    assert read.passage_rows.tolist() == [[5, 7], [9, -1], [-1, -1]]
    assert read.counts.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json}", "not valid JSON"),
        ('["q2"]', "object"),
        ('{"negative_ids": ["p1"]}', "query_id"),
        ('{"query_id": 2, "negative_ids": ["p1"]}', "query_id"),
        ('{"query_id": "q2", "negative_ids": "p1"}', "negative_ids"),
        ('{"query_id": "q2", "negative_ids": [1]}', "negative_ids"),
        ('{"query_id": "q99", "negative_ids": ["p1"]}', "'q99' is unknown"),
        ('{"query_id": "q2", "negative_ids": ["p1", "p99"]}', "'p99' is unknown"),
        ('{"query_id": "q1", "negative_ids": ["p1"]}', "'q1' has a line already"),
        ("", "not valid JSON"),
    ],
)
@pytest.mark.parametrize("block", [1, 2, 4096])
def test_a_fault_names_its_line(
    tmp_path: Path, collection: Collection, monkeypatch: pytest.MonkeyPatch, line: str, message: str, block: int
) -> None:
    monkeypatch.setattr(negatives, "LINES", block)
    path = tmp_path / "n.jsonl"
    path.write_text(
        GOOD + '{"query_id": "q4", "negative_ids": []}\n' + line + '\n{"query_id": "q0", "negative_ids": []}\n'
    )
    with pytest.raises(UserError, match=message) as caught:
        read_negatives(path, collection)
    assert f"{path}:3: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_missing_or_binary_file_is_a_user_error(tmp_path: Path, collection: Collection) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match="empty"):
        read_negatives(tmp_path / "empty.jsonl", collection)
    with pytest.raises(UserError, match="no such file"):
        read_negatives(tmp_path / "missing.jsonl", collection)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="binary"):
        read_negatives(tmp_path / "binary.jsonl", collection)


TRIPLES = "q1\tp1\tp9\nq0\tp0\tp4\nq1\tp3\tp9\nq1\tp1\tp3\nq1\tp1\tp8\nq1\tp1\tp7\nq77\tp1\tp2\nq0\tp0\tp5\n"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("pending", [1, 10**6])
def test_triples_become_the_first_distinct_negatives_of_each_query(
    tmp_path: Path, collection: Collection, monkeypatch: pytest.MonkeyPatch, compressed: bool, pending: int
) -> None:
    monkeypatch.setattr(negatives, "PENDING", pending)
    path = tmp_path / ("triples.tsv.gz" if compressed else "triples.tsv")
    path.write_bytes(gzip.compress(TRIPLES.encode()) if compressed else TRIPLES.encode())
    counts = from_triples(path, collection, tmp_path / "n.jsonl", depth=2)
    assert counts == {"triples": 8, "unknown_queries": 1, "queries": 2, "negatives": 4}
    read = read_negatives(tmp_path / "n.jsonl", collection)
    assert read.query_rows.tolist() == [0, 1]
    assert read.passage_rows.tolist() == [[4, 5], [9, 8]]  # p9 once, p3 is a judged positive of q1, p7 is the third


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_any_cut_of_the_stream_keeps_the_same_first_negatives(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    random = np.random.default_rng(0)
    stream = (random.integers(0, 6, 400) << 32) + random.integers(0, 12, 400)
    expected = []
    for query in range(6):
        passages = dict.fromkeys((stream[stream >> 32 == query] & 0xFFFFFFFF).tolist())
        expected += [(query << 32) + passage for passage in list(passages)[:depth]]
    for piece in (1, 7, 400):
        monkeypatch.setattr(negatives, "PENDING", 11)
        distinct = _Distinct(6, depth)
        for first in range(0, 400, piece):
            distinct.add(stream[first : first + piece])
        assert distinct.result().tolist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TRIPLES + "q1\tp1\n", ":9: expected 3"),
        (TRIPLES + "q1\tp1\tp99\n", ":9: passage 'p99' is unknown"),
        ("q77\tp1\tp2\n", "no triple"),
        ("", "triples"),
    ],
)
def test_faults_of_triples_are_user_errors(tmp_path: Path, collection: Collection, text: str, message: str) -> None:
    path = tmp_path / "triples.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        from_triples(path, collection, tmp_path / "n.jsonl", depth=2)
    assert not (tmp_path / "n.jsonl").exists()


def test_a_missing_triples_file_is_a_user_error(tmp_path: Path, collection: Collection) -> None:
    with pytest.raises(UserError, match="no such file"):
        from_triples(tmp_path / "no.tsv", collection, tmp_path / "n.jsonl", depth=2)
