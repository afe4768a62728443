"""Every reader on whatever hypothesis thinks of: what is written comes back the same, and no input gives a traceback."""

import csv
import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from damage import FEW, MORE, damaged, named
from hypothesis import example, given
from hypothesis import strategies as st
from slow import slow_except

from condensery.errors import UserError
from condensery.text import read_collection
from condensery.text.arrays import read_array
from condensery.text.collection import Collection
from condensery.text.formats.sts import read_sts
from condensery.text.hashes import id_hash
from condensery.text.ids import SUFFIX, IdIndex
from condensery.text.lines import read_lines
from condensery.text.queries import by_passage, format_of, read_query_files
from condensery.text.sections import read_articles
from condensery.text.table import TableWriter, TextTable
from condensery.text.words import is_blank

from .conftest import Make, lines

NO_SPLITS = {"train": None, "dev": None, "test": None}

characters = st.characters(exclude_categories=["Cs"])
in_a_line = st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r\0\ufeff")
in_an_id = st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"], exclude_characters="\ufeff/")


def words(alphabet: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts that are not blank."""
    return st.text(alphabet, min_size=1, max_size=20).filter(lambda text: not is_blank(text))


@dataclass(frozen=True)
class Content:
    """Passages (id, title, text), questions (id, text) and the passage that each question is judged to ask for."""

    passages: list[tuple[str, str, str]]
    questions: list[tuple[str, str]]
    answers: list[int]

    @property
    def judged(self) -> list[tuple[str, str]]:
        """(id of the question, id of the passage)."""
        return [(name, self.passages[at][0]) for (name, _), at in zip(self.questions, self.answers, strict=True)]


@st.composite
def contents(draw: st.DrawFn, alphabet: st.SearchStrategy[str]) -> Content:
    """A small collection with texts of these characters."""
    ids = st.text(in_an_id, min_size=1, max_size=6)
    named = draw(st.lists(ids, min_size=1, max_size=4, unique=True))
    title = st.one_of(st.just(""), words(alphabet).filter(lambda text: text != "-"))  # MS MARCO's word for none
    passages = [(name, draw(title), draw(words(alphabet))) for name in named]
    questions = [(name, draw(words(alphabet))) for name in draw(st.lists(ids, min_size=1, max_size=3, unique=True))]
    return Content(passages, questions, [draw(st.integers(0, len(passages) - 1)) for _ in questions])


def columns(*rows: Sequence[str]) -> str:
    """Lines of columns between tabs."""
    return "".join("\t".join(row) + "\n" for row in rows)


def quoted(*rows: Sequence[str], delimiter: str = "\t") -> str:
    """The same with quotes where they are needed."""
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def beir(content: Content) -> dict[str, str]:
    return {
        "corpus.jsonl": lines(*({"_id": n, "title": t, "text": x} for n, t, x in content.passages)),
        "queries.jsonl": lines(*({"_id": name, "text": text} for name, text in content.questions)),
        "qrels/train.tsv": columns(*((query, passage, "1") for query, passage in content.judged)),
    }


def documents(content: Content) -> dict[str, str]:
    return beir(content) | {
        "documents.jsonl": lines(*({"_id": n, "title": t, "passages": [x]} for n, t, x in content.passages)),
        "qrels/train.tsv": columns(*((query, f"{passage}#0", "1") for query, passage in content.judged)),
    }


def text(content: Content) -> dict[str, str]:
    passages = {f"{at}.txt": " ".join(words.split()) for at, (_, _, words) in enumerate(content.passages)}
    judged = zip(content.questions, content.answers, strict=True)
    return passages | {
        "queries.jsonl": beir(content)["queries.jsonl"],
        "qrels/train.tsv": columns(*((name, f"{at}.txt#0", "1") for (name, _), at in judged)),
    }


def msmarco(content: Content) -> dict[str, str]:
    return {
        "collection.tsv": columns(*((name, words) for name, _, words in content.passages)),
        "titles.tsv": columns(*((name, title) for name, title, _ in content.passages)),
        "queries.tsv": columns(*content.questions),
        "qrels.tsv": "".join(f"{query} 0 {passage} 1\n" for query, passage in content.judged),
    }


def msmarco_documents(content: Content) -> dict[str, str]:
    return msmarco(content) | {"docs.tsv": columns(*((n, "https://x", t, x) for n, t, x in content.passages))}


def dpr(content: Content) -> dict[str, str]:
    judged = zip(content.questions, content.answers, strict=True)
    asked = [
        {"question": words, "answers": [words], "positive_ctxs": [{"passage_id": content.passages[at][0]}]}
        for (_, words), at in judged
    ]
    passages = [(name, words, title) for name, title, words in content.passages]
    return {"psgs.tsv": quoted(("id", "text", "title"), *passages), "train.json": json.dumps(asked, indent=1)}


def tevatron(content: Content) -> dict[str, str]:
    passages = [{"docid": name, "title": title, "text": words} for name, title, words in content.passages]
    asked = [
        {"query_id": name, "query": words, "positive_passages": [passages[at]], "negative_passages": []}
        for (name, words), at in zip(content.questions, content.answers, strict=True)
    ]
    return {"train.jsonl": lines(*asked), "corpus.jsonl": lines(*passages)}


TRAIN = {"splits": NO_SPLITS | {"train": "train"}, "dev_queries": 0}
NATIVE = {
    "splits": NO_SPLITS | {"train": {"queries": "queries.tsv", "qrels": "qrels.tsv"}, "dl19": None, "dl20": None},
    "dev_queries": 0,
}
FORMATS: dict[str, tuple[Callable[[Content], dict[str, str]], dict[str, object], st.SearchStrategy[str]]] = {
    "beir": (beir, TRAIN, characters),
    "documents": (documents, TRAIN, characters),
    "text": (text, TRAIN | {"minimum_words": 1}, st.characters(exclude_categories=["C", "Z"])),
    "msmarco": (msmarco, NATIVE | {"titles": "titles.tsv"}, in_a_line),
    "msmarco_documents": (msmarco_documents, NATIVE | {"documents": "docs.tsv"}, in_a_line),
    "nq": (dpr, TRAIN | {"splits": NO_SPLITS | {"train": "train.json"}, "passages": "psgs.tsv"}, in_a_line),
    "tevatron": (
        tevatron,
        TRAIN | {"splits": NO_SPLITS | {"train": "train.jsonl"}, "corpus": "corpus.jsonl"},
        characters,
    ),
}


def read(config: Make, choice: str, files: dict[str, bytes], root: Path) -> Collection:
    """The collection of these files."""
    for name, raw in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(raw)
    return read_collection(config(choice, root=root, **FORMATS[choice][1]), root / "made")


@pytest.fixture(params=slow_except(FORMATS, "beir", "msmarco", "tevatron", "text"))
def choice(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@FEW
@given(data=st.data())
def test_what_is_written_in_a_format_comes_back_the_same(config: Make, choice: str, data: st.DataObject) -> None:
    write, _, alphabet = FORMATS[choice]
    content = data.draw(contents(alphabet))
    with tempfile.TemporaryDirectory() as name:
        found = read(config, choice, {file: raw.encode() for file, raw in write(content).items()}, Path(name))
        ids, titles, texts = (found.passages.column(column)[:] for column in ("id", "title", "text"))
        qrels = found.qrels("train")
        judged = [
            (int(query), int(passage)) for query, passage in zip(qrels.query_rows, qrels.passage_rows, strict=True)
        ]
        asked = list(zip(found.queries.ids, found.queries.column("text")[:], strict=True))
    wanted = content.passages
    if choice == "text":  # white space is evened out, and files name the passages
        wanted = [(f"{at}.txt#0", str(at), " ".join(words.split())) for at, (_, _, words) in enumerate(wanted)]
    if choice == "documents":
        wanted = [(f"{identifier}#0", title, words) for identifier, title, words in wanted]
    assert list(zip(ids, titles, texts, strict=True)) == wanted
    if choice == "nq":  # its questions have no ids, and blanks around them are no part of them
        assert asked == [(f"train-{at}", words.strip()) for at, (_, words) in enumerate(content.questions)]
    else:
        assert asked == content.questions
    assert judged == list(enumerate(content.answers))


@MORE
@given(data=st.data())
def test_no_accident_to_a_file_gives_a_traceback(config: Make, choice: str, data: st.DataObject) -> None:
    write, _, alphabet = FORMATS[choice]
    files = {file: raw.encode() for file, raw in write(data.draw(contents(alphabet))).items()}
    hit = data.draw(st.sampled_from(sorted(files)))
    files[hit] = data.draw(damaged(files[hit]))
    with tempfile.TemporaryDirectory() as name:
        try:
            assert len(read(config, choice, files, Path(name)).passages)
        except UserError as error:
            named(error, Path(name))
            assert not (Path(name) / "made" / "collection.json").exists()


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> TextTable:
    path = tmp_path_factory.mktemp("table") / "passages.arrow"
    with TableWriter(path, ("id",)) as table:
        table.add(("a",), 1)
        table.add(("b",), 1)
    IdIndex.of(np.array([id_hash("a"), id_hash("b")], np.uint64)).save(path.with_suffix(SUFFIX))
    return TextTable(path)


def query_file(path: Path, passages: TextTable) -> list[tuple[int, str]]:
    """The pairs, which can be written to a table."""
    pairs = list(read_query_files([path], format_of([path]), passages))
    list(by_passage(pairs, len(passages), path.parent / "sorted.arrow"))
    return pairs


READERS: dict[str, tuple[str, Callable[[Path, TextTable], Sequence[object]], bytes]] = {
    # name: (file, reader, sound content)
    "lines": ("a.txt", lambda path, _: list(read_lines(path)), b"one\r\ntwo\n"),
    "packed": (
        "a.txt.gz",
        lambda path, _: list(read_lines(path)),
        b"\x1f\x8b\x08\0\0\0\0\0\0\x03K\xce\0\xc2A$5\x03\0\0\0",
    ),
    "array": ("a.json", lambda path, _: list(read_array(path)), b'[\n {"a": "b"},\n {"c": [1, 2]}\n]\n'),
    "sts": ("train.csv", lambda path, _: list(read_sts(path)), b'sentence1,sentence2,score\n"a, b",c,2.5\nd,e,5\n'),
    "articles": (
        "a.jsonl",
        lambda path, _: list(read_articles(path)),
        b'{"_id":"1","passages":["a"],"headings":[""]}\n',
    ),
    "queries, jsonl": ("q.jsonl", query_file, b'{"id": "a", "queries": ["x", "y"]}\n{"id": "b", "query": "z"}\n'),
    "queries, tsv": ("q.tsv", query_file, b"a\tx\nb\ty\n"),
    "queries, lines": ("q.txt", query_file, b"x\ny\n"),
}


@MORE
@given(data=st.data())
@pytest.mark.parametrize("reader", READERS)
def test_no_bytes_give_a_traceback(reader: str, passages: TextTable, data: st.DataObject) -> None:
    file, function, sound = READERS[reader]
    raw = data.draw(st.one_of(st.binary(max_size=40), damaged(sound)))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / file
        path.write_bytes(raw)
        try:
            function(path, passages)
        except UserError as error:
            named(error, path)


sentence = words(st.characters(exclude_categories=["Cs"], exclude_characters="\t\n\r\0\ufeff")).map(str.strip)
sentence = sentence.filter(lambda text: not is_blank(text) and not text.startswith("{"))


@FEW
@given(st.lists(st.tuples(sentence, sentence, st.floats(0, 5)), min_size=1, max_size=5))
@example([("sentence1", "sentence2", 1.0)])
def test_pairs_of_sentences_come_back_the_same(pairs: list[tuple[str, str, float]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "train.csv"
        rows = [(first, second, repr(score)) for first, second, score in pairs]
        path.write_text(quoted(("sentence1", "sentence2", "score"), *rows, delimiter=","), encoding="utf-8", newline="")
        assert list(read_sts(path)) == pairs


@FEW
@given(st.lists(st.tuples(st.sampled_from("ab"), words(in_a_line)), min_size=1, max_size=5), st.booleans())
def test_queries_of_passages_come_back_the_same(
    passages: TextTable, pairs: list[tuple[str, str]], as_objects: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / ("q.jsonl" if as_objects else "q.tsv")
        objects = ({"id": identifier, "query": query} for identifier, query in pairs)
        path.write_text(lines(*objects) if as_objects else columns(*pairs), encoding="utf-8", newline="")
        assert query_file(path, passages) == [("ab".index(identifier), query) for identifier, query in pairs]


@FEW
@given(st.lists(st.lists(st.tuples(st.sampled_from(["", "A", "B"]), st.text(characters)), max_size=5), max_size=4))
def test_the_sections_of_articles_come_back_the_same(articles: list[list[tuple[str, str]]]) -> None:
    records = [
        {"_id": str(at), "passages": [words for _, words in one], "headings": [heading for heading, _ in one]}
        for at, one in enumerate(articles)
    ]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.jsonl"
        path.write_text(lines(*records), encoding="utf-8")
        found = [sections for _, sections in read_articles(path)]
    for sections, article in zip(found, articles, strict=True):
        headings = list(dict.fromkeys(heading for heading, _ in article))
        assert sections == [[words for heading, words in article if heading == one] for one in headings]


@FEW
@given(st.lists(st.dictionaries(st.text(characters, max_size=3), st.text(characters, max_size=5), max_size=3)))
def test_the_entries_of_an_array_come_back_the_same(entries: list[dict[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.json"
        path.write_text(json.dumps(entries), encoding="utf-8")
        assert [entry for _, entry in read_array(path)] == entries
