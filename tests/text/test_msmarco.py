"""MS MARCO's native files."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from condensery import BM25, evaluate
from condensery.errors import UserError
from condensery.text import read_collection
from condensery.text.lines import read_columns, read_objects

from .conftest import Make, Write

Files = dict[str, str | bytes]


def test_native_files_become_a_collection(tmp_path: Path, config: Make, write: Write, marco_files: Files) -> None:
    collection = read_collection(config("msmarco", root=write(marco_files)), tmp_path / "out")
    assert collection.passages.column("text")[:] == ['The "Manhattan" project.', "Rain falls.", "Snow is white."]
    assert collection.queries.ids == ["10", "20"]  # 11 is in no qrels file
    assert collection.qrels("train").passage_rows.tolist() == [1]
    assert collection.qrels("test").passage_rows.tolist() == [2]


def test_every_native_file_may_be_gzip(tmp_path: Path, config: Make, write: Write, marco_files: Files) -> None:
    packed = write({f"{name}.gz": content for name, content in marco_files.items()})
    assert len(read_collection(config("msmarco", root=packed), tmp_path / "out").passages) == 3


@pytest.mark.parametrize("order", ["0\tZero\n1\t-\n2\tTwo\n", "2\tTwo\n1\t-\n0\tZero\n", "2\tTwo\n0\tZero\n"])
def test_titles_are_joined_in_any_order(
    tmp_path: Path, config: Make, write: Write, marco_files: Files, order: str
) -> None:
    root = write(marco_files | {"titles.tsv": order})
    collection = read_collection(config("msmarco", root=root, titles="titles.tsv"), tmp_path / "out")
    assert collection.passages.column("title")[:] == ["Zero", "", "Two"]
    assert bool(collection.description["warnings"]) == ("1\t" not in order)


def test_the_documents_are_for_pre_training(tmp_path: Path, config: Make, write: Write, marco_files: Files) -> None:
    root = write(marco_files | {"msmarco-docs.tsv.gz": "D1\thttp://a\tT\tBody one.\nD2\thttp://b\t\t\n"})
    collection = read_collection(config("msmarco", root=root, documents="msmarco-docs.tsv"), tmp_path / "out")
    assert collection.documents is not None
    assert (collection.documents.ids, collection.documents.column("passages")[0]) == (["D1"], ["Body one."])


def test_the_documents_can_be_what_is_searched(tmp_path: Path, config: Make, write: Write) -> None:
    root = write(
        {
            "msmarco-docs.tsv": "D1\thttp://a\tT\tBody one.\nD2\thttp://b\tOnly title\t\nD3\thttp://c\t\t\n",
            "msmarco-doctrain-queries.tsv": "1\tfirst\n",
            "msmarco-doctrain-qrels.tsv": "1 0 D1 1\n",
            "msmarco-docdev-queries.tsv": "2\tsecond\n",
            "msmarco-docdev-qrels.tsv": "2 0 D2 1\n",
        }
    )
    collection = read_collection(config("msmarco_documents", root=root), tmp_path / "out")
    assert collection.passages.ids == ["D1", "D2"]
    assert collection.passages.column("text")[:] == ["Body one.", "Only title"]
    assert collection.splits == ["train", "test"]


def test_a_query_in_two_files_is_read_once(tmp_path: Path, config: Make, write: Write, marco_files: Files) -> None:
    files = marco_files | {
        "queries.dev.tsv": "21\tother\n20\twhat is white\n",
        "qrels.dev.tsv": "21\t0\t0\t1\n20\t0\t2\t1\n",
    }
    splits = config("msmarco", root="x").splits.model_dump()
    splits["dev"] = {"queries": "queries.dev.tsv", "qrels": "qrels.dev.tsv"}
    collection = read_collection(config("msmarco", root=write(files), splits=splits), tmp_path / "out")
    assert sorted(collection.queries.ids) == ["10", "20", "21"]
    files["queries.dev.tsv"] = "21\tother\n20\tanother text\n"
    with pytest.raises(UserError, match=r"queries\.dev\S*:\d: the query id 20 has another text at "):
        read_collection(config("msmarco", root=write(files), splits=splits), tmp_path / "out")


TREC = {
    "msmarco-test2019-queries.tsv.gz": "30\twhat is a project\n31\tnever judged\n",
    "2019qrels-pass.txt": "30 Q0 0 3\n30 Q0 1 1\n30 Q0 2 0\n",
}


def test_graded_judgements_of_trec_are_read_where_they_are(
    tmp_path: Path, config: Make, write: Write, marco_files: Files
) -> None:
    plain = config("msmarco", root=write(marco_files))
    before = plain.fingerprint()
    assert plain.judged_splits() == {"train", "test"}
    made = config("msmarco", root=write(marco_files | TREC))
    assert made.judged_splits() == {"train", "test", "dl19"}
    collection = read_collection(made, tmp_path / "out")
    assert collection.splits == ["train", "test", "dl19"]
    assert collection.queries.ids == ["10", "20", "30"]
    qrels = collection.qrels("dl19")
    assert (qrels.grades.tolist(), qrels.relevant_from) == ([3, 1, 0], 2)
    assert [rows.tolist() for rows in qrels.positives().values()] == [[0]]
    assert collection.qrels("test").relevant_from == 1
    assert evaluate(BM25(), collection, "MRR@10", split="dl19").keys() == {"MRR@10"}
    grades = made.splits.model_dump()
    grades["dl19"]["relevant_from"] = 1
    lower = config("msmarco", root=made.root, splits=grades)
    assert len({before, made.fingerprint(), lower.fingerprint()}) == 3
    (Path(made.root) / "msmarco-test2019-queries.tsv.gz").unlink()
    with pytest.raises(UserError, match=r"1 file is missing: msmarco-test2019-queries.tsv \(queries of dl19"):
        made.check()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("2019qrels-pass.txt", "30 Q0 0 3\n30 Q0 1\n", r"2019qrels-pass\.txt:2: 4 columns separated by white space"),
        ("2019qrels-pass.txt", "30 Q0 0 3\n30 Q0 7 1\n", r"2019qrels-pass\.txt:2: no passage has this passage id"),
        ("2019qrels-pass.txt", "30 Q0 0 3\n30 Q0 0 2\n", r"2019qrels-pass\.txt:2: another grade for the pair"),
        ("msmarco-test2019-queries.tsv.gz", "30\n", r"queries\.tsv\.gz:1: 2 columns separated by tabs"),
    ],
)
def test_a_fault_in_a_file_of_trec_is_one_clear_line(
    tmp_path: Path, config: Make, write: Write, marco_files: Files, name: str, content: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read_collection(config("msmarco", root=write(marco_files | TREC | {name: content})), tmp_path / "out")


def test_all_missing_files_are_named_at_once_with_the_way_to_get_them(config: Make, write: Write) -> None:
    root = write({"qrels.train.tsv": ""})
    made = config("msmarco", root=root, triples="qidpidtriples.train.full.2.tsv.gz", documents="msmarco-docs.tsv")
    with pytest.raises(UserError) as caught:
        made.check()
    message = str(caught.value)
    names = ["collection.tsv", "queries.train.tsv", "queries.dev.small.tsv", "qrels.dev.small.tsv"]
    for name in [*names, "msmarco-docs.tsv", "qidpidtriples.train.full.2.tsv.gz"]:
        assert name in message
    assert "qrels.train.tsv" not in message
    assert "https://microsoft.github.io/msmarco/" in message
    assert "collectionandqueries.tar.gz" in message
    assert "\n" not in message


BROKEN = [
    ("collection.tsv", "no tab\n", r"collection\.tsv:1: 2 columns separated by tabs .*, not 1"),
    ("collection.tsv", "0\ta\n0\tb\n", r"collection\.tsv:2: this id is also at \S+:1: "),
    ("collection.tsv", "0\ta\n1\t\n", r"collection\.tsv:2: the text is empty"),
    ("collection.tsv", "", r"collection\.tsv: holds no passages$"),
    ("collection.tsv", b"0\t\xff\n", r"collection\.tsv:1: not valid UTF-8"),
    ("queries.train.tsv", "10\ta\tb\n", r"queries\.train\.tsv:1: 2 columns"),
    ("queries.train.tsv", "10\ta\n10\tb\n", r"queries\.train\.tsv:2: this id is also at"),
    ("queries.train.tsv", "10\t \n", r"queries\.train\.tsv:1: the text of the query is empty"),
    ("qrels.train.tsv", "", r"qrels\.train\.tsv: no judgements"),
    ("qrels.train.tsv", "10\t1\t1\n", r"qrels\.train\.tsv:1: 4 columns separated by white space"),
    ("qrels.train.tsv", "10\t0\t1\tyes\n", r"qrels\.train\.tsv:1: the grade must be a whole number"),
    ("qrels.train.tsv", "12\t0\t1\t1\n", r"qrels\.train\.tsv:1: no query has this query id"),
    ("qrels.train.tsv", "10\t0\t9\t1\n10\t0\t8\t1\n", r"qrels\.train\.tsv:1: no passage has .* \(and 1 more lines\)"),
    ("qrels.train.tsv", "10\t0\t1\t0\n", "no judgement of the split train has a grade above 0"),
    ("titles.tsv", "0 no tab\n", r"titles\.tsv:1: 2 columns"),
    ("msmarco-docs.tsv", "D1\tu\tt\n", r"msmarco-docs\.tsv:1: 4 columns"),
    ("msmarco-docs.tsv", "D1\tu\tt\tb\n" * 2, r"msmarco-docs\.tsv:2: this id is also at"),
    ("msmarco-docs.tsv", "D 1\tu\tt\tb\n", r'msmarco-docs\.tsv:1: the document id "D 1" holds white space'),
    ("msmarco-docs.tsv", "", r"msmarco-docs\.tsv: holds no documents; to leave them out, set data\.documents=null"),
    ("titles.tsv", "7\tT\n8\tU\n", r"titles\.tsv: has no passage of collection\.tsv; correct data\.titles"),
    ("collection.tsv", "0\tzero\n".encode("utf-16-le"), r"collection\.tsv: holds NUL bytes, so it is UTF-16"),
    ("collection.tsv", "0,zero\n", r"collection\.tsv:1: 2 columns separated by tabs .*, not 1"),
    ("collection.tsv", "0\ta\n\tb\n", r"collection\.tsv:2: the passage id is empty"),
    ("collection.tsv", "0\ta\n \tb\n", r'collection\.tsv:2: the passage id " " holds white space'),
    ("qrels.train.tsv", "10\t0\t1\tNaN\n", r'qrels\.train\.tsv:1: the grade must be a whole number, not "NaN"'),
    ("qrels.train.tsv", "10\t0\t1\t1.0\n", r'qrels\.train\.tsv:1: the grade must be a whole number, not "1\.0"'),
    ("qrels.train.tsv", "10\t0\t1\t9999999999\n", r"qrels\.train\.tsv:1: the grade 9999999999 is too large"),
    ("qrels.train.tsv", "10\t0\t1\t1\n  \n", r"qrels\.train\.tsv:2: 4 columns .*, not 0"),
    ("qrels.train.tsv", "10\t0\t1\t1\n10 0 1 2\n", r"qrels\.train\.tsv:2: another grade for the pair"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN)
def test_a_fault_in_a_native_file_is_one_clear_line(
    tmp_path: Path, config: Make, write: Write, marco_files: Files, name: str, content: str | bytes, message: str
) -> None:
    files = {"titles.tsv": "0\tT\n", "msmarco-docs.tsv": "D1\tu\tt\tb\n"} | marco_files | {name: content}
    made = config("msmarco", root=write(files), titles="titles.tsv", documents="msmarco-docs.tsv")
    with pytest.raises(UserError, match=message):
        read_collection(made, tmp_path / "out")


def test_real_passages_in_native_files(tmp_path: Path, config: Make, shared: Path) -> None:
    source = shared / "data" / "msmarco"
    native = tmp_path / "native"
    native.mkdir()

    def tsv(file: Path) -> Iterator[str]:
        for _, record in read_objects(file):
            yield f"{record['_id']}\t{record['text'].translate({9: ' ', 10: ' ', 13: ' '})}\n"

    (native / "collection.tsv").write_text("".join(tsv(source / "corpus.jsonl.gz")), encoding="utf-8")
    (native / "queries.train.tsv").write_text("".join(tsv(source / "queries.jsonl.gz")), encoding="utf-8")
    shutil.copy(native / "queries.train.tsv", native / "queries.dev.small.tsv")
    for split, name in (("train", "train-sample"), ("dev.small", "dl-sample")):
        judged = (fields for _, fields in read_columns(source / "qrels" / f"{name}.tsv", ["q", "p", "grade"]))
        rows = [f"{query}\t0\t{passage}\t{grade}\n" for query, passage, grade in judged if grade != "score"]
        (native / f"qrels.{split}.tsv").write_text("".join(rows))
    collection = read_collection(config("msmarco", root=native), tmp_path / "out")
    assert len(collection.passages) == 17_572
    splits = collection.description["splits"]
    assert splits["train"]["queries"] + splits["dev"]["queries"] == 11_992
    assert (splits["dev"]["queries"], splits["test"]) == (500, {"queries": 43, "judgements": 4_102})
