"""Asking: BM25 reads the text, a dense retriever its vector; the answers are readable."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from condensery.errors import UserError
from condensery.files import write_json
from condensery.reporting.ask import ask, show
from condensery.retrieval.bm25 import build_bm25
from condensery.retrieval.index import open_index
from condensery.text.collection import Collection
from condensery.text.records import Passage
from condensery.text.writer import CollectionWriter

TEXTS = ["parse a json document", "open a file for reading", "multiply matrices", "json json json", "sort a list"]


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    with CollectionWriter(tmp_path / "collection", "tools") as writer:
        for number, text in enumerate(TEXTS):
            writer.add_passage(Passage(f"p{number}", "Title" if number == 0 else "", text + " [bold]" * (number == 3)))
    return Collection(tmp_path / "collection")


def test_bm25_answers_best_first_with_only_what_it_found(tmp_path: Path, collection: Collection) -> None:
    build_bm25(collection, tmp_path / "bm25", 0.9, 0.4)
    answers = ask("json file", open_index(tmp_path / "bm25", collection), collection)
    assert {answer.id for answer in answers} == {"p0", "p1", "p3"}
    assert [answer.rank for answer in answers] == [1, 2, 3]
    assert [answer.score for answer in answers] == sorted((answer.score for answer in answers), reverse=True)
    stream = io.StringIO()
    show("json file", answers, Console(file=stream, width=80))
    assert "open a file for reading" in stream.getvalue()
    assert "json json json [bold]" in stream.getvalue()  # text is shown as it is, never read as markup
    assert "Title · p0" in stream.getvalue()


def test_a_dense_retriever_is_asked_with_a_vector(tmp_path: Path, collection: Collection) -> None:
    vectors = np.eye(5, dtype=np.float32)
    (tmp_path / "dense" / "passages").mkdir(parents=True)
    np.save(tmp_path / "dense" / "passages" / "00000.npy", vectors)
    write_json(tmp_path / "dense" / "index.json", {"method": "dense", "passages": 5, "dim": 5, "shards": [[0, 5]]})
    index = open_index(tmp_path / "dense", collection, device="cpu")
    answers = ask("anything", index, collection, 2, encode=lambda text: np.array([0, 0.2, 0.9, 0, 0]))
    assert [(answer.id, answer.text) for answer in answers] == [("p2", TEXTS[2]), ("p1", TEXTS[1])]
    with pytest.raises(ValueError, match="encode"):
        ask("anything", index, collection)


def test_an_empty_question_is_a_user_error_and_no_answer_is_said(tmp_path: Path, collection: Collection) -> None:
    build_bm25(collection, tmp_path / "bm25", 0.9, 0.4)
    index = open_index(tmp_path / "bm25", collection)
    with pytest.raises(UserError, match="empty"):
        ask("  ", index, collection)
    stream = io.StringIO()
    show("zebra", ask("zebra", index, collection), Console(file=stream))
    assert "no passage" in stream.getvalue()
