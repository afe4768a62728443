"""Every format: what sound files become, and one clear line with its place for each fault."""

import gzip
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from error_lines import names

from condensery.errors import UserError
from condensery.text import read_collection

from .conftest import Make, Raw, Write, lines

Files = dict[str, str | bytes]
ALL_NULL = {"train": None, "dev": None, "test": None}


def test_a_beir_folder_becomes_a_collection(tmp_path: Path, config: Make, write: Write, beir_files: Files) -> None:
    collection = read_collection(config("beir", root=write(beir_files)), tmp_path / "out")
    assert collection.passages.ids == ["a", "b", "c"]
    assert collection.passages.column("title")[:] == ["Cats", "", "Fish"]
    assert collection.passages.column("document")[:] == ["a", "b", "c"]
    assert collection.queries.column("text")[:] == ["what do cats do", "who barks"]
    assert collection.splits == ["train", "test"]
    assert collection.qrels("test").grades.tolist() == [2, 0]
    assert collection.documents is None


def test_gzip_and_plain_files_give_the_same_collection(
    tmp_path: Path, config: Make, write: Write, beir_files: Files
) -> None:
    plain = read_collection(config("beir", root=write(beir_files)), tmp_path / "plain").content_hash
    for name in list(beir_files):
        (tmp_path / "input" / name).unlink()
    packed = write({f"{name}.gz": content for name, content in beir_files.items()})
    assert read_collection(config("beir", root=packed), tmp_path / "packed").content_hash == plain


def test_a_qrels_file_needs_no_header(tmp_path: Path, config: Make, write: Write, beir_files: Files) -> None:
    beir_files["qrels/train.tsv"] = "q1\ta\t1\n"
    assert len(read_collection(config("beir", root=write(beir_files)), tmp_path / "out").qrels("train")) == 1


@pytest.mark.parametrize("apart", ["\t", " ", "  "])
def test_judgements_in_the_format_of_trec_are_read(
    tmp_path: Path, config: Make, write: Write, beir_files: Files, apart: str
) -> None:
    plain = read_collection(config("beir", root=write(beir_files)), tmp_path / "plain")
    rows = [line.split("\t") for line in beir_files["qrels/test.tsv"].splitlines()[1:]]
    judged = "".join(f"{apart.join((query, '0', *rest))}\n" for query, *rest in rows)
    beir_files["qrels/test.tsv"] = f"\n{judged}"  # a blank line counts nowhere
    collection = read_collection(config("beir", root=write(beir_files)), tmp_path / "out")
    assert collection.content_hash == plain.content_hash
    beir_files["qrels/test.tsv"] = judged + "q2 a 1\n"
    with pytest.raises(UserError, match=r"test\.tsv:3: 4 columns separated by white space are expected"):
        read_collection(config("beir", root=write(beir_files)), tmp_path / "wrong")


def test_a_null_text_beside_a_title_is_an_empty_text(
    tmp_path: Path, config: Make, write: Write, beir_files: Files
) -> None:
    found = []
    for text in ("", None):
        beir_files["corpus.jsonl"] = lines(*({"_id": name, "title": f"title {name}", "text": text} for name in "abc"))
        found.append(read_collection(config("beir", root=write(beir_files)), tmp_path / f"{text}").content_hash)
    assert found[0] == found[1]
    beir_files["corpus.jsonl"] += lines({"_id": "d", "title": None, "text": None})
    with pytest.raises(UserError, match=r"corpus\.jsonl:4: the text is empty"):
        read_collection(config("beir", root=write(beir_files)), tmp_path / "wrong")


def test_documents_of_a_beir_folder_are_for_pre_training(
    tmp_path: Path, config: Make, write: Write, beir_files: Files
) -> None:
    beir_files["documents.jsonl.gz"] = lines({"_id": "d", "title": "T", "passages": ["one", "two"]})
    collection = read_collection(config("beir", root=write(beir_files)), tmp_path / "out")
    assert collection.documents is not None
    assert collection.documents.column("passages")[0] == ["one", "two"]
    assert read_collection(config("beir", root=write({}), documents=None), tmp_path / "none").documents is None


def test_a_corpus_that_names_its_documents_needs_no_documents_file(
    tmp_path: Path, config: Make, write: Write, beir_files: Files
) -> None:
    beir_files["documents.jsonl"] = lines({"_id": "d", "title": "T", "passages": ["one"]})
    beir_files["corpus.jsonl"] = lines(
        *({"_id": name, "text": f"text {name}", "doc_id": "x" if name != "c" else "y"} for name in "abc")
    )
    source = config("beir", root=write(beir_files))
    collection = read_collection(source, tmp_path / "out")
    assert collection.documents is None
    assert collection.document_starts.tolist() == [0, 2, 3]
    named = config("beir", root=source.root, documents="documents.jsonl")  # the same files make another collection
    assert read_collection(named, tmp_path / "named").documents is not None
    assert named.fingerprint() != source.fingerprint()


def test_a_corpus_alone_is_enough_for_pre_training(
    tmp_path: Path, config: Make, write: Write, beir_files: Files
) -> None:
    root = write({"corpus.jsonl": beir_files["corpus.jsonl"]})
    collection = read_collection(config("beir", root=root, splits=ALL_NULL), tmp_path / "out")
    assert (len(collection.passages), len(collection.queries), collection.splits) == (3, 0, [])


def test_documents_become_numbered_passages(tmp_path: Path, config: Make, write: Write) -> None:
    root = write(
        {
            "documents.jsonl": lines(
                {"_id": "d", "title": "T", "passages": ["zero", "", "two"], "headings": ["", "", ""]},
                {"_id": "empty", "title": "", "passages": []},
            ),
            "more/extra.jsonl": lines({"_id": "e", "passages": ["three"]}),
        }
    )
    made = config("documents", root=root, extra=[str(root / "more" / "extra.jsonl")])
    collection = read_collection(made, tmp_path / "out")
    assert collection.passages.ids == ["d#0", "d#2", "e#0"]
    assert collection.passages.column("title")[:] == ["T", "T", ""]
    assert collection.document_starts.tolist() == [0, 2, 3]
    assert collection.description["dropped"] == {"empty_documents": 1, "empty_passages": 1}


def test_documents_may_have_queries_beside_them(tmp_path: Path, config: Make, write: Write) -> None:
    root = write(
        {
            "documents.jsonl": lines({"_id": "d", "title": "T", "passages": ["zero", "one"]}),
            "queries.jsonl": lines({"_id": "q", "text": "which"}),
            "qrels/all.tsv": "q\td#1\t1\n",
        }
    )
    made = config("documents", root=root, splits=ALL_NULL | {"test": "all"})
    assert read_collection(made, tmp_path / "out").qrels("test").passage_rows.tolist() == [1]


def test_documents_may_be_searched_by_section(tmp_path: Path, config: Make, write: Write) -> None:
    heads = ["", "History", "Use", "History"]
    first = {"_id": "d1", "title": "T", "passages": ["lead", "a", "b", "c"], "headings": heads}
    root = write({"documents.jsonl": lines(first, {"_id": "d2", "passages": ["only"], "headings": ["Use"]})})
    made = config("documents", root=root, searched="sections", splits=ALL_NULL)
    collection = read_collection(made, tmp_path / "out")
    assert collection.passages.ids == ["d1#0", "d1#1", "d1#2", "d2#0"]
    assert collection.passages.column("text")[:] == ["lead", "a\n\nc", "b", "only"]
    assert made.fingerprint() != config("documents", root=root, splits=ALL_NULL).fingerprint()
    (root / "documents.jsonl").write_text(lines({**first, "headings": heads[:2]}))
    with pytest.raises(
        UserError, match=r'documents\.jsonl:1: "headings" must hold a string for each of the 4 passages'
    ):
        read_collection(made, tmp_path / "again")


def test_documents_may_be_searched_as_a_whole(tmp_path: Path, config: Make, write: Write) -> None:
    root = write(
        {
            "documents.jsonl": lines(
                {"_id": "d", "title": "T", "passages": ["zero", " ", "one"]},
                {"_id": "empty", "title": "U", "passages": []},
                {"_id": "e", "title": "V", "passages": ["two"]},
            ),
            "queries.jsonl": lines({"_id": "q", "text": "which"}, {"_id": "p", "text": "and which"}),
            "qrels/all.tsv": "q\te\t1\np\tempty\t1\n",
        }
    )
    made = config("documents", root=root, searched="documents", splits=ALL_NULL | {"test": "all"})
    assert (made.sizes().passages, made.sizes().documents) == (3, None)
    collection = read_collection(made, tmp_path / "out")
    assert collection.passages.ids == ["d", "e"]
    assert collection.passages.column("text")[:] == ["zero\n\none", "two"]
    assert collection.qrels("test").passage_rows.tolist() == [1]
    assert collection.description["dropped"]["empty_passages"] == 1
    assert made.fingerprint() != config("documents", root=root, splits=ALL_NULL | {"test": "all"}).fingerprint()


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("می\u200cخواهم.txt", "می\u200cخواهم.txt#0"),  # a joiner of Persian and of the languages of India
        ("日本\u3000語.txt", "日本%E3%80%80語.txt#0"),
        ("Screenshot 9.41\u202fAM.txt", "Screenshot%209.41%E2%80%AFAM.txt#0"),  # as a Mac names it
        ("100\u00a0%.txt", "100%C2%A0%25.txt#0"),
    ],
)
def test_file_names_of_any_script_are_read(
    name: str, identifier: str, tmp_path: Path, config: Make, write: Write
) -> None:
    collection = read_collection(config("text", root=write({name: "One two three four five.\n"})), tmp_path / "out")
    assert collection.passages.ids == [identifier]
    assert collection.passages.column("title")[:] == [name.removesuffix(".txt")]


def test_text_files_become_paragraphs(
    tmp_path: Path, config: Make, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write(
        {
            "b.txt": "One two three four five\nsix.\r\n\r\nSeven eight nine ten eleven.\n",
            "a/first file.md.gz": "# Heading\n\n\nBody of the text in five.\n\nend",
            "a/empty.txt": "\n \n",
            ".git/hidden.txt": "not for reading at all",
            "c.pdf": "%PDF",
            "D.TXT": "A file of an old Windows.",
        }
    )
    collection = read_collection(config("text", root=root), tmp_path / "out")
    assert collection.passages.ids == ["D.TXT#0", "a/first%20file.md.gz#0", "b.txt#0", "b.txt#1"]
    assert collection.passages.column("text")[:] == [
        "A file of an old Windows.",
        "# Heading\n\nBody of the text in five.\n\nend",
        "One two three four five\nsix.",
        "Seven eight nine ten eleven.",
    ]
    assert collection.passages.column("title")[:] == ["D", "first file", "b", "b"]
    assert "files that are not read: 1 .pdf (only *.txt, *.md, " in capsys.readouterr().out
    assert collection.description["dropped"] == {"empty_documents": 1}


@pytest.mark.parametrize(("texts", "said"), [(49, 0), (200, 1)])
def test_a_file_with_a_text_a_line_is_warned_of_once(
    texts: int, said: int, tmp_path: Path, config: Make, write: Write
) -> None:
    tweets = "".join(f"a text of its own, number {number}\n" for number in range(texts))
    root = write({"a.txt": tweets, "b.txt": tweets, "c.txt": f"A paragraph of some words.\n\n{tweets}"})
    warnings = read_collection(config("text", root=root), tmp_path / "out").description["warnings"]
    assert len(warnings) == said
    for warning in warnings:
        names(warning, f"{root / 'a.txt'}:1", "200 lines", "one passage", "put a blank line between")


def change(name: str, old: str, new: str) -> Callable[[Files], None]:
    """Replace ``old`` by ``new`` in the file ``name``."""

    def apply(files: Files) -> None:
        content = files[name]
        assert isinstance(content, str)
        assert old in content
        files[name] = content.replace(old, new)

    return apply


def append(name: str, content: str) -> Callable[[Files], None]:
    """Put ``content`` at the end of the file ``name``."""

    def apply(files: Files) -> None:
        files[name] = str(files[name]) + content

    return apply


def replace(name: str, content: str | bytes | None) -> Callable[[Files], None]:
    """Give the file ``name`` another content; ``None`` takes it away."""

    def apply(files: Files) -> None:
        files.pop(name, None)
        if content is not None:
            files[name] = content

    return apply


def encoded(name: str, encoding: str) -> Callable[[Files], None]:
    """Write the file ``name`` in another encoding."""

    def apply(files: Files) -> None:
        files[name] = str(files[name]).encode(encoding)

    return apply


def folder(name: str) -> Callable[[Files], None]:
    """Put a folder where the file ``name`` is needed."""

    def apply(files: Files) -> None:
        files[f"{name}/inside"] = files.pop(name)

    return apply


def gzipped(name: str, damage: Callable[[bytes], bytes]) -> Callable[[Files], None]:
    """Compress the file ``name`` and damage it."""

    def apply(files: Files) -> None:
        files[f"{name}.gz"] = Raw(damage(gzip.compress(str(files.pop(name)).encode(), mtime=0)))

    return apply


BROKEN_BEIR = [
    (replace("corpus.jsonl", None), r"corpus\.jsonl: no such file"),
    (replace("corpus.jsonl", ""), r"input/corpus\.jsonl: holds no passages$"),
    (change("corpus.jsonl", '"_id": "b"', '"_id": "b'), r"corpus\.jsonl:2: not valid JSON"),
    (change("corpus.jsonl", '"_id": "b"', '"id": "b"'), r'corpus\.jsonl:2: the field "_id" is missing'),
    (change("corpus.jsonl", '"_id": "b"', '"_id": 7'), r'corpus\.jsonl:2: the field "_id" must be a string'),
    (change("corpus.jsonl", '"_id": "b"', '"_id": "a"'), r"corpus\.jsonl:2: this id is also at \S+:1: "),
    (change("corpus.jsonl", '"_id": "b"', '"_id": ""'), r"corpus\.jsonl:2: the passage id is empty"),
    (change("corpus.jsonl", '"_id": "b"', '"_id": "b b"'), r"corpus\.jsonl:2: .* white space"),
    (change("corpus.jsonl", "Dogs bark.", " "), r"corpus\.jsonl:2: the text is empty"),
    (
        change("corpus.jsonl", '"Dogs bark."', '["Dogs"]'),
        r'corpus\.jsonl:2: the field "text" must be a string, not a list',
    ),
    (change("corpus.jsonl", "Dogs bark.", "\\ud800"), r"corpus\.jsonl:2: .* surrogate"),
    (change("corpus.jsonl", '"_id": "b"', '"_id": "\\ud800"'), r"corpus\.jsonl:2: .* surrogate"),
    (change("queries.jsonl", "who barks", "\\udfff"), r"queries\.jsonl:2: .* surrogate"),
    (change("corpus.jsonl", '"title": "Fish"', '"title": 3'), r'corpus\.jsonl:3: the field "title"'),
    (append("corpus.jsonl", "[1]\n"), r"corpus\.jsonl:4: a JSON object is expected"),
    (
        replace("corpus.jsonl", '[\n{"_id": "a", "text": "b"}\n]'),
        r"corpus\.jsonl:1: not valid JSON .*one object per line",
    ),
    (replace("corpus.jsonl", b'{"_id": "a", "text": "\xff"}\n'), r"corpus\.jsonl:1: not valid UTF-8"),
    (
        replace(
            "corpus.jsonl", lines(*({"_id": n, "text": n, "doc_id": d} for n, d in zip("abc", "xyx", strict=True)))
        ),
        r"corpus\.jsonl:3: the passages of a document must be consecutive; this one began at \S+:1",
    ),
    (replace("queries.jsonl", None), r"queries\.jsonl: no such file"),
    (change("queries.jsonl", "who barks", ""), r"queries\.jsonl:2: the text of the query is empty"),
    (change("queries.jsonl", '"text": "who barks"', '"txt": "who"'), r'queries\.jsonl:2: the field "text" is missing'),
    (change("queries.jsonl", '"q2"', '"q1"'), r"queries\.jsonl:2: this id is also at \S+:1: "),
    (replace("qrels/test.tsv", ""), r"test\.tsv: no judgements"),
    (replace("qrels/test.tsv", "query-id\tcorpus-id\tscore\n"), r"test\.tsv: no judgements"),
    (append("qrels/test.tsv", "q2\ta\n"), r"test\.tsv:4: 3 columns separated by tabs"),
    (append("qrels/test.tsv", "q2 0 a 1\n"), r"test\.tsv:4: 3 columns separated by tabs"),
    (append("qrels/test.tsv", "q2\ta\t1.5\n"), r'test\.tsv:4: the score must be a whole number, not "1\.5"'),
    (
        change("qrels/test.tsv", "query-id\tcorpus-id", "query_id\tdoc_id"),
        r'test\.tsv:1: the score must be a whole number, not "score"; a header, .* must be query-id, corpus-id, score',
    ),
    (append("qrels/test.tsv", "q2\ta\t99999999999\n"), r"test\.tsv:4: the grade 99999999999 is too large"),
    (
        append("qrels/test.tsv", "q2\ta\t1000001\n"),
        r"test\.tsv:4: the grade 1000001 is too large; grades lie between -1,000,000 and",
    ),
    (replace("queries.jsonl", ""), r"queries\.jsonl: holds no queries; if you have no queries, set"),
    (append("qrels/test.tsv", "q9\ta\t1\n"), r"test\.tsv:4: no query has this query id"),
    (append("qrels/test.tsv", "q2\tz\t1\n"), r"test\.tsv:4: no passage has this passage id"),
    (append("qrels/test.tsv", "q2\tb\t1\n"), r"test\.tsv:4: another grade for the pair judged at \S+test\.tsv:2"),
    (append("qrels/test.tsv", "q1\ta\t0\n"), r"test\.tsv:4: the query .q1. of the split test has no positive passage"),
    (
        change("qrels/test.tsv", "\t2", "\t0"),
        r"test\.tsv: no judgement of the split test has a grade above 0; .*data\.splits\.test=null",
    ),
    (
        replace("documents.jsonl", lines({"_id": "d", "passages": "one"})),
        r'documents\.jsonl:1: the field "passages" must',
    ),
    (
        replace("documents.jsonl", lines({"_id": "d", "passages": ["a", 1]})),
        r"documents\.jsonl:1: .* its entry 1 is not a string",
    ),
    (
        replace("documents.jsonl", lines(*[{"_id": "d", "passages": ["a"]}] * 2)),
        r"documents\.jsonl:2: this id is also at",
    ),
    (
        replace("documents.jsonl", "\n"),
        r"documents\.jsonl: holds no documents; to leave them out, set data\.documents=null",
    ),
    (encoded("corpus.jsonl", "utf-16"), r"corpus\.jsonl: holds NUL bytes, so it is UTF-16"),
    (encoded("corpus.jsonl", "utf-16-le"), r"corpus\.jsonl: holds NUL bytes, so it is UTF-16"),
    (encoded("queries.jsonl", "utf-32"), r"queries\.jsonl: holds NUL bytes"),
    (encoded("qrels/test.tsv", "utf-16-be"), r"test\.tsv: holds NUL bytes"),
    (change("corpus.jsonl", '{"_id": "a"', '\ufeff\ufeff{"_id": "a"'), r"corpus\.jsonl:1: not valid JSON"),
    (replace("corpus.jsonl", b"PK\x03\x04\x0a\x00"), r"corpus\.jsonl: holds NUL bytes, so it is UTF-16 or no text"),
    (replace("corpus.jsonl", b"\x1f\x8b\x08"), r"corpus\.jsonl: this is a gzip file; name it \.gz"),
    (replace("corpus.jsonl", '{"_id": "a", "text": "b", "n": ' + "9" * 5000 + "}"), r"corpus\.jsonl:1: not valid JSON"),
    (replace("corpus.jsonl", "[" * 99_999), r"corpus\.jsonl:1: not valid JSON"),
    (replace("corpus.jsonl", '{"_id": "a", "text": NaN}'), r'corpus\.jsonl:1: the field "text" must be a string'),
    (replace("corpus.jsonl", '{"_id": true, "text": "b"}'), r'corpus\.jsonl:1: the field "_id" must be a string'),
    (replace("corpus.jsonl", '{"_id": "a", "text": "b", "doc_id": 3}'), r'corpus\.jsonl:1: the field "doc_id"'),
    (replace("corpus.jsonl", '{\n"_id": "a", "text": "b"}'), r"corpus\.jsonl:1: not valid JSON"),
    (
        replace("corpus.jsonl", '{"_id": "a", "text": "b"}\r{"_id": "b", "text": "b"}'),
        r"corpus\.jsonl: its lines end in",
    ),
    (
        change("corpus.jsonl", '"_id": "b"', '"_id": "b\\u0000"'),
        r"corpus\.jsonl:2: the passage id 'b\\x00' holds a control character",
    ),
    (change("corpus.jsonl", '"_id": "b"', '"_id": "b\\u00a0"'), r"corpus\.jsonl:2: .* white space"),
    (change("queries.jsonl", '"text": "who barks"', '"text": null'), r'queries\.jsonl:2: the field "text" is missing'),
    (append("qrels/test.tsv", "q2\ta\tnan\n"), r'test\.tsv:4: the score must be a whole number, not "nan"'),
    (append("qrels/test.tsv", "q2\ta\t-inf\n"), r'test\.tsv:4: the score must be a whole number, not "-inf"'),
    (append("qrels/test.tsv", "q2\ta\t\n"), r'test\.tsv:4: the score must be a whole number, not ""'),
    (
        append("qrels/test.tsv", "q2\ta\t" + "9" * 5000),
        r'not "9{60}… \(5,000 characters\)"$',
    ),
    (append("qrels/test.tsv", "q2\t\t1\n"), r"test\.tsv:4: no passage has this passage id"),
    (append("qrels/test.tsv", "q2\t0\ta\t1\n"), r"test\.tsv:4: 3 columns separated by tabs .*, not 4"),
    (folder("corpus.jsonl"), r"corpus\.jsonl: a folder, not a file; it should be the corpus"),
    (folder("qrels/test.tsv"), r"test\.tsv: a folder, not a file; it should be the qrels"),
    (gzipped("corpus.jsonl", lambda raw: raw[:-9]), r"corpus\.jsonl\.gz: not a whole gzip file"),
    (gzipped("corpus.jsonl", lambda raw: raw[:-8] + b"\0" * 8), r"corpus\.jsonl\.gz: not a whole gzip file .*CRC"),
    (gzipped("corpus.jsonl", lambda raw: raw + b"more"), r"corpus\.jsonl\.gz: not a whole gzip file"),
    (gzipped("corpus.jsonl", lambda raw: raw[:1]), r"corpus\.jsonl\.gz: not a whole gzip file"),
    (gzipped("qrels/test.tsv", lambda raw: raw[:20]), r"test\.tsv\.gz: not a whole gzip file"),
]


@pytest.mark.parametrize(("fault", "message"), BROKEN_BEIR)
def test_a_fault_in_a_beir_folder_is_one_clear_line(
    tmp_path: Path, config: Make, write: Write, beir_files: Files, fault: Callable[[Files], None], message: str
) -> None:
    fault(beir_files)
    with pytest.raises(UserError, match=message) as caught:
        read_collection(config("beir", root=write({"keep": ""} | beir_files)), tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_split_that_is_named_has_its_file_and_one_that_is_looked_for_need_not(
    tmp_path: Path, config: Make, write: Write, beir_files: Files
) -> None:
    del beir_files["qrels/test.tsv"]
    root = write({"keep": ""} | beir_files)
    assert read_collection(config("beir", root=root), tmp_path / "found").splits == ["train"]
    named = config("beir", root=root, splits=ALL_NULL | {"test": "test"})
    with pytest.raises(UserError, match=r"test\.tsv: no such file .*data\.splits\.test=null"):
        read_collection(named, tmp_path / "named")


BROKEN_DOCUMENTS: list[tuple[Files, dict[str, Any], str]] = [
    ({"keep": ""}, {}, r"documents\.jsonl: no such file"),
    ({"documents.jsonl": ""}, {}, r"documents\.jsonl: holds no documents$"),
    ({"documents.jsonl": lines({"_id": "d", "passages": []})}, {}, "no passages"),
    ({"documents.jsonl": lines({"passages": ["a"]})}, {}, r'documents\.jsonl:1: the field "_id" is missing'),
    ({"documents.jsonl": lines({"_id": "d", "text": "a"})}, {}, r'jsonl:1: the field "passages" is missing'),
    ({"documents.jsonl": lines({"_id": "d", "passages": [None]})}, {}, "must be a list of strings"),
    ({"documents.jsonl": lines(*[{"_id": "d", "passages": ["a"]}] * 2)}, {}, r"jsonl:2: this id is also at"),
    (
        {"documents.jsonl": lines({"_id": "d", "passages": [""]})},
        {"empty_passages": "error"},
        "jsonl:1: the text is empty",
    ),
    (
        {"documents.jsonl": lines({"_id": "d", "passages": ["a"]})},
        {"extra": ["/none.jsonl"]},
        "/none.jsonl: no such file",
    ),
    ({"documents.jsonl": lines({"_id": "d", "passages": ["a"]})}, {"extra": ["/"]}, "/: a folder, not a file"),
    ({"documents.jsonl": lines({"_id": "", "passages": ["a"]})}, {}, r"documents\.jsonl:1: the document id is empty"),
    ({"documents.jsonl": lines({"_id": 3, "passages": ["a"]})}, {}, r'documents\.jsonl:1: the field "_id" must be'),
    ({"documents.jsonl": lines({"_id": "d e", "passages": ["a"]})}, {}, r'documents\.jsonl:1: .*"d e#0" holds white'),
    (
        {"documents.jsonl": lines({"_id": "d\0", "passages": ["a"]})},
        {},
        r"documents\.jsonl:1: .* holds a control character",
    ),
    (
        {"documents.jsonl": lines({"_id": "d", "title": 3, "passages": ["a"]})},
        {},
        r'jsonl:1: the field "title" must be',
    ),
    ({"documents.jsonl": lines({"_id": "d", "passages": [["a"]]})}, {}, r"jsonl:1: .* its entry 0 is not a string"),
    ({"documents.jsonl": lines({"_id": "d", "passages": ["\ud800"]})}, {}, r"jsonl:1: .* surrogate"),
    ({"documents.jsonl": lines({"_id": "d", "passages": {"a": "b"}})}, {}, r'jsonl:1: the field "passages" must be a'),
]


@pytest.mark.parametrize(("files", "changes", "message"), BROKEN_DOCUMENTS)
def test_a_fault_in_documents_is_one_clear_line(
    tmp_path: Path, config: Make, write: Write, files: Files, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read_collection(config("documents", root=write(files), **changes), tmp_path / "out")


BROKEN_TEXT: list[tuple[Files, str]] = [
    (
        {"keep.pdf": ""},
        r"no text files here \(\*\.txt, \*\.md, \*\.txt\.gz, \*\.md\.gz\); rename files of plain text to \*\.txt, and .*$",
    ),
    ({"corpus.jsonl": "{}", "queries.jsonl": ""}, "; set data=beir to read its corpus.jsonl"),
    ({"documents.jsonl.gz": ""}, "; set data=documents to read its documents.jsonl"),
    ({"collection.tsv": ""}, "; set data=msmarco to read its collection.tsv"),
    ({"a.csv.gz": ""}, r"; set data=huggingface_documents data\.name=\S+ data\.text=COLUMN to read its \*\.csv"),
    ({"a.txt": "\n\n", "b.md": ""}, r"no passages; the collection would be empty: all texts here are empty \(2\)$"),
    ({"a.txt": b"good words\n\xff\n"}, r"a\.txt:2: not valid UTF-8"),
    ({"a.md.gz.txt": b"\x1f\x8b\x08"}, "name it .gz"),
    ({"a.txt": "six words in UTF-16 without mark".encode("utf-16-le")}, r"a\.txt: holds NUL bytes, so it is UTF-16"),
    ({"a.txt": b"%PDF-1.7\0\xff"}, r"a\.txt: holds NUL bytes"),
    ({"a.txt.gz": Raw(b"not packed")}, r"a\.txt\.gz: not a whole gzip file"),
    ({"below/a\nb.txt": "words"}, r"input: the file name 'below/a\\nb\.txt' has control characters .*; rename"),
    ({os.fsdecode(b"caf\xe9.txt"): "words"}, r"input: the file name 'caf\\udce9\.txt' has .* or is not UTF-8"),
]


@pytest.mark.parametrize(("files", "message"), BROKEN_TEXT)
def test_a_fault_in_text_files_is_one_clear_line(
    tmp_path: Path, config: Make, write: Write, files: Files, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read_collection(config("text", root=write(files)), tmp_path / "out")


@pytest.mark.parametrize("choice", ["beir", "squad", "documents", "text", "msmarco", "msmarco_documents"])
def test_a_missing_root_is_found_by_the_check(config: Make, choice: str) -> None:
    with pytest.raises(
        UserError, match=r"/no/where: no such folder; .* as data\.root|data\.root=/no/where: \d files are missing"
    ):
        config(choice, root="/no/where").check()


@pytest.mark.parametrize(
    "paragraphs",
    [
        ["蜜蜂用跳舞告诉同伴花在哪里。", "铁在潮湿的空气里会生锈。", "雨滴在云里慢慢变大。"],
        ["蜂は踊りで花の場所を仲間に教える。", "鉄は湿った空気の中で錆びる。"],
        ["ผึ้งเต้นรำเพื่อบอกเพื่อนว่าดอกไม้อยู่ที่ไหน", "เหล็กขึ้นสนิมในอากาศชื้น"],
        ["ဒီစာအုပ်ကောင်းတယ်လို့သူပြောတယ်။", "ပျားများသည် ပန်းများရှိရာသို့ ကခုန်ကြသည်။"],
        ["मधुमक्खी छत्ते में लौटकर नाचती है।", "लोहा नम हवा में जंग खाता है।"],
        ["སྦྲང་མས་མེ་ཏོག་གི་ཟེའུ་འབྲུ་འཁྱེར།", "ལྕགས་ལ་བཙའ་རྒྱག་གི་རེད།"],
    ],
    ids=["chinese", "japanese", "thai", "burmese", "hindi", "tibetan"],
)
def test_paragraphs_without_blanks_are_passages_and_only_headings_are_joined(
    tmp_path: Path, config: Make, write: Write, paragraphs: list[str]
) -> None:
    heading = paragraphs[0].split()[0][:3]
    root = write({"a.txt": "\n\n".join([heading, *paragraphs]) + "\n"})
    collection = read_collection(config("text", root=root), tmp_path / "out")
    texts = list(collection.passages.column("text"))
    assert texts == [f"{heading}\n\n{paragraphs[0]}", *paragraphs[1:]]


def test_only_collections_without_blanks_got_another_identity(tmp_path: Path, config: Make, write: Write) -> None:
    english = {"a.txt": "Five words are a passage. " * 100 + "蜜蜂"}
    source = config("text", root=write(english))
    fields = source.model_dump(mode="json", exclude=source.outside_identity | {"unlabelled_queries"})

    def before(content: list[str]) -> str:
        return hashlib.blake2b(json.dumps([fields, content], sort_keys=True).encode(), digest_size=16).hexdigest()

    assert source._digest(["x"]) == before(["x"])
    for other in ("蜜蜂用跳舞告诉同伴花在哪里。", "སྦྲང་མས་མེ་ཏོག"):
        write({**english, "b.txt": other})
        assert source._digest(["x"]) != before(["x"])
