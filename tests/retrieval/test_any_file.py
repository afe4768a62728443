"""Runs, negatives and triples on whatever hypothesis thinks of: they come back the same, and no input gives a traceback."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import FEW, MORE, damaged, named
from hypothesis import given
from hypothesis import strategies as st

from condensery.errors import UserError
from condensery.retrieval.negatives import Negatives, read_negatives, save_negatives
from condensery.retrieval.published_negatives import from_systems, from_triples
from condensery.retrieval.ranking import strictly_falling
from condensery.retrieval.runs import Run, read_run, write_run
from condensery.text.collection import Collection
from condensery.text.queries import read_query_files

PASSAGES, QUERIES = 60, 12  # of the collection


@st.composite
def rankings(draw: st.DrawFn) -> Run:
    """Rankings of different lengths with any scores, ties among them."""
    queries = sorted(draw(st.sets(st.integers(0, QUERIES - 1), min_size=1)))
    own = [draw(st.lists(st.integers(0, PASSAGES - 1), unique=True, min_size=1, max_size=6)) for _ in queries]
    depth = max(map(len, own))
    rows = np.full((len(queries), depth), -1, np.int64)
    scores = np.full((len(queries), depth), -np.inf, np.float32)
    for at, passages in enumerate(own):
        number = st.floats(width=32, allow_nan=False, allow_infinity=False)
        drawn = draw(st.lists(number, min_size=len(passages), max_size=len(passages)))
        rows[at, : len(passages)], scores[at, : len(passages)] = passages, sorted(drawn, reverse=True)
    return Run(np.array(queries), rows, scores)


@FEW
@given(run=rankings())
def test_any_run_comes_back_the_same(collection: Collection, run: Run) -> None:
    with tempfile.TemporaryDirectory() as name:
        write_run(Path(name) / "run.txt.gz", run, collection)
        read = read_run(Path(name) / "run.txt.gz", collection)
    for name in ("query_rows", "passage_rows"):
        np.testing.assert_array_equal(getattr(read, name), getattr(run, name))
    found = read.passage_rows >= 0
    np.testing.assert_array_equal(read.scores[found], strictly_falling(run.scores)[found])


@FEW
@given(run=rankings())
def test_any_negatives_come_back_the_same(collection: Collection, run: Run) -> None:
    wanted = Negatives(run.query_rows, run.passage_rows.astype(np.int32))
    with tempfile.TemporaryDirectory() as name:
        save_negatives(Path(name), wanted, collection, {})
        read = read_negatives(Path(name) / "negatives.jsonl", collection)
    np.testing.assert_array_equal(read.query_rows, wanted.query_rows)
    np.testing.assert_array_equal(read.passage_rows, wanted.passage_rows)


@FEW
@given(pairs=st.lists(st.tuples(st.integers(0, QUERIES - 1), st.integers(30, 45)), min_size=1, max_size=40))
def test_any_triples_come_back_as_distinct_negatives(collection: Collection, pairs: list[tuple[int, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "triples.tsv"
        path.write_text("".join(f"q{query}\tp{query}\tp{passage}\n" for query, passage in pairs))
        negatives, counts = from_triples(path, collection, depth=100)
    found = zip(negatives.query_rows.tolist(), negatives.passage_rows, strict=True)
    assert {query: {int(row) for row in rows if row >= 0} for query, rows in found} == {
        query: {passage for one, passage in pairs if one == query} for query, _ in pairs
    }
    assert (counts["triples"], counts["negatives"]) == (len(pairs), len(set(pairs)))


READERS: dict[str, tuple[Callable[[Path, Collection], Any], bytes]] = {
    "run": (read_run, b"q1 Q0 p3 1 1.5 x\nq1 Q0 p4 2 1.0 x\nq2 Q0 p4 1 1e-3 x\n"),
    "negatives": (
        read_negatives,
        b'{"query_id": "q1", "negative_ids": ["p5", "p7"], "scores": [2.0, 1.0]}\n{"query_id": "q0", "negative_ids": []}\n',
    ),
    "triples": (lambda path, collection: from_triples(path, collection, 5), b"q1\tp1\tp5\nq2\tp2\tp7\n"),
}


@MORE
@given(data=st.data())
@pytest.mark.parametrize("reader", READERS)
def test_no_bytes_give_a_traceback(reader: str, collection: Collection, data: st.DataObject) -> None:
    read, sound = READERS[reader]
    raw = data.draw(st.one_of(st.binary(max_size=40), damaged(sound)))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "file"
        path.write_bytes(raw)
        try:
            read(path, collection)
        except UserError as error:
            named(error, path)


ODD = "\ufeffp1"  # a byte-order mark that a spreadsheet left before the id
OF_OTHERS = {
    "run.trec": f"q0 Q0 p3 1 2.0 x\nq0 Q0 {ODD} 2 1.0 x\n",
    "of_systems.jsonl": f'{{"qid": "q0", "pos": [], "neg": {{"bm25": ["{ODD}"]}}}}\n',
    "negatives.jsonl": f'{{"query_id": "q0", "negative_ids": ["{ODD}"]}}\n',
    "triples.tsv": f"q0\tp3\t{ODD}\n",
    "queries.tsv": f"{ODD}\ta query\n",
}


@pytest.mark.parametrize("name", OF_OTHERS)
def test_an_id_that_looks_like_one_there_is_told_apart(name: str, collection: Collection, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("q0\tp3\tp4\n" * (name == "triples.tsv") + OF_OTHERS[name], encoding="utf-8")
    if name == "queries.tsv":  # a mark at the beginning of a file is taken away
        path.write_text("p3\ta query\n" + OF_OTHERS[name], encoding="utf-8")
    read: dict[str, Callable[[], object]] = {
        "run.trec": lambda: read_run(path, collection),
        "of_systems.jsonl": lambda: from_systems(path, collection, 5),
        "negatives.jsonl": lambda: read_negatives(path, collection),
        "triples.tsv": lambda: from_triples(path, collection, 5),
        "queries.tsv": lambda: list(read_query_files([path], "tsv", collection.passages)),
    }
    with pytest.raises(
        UserError, match=r"'p1' looks the same but is another id: character 1 is U\+FEFF here and U\+0070"
    ):
        read[name]()


def test_half_a_character_in_an_id_of_a_system_is_one_line(collection: Collection, tmp_path: Path) -> None:
    path = tmp_path / "negatives.jsonl"
    path.write_text('{"qid": "q0", "neg": {"bm25": ["\\ud800"]}}\n')
    with pytest.raises(UserError, match=r"negatives.jsonl:1: the id holds half a character"):
        from_systems(path, collection, 5)


ODD_QUERY = "q\uff11"  # in fullwidth digits
OF_QUERIES = {
    "of_systems.jsonl": f'{{"qid": "{ODD_QUERY}", "pos": [], "neg": {{"bm25": ["p3"]}}}}\n',
    "negatives.jsonl": f'{{"query_id": "{ODD_QUERY}", "negative_ids": ["p3"]}}\n',
    "triples.tsv": f"{ODD_QUERY}\tp1\tp3\n",
    "run.trec": f"{ODD_QUERY} Q0 p3 1 2.0 x\n",
}


@pytest.mark.parametrize("name", OF_QUERIES)
def test_a_query_that_looks_like_one_there_is_not_left_out_without_a_word(
    name: str, collection: Collection, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(OF_QUERIES[name], encoding="utf-8")
    read: dict[str, Callable[[], object]] = {
        "of_systems.jsonl": lambda: from_systems(path, collection, 5),
        "negatives.jsonl": lambda: read_negatives(path, collection),
        "triples.tsv": lambda: from_triples(path, collection, 5),
        "run.trec": lambda: read_run(path, collection),
    }
    with pytest.raises(UserError, match=rf"{name}:1: query .* is unknown.*'q1' looks the same but is another id"):
        read[name]()
