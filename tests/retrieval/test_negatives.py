"""Negatives from files: every fault has its line, triples become distinct negatives, arrays are mapped from disk."""

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
from damage import refused_as_a_pipe

from condensery.errors import UserError
from condensery.retrieval import negatives, published_negatives
from condensery.retrieval.negatives import (
    Negatives,
    open_negatives,
    read_negatives,
    save_negatives,
)
from condensery.retrieval.published_negatives import Distinct, from_collection, from_triples
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

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
        ('{"query_id": "q1", "negative_ids": ["p1"]}', "'q1' already has a line"),
        ("", "not valid JSON"),
        ("[" * 99_999, "not valid JSON"),
        ('{"query_id": ' + "9" * 5000 + "}", "not valid JSON"),
        ('{"query_id": "q2", "negative_ids": ["\\ud800"]}', "the id holds half a character"),
        ('{"query_id": "\udcff"}', "not valid UTF-8"),
    ],
)
@pytest.mark.parametrize("block", [1, 2, 4096])
def test_a_fault_names_its_line(
    tmp_path: Path, collection: Collection, monkeypatch: pytest.MonkeyPatch, line: str, message: str, block: int
) -> None:
    monkeypatch.setattr(negatives, "LINES", block)
    path = tmp_path / "n.jsonl"
    path.write_text(
        GOOD + '{"query_id": "q4", "negative_ids": []}\n' + line + '\n{"query_id": "q0", "negative_ids": []}\n',
        errors="surrogateescape",
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
@pytest.mark.parametrize("compared", [1, 10**6])
def test_triples_become_the_first_distinct_negatives_of_each_query(
    tmp_path: Path, collection: Collection, monkeypatch: pytest.MonkeyPatch, compressed: bool, compared: int
) -> None:
    monkeypatch.setattr(published_negatives, "COMPARED", compared)
    path = tmp_path / ("triples.tsv.gz" if compressed else "triples.tsv")
    path.write_bytes(gzip.compress(TRIPLES.encode()) if compressed else TRIPLES.encode())
    read, counts = from_triples(path, collection, depth=2)
    assert counts == {"triples": 8, "unknown_queries": 1, "queries": 2, "negatives": 4}
    assert read.query_rows.tolist() == [0, 1]
    assert read.passage_rows.tolist() == [[4, 5], [9, 8]]  # p9 once, p3 is a judged positive of q1, p7 is the third


@pytest.mark.parametrize("depth", [1, 3, 100])
def test_any_cut_of_the_stream_keeps_the_same_first_negatives(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    random = np.random.default_rng(0)
    stream = (random.integers(0, 6, 400) << 32) + random.integers(0, 12, 400)
    expected = []
    for query in range(6):
        passages = dict.fromkeys((stream[stream >> 32 == query] & 0xFFFFFFFF).tolist())
        expected.append(list(passages)[:depth])
    for piece in (1, 7, 400):
        monkeypatch.setattr(published_negatives, "COMPARED", 60)
        distinct = Distinct(7, depth)  # the last one has none
        for first in range(0, 400, piece):
            distinct.add(stream[first : first + piece])
        found = distinct.result()
        assert found.query_rows.tolist() == list(range(6))
        assert [row[row >= 0].tolist() for row in found.passage_rows] == expected
        assert found.passage_rows.shape[1] == max(map(len, expected))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TRIPLES + "q1\tp1\n", ":9: expected 3"),
        (TRIPLES + "q1\tp1\tp99\n", ":9: passage 'p99' is unknown"),
        (TRIPLES + "\nq1\tp1\tp99\n", ":10: passage 'p99' is unknown"),
        (TRIPLES + "q1\tp1\t\udcff\n", ":9: not valid UTF-8"),
        (TRIPLES + "q1\tp1\t\n", ":9: passage '' is unknown"),
        (TRIPLES + "q1\tp1\tp2\0\n", "holds NUL bytes"),
        ("q1 p1 p2\n", ":1: expected 3 tab-separated ids"),
        ("q77\tp1\tp2\n", "no triple"),
        ("\n", "no triple"),
        ("", "triples"),
    ],
)
def test_faults_of_triples_are_user_errors(tmp_path: Path, collection: Collection, text: str, message: str) -> None:
    path = tmp_path / "triples.tsv"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(UserError, match=message):
        from_triples(path, collection, depth=2)


def test_a_missing_triples_file_is_a_user_error(tmp_path: Path, collection: Collection) -> None:
    with pytest.raises(UserError, match="no such file"):
        from_triples(tmp_path / "no.tsv", collection, depth=2)


def test_triples_are_not_read_from_a_pipe(tmp_path: Path, collection: Collection) -> None:
    refused_as_a_pipe(lambda path: from_triples(path, collection, 5), tmp_path / "triples.tsv")


def test_what_the_files_of_a_collection_give_becomes_negatives(tmp_path: Path, collection: Collection) -> None:
    with CollectionWriter(tmp_path / "c", "given") as writer:
        for passage in range(6):
            writer.add_passage(Passage(f"p{passage}", "", f"text {passage}"))
        for query, split in (("a", "train"), ("b", "train"), ("c", "dev")):
            writer.add_judgement(split, query, "p0", 1)
            writer.add_query(Query(query, "query"))
        writer.add_negatives("b", ["p5", "p0", "p3", "p5", "p1"])
        writer.add_negatives("c", ["p2"])
    found, counts = from_collection(Collection(tmp_path / "c"), depth=2)
    assert (found.query_rows.tolist(), found.passage_rows.tolist()) == ([1], [[5, 3]])
    assert counts == {"queries": 1, "negatives": 2}
    with pytest.raises(UserError, match=r"'woods' gives no negatives; set stage\.read_negatives\.file"):
        from_collection(collection, depth=2)
    with pytest.raises(UserError, match="no split"):
        from_collection(Collection(tmp_path / "c"), depth=2, split="test")


def test_saved_negatives_are_mapped_from_disk_and_so_in_other_processes(tmp_path: Path, collection: Collection) -> None:
    made = Negatives(np.array([3, 1]), np.array([[4, 9], [7, -1]], np.int32), np.array([[2, 1], [5, 0]], np.float32))
    save_negatives(tmp_path, made, collection, {"made_by": "x"})
    assert (tmp_path / "negatives.jsonl").read_text().splitlines() == [
        '{"query_id": "q3", "negative_ids": ["p4", "p9"], "scores": [2.0, 1.0]}',
        '{"query_id": "q1", "negative_ids": ["p7"], "scores": [5.0]}',
    ]
    found = open_negatives(tmp_path, collection)
    packed = pickle.dumps(found)
    for one in (found, pickle.loads(packed)):
        assert isinstance(one.passage_rows, np.memmap)
        np.testing.assert_array_equal(one.passage_rows, made.passage_rows)
        np.testing.assert_array_equal(one.query_rows, made.query_rows)
    (tmp_path / "passages.npy").unlink()  # JSONL alone
    np.testing.assert_array_equal(open_negatives(tmp_path, collection).passage_rows, made.passage_rows)
