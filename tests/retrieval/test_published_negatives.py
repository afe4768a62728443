"""Negatives of several systems, as sentence-transformers publishes them for MS MARCO."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import UserError
from condensery.retrieval.published_negatives import from_systems
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

NEG = {"bm25": [7, 0, 3], "tas-b": [3, 5, 6], "mpnet": [4]}
LINE = {"qid": 10, "pos": [0], "neg": NEG}


@pytest.fixture
def marco(tmp_path: Path) -> Collection:
    """Ten passages and two train queries, with numbers for ids as in MS MARCO."""
    with CollectionWriter(tmp_path / "marco", "marco") as writer:
        for query, passage in (("10", "0"), ("11", "1")):
            writer.add_judgement("train", query, passage, 1)
            writer.add_query(Query(query, "query"))
        for passage in range(10):
            writer.add_passage(Passage(str(passage), "", f"text {passage}"))
    return Collection(tmp_path / "marco")


def written(path: Path, *lines: Any) -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, [7, 3, 4, 5, 6]),  # the first of each system, then the second, ...; 0 is a positive, 3 comes twice
        ({"per_system": 1}, [7, 3, 4]),
        ({"systems": ["tas-b", "bm25"]}, [3, 7, 5, 6]),
        ({"systems": ["tas-b"], "per_system": 2}, [3, 5]),
        ({"depth": 2}, [7, 3]),
    ],
)
def test_the_lists_of_systems_are_dealt_out_in_turn(
    tmp_path: Path, marco: Collection, chosen: dict[str, Any], expected: list[int]
) -> None:
    path = written(tmp_path / "n.jsonl.gz", {"qid": 99, "pos": [1], "neg": {"bm25": [2]}}, LINE)
    found, counts = from_systems(path, marco, **{"depth": 9, **chosen})
    assert found.query_rows.tolist() == [0]
    assert found.passage_rows.tolist() == [expected]
    assert counts == {"lines": 2, "unknown_queries": 1, "queries": 1, "negatives": len(expected)}


def test_positives_are_no_negatives_whether_judged_or_named_by_the_line(tmp_path: Path, marco: Collection) -> None:
    path = written(tmp_path / "n.jsonl", {"qid": "11", "pos": ["5"], "neg": {"bm25": ["1", "5", "6"]}})
    assert from_systems(path, marco, 9)[0].passage_rows.tolist() == [[6]]


def test_lists_of_this_project_are_read_as_those_of_one_system(tmp_path: Path, marco: Collection) -> None:
    path = written(tmp_path / "n.jsonl", {"query_id": "10", "negative_ids": ["4", "0", "2"], "scores": [3, 2, 1]})
    assert from_systems(path, marco, 9)[0].passage_rows.tolist() == [[4, 2]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "n.jsonl:2: not valid JSON"),
        ({"qid": 10, "pos": [0]}, 'n.jsonl:2: the field "neg" or'),
        ({"qid": 10, "pos": [0], "neg": [1]}, 'n.jsonl:2: the field "neg" must be an object'),
        ({"qid": 10, "pos": [0], "neg": {"bm25": 1}}, "n.jsonl:2: qid, pos and the lists"),
        ({"pos": [0], "neg": {"bm25": [1]}}, "n.jsonl:2: qid"),
        ({"qid": 10, "pos": [True], "neg": {}}, "n.jsonl:2: qid"),
        ({"qid": 10, "pos": [0], "neg": {"bm25": [1, 77]}}, "n.jsonl:2: passage '77' is unknown"),
    ],
)
def test_a_fault_names_its_line(tmp_path: Path, marco: Collection, line: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_systems(written(tmp_path / "n.jsonl", LINE, line), marco, 9)


def test_a_system_that_no_line_has_is_named(tmp_path: Path, marco: Collection) -> None:
    path = written(tmp_path / "n.jsonl", LINE)
    with pytest.raises(UserError, match=r"systems: .*'tasb' \(did you mean 'tas-b'"):
        from_systems(path, marco, 9, systems=["bm25", "tasb"])
    with pytest.raises(UserError, match="no line has a negative for a query"):
        from_systems(written(path, {"qid": 99, "pos": [], "neg": {"bm25": [1]}}), marco, 9)
