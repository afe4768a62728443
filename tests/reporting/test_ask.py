"""Asking: BM25 reads the text, a dense retriever its vector; the answers are readable."""

import io
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from condensery.errors import UserError
from condensery.reporting.ask import ask, printable, show
from condensery.retrieval.indexes.bm25 import build_bm25
from condensery.retrieval.indexes.opening import open_index, search_of_texts
from condensery.retrieval.searchers.base import Hit
from condensery.system.files import write_json
from condensery.text.collection import Collection
from condensery.text.records import Passage
from condensery.text.writer import CollectionWriter


def _no_encoder(folder: Path) -> Any:
    raise AssertionError(f"an encoder was asked for: {folder}")


TEXTS = ["parse a json document", "open a file for reading", "multiply matrices", "json json json", "sort a list"]


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    with CollectionWriter(tmp_path / "collection", "tools") as writer:
        for number, text in enumerate(TEXTS):
            writer.add_passage(Passage(f"p{number}", "Title" if number == 0 else "", text + " [bold]" * (number == 3)))
    return Collection(tmp_path / "collection")


def test_bm25_answers_best_first_with_only_what_it_found(tmp_path: Path, collection: Collection) -> None:
    build_bm25(collection, tmp_path / "bm25", 0.9, 0.4)
    answers = ask("json file", search_of_texts(open_index(tmp_path / "bm25", collection), _no_encoder), collection)
    assert {answer.id for answer in answers} == {"p0", "p1", "p3"}
    assert [answer.rank for answer in answers] == [1, 2, 3]
    assert [answer.score for answer in answers] == sorted((answer.score for answer in answers), reverse=True)
    stream = io.StringIO()
    show("json file", answers, Console(file=stream, width=80))
    assert "open a file for reading" in stream.getvalue()
    assert "json json json [bold]" in stream.getvalue()  # text is shown as it is, never read as markup
    assert "Title · p0" in stream.getvalue()


@pytest.fixture
def dense(tmp_path: Path, collection: Collection) -> Any:
    folder = tmp_path / "dense"
    (folder / "passages").mkdir(parents=True)
    np.save(folder / "passages" / "00000.npy", np.eye(5, dtype=np.float32))
    write_json(folder / "index.json", {"method": "dense", "passages": 5, "dim": 5, "shards": [[0, 5]]})
    return open_index(folder, collection, device="cpu")


def _encoder(folder: Path) -> Any:
    return {"dense": lambda texts: np.array([[0, 0.2, 0.9, 0, 0]] * len(texts))}[folder.name]


def test_a_dense_retriever_is_asked_with_a_vector(collection: Collection, dense: Any) -> None:
    answers = ask("anything", search_of_texts(dense, _encoder), collection, 2)
    assert [(answer.id, answer.text) for answer in answers] == [("p2", TEXTS[2]), ("p1", TEXTS[1])]


def test_an_approximate_retriever_is_asked_with_a_vector_of_what_it_approximates(
    tmp_path: Path, collection: Collection, dense: Any
) -> None:
    class Near:
        exact = dense
        search_vectors = staticmethod(dense.search_vectors)

    assert [answer.id for answer in ask("anything", search_of_texts(Near(), _encoder), collection, 2)] == ["p2", "p1"]


class Fused:
    """As one that joins others: here each passage counts 1 / rank in each ranking."""

    def __init__(self, members: list[Any], depth: int) -> None:
        self.members, self.depth = members, depth
        self.seen: list[int] = []

    def combine(self, rankings: Any, k: int) -> Any:
        self.seen = [rows.shape[1] for _, rows in rankings]
        total = np.zeros(5, np.float32)
        for _, rows in rankings:
            for place, row in enumerate(rows[0]):
                total[row] += (row >= 0) / (1 + place)
        best = np.argsort(-total, kind="stable")[:k]
        return total[best][None], best[None].astype(np.int64)


def test_a_retriever_that_joins_others_asks_each_in_its_own_way_with_its_depth(
    tmp_path: Path, collection: Collection, dense: Any
) -> None:
    build_bm25(collection, tmp_path / "bm25", 0.9, 0.4)
    inner = Fused([dense, open_index(tmp_path / "bm25", collection)], 3)
    outer = Fused([inner, dense], 4)
    answers = ask("sort", search_of_texts(outer, _encoder), collection, 2)
    assert (inner.seen, outer.seen) == ([3, 3], [4, 4])
    assert answers[0].id == "p2"  # first of the vectors twice
    assert {answer.id for answer in ask("sort", search_of_texts(inner, _encoder), collection, 2)} == {"p2", "p4"}


def test_reranked_candidates_cannot_be_asked() -> None:
    with pytest.raises(UserError, match="rerankings and run files rank only"):
        search_of_texts(object(), _no_encoder)


def test_an_empty_question_is_a_user_error_and_no_answer_is_said(tmp_path: Path, collection: Collection) -> None:
    build_bm25(collection, tmp_path / "bm25", 0.9, 0.4)
    search = search_of_texts(open_index(tmp_path / "bm25", collection), _no_encoder)
    with pytest.raises(UserError, match="empty"):
        ask("  ", search, collection)
    stream = io.StringIO()
    show("zebra", ask("zebra", search, collection), Console(file=stream))
    assert "no passage" in stream.getvalue()


def test_what_would_steer_the_terminal_is_made_visible() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202etxt\ud800 a\rb"
    stream = io.StringIO()
    show(evil, [Hit(1, 0.5, f"id{evil}", f"title\n{evil}", f"text{evil}\r\nnext\tline")], Console(file=stream))
    shown = stream.getvalue()
    assert {c for c in shown if ord(c) < 32 or 0x7F <= ord(c) < 0xA0} == {"\n"}
    assert not {"\u202e", "\ud800"} & set(shown)
    assert shown.count("␛]0;owned␇␛[2J\ufffd31m␡\ufffdtxt\ufffd a␍b") == 4  # question, title, id, passage


def test_other_text_is_shown_as_it_is() -> None:
    text = "naïve 漢字 👩‍🔬 \u200bx\n\ty"
    assert printable(text) == text
    assert printable("a\r\nb") == "a\nb"


def test_a_long_passage_is_not_cut_between_a_letter_and_its_marks() -> None:
    for text in ("ที่" * 400, "क्षि" * 300, "蜜蜂" * 500):
        stream = io.StringIO()
        show("?", [Hit(1, 0.5, "id", "", text)], Console(file=stream, width=100_000))
        shown = next(line for line in stream.getvalue().splitlines() if text[:9] in line).split(" …")[0].strip("│ ")
        assert text.startswith(shown)
        assert 590 <= len(shown) <= 600
        assert unicodedata.category(text[len(shown)])[0] != "M"


def test_of_a_long_question_the_beginning_is_shown() -> None:
    stream = io.StringIO()
    show("word " * 1000, [], Console(file=stream, width=10_000))
    assert stream.getvalue().splitlines()[0].endswith("word word … (4,999 characters)")
    assert len(stream.getvalue().splitlines()[0]) < 640
