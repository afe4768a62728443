"""DPR's files and Tevatron's become collections with judgements, answers and negatives; a fault is one clear line."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import UserError
from condensery.text import read_collection
from condensery.text.lines import read_objects

from .conftest import Make, Write, lines

Files = dict[str, str | bytes]

PASSAGES = (
    "id\ttext\ttitle\n"
    '1\t"Aaron ( or ; ""Ahärôn"") is a prophet."\tAaron\n'
    "2\tHe is a brother.\tAaron\n"
    '3\t"The abacus counts."\t"An ""abacus"""\n'
    "4\tAnother prophet.\tAaron\n"
)


def entry(question: str, positives: list[Any], negatives: list[Any], key: str = "passage_id", **more: Any) -> Any:
    contexts = {
        name: [{"title": "t", "text": "x", "score": 1, key: one} for one in found]
        for name, found in (("positive_ctxs", positives), ("hard_negative_ctxs", negatives))
    }
    return {"question": question, "answers": ["Ahärôn", " "], "negative_ctxs": [], **contexts, **more}


TRAIN = [
    entry("who is it", ["1", "2"], ["4", "3", "4", "2"]),
    entry("nobody knows", [], ["3"]),
    entry("what counts", [3], [1], "psg_id"),
]


@pytest.fixture
def dpr_files() -> Files:
    """A sound set of DPR's files."""
    return {
        "psgs_w100.tsv": PASSAGES,
        "biencoder-nq-train.json": json.dumps(TRAIN, indent=4),
        "biencoder-nq-dev.json.gz": json.dumps([entry("who else", ["4"], [])]),
        "nq-test.qa.csv": "who was a prophet\t['Aaron', 'Ahärôn']\n"
        '"who said ""it"""\t"[""it\'s"", \'me\']"\n'
        'json\t["it\\u0301"]\n',
    }


def test_dpr_files_become_a_collection(tmp_path: Path, config: Make, write: Write, dpr_files: Files) -> None:
    collection = read_collection(config("nq", root=write(dpr_files)), tmp_path / "out")
    assert collection.passages.column("text")[:2] == ['Aaron ( or ; "Ahärôn") is a prophet.', "He is a brother."]
    assert collection.passages.column("title")[:] == ["Aaron", "Aaron", 'An "abacus"', "Aaron"]
    assert collection.passages.column("document")[:] == ["1", "1", "3", "4"]  # neighbours of one title
    assert collection.queries.ids == ["train-0", "train-2", "dev-0", "test-0", "test-1", "test-2"]
    assert collection.queries.column("text")[4] == 'who said "it"'
    assert collection.answers is not None
    assert collection.answers[:] == [["Ahärôn"]] * 3 + [["Aaron", "Ahärôn"], ["it's", "me"], ["it\u0301"]]
    assert collection.splits == ["train", "dev"]
    assert {row: found.tolist() for row, found in collection.qrels("train").positives().items()} == {0: [0], 1: [2]}
    assert collection.questions("train").tolist() == [0, 1]
    assert collection.questions("test").tolist() == [3, 4, 5]
    with pytest.raises(UserError, match='no split "test"'):
        collection.qrels("test")
    assert collection.given_negatives is not None
    assert collection.given_negatives.tolist() == [[0, 3], [0, 2], [1, 0]]  # best first, without positives
    assert collection.description["dropped"] == {"empty_answers": 3, "questions_without_positive": 1}
    assert collection.description["splits"]["test"] == {"queries": 3, "judgements": 0}


def test_training_questions_without_a_positive_are_kept_unjudged_where_asked(
    tmp_path: Path, config: Make, write: Write, dpr_files: Files
) -> None:
    files = dpr_files | {"biencoder-nq-dev.json.gz": json.dumps([entry("who else", ["4"], []), entry("lost", [], [])])}
    made = config("nq", root=write(files), unlabelled_queries="unjudged")
    collection = read_collection(made, tmp_path / "out")
    assert collection.queries.ids == ["train-0", "train-1", "train-2", "dev-0", "test-0", "test-1", "test-2"]
    assert collection.unjudged().tolist() == [1]
    assert collection.qrels("train").query_rows.tolist() == [0, 2]
    assert collection.description["dropped"] == {"empty_answers": 4, "questions_without_positive": 1}
    as_before = config("nq", root=made.root, unlabelled_queries=1)
    assert len({made.fingerprint(), as_before.fingerprint(), config("nq", root=made.root).fingerprint()}) == 3


def test_all_positives_are_kept_where_asked(tmp_path: Path, config: Make, write: Write, dpr_files: Files) -> None:
    made = config("nq", root=write(dpr_files), positives="all")
    collection = read_collection(made, tmp_path / "out")
    assert collection.qrels("train").passage_rows.tolist() == [0, 1, 2]
    assert collection.content_hash != read_collection(config("nq", root=made.root), tmp_path / "2").content_hash


def test_every_answer_is_part_of_the_content(tmp_path: Path, config: Make, write: Write, dpr_files: Files) -> None:
    first = read_collection(config("nq", root=write(dpr_files)), tmp_path / "1").content_hash
    changed = dpr_files | {"nq-test.qa.csv": str(dpr_files["nq-test.qa.csv"]).replace("Aaron", "Moses")}
    assert read_collection(config("nq", root=write(changed)), tmp_path / "2").content_hash != first


def test_which_splits_have_what_is_known_before_reading(config: Make) -> None:
    made = config("triviaqa", root="somewhere")
    assert made.judged_splits() == {"train", "dev"}
    assert made.answered_splits() == {"train", "dev", "test"}
    assert made.gives_negatives()


def broken(*entries: Any) -> str:
    return json.dumps([TRAIN[0], *entries], indent=1)


START = len(json.dumps([TRAIN[0]], indent=1).splitlines())  # the line at which a second entry begins

BROKEN = [
    ("psgs_w100.tsv", PASSAGES + "5\tno title\n", r"psgs_w100\.tsv:6: 3 columns separated by tabs .*, not 2"),
    ("psgs_w100.tsv", PASSAGES + '5\t"not closed\ttitle\n', r"psgs_w100\.tsv:6: 3 columns .* quote .* not closed"),
    ("psgs_w100.tsv", "id\ttitle\ttext\n", r"psgs_w100\.tsv:1: the columns must be id, text, title"),
    ("psgs_w100.tsv", PASSAGES + "2\tagain\tAaron\n", r"psgs_w100\.tsv:6: this id is also at \S+:3"),
    ("psgs_w100.tsv", PASSAGES + "5\t\t\n", r"psgs_w100\.tsv:6: the text is empty"),
    ("psgs_w100.tsv", b"1\t\xff\tt\n", r"psgs_w100\.tsv:1: not valid UTF-8"),
    ("nq-test.qa.csv", "who\t['a']\nwhat\n", r"nq-test\.qa\.csv:2: 2 columns separated by tabs"),
    ("nq-test.qa.csv", "who\t['a']\nwhat\t['a\n", r"nq-test\.qa\.csv:2: the answers must be a list such as"),
    ("nq-test.qa.csv", "who\t['a']\nwhat\t[1]\n", r"nq-test\.qa\.csv:2: the answers must be a list of strings"),
    ("nq-test.qa.csv", "who\t['a']\nwhat\t'a'\n", r"nq-test\.qa\.csv:2: the answers must be a list of strings"),
    ("nq-test.qa.csv", "who\t['a']\nwhat\t[' ']\n", r"nq-test\.qa\.csv:2: the question has no answer"),
    ("nq-test.qa.csv", "who\t['a']\n\t['b']\n", r"nq-test\.qa\.csv:2: the text of the query is empty"),
    ("nq-test.qa.csv", "who\t{['a']}\n", r"nq-test\.qa\.csv:1: the answers must be a list such as"),
    ("nq-test.qa.csv", "", r"nq-test\.qa\.csv: no questions"),
    ("biencoder-nq-train.json", "[]", r"biencoder-nq-train\.json: no questions"),
    ("biencoder-nq-train.json", '{"question": "a"}', r"train\.json:1: a JSON array of objects is expected"),
    ("biencoder-nq-train.json", broken("text"), rf"train\.json:{START}: a JSON object is expected"),
    ("biencoder-nq-train.json", broken(entry("", ["1"], [])), rf"train\.json:{START}: the text of the query is empty"),
    (
        "biencoder-nq-train.json",
        broken(entry("a", [None], [])),
        rf':{START}: entry 0 of "positive_ctxs" must name a passage',
    ),
    (
        "biencoder-nq-train.json",
        broken(entry("a", ["1"], [[1]])),
        rf':{START}: entry 0 of "hard_negative_ctxs" must name',
    ),
    ("biencoder-nq-train.json", broken(entry("a", ["9"], [])), rf"train\.json:{START}: no passage has this passage id"),
    ("biencoder-nq-train.json", broken(entry("a", ["1"], ["9"])), rf"train\.json:{START}: no passage .* hard negative"),
    ("biencoder-nq-train.json", broken(entry("a", ["1"], [], answers="b")), rf':{START}: the field "answers" must be'),
    ("biencoder-nq-train.json", broken(entry("a", ["1"], [], answers=[1])), rf":{START}: the answers must be a list"),
    ("biencoder-nq-train.json", broken({"question": "a"}), rf':{START}: the field "positive_ctxs" is missing'),
    ("biencoder-nq-train.json", broken({"positive_ctxs": [{"psg_id": 1}]}), rf':{START}: the field "question" is'),
    ("biencoder-nq-train.json", broken(TRAIN[0])[:-30], r"train\.json:\d+: not valid JSON"),
    (
        "biencoder-nq-train.json",
        broken(TRAIN[0]) + "[]",
        r"train\.json:\d+:\d+: not valid JSON \(there is text after the end",
    ),
    (
        "biencoder-nq-train.json",
        '[{"x": ' + "9" * 5000 + "}]",
        r"train\.json:1:2: not valid JSON \(a number has too many",
    ),
    ("biencoder-nq-train.json", broken(TRAIN[0]).encode("utf-16-le"), r"train\.json: holds NUL bytes"),
    ("biencoder-nq-train.json", broken(TRAIN[0]).encode() + b"\xe9", r"train\.json:\d+: not valid UTF-8"),
    ("biencoder-nq-train.json", "[null]", r"train\.json:1:2: a JSON object is expected"),
    ("biencoder-nq-train.json", broken({**TRAIN[0], "question": "\ud800"}), r"train\.json:\d+: the query holds half a"),
    (
        "biencoder-nq-train.json",
        broken({**TRAIN[0], "answers": [None]}),
        r"train\.json:\d+: the answers must be a list",
    ),
    ("psgs_w100.tsv", PASSAGES.encode("utf-16"), r"psgs_w100\.tsv: holds NUL bytes"),
    ("psgs_w100.tsv", PASSAGES + "9\ta\rb\tT\n", r"psgs_w100\.tsv:\d+: not columns separated by tabs"),
    (
        "nq-test.qa.csv",
        "who\t__import__('os').system('touch x')\n",
        r"test\.qa\.csv:1: the answers must be a list such",
    ),
    ("nq-test.qa.csv", "who\t" + "[" * 50_000 + "\n", r"test\.qa\.csv:1: the answers must be a list such"),
    ("nq-test.qa.csv", "who\t['\\ud800']\n", r"test\.qa\.csv:1: the query holds half a character"),
    ("nq-test.qa.csv", "who,['one']\n", r"test\.qa\.csv:1: 2 columns separated by tabs"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN)
def test_a_fault_in_a_dpr_file_is_one_clear_line(
    tmp_path: Path, config: Make, write: Write, dpr_files: Files, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_collection(config("nq", root=write(dpr_files | {name: content})), tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_broken_expression_is_warned_of_with_its_line(
    tmp_path: Path, config: Make, write: Write, dpr_files: Files
) -> None:
    files = dpr_files | {"nq-test.qa.csv": "who\t['a.c']\nwhat\t['(']\n"}
    collection = read_collection(config("nq", root=write(files), answers="regex"), tmp_path / "out")
    assert collection.description["answers"] == "regex"
    (warning,) = collection.description["warnings"]
    assert warning.endswith("nq-test.qa.csv:2: the answer '(' is not a valid regular expression, so no passage has it")
    as_strings = read_collection(config("nq", root=write(files)), tmp_path / "strings")
    assert (as_strings.description["answers"], as_strings.description["warnings"]) == ("string", [])


@pytest.mark.parametrize("how", [repr, json.dumps])
def test_real_questions_read_as_dpr_writes_them(
    tmp_path: Path, config: Make, write: Write, dpr_files: Files, shared: Path, how: Callable[[Any], str]
) -> None:
    asked: dict[str, list[tuple[str, list[str]]]] = {}
    for _, record in read_objects(shared / "data" / "qa-questions" / "queries.jsonl.gz"):
        asked.setdefault(record["set"], []).append((record["text"], record["answers"]))
    files = {"psgs_w100.tsv": PASSAGES}
    for name in ("nq-test", "curated-test"):
        stream = io.StringIO()
        csv.writer(stream, delimiter="\t").writerows((question, how(answers)) for question, answers in asked[name])
        splits = {"train": None, "dev": None, "test": f"{name}.qa.csv"}
        root = write(files | {f"{name}.qa.csv": stream.getvalue()})
        made = config("nq", root=root, splits=splits, answers="regex" if name == "curated-test" else "string")
        collection = read_collection(made, tmp_path / name)
        assert collection.answers is not None
        found = zip(collection.queries.column("text"), collection.answers, strict=True)
        assert list(found) == [(question.strip(), answers) for question, answers in asked[name]]
        broken = [text for text in collection.description["warnings"] if "is not a valid regular expression" in text]
        assert [text.rpartition("(")[2] for text in broken] == (
            ["and 2 more answers)"] if name == "curated-test" else []
        )


def test_missing_files_are_named_with_their_source(config: Make, write: Write, dpr_files: Files) -> None:
    made = config("nq", root=write({"psgs_w100.tsv.gz": dpr_files["psgs_w100.tsv"]}))
    with pytest.raises(UserError, match=r"3 files are missing: .*biencoder-nq-train.json .*facebookresearch/DPR"):
        made.check()


# ---- Tevatron


def passage(name: str | int, title: str | None = None) -> dict[str, Any]:
    return {"docid": name, "title": title, "text": f"text {name}"}


QUERIES = [
    {"query_id": "q1", "query": "one", "positive_passages": [passage("a")], "negative_passages": [passage("b")]},
    {"query_id": 2, "query": "two", "positive_passages": [passage(7, title="T")], "negative_passages": [passage("a")]},
]


def test_tevatron_lines_bring_their_passages_along(tmp_path: Path, config: Make, write: Write) -> None:
    test = [{"query_id": "t", "query": "three", "answers": ["text b"]}]
    root = write({"train.jsonl.gz": lines(*QUERIES), "test.jsonl": lines(*test)})
    splits = {"train": "train.jsonl", "dev": None, "test": "test.jsonl"}
    made = config("tevatron", root=root, splits=splits)
    assert (made.judged_splits(), made.answered_splits(), made.gives_negatives()) == ({"train"}, {"test"}, True)
    collection = read_collection(made, tmp_path / "out")
    assert collection.passages.ids == ["a", "b", "7"]
    assert collection.passages.column("title")[:] == ["", "", "T"]
    assert collection.queries.ids == ["q1", "2", "t"]
    assert collection.qrels("train").passage_rows.tolist() == [0, 2]
    assert collection.questions("test").tolist() == [2]
    assert collection.given_negatives is not None
    assert collection.given_negatives.tolist() == [[0, 1], [1, 0]]


def test_a_dev_split_with_answers_alone_is_not_replaced_by_train_queries(
    tmp_path: Path, config: Make, write: Write
) -> None:
    many = [{**QUERIES[0], "query_id": f"q{at}"} for at in range(20)]
    root = write({"train.jsonl": lines(*many), "dev.jsonl": lines({"query_id": "d", "query": "x", "answers": ["y"]})})
    splits = {"train": "train.jsonl", "dev": None, "test": None}
    held_out = read_collection(config("tevatron", root=root, splits=splits), tmp_path / "1")
    assert held_out.splits == ["train", "dev"]
    collection = read_collection(config("tevatron", root=root, splits=splits | {"dev": "dev.jsonl"}), tmp_path / "2")
    assert collection.splits == ["train"]
    assert collection.questions("dev").tolist() == [20]


def test_tevatron_queries_without_a_positive_are_kept_unjudged_where_asked(
    tmp_path: Path, config: Make, write: Write
) -> None:
    root = write({"train.jsonl": lines(*QUERIES, {**FIRST, "query_id": "q3", "positive_passages": []})})
    collection = read_collection(config("tevatron", root=root, unlabelled_queries="unjudged"), tmp_path / "out")
    assert collection.queries.ids == ["q1", "2", "q3"]
    assert collection.unjudged().tolist() == [2]


def test_tevatron_passages_may_come_from_a_corpus(tmp_path: Path, config: Make, write: Write) -> None:
    corpus = lines(*(passage(name, "title") for name in ("b", "a", 7, "c")))
    root = write({"train.jsonl": lines(*QUERIES), "corpus.jsonl": corpus})
    collection = read_collection(config("tevatron", root=root, corpus="corpus.jsonl"), tmp_path / "out")
    assert collection.passages.column("text")[:] == ["text b", "text a", "text 7", "text c"]
    assert collection.passages.column("title")[:] == ["title"] * 4
    assert collection.qrels("train").passage_rows.tolist() == [1, 2]


FIRST = QUERIES[0]
BROKEN_TEVATRON = [
    ({"query": "a"}, ':2: the field "query_id" is missing'),
    ({**FIRST, "query_id": ["q"]}, ':2: the field "query_id" must be a string'),
    ({**FIRST, "query_id": "q 2"}, ':2: the query id "q 2" holds white space'),
    ({**FIRST}, r":2: this id is also at \S+:1"),
    ({**FIRST, "query_id": "q2", "query": " "}, ":2: the text of the query is empty"),
    ({**FIRST, "query_id": "q2", "positive_passages": []}, ":2: the query has no positive passages, unlike the first"),
    ({**FIRST, "query_id": "q2", "positive_passages": ["a"]}, ':2: "positive_passages" must be a list of objects'),
    ({**FIRST, "query_id": "q2", "positive_passages": {}}, ':2: the field "positive_passages" must be a list'),
    (
        {**FIRST, "query_id": "q2", "negative_passages": [{"docid": "x"}]},
        r':2: negative_passages\[0\]: the field "text"',
    ),
    (
        {**FIRST, "query_id": "q2", "negative_passages": [{"text": "x"}]},
        r':2: negative_passages\[0\]: the field "docid"',
    ),
    ("text", ":2: a JSON object is expected"),
    ({**FIRST, "query_id": True}, ':2: the field "query_id" must be a string, not true or false'),
    ({**FIRST, "query_id": 1.5}, ':2: the field "query_id" must be a string'),
    ({**FIRST, "query_id": float("nan")}, ':2: the field "query_id" must be a string'),
    ({**FIRST, "query_id": "q\0"}, r":2: the query id 'q\\x00' holds a control character"),
    ({**FIRST, "query_id": "q2", "query": "\ud800"}, ":2: the query holds half a character"),
    ({**FIRST, "query_id": "q2", "query": None}, ':2: the field "query" is missing'),
    ({**FIRST, "query_id": "q2", "negative_passages": [{"docid": "x y", "text": "x"}]}, ":2: .* holds white space"),
    ({**FIRST, "query_id": "q2", "answers": "x"}, ':2: the field "answers" must be a list'),
]


@pytest.mark.parametrize(("second", "message"), BROKEN_TEVATRON)
def test_a_fault_in_a_tevatron_file_is_one_clear_line(
    tmp_path: Path, config: Make, write: Write, second: Any, message: str
) -> None:
    root = write({"train.jsonl": lines(FIRST, second)})
    with pytest.raises(UserError, match=message) as caught:
        read_collection(config("tevatron", root=root), tmp_path / "out")
    assert str(caught.value).startswith(f"{root / 'train.jsonl'}:2: ")
    assert "\n" not in str(caught.value)


def test_unknown_passages_of_tevatron_name_the_line_of_their_query(tmp_path: Path, config: Make, write: Write) -> None:
    for name, said in (("7", "no passage has this passage id"), ("b", "no passage has the id of this hard negative.*")):
        corpus = lines(*(passage(one) for one in ("a", "b", "7") if one != name))
        root = write({"train.jsonl": lines(*QUERIES), "corpus.jsonl": corpus})
        with pytest.raises(UserError, match=rf"train\.jsonl:\d: {said}.*: '{name}'"):
            read_collection(config("tevatron", root=root, corpus="corpus.jsonl"), tmp_path / "out")
