"""A collection on disk: what is written is what is read, and every fault of the whole is found."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from condensery.errors import UserError
from condensery.text import table
from condensery.text.collection import Collection
from condensery.text.hashes import id_hash
from condensery.text.ids import IdIndex
from condensery.text.records import Document, Passage, Query
from condensery.text.writer import CollectionWriter


def written(folder: Path, count: int = 10, **changes: object) -> Collection:
    """A collection of ``count`` passages in documents of three, with a query for each."""
    with CollectionWriter(folder, "small", **changes) as writer:  # type: ignore[arg-type]
        for at in range(count):
            writer.add_judgement("train" if at % 5 else "test", f"q{at}", f"p{at}", 1, f"qrels:{at}")
        for at in range(count):
            writer.add_passage(Passage(f"p{at}", f"Title {at}", f"text of {at} ü", f"d{at // 3}"), f"corpus:{at}")
            writer.add_query(Query(f"q{at}", f"question {at}"), f"queries:{at}")
    return Collection(folder)


@pytest.fixture(params=[1, 3, 4096])
def batch_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(table, "BATCH_ROWS", request.param)
    return int(request.param)


def test_columns_give_the_rows_whatever_the_record_batches(tmp_path: Path, batch_rows: int) -> None:
    collection = written(tmp_path)
    texts = collection.passages.column("text")
    assert list(texts) == [f"text of {at} ü" for at in range(10)]
    assert texts[2:7] == [f"text of {at} ü" for at in range(2, 7)]
    assert texts[::-3] == [f"text of {at} ü" for at in (9, 6, 3, 0)]
    assert texts.take([9, 0, 4]) == ["text of 9 ü", "text of 0 ü", "text of 4 ü"]
    assert texts.take([7, 2, 7, 7]) == [texts[7], texts[2], texts[7], texts[7]]
    assert texts.take([]) == []
    assert collection.passages.ids_at(np.array([8, 1, 8], np.int32)) == ["p8", "p1", "p8"]
    assert (texts[-1], len(texts), texts[5:5]) == ("text of 9 ü", 10, [])
    with pytest.raises(IndexError):
        texts[10]


def test_rows_are_found_by_id(tmp_path: Path) -> None:
    passages = written(tmp_path).passages
    assert passages.rows_of(passages.ids).tolist() == list(range(10))
    assert passages.rows_of(["p3", "none"]).tolist() == [3, -1]


def test_a_table_travels_to_other_processes_by_its_path(tmp_path: Path) -> None:
    passages = written(tmp_path).passages
    packed = pickle.dumps(passages)
    assert len(packed) < 1000
    assert pickle.loads(packed).ids == passages.ids


def test_documents_are_runs_of_passages(tmp_path: Path, batch_rows: int) -> None:
    assert written(tmp_path).document_starts.tolist() == [0, 3, 6, 9, 10]


def test_passages_without_documents_are_documents_of_their_own(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path, "small") as writer:
        for at in range(3):
            writer.add_passage(Passage(str(at), "", "same text"))
    collection = Collection(tmp_path)
    assert collection.document_starts.tolist() == [0, 1, 2, 3]
    assert (collection.splits, len(collection.queries), list(collection.queries.column("text"))) == ([], 0, [])
    assert collection.queries.rows_of(["q"]).tolist() == [-1]


def test_judgements_are_rows_sorted_by_query(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path, "small") as writer:
        for query, passage, grade in [("q1", "b", 2), ("q0", "b", 0), ("q0", "a", 1), ("q1", "a", 1), ("q1", "a", 1)]:
            writer.add_judgement("dev", query, passage, grade, "f:1")
        for name in "ab":
            writer.add_passage(Passage(name, "", name))
        writer.add_query(Query("q0", "zero"))
        writer.add_query(Query("q1", "one"))
    collection = Collection(tmp_path)
    qrels = collection.qrels("dev")
    assert list(zip(qrels.query_rows, qrels.passage_rows, qrels.grades, strict=True)) == [
        (0, 0, 1),
        (0, 1, 0),
        (1, 0, 1),
        (1, 1, 2),
    ]
    assert {query: rows.tolist() for query, rows in qrels.positives().items()} == {0: [0], 1: [0, 1]}
    assert qrels.query_set.tolist() == [0, 1]
    assert {query: rows.tolist() for query, rows in qrels.of(np.array([1])).positives().items()} == {1: [0, 1]}
    assert collection.description["dropped"] == {"judgements": 1}
    with pytest.raises(UserError, match='no split "train"'):
        collection.qrels("train")


def test_queries_that_no_split_judges_are_left_out(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path, "small") as writer:
        writer.add_judgement("train", "q1", "a", 1, "f:1")
        writer.add_passage(Passage("a", "", "text"))
        for name in ("q0", "q1"):
            writer.add_query(Query(name, "text"))
    collection = Collection(tmp_path)
    assert collection.queries.ids == ["q1"]
    assert collection.description["dropped"] == {"unjudged_queries": 1}


def test_a_title_stands_in_for_a_missing_text(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path, "small") as writer:
        writer.add_passage(Passage("a", "only a title", " "))
    passages = Collection(tmp_path).passages
    assert (passages.column("title")[0], passages.column("text")[0]) == ("", "only a title")


def test_empty_passages_are_dropped_on_demand_with_their_judgements(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path, "small", empty_passages="drop") as writer:
        writer.add_judgement("train", "q", "a", 1, "f:1")
        writer.add_judgement("train", "q", "b", 1, "f:2")
        writer.add_passage(Passage("a", "", "text"))
        writer.add_passage(Passage("b", "", ""))
        writer.add_query(Query("q", "text"))
    collection = Collection(tmp_path)
    assert collection.passages.ids == ["a"]
    assert len(collection.qrels("train")) == 1
    assert collection.description["dropped"] == {"empty_passages": 1, "judgements": 1}


def test_separate_documents_keep_their_passages_as_lists(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path, "small") as writer:
        writer.add_passage(Passage("a", "", "text"))
        writer.add_document(Document("d", "Title", ["one", " ", "two"]))
        writer.add_document(Document("e", "Empty", [""]))
    collection = Collection(tmp_path)
    assert collection.documents is not None
    assert collection.documents.column("passages")[:] == [["one", "two"]]
    assert collection.description["dropped"] == {"empty_documents": 1}


def test_dev_queries_come_out_of_train_where_there_is_no_dev_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collection = written(tmp_path / "a", count=100, dev_queries=5)
    said = "5 train queries are held out as dev, because there is no dev split (dev_queries)\n"
    assert capsys.readouterr().out == f"[{collection.name}] {said}"
    train, dev = collection.qrels("train").query_set, collection.qrels("dev").query_set
    assert (len(train), len(dev)) == (75, 5)
    assert not set(train) & set(dev)
    assert written(tmp_path / "b", count=100, dev_queries=5).qrels("dev").query_set.tolist() == dev.tolist()
    assert len(written(tmp_path / "c", count=100, dev_queries=5000).qrels("dev").query_set) == 8  # a tenth of 80
    assert "8 train queries are held out" in capsys.readouterr().out
    written(tmp_path / "d", count=10, dev_queries=5)
    assert not capsys.readouterr().out, "none is taken of so few"


def test_train_queries_whose_judgements_are_set_aside_stay_in_the_collection(tmp_path: Path) -> None:
    plain = written(tmp_path / "a", count=100)
    assert plain.unjudged().tolist() == []
    collection = written(tmp_path / "b", count=100, unlabelled_queries=30)
    unjudged, train = collection.unjudged(), collection.qrels("train").query_set
    assert len(unjudged) == 30
    assert len(collection.queries) == 100
    assert sorted([*unjudged, *train]) == plain.qrels("train").query_set.tolist()
    assert collection.qrels("test").query_set.tolist() == plain.qrels("test").query_set.tolist()
    assert collection.description["dropped"] == {"labels_set_aside": 30}
    fewer = written(tmp_path / "c", count=100, unlabelled_queries=10).unjudged()
    assert set(fewer) < set(unjudged), "nested"
    assert len(written(tmp_path / "d", count=100, unlabelled_queries=5000).unjudged()) == 40  # half of 80
    with_dev = written(tmp_path / "e", count=100, unlabelled_queries=30, dev_queries=5)
    assert not set(with_dev.unjudged()) & set(with_dev.qrels("dev").query_set)


def test_a_query_that_another_split_judges_is_not_without_label(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path, "small", unlabelled_queries=10) as writer:
        for at in range(10):
            writer.add_judgement("train", f"q{at}", f"p{at}", 1)
            writer.add_judgement("test" if at < 5 else "dev", f"q{at}", f"p{at}", 1)
            writer.add_passage(Passage(f"p{at}", "", f"text of {at}"))
            writer.add_query(Query(f"q{at}", f"question {at}"))
    assert len(Collection(tmp_path).unjudged()) == 0


def test_queries_that_nobody_judged_are_kept_on_demand(tmp_path: Path) -> None:
    for wanted, kept in ((0, 0), ("unjudged", 3)):
        folder = tmp_path / str(wanted)
        with CollectionWriter(folder, "small", unlabelled_queries=wanted) as writer:
            writer.add_judgement("train", "q0", "p0", 1)
            writer.add_passage(Passage("p0", "", "text"))
            for at in range(4):
                writer.add_query(Query(f"q{at}", f"question {at}"))
        assert Collection(folder).unjudged().tolist() == [1, 2, 3][:kept]


def test_the_content_hash_follows_content_and_order_only(tmp_path: Path) -> None:
    def made(name: str, *passages: tuple[str, str], grade: int = 1) -> str:
        with CollectionWriter(tmp_path / name, name) as writer:
            writer.add_judgement("train", "q", "1", grade, f"{name}:1")
            for number, (title, text) in enumerate(passages):
                writer.add_passage(Passage(str(number + 1), title, text), f"{name}:{number}")
            writer.add_query(Query("q", "text"))
        return Collection(tmp_path / name).content_hash

    first = made("first", ("ab", "c"), ("", "d"))
    assert made("second", ("ab", "c"), ("", "d")) == first
    others = [
        made("boundary", ("a", "bc"), ("", "d")),
        made("order", ("", "d"), ("ab", "c")),
        made("grade", ("ab", "c"), ("", "d"), grade=2),
    ]
    assert len({first, *others}) == 4


def test_a_writer_replaces_what_an_interrupted_one_left(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path, "old") as writer:
        writer.add_passage(Passage("a", "", "text"))
        writer.add_document(Document("d", "", ["text"]))
    writer = CollectionWriter(tmp_path, "new")
    with pytest.raises(UserError, match=r"no collection \("):
        Collection(tmp_path)
    writer.add_passage(Passage("b", "", "text"))
    writer.close()
    assert Collection(tmp_path).documents is None


def test_a_query_of_two_splits_is_warned_of(tmp_path: Path) -> None:
    with CollectionWriter(tmp_path, "small") as writer:
        writer.add_judgement("train", "q", "a", 1, "f:1")
        writer.add_judgement("test", "q", "a", 1, "g:1")
        writer.add_passage(Passage("a", "", "text"))
        writer.add_query(Query("q", "text"))
    assert "1 query of the split test is also" in Collection(tmp_path).description["warnings"][0]


def test_many_ids_are_found_by_their_hashes() -> None:
    ids = [f"id{at}" for at in range(5000)]
    index = IdIndex.of(np.array([id_hash(identifier) for identifier in ids], np.uint64))
    assert index.find_ids(ids).tolist() == list(range(5000))
    assert index.first_duplicate() is None
    twice = IdIndex.of(np.array([id_hash(name) for name in ["x", "a", "b", "b", "a", "a"]], np.uint64))
    assert twice.first_duplicate() == (3, 2)
