"""What stands where an input file is expected, and what is in it: one line for each fault, the same for every reader."""

import gzip
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import UserError
from condensery.stages.negatives.config import ReadNegativesConfig
from condensery.stages.queries.config import ReadQueriesConfig
from condensery.stages.sentences.config import ReadStsConfig, SectionTripletsConfig
from condensery.system.inputs import resolve
from condensery.text import read_collection
from condensery.text.collection import Collection
from condensery.text.lines import decimal

from .conftest import Make, lines

PASSAGES = [{"_id": "a", "title": "A", "text": "Cats sleep."}, {"_id": "b", "title": "", "text": "Dogs bark."}]
ASKED = lines({"_id": "q", "text": "who sleeps"})
BEIR = {"corpus.jsonl": lines(*PASSAGES), "queries.jsonl": ASKED, "qrels/train.tsv": "q\ta\t1\n"}
DOCUMENTS = {
    "documents.jsonl": lines({"_id": "a", "passages": ["Cats sleep."]}, {"_id": "b", "passages": ["Dogs bark."]}),
    "queries.jsonl": ASKED,
    "qrels/train.tsv": "q\ta#0\t1\n",
}
TEXT = {"a.txt": "Cats sleep.\n\nThey do.\n", "queries.jsonl": ASKED, "qrels/train.tsv": "q\ta.txt#0\t1\n"}
MARCO = {
    "collection.tsv": "a\tCats sleep.\nb\tDogs bark.\n",
    "queries.tsv": "q\twho sleeps\nr\twho barks\n",
    "qrels.tsv": "q 0 a 1\nr 0 b 1\n",
}
MARCO_DOCUMENTS = MARCO | {"docs.tsv": "a\tu\tA\tCats sleep.\nb\tu\tB\tDogs bark.\n"}
DPR = {
    "psgs.tsv": "id\ttext\ttitle\na\tCats sleep.\tA\nb\tDogs bark.\tB\n",
    "train.json": json.dumps(
        [{"question": "who", "answers": ["cats"], "positive_ctxs": [{"passage_id": "a"}], "hard_negative_ctxs": []}] * 2
    ),
}
TEVATRON = {
    "train.jsonl": lines(
        *(
            {"query_id": name, "query": "who", "positive_passages": [{"docid": "a", "text": "Cats sleep."}]}
            for name in ("q", "r")
        )
    ),
    "corpus.jsonl": lines({"docid": "a", "text": "Cats sleep."}, {"docid": "b", "text": "Dogs bark."}),
}
NULL = {"train": None, "dev": None, "test": None}
TRAIN: dict[str, Any] = {"splits": NULL | {"train": "train"}, "dev_queries": 0}
NATIVE: dict[str, Any] = {
    "splits": NULL | {"train": {"queries": "queries.tsv", "qrels": "qrels.tsv"}, "dl19": None, "dl20": None},
    "dev_queries": 0,
}
COLLECTIONS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "beir": (BEIR, TRAIN),
    "documents": (DOCUMENTS, TRAIN),
    "text": (TEXT, TRAIN | {"minimum_words": 1}),
    "msmarco": (MARCO, NATIVE),
    "msmarco_documents": (MARCO_DOCUMENTS, NATIVE | {"documents": "docs.tsv"}),
    "nq": (DPR, TRAIN | {"splits": NULL | {"train": "train.json"}, "passages": "psgs.tsv"}),
    "tevatron": (TEVATRON, TRAIN | {"splits": NULL | {"train": "train.jsonl"}, "corpus": "corpus.jsonl"}),
}
STS = "sentence1,sentence2,score\na,b,1\nc,d,2\n"
ARTICLES = lines(*({"_id": name, "title": "", "passages": ["x"], "headings": [""]} for name in "ab"))
STAGES: dict[str, tuple[dict[str, str], Callable[[Path], Any]]] = {
    # name: (files, its config); only what identity reads is given
    "sts": (
        {f"{split}.csv": STS for split in ("train", "dev", "test")},
        lambda root: ReadStsConfig(root=str(root), tokenizer="tokenizer"),
    ),
    "queries": (
        {"q.tsv": "a\tx\nb\ty\n"},
        lambda root: ReadQueriesConfig(
            passages="passages", tokenizer="tokenizer", path=str(root / "q.tsv"), format="auto", missing="error"
        ),
    ),
    "articles": (
        {"articles.jsonl": ARTICLES},
        lambda root: SectionTripletsConfig(
            path=str(root / "articles.jsonl"),
            tokenizer="tokenizer",
            dev_share=0.1,
            test_share=0.1,
            per_article=1,
            minimum_words=1,
            seed=1,
        ),
    ),
    "triples": (
        {"triples.tsv": "q\ta\tb\nr\tb\ta\n"},
        lambda root: ReadNegativesConfig(
            corpus="corpus",
            file=root / "triples.tsv",
            split="train",
            depth=1,
            systems=None,
            per_system=None,
            relabel=None,
        ),
    ),
}
EVERY = [
    *((choice, name) for choice, (files, _) in COLLECTIONS.items() for name in files if choice != "msmarco_documents"),
    ("msmarco_documents", "docs.tsv"),
    *((stage, name) for stage, (files, _) in STAGES.items() for name in files if name not in ("dev.csv", "test.csv")),
]
each_file = pytest.mark.parametrize(("reader", "name"), EVERY)


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A test that waits for a pipe ends by SIGALRM."""
    signal.alarm(20)
    yield
    signal.alarm(0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "input"


def written(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, newline="")


@pytest.fixture
def known(config: Make, root: Path) -> Callable[[str], Callable[[], Any]]:
    """``known(reader)`` writes its files; what that returns asks for their identity, as every run does."""

    def make(reader: str) -> Callable[[], Any]:
        if reader in STAGES:
            files, stage = STAGES[reader]
            written(root, files)
            return lambda: stage(root).identity()
        files, changes = COLLECTIONS[reader]
        written(root, files)
        return lambda: config(reader, root=root, **changes).fingerprint()

    return make


@pytest.fixture
def read(config: Make, tmp_path: Path, root: Path) -> Callable[[str], Collection]:
    return lambda reader: read_collection(config(reader, root=root, **COLLECTIONS[reader][1]), tmp_path / "made")


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    return text


def socket_at(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


STANDING: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "a pipe (FIFO), not a file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "a device, not a file"),
    "a socket": (socket_at, "a socket, not a file"),
    "links in a circle": (
        lambda path: path.symlink_to(path.name),
        "one of several links that form a circle, not a file",
    ),
    "a dangling link": (lambda path: path.symlink_to("nowhere"), "a link to nowhere, which does not exist, not a file"),
    "a folder": (Path.mkdir, "a folder, not a file"),
}


@each_file
@pytest.mark.parametrize("what", STANDING)
def test_what_stands_in_place_of_a_file_is_said(
    what: str, reader: str, name: str, root: Path, known: Callable[[str], Callable[[], Any]]
) -> None:
    ask, (put, said) = known(reader), STANDING[what]
    (root / name).unlink()
    put(root / name)
    if (reader, name) == ("text", "a.txt") and what == "a folder":
        assert "no text files here" in refused(ask)  # a folder of that name is looked into
        return
    if reader == "queries" and what == "a folder":
        assert "holds no file; give a folder with files of queries" in refused(ask)
        return
    text = refused(ask)
    assert name.rpartition("/")[2] in text
    assert said in text


def test_a_folder_is_said_to_be_what_it_is(config: Make, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    assert "a pipe (FIFO), not a folder" in refused(config("beir", root=tmp_path / "pipe").check)
    assert "a link to nowhere, which does not exist" in refused(config("beir", root=tmp_path / "link").check)


@pytest.mark.parametrize("name", ["documents.jsonl", "2019qrels-pass.txt"])
def test_what_is_read_where_it_is_there_is_not_left_out_because_it_cannot_be(
    name: str, config: Make, root: Path, known: Callable[[str], Callable[[], Any]]
) -> None:
    """Files that a reader looks for by itself: what stands there and is none was quietly left out."""
    os.makedirs(root, exist_ok=True)
    os.mkfifo(root / name)
    if name == "documents.jsonl":
        assert "a pipe" in refused(known("beir"))
    else:
        assert "a pipe" in refused(config("msmarco", root=root).check)


@each_file
def test_the_name_of_a_file_counts_also_where_its_content_is_known(
    reader: str, name: str, root: Path, known: Callable[[str], Callable[[], Any]]
) -> None:
    """The collection is known by content, and its files may be plain or .gz: a wrong name is refused all the same."""
    ask = known(reader)
    path, packed = root / name, root / f"{name}.gz"
    if reader not in ("queries", "triples") and name != "a.txt":
        ask()
        path.rename(packed)  # plain text named .gz
        assert "not a whole gzip file" in refused(ask)
        assert "if it is plain text, remove .gz from its name" in refused(ask)
        packed.write_bytes(gzip.compress(gzip.compress(packed.read_bytes())))
        assert f"{packed}: a gzip file within a gzip file; unpack it once" in refused(ask)
        packed.unlink()
    path.write_bytes(gzip.compress(b"text"))
    assert f"{path}: this is a gzip file; name it .gz" in refused(ask)


@each_file
def test_an_empty_file_is_named(reader: str, name: str, root: Path, known: Callable[[str], Callable[[], Any]]) -> None:
    if (reader, name) == ("text", "a.txt") or reader in ("queries", "sts", "articles"):
        pytest.skip("may be empty, or is named when it is read")
    ask = known(reader)
    (root / name).write_text("")
    assert f"{root / name}: the file is empty; it should be the " in refused(ask)


@pytest.mark.parametrize("reader", [reader for reader in COLLECTIONS if reader != "text"])
def test_a_file_of_blank_lines_is_named(
    reader: str, root: Path, known: Callable[[str], Callable[[], Any]], read: Callable[[str], Collection]
) -> None:
    known(reader)
    main = {"documents": "documents.jsonl", "msmarco_documents": "docs.tsv", "nq": "psgs.tsv"}
    name = main.get(reader, "collection.tsv" if reader == "msmarco" else "corpus.jsonl")
    (root / name).write_text("\n\n")
    assert f"{root / name}: holds no " in refused(lambda: read(reader))


@each_file
def test_lines_of_old_macs_are_told_from_one_long_line(
    reader: str, name: str, root: Path, known: Callable[[str], Callable[[], Any]], read: Callable[[str], Collection]
) -> None:
    from condensery.text.lines import read_lines

    known(reader)
    path = root / name
    text = path.read_text()
    if name == "train.json" or text.count("\n") < 2:
        pytest.skip("an array, or one line")
    path.write_text(text.replace("\n", "\r"), newline="")
    said = f"{path}: its lines end in a carriage return (CR) alone; save the file with line feeds (LF)"
    assert said in refused(lambda: read(reader) if reader in COLLECTIONS else list(read_lines(path)))


@each_file
def test_a_file_beside_another_form_of_itself_must_hold_the_same(
    reader: str, name: str, root: Path, known: Callable[[str], Callable[[], Any]]
) -> None:
    if reader in ("queries", "triples") or name == "a.txt":
        pytest.skip("read by its exact name")
    ask, path = known(reader), root / name
    before = ask()
    packed = root / f"{name}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert ask() == before
    for other in (path.read_bytes() + b"\n", path.read_bytes()[:-1] + b"x"):
        packed.write_bytes(gzip.compress(other))
        assert f"{path} and {name.rpartition('/')[2]}.gz beside it differ; remove the one" in refused(ask)


def test_a_twin_is_found_from_either_name(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a")
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"b"))
    for name in ("a.tsv", "a.tsv.gz"):
        assert "beside it differ" in refused(lambda name=name: resolve(tmp_path / name))  # type: ignore[misc]


UNKNOWN = [  # reader, file, what is written instead, said
    (
        "beir",
        "qrels/train.tsv",
        "nobody\ta\t1\n",
        "train.tsv:1: no query has this query id: 'nobody'; queries have ids such as 'q'; correct",
    ),
    ("beir", "qrels/train.tsv", "q\tnothing\t1\n", "train.tsv:1: no passage has this passage id: 'nothing'"),
    ("documents", "qrels/train.tsv", "q\tnothing#0\t1\n", "id: 'nothing#0'; passages have ids such as 'a#0'; correct"),
    (
        "text",
        "qrels/train.tsv",
        "q\tnothing\t1\n",
        "'nothing'; passages have ids such as 'a.txt#0'; correct the id, add",
    ),
    ("msmarco", "qrels.tsv", "q 0 nothing 1\n", "qrels.tsv:1: no passage has this passage id: 'nothing'"),
    (
        "msmarco_documents",
        "qrels.tsv",
        "x 0 a 1\n",
        "qrels.tsv:1: no query has this query id: 'x'; queries have ids such as",
    ),
    ("nq", "train.json", DPR["train.json"].replace('"a"', '"nothing"'), "no passage has this passage id: 'nothing'"),
    (
        "nq",
        "train.json",
        DPR["train.json"].replace("[]}", '[{"psg_id": 7}]}'),
        "the id of this hard negative: '7'; passages have ids such as",
    ),
    ("tevatron", "train.jsonl", TEVATRON["train.jsonl"].replace('"a"', '"z"'), "has this passage id: 'z'"),
    (
        "beir",
        "corpus.jsonl",
        lines(*PASSAGES, PASSAGES[0]),
        "corpus.jsonl:1: 'a'; give each of the passages its own id",
    ),
    ("beir", "qrels/train.tsv", f"q\t{'9' * 4000}\t1\n", f"passage id: '{'9' * 60}… (4,000 characters)'"),
    ("beir", "qrels/train.tsv", f"q\ta\t{'9' * 4000}\n", f'not "{"9" * 60}… (4,000 characters)"'),
    (
        "nq",
        "psgs.tsv",
        f"{'9' * 4000}\ta\tb\n" * 2,
        f"'{'9' * 60}… (4,000 characters)'; give each of the passages its own id",
    ),
]


@pytest.mark.parametrize(("reader", "name", "content", "said"), UNKNOWN)
def test_the_id_that_is_wrong_is_shown_and_a_long_one_cut(
    reader: str,
    name: str,
    content: str,
    said: str,
    root: Path,
    known: Callable[[str], Callable[[], Any]],
    read: Callable[[str], Collection],
) -> None:
    known(reader)
    (root / name).write_text(content)
    assert said in refused(lambda: read(reader))


def test_an_array_in_one_line_gives_the_column(
    root: Path, known: Callable[[str], Callable[[], Any]], read: Callable[[str], Collection]
) -> None:
    known("nq")
    path = root / "train.json"
    entries = json.loads(DPR["train.json"])
    del entries[1]["question"]
    text = json.dumps(entries)
    path.write_text(text)
    column = len("[" + json.dumps(entries[0]) + ", ") + 1
    assert f'{path}:1:{column}: the field "question" is missing' in refused(lambda: read("nq"))
    entries[1] = entries[0] | {"positive_ctxs": [{"passage_id": "nothing"}]}
    path.write_text(json.dumps(entries))
    assert f"{path}:1:{column}: no passage has this passage id: 'nothing'" in refused(lambda: read("nq"))
    path.write_text(text[:-2] + "?" + text[-2:])
    assert f"{path}:1:{len(text) - 1}: not valid JSON" in refused(lambda: read("nq"))


def test_a_broken_line_of_json_gives_its_own_place_and_the_column(
    root: Path, known: Callable[[str], Callable[[], Any]], read: Callable[[str], Collection]
) -> None:
    known("beir")
    (root / "corpus.jsonl").write_text('{"_id": "a", "text": "x"}\n{"_id": "b" "text": "x"}\n')
    text = refused(lambda: read("beir"))
    assert text.endswith("corpus.jsonl:2: not valid JSON (Expecting ',' delimiter at column 13)")


@pytest.mark.parametrize("invisible", ["\u200b", "\u200b\ufeff \u2060", "\u00ad", "\u3164", "\u2800", "\u200d\n"])
@pytest.mark.parametrize("reader", COLLECTIONS)
def test_a_text_that_nobody_sees_is_empty(
    reader: str,
    invisible: str,
    root: Path,
    tmp_path: Path,
    config: Make,
    known: Callable[[str], Callable[[], Any]],
) -> None:
    known(reader)
    made = config(reader, root=root, empty_passages="error", **COLLECTIONS[reader][1])
    invisible = invisible.strip() if reader in ("msmarco", "msmarco_documents", "nq") else invisible
    escaped = json.dumps(invisible)[1:-1] if reader in ("beir", "documents", "tevatron") else invisible
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        text = path.read_text()
        if reader == "msmarco_documents":
            text = text.replace("\tB\t", "\t\t")
        if reader == "nq":
            text = text.replace("bark.\tB", "bark.\t")
        if "train" not in path.name or reader != "tevatron":
            path.write_text(text.replace("Dogs bark.", escaped).replace("They do.", escaped))
    if reader == "text":
        assert read_collection(made, tmp_path / "made").passages.ids == ["a.txt#0"]
        return
    text = refused(lambda: read_collection(made, tmp_path / "made"))
    assert "the text is empty" in text
    assert text.partition(": ")[0].rpartition(":")[2].isdecimal()


def test_a_query_that_nobody_sees_is_empty(
    root: Path, known: Callable[[str], Callable[[], Any]], read: Callable[[str], Collection]
) -> None:
    known("beir")
    (root / "queries.jsonl").write_text(lines({"_id": "q", "text": "\u200b\u200b"}))
    assert "queries.jsonl:1: the text of the query is empty" in refused(lambda: read("beir"))


@pytest.mark.parametrize(
    "written", ["0_1", "１", "٣", "1_000.5", "0x1", "infinity", "nan", "1e", "", " 1", "1٫5", "--1"]
)
def test_what_only_python_takes_for_a_number_is_none(written: str) -> None:
    assert decimal(written) != decimal(written)  # NaN


@pytest.mark.parametrize("written", ["1", "-1.5", "+.5", "3.", "1e-3", "2.5E+10", "0"])
def test_numbers_are_read_as_python_reads_them(written: str) -> None:
    assert decimal(written) == float(written)


@pytest.mark.parametrize("score", ["0_1", "１"])
def test_scores_of_sentence_pairs_are_plain_numbers(score: str, tmp_path: Path) -> None:
    from condensery.text.formats.sts import read_sts

    (tmp_path / "train.csv").write_text(f"sentence1,sentence2,score\na,b,{score}\n")
    said = refused(lambda: list(read_sts(tmp_path / "train.csv")))
    assert f'train.csv:2: the score must be a number from 0 to 5, not "{score}"' in said


class TestTextsOfOneId:
    """Tevatron's lines bring texts along; one id has one text."""

    @staticmethod
    def _line(name: str, text: str, where: str = "positive_passages") -> dict[str, Any]:
        own = {"docid": f"p{name}", "text": f"text {name}"}
        return {"query_id": name, "query": "who", "positive_passages": [own]} | (
            {where: [own, {"docid": "a", "text": text}]}
        )

    @pytest.mark.parametrize("where", ["positive_passages", "negative_passages"])
    def test_two_texts_under_one_id_are_refused(self, where: str, config: Make, root: Path, tmp_path: Path) -> None:
        path = root / "train.jsonl"
        written(root, {"train.jsonl": lines(self._line("q", "one", where), self._line("r", "two", where))})
        made = config("tevatron", root=root, corpus=None, **TRAIN | {"splits": NULL | {"train": "train.jsonl"}})
        said = refused(lambda: read_collection(made, tmp_path / "made"))
        assert said == f"{path}:2: passage 'a' has another text at {path}:1; keep one"
        path.write_text(lines(self._line("q", "one", where), self._line("r", " one ", where)))
        assert len(read_collection(made, tmp_path / "made").passages) == 3

    def test_the_text_of_a_positive_is_that_of_the_corpus(
        self, root: Path, known: Callable[[str], Callable[[], Any]], read: Callable[[str], Collection]
    ) -> None:
        known("tevatron")
        corpus = root / "corpus.jsonl"
        corpus.write_text(corpus.read_text().replace("Cats sleep.", "Cats wake."))
        said = f"{corpus}:1: passage 'a' has another text at {root / 'train.jsonl'}:1; keep one"
        assert said in refused(lambda: read("tevatron"))


@pytest.mark.parametrize("character", ["\x1b", "\x07", "\0", "\x7f", "\x9b"])
def test_ids_hold_no_control_characters(
    character: str, root: Path, known: Callable[[str], Callable[[], Any]], read: Callable[[str], Collection]
) -> None:
    known("beir")
    (root / "corpus.jsonl").write_text(lines({"_id": f"a{character}b", "text": "x"}))
    said = refused(lambda: read("beir"))
    assert "corpus.jsonl:1: the passage id 'a" in said
    assert "holds a control character" in said
    assert character not in said
