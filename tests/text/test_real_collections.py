"""The collections beside the project, with the counts that their README gives."""

import shutil
from pathlib import Path

import pytest

from condensery.errors import UserError
from condensery.text import read_collection

from .conftest import Make

ALL_NULL = {"train": None, "dev": None, "test": None}


def test_squad(tmp_path: Path, config: Make, shared: Path) -> None:
    collection = read_collection(config("squad", root=shared / "data" / "squad"), tmp_path)
    assert (len(collection.passages), len(collection.queries)) == (20_963, 98_169)
    assert len(collection.document_starts) - 1 == 490
    assert {split: len(collection.qrels(split).query_set) for split in collection.splits} == {
        "train": 79_055,
        "dev": 8_544,
        "test": 10_570,
    }
    (row,) = collection.passages.rows_of(["2008_Sichuan_earthquake#1"])
    assert "Wenchuan" in collection.passages.column("text")[row]


def test_scifact(tmp_path: Path, config: Make, shared: Path) -> None:
    collection = read_collection(config("beir", root=shared / "data" / "scifact"), tmp_path)
    assert len(collection.passages) == 5_183
    assert {split: len(collection.qrels(split).query_set) for split in collection.splits} == {
        "train": 729,
        "dev": 80,
        "test": 300,
    }
    assert len(collection.qrels("test")) == 339


def test_cranfield_has_two_empty_passages(tmp_path: Path, config: Make, shared: Path) -> None:
    changes = {"root": shared / "data" / "cranfield", "splits": ALL_NULL | {"test": "test"}}
    with pytest.raises(UserError, match=r"corpus\.jsonl\.gz:471: the text is empty; .*data\.empty_passages=drop"):
        read_collection(config("beir", **changes), tmp_path / "a")
    collection = read_collection(config("beir", **changes, empty_passages="drop"), tmp_path / "b")
    assert (len(collection.passages), len(collection.queries)) == (1_398, 225)
    assert collection.description["dropped"]["empty_passages"] == 2


@pytest.mark.slow
def test_wikipedia(tmp_path: Path, config: Make, shared: Path) -> None:
    collection = read_collection(config("documents", root=shared / "data" / "wikipedia"), tmp_path)
    assert len(collection.passages) + collection.description["dropped"]["empty_passages"] == 145_366
    assert len(collection.document_starts) - 1 == 17_998
    shutil.rmtree(tmp_path)


def test_squad_with_more_documents(tmp_path: Path, config: Make, shared: Path) -> None:
    extra = [str(shared / "data" / "squad" / "documents.jsonl.gz")]
    with pytest.raises(UserError, match="this id is also at"):
        read_collection(config("documents", root=shared / "data" / "squad", extra=extra), tmp_path)
