"""What is no negative of a query: relevant passages, their texts under other ids, and the query's own text."""

import json
from pathlib import Path

import numpy as np
import pytest
from in_row_order import InRowOrder

from condensery import BM25
from condensery.errors import UserError
from condensery.retrieval.mining import mine, mined
from condensery.retrieval.no_negatives import NoNegatives, left_out_by_text
from condensery.retrieval.published_negatives import from_collection, from_systems, from_triples
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

# 3 is the same as 0, 4 as 1 with its title, 6 as 1 without it; 5 is query 0, 6 is query 2 and its passage
PASSAGES = [
    ("p0", "", "amber birch"),
    ("p1", "amber", "cedar"),
    ("p2", "", "birch ember"),
    ("p3", "", " amber  birch"),
    ("p4", "", "amber cedar"),
    ("p5", "ember", "amber"),
    ("c", "", "cedar"),
    ("p7", "", "birch fjord"),
    ("p8", "other", "cedar delta"),
    ("p9", "", "cedar grove"),
]
QUERIES = [("a", "amber"), ("b", "birch"), ("c", "cedar"), ("b2", " birch ")]
JUDGED = {"a": "p0", "b": "p2", "c": "p1", "b2": "p7"}
EXPECTED = {0: {0, 3, 5}, 1: {2, 7}, 2: {1, 4, 6}, 3: {2, 7}}


@pytest.fixture
def words(tmp_path: Path) -> Collection:
    with CollectionWriter(tmp_path / "words", "words") as writer:
        for query, passage in JUDGED.items():
            writer.add_judgement("train", query, passage, 1)
        for passage in PASSAGES:
            writer.add_passage(Passage(*passage))
        for query in QUERIES:
            writer.add_query(Query(*query))
        for query in JUDGED:
            writer.add_negatives(query, [name for name, *_ in PASSAGES])
    return Collection(tmp_path / "words")


def known(collection: Collection) -> NoNegatives:
    return NoNegatives.of(collection, collection.qrels("train").positives())


def test_relevant_texts_the_querys_own_and_those_of_its_twin_are_known(words: Collection) -> None:
    found, everything = known(words), np.tile(np.arange(10), (4, 1))
    among = found.among(np.arange(4), everything)
    assert {query: set(np.flatnonzero(row).tolist()) for query, row in enumerate(among)} == EXPECTED
    assert not found.among(np.arange(4), np.full((4, 2), -1)).any()
    flat, numbers = found.lists(np.array([2, 0]))
    assert (flat.tolist(), numbers.tolist()) == ([1, 0, 5], [1, 2]), "the first of the same stands for all"
    assert found.numbers(np.arange(4)).tolist() == [3, 2, 3, 2]
    assert found.by_text(words.qrels("train").positives()) == 6


def test_queries_without_judgements_have_their_own_text(words: Collection) -> None:
    found = NoNegatives.of(words, {}, np.array([2]))
    assert found.lists(np.array([2]))[0].tolist() == [1]


def test_a_query_is_no_negative_of_itself_that_is_told_by_its_title(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path / "c", "forum") as writer:
        writer.add_judgement("train", "q1", "p1", 1)
        for name, title in (("q1", "how so"), ("q2", "how so"), ("p1", "thus")):
            writer.add_passage(Passage(name, title, f"body of {name}"))
        writer.add_query(Query("q1", "how  so"))
    assert known(Collection(tmp_path / "c")).lists(np.array([0]))[0].tolist() == [0, 2]


def test_nothing_is_known_by_text_where_all_texts_differ(
    collection: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    positives = collection.qrels("train").positives()
    assert left_out_by_text(NoNegatives.of(collection, positives).by_text(positives), "x") == {}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("depth", [1, 3, 10])
def test_mining_leaves_out_what_is_known_and_is_as_deep_as_there_are(
    words: Collection, depth: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = mine(InRowOrder(), words, "train", depth, tmp_path / "n")  # type: ignore[arg-type]
    assert about["left_out_by_text"] == 6
    assert capsys.readouterr().out == (
        "[mine train] 6 passages are left out of a query's negatives: the text equals that of the query or of a relevant"
        " passage\n"
    )
    assert json.loads((tmp_path / "n" / "negatives.json").read_text()) == about
    for query, line in enumerate((tmp_path / "n" / "negatives.jsonl").read_text().splitlines()):
        wanted = [PASSAGES[row][0] for row in range(10) if row not in EXPECTED[query]]
        assert json.loads(line)["negative_ids"] == wanted[:depth]


def test_where_a_positive_stands_often_its_queries_alone_are_searched_deeper(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path / "c", "copies") as writer:
        writer.add_judgement("train", "q0", "p0", 1)
        writer.add_judgement("train", "q1", "p49", 1)
        for passage in range(50):
            writer.add_passage(Passage(f"p{passage}", "", "copy" if passage < 30 else f"text {passage}"))
        for query in range(2):
            writer.add_query(Query(f"q{query}", f"query {query}"))
    order = InRowOrder(50)
    mine(order, Collection(tmp_path / "c"), "train", 4, tmp_path / "n")  # type: ignore[arg-type]
    assert order.asked == [5, 10, 20, 40]
    first, second = (json.loads(line) for line in (tmp_path / "n" / "negatives.jsonl").read_text().splitlines())
    assert first["negative_ids"] == ["p30", "p31", "p32", "p33"]
    assert second["negative_ids"] == ["p0", "p1", "p2", "p3"]


def test_retrievers_of_a_program_mine_by_the_same_rule(words: Collection) -> None:
    found = mined(BM25(stopwords="none", stemmer="none"), words, "train", 10)
    for query, rows in zip(found.query_rows.tolist(), found.passage_rows, strict=True):
        assert not EXPECTED[query] & set(rows.tolist())
    assert found.counts.tolist() == [2, 2, 2, 2]


def test_given_negatives_are_looked_through(words: Collection, tmp_path: Path) -> None:
    by_row = {query: sorted(set(range(10)) - none) for query, none in EXPECTED.items()}
    found, counts = from_collection(words, 10)
    assert [row[row >= 0].tolist() for row in found.passage_rows] == list(by_row.values())
    assert counts["left_out_by_text"] == 6
    triples = tmp_path / "triples.tsv"
    triples.write_text("".join(f"{query}\tp0\t{name}\n" for query in JUDGED for name, *_ in PASSAGES))
    found, counts = from_triples(triples, words, 10)
    assert [row[row >= 0].tolist() for row in found.passage_rows] == list(by_row.values())
    assert counts["left_out_by_text"] == 6
    lists = tmp_path / "lists.jsonl"
    named = [{"qid": query, "neg": {"x": [name for name, *_ in PASSAGES]}} for query in JUDGED]
    lists.write_text("".join(json.dumps(line) + "\n" for line in named))
    found, counts = from_systems(lists, words, 10)
    assert [row[row >= 0].tolist() for row in found.passage_rows] == list(by_row.values())
    assert counts["left_out_by_text"] == 6


def test_the_texts_of_a_lines_own_positives_are_none_either(words: Collection, tmp_path: Path) -> None:
    path = tmp_path / "lists.jsonl"
    path.write_text(json.dumps({"qid": "b", "pos": ["p4", "nobody"], "neg": {"x": ["p1", "p4", "p9"]}}))
    assert from_systems(path, words, 10)[0].passage_rows.tolist() == [[9]]
    path.write_text(json.dumps({"qid": "a", "pos": [], "neg": {"x": ["p3", "p5"]}}))
    with pytest.raises(UserError, match="no line has a negative for a query"):
        from_systems(path, words, 10)
