"""Collections by their id in ir_datasets: its own readers over small files in the place of the real ones."""

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from condensery.errors import UserError
from condensery.text import read_collection
from condensery.text.collection import Collection
from condensery.text.formats.ir_datasets import _text
from tests.error_lines import names
from tests.served import MARCO, Place, empty_home, publish_marco, served, stand_in

from .conftest import Make, Write

ir_datasets = pytest.importorskip("ir_datasets")

COLLECTION = '0\tThe "Manhattan" project.\n1\tRain falls.\n2\tSnow is white.\n'
FILES = {
    "collection.tsv": COLLECTION,
    "queries.train.tsv": "10\twhat falls\n11\tnever judged\n",
    "qrels.train.tsv": "10\t0\t1\t1\n",
    "queries.dev.small.tsv": "20\twhat is white\n",
    "qrels.dev.small.tsv": "20\t0\t2\t1\n",
    "msmarco-test2019-queries.tsv": "30\ta project\n31\tnothing there\n",
    "2019qrels-pass.txt": "30 Q0 0 3\n30 Q0 1 1\n",
    "msmarco-test2020-queries.tsv": "40\twater\n",
    "2020qrels-pass.txt": "40 Q0 1 2\n40 Q0 2 0\n",
}


@pytest.fixture
def home() -> Path:
    """Where ir_datasets keeps its files, without any; its folders were made when it was imported."""
    return empty_home()


@pytest.fixture
def marco(tmp_path: Path, home: Path) -> Iterator[Place]:
    """The files of MS MARCO as they are published, served, and ir_datasets that takes them from there."""
    folder = publish_marco(tmp_path / "published", FILES)
    with served(folder) as place:
        stand_in(place.url, folder, *MARCO)
        yield place


def same(one: Collection, other: Collection) -> bool:
    """Whether two collections have the same content, name and source aside."""
    return one.content_hash == other.content_hash and one.description["splits"] == other.description["splits"]


def test_ms_marco_by_name_is_what_its_native_files_hold(
    tmp_path: Path, config: Make, write: Write, marco: Place
) -> None:
    named = read_collection(config("ir_datasets", name="msmarco-passage"), tmp_path / "named")
    native = read_collection(config("msmarco", root=write(dict(FILES))), tmp_path / "native")
    assert same(named, native)
    assert set(named.splits) == {"train", "test", "dl19", "dl20"}


def test_another_encoding_than_utf_8_is_refused_before_anything_is_fetched(
    config: Make, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("condensery.text.formats.ir_datasets.getpreferredencoding", lambda _: "ISO-8859-1")
    with pytest.raises(UserError, match=r"^data\.name=msmarco-passage: .* as ISO-8859-1, .* set PYTHONUTF8=1"):
        config("ir_datasets", name="msmarco-passage").check()


def test_a_beir_set_by_name_is_what_its_folder_holds(
    tmp_path: Path, config: Make, write: Write, beir_files: dict[str, str], home: Path
) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    with zipfile.ZipFile(folder / "scifact.zip", "w") as archive:
        for name, text in beir_files.items():
            archive.writestr(f"scifact/{name}", text)
    with served(folder) as place:
        stand_in(place.url, folder, "beir/scifact/train", "beir/scifact/test")
        named = read_collection(config("ir_datasets", name="beir/scifact"), tmp_path / "named")
    native = read_collection(config("beir", root=write(dict(beir_files))), tmp_path / "native")
    assert same(named, native)


def test_dpr_s_wikipedia_by_name_is_what_its_files_hold(tmp_path: Path, config: Make, write: Write, home: Path) -> None:
    passages = "id\ttext\ttitle\n" + "".join(
        f'{number}\t"The ""{word}"" of it."\t{title}\n'
        for number, (word, title) in enumerate(
            [("sea", "Water"), ("rain", "Water"), ("sun", "Sky"), ("moon", "Sky")], 1
        )
    )
    questions = [
        _question("where is salt ", ["2", "1"], ["3"], ["4"]),
        _question("nobody knows", [], ["1"], []),
        _question("what is wet", ["1"], ["4", "2"], []),
    ]
    files: dict[str, str | bytes] = {
        "psgs_w100.tsv.gz": passages,
        "biencoder-nq-train.json.gz": json.dumps(questions),
        "biencoder-nq-dev.json.gz": json.dumps(questions[2:]),
    }
    root = write(files)
    with served(root) as place:
        stand_in(place.url, root, "dpr-w100/natural-questions/train", "dpr-w100/natural-questions/dev")
        source = config("ir_datasets", name="dpr-w100/natural-questions", dev_queries=0)
        assert source.answered_splits() == {"train", "test"}
        named = read_collection(source, tmp_path / "named")
    splits = {"train": "biencoder-nq-train.json", "dev": None, "test": "biencoder-nq-dev.json"}
    native = read_collection(config("nq", root=root, splits=splits), tmp_path / "native")
    assert same(named, native)
    assert named.given_negatives is not None
    assert named.description["dropped"]["questions_without_positive"] == 1


def _question(text: str, positives: list[str], hard: list[str], random: list[str]) -> dict[str, object]:
    contexts = {
        name: [{"passage_id": one, "title": "", "text": "", "score": 7, "title_score": 0} for one in ids]
        for name, ids in (("positive_ctxs", positives), ("hard_negative_ctxs", hard), ("negative_ctxs", random))
    }
    return {"dataset": "nq", "question": text, "answers": ["yes", "no"], **contexts}


def test_it_is_read_without_a_network_once_it_was_fetched(tmp_path: Path, config: Make, marco: Place) -> None:
    source = config("ir_datasets", name="msmarco-passage")
    before = source.fingerprint()
    assert not marco.asked  # what it is is known before
    source.fetch()
    asked = len(marco.asked)
    assert asked == 7
    collection = read_collection(config("ir_datasets", name="msmarco-passage"), tmp_path / "out")
    assert len(collection.passages) == 3
    assert len(marco.asked) == asked
    assert config("ir_datasets", name="msmarco-passage").fingerprint() == before


def test_a_download_that_was_killed_begins_anew(config: Make, home: Path, marco: Place) -> None:
    archive = home / "msmarco-passage" / "collectionandqueries.tar.gz"
    archive.parent.mkdir(exist_ok=True)
    whole = (marco.folder / archive.name).read_bytes()
    archive.with_name(archive.name + ".tmp").write_bytes(whole[:100])  # as a killed process leaves it
    config("ir_datasets", name="msmarco-passage").fetch()
    assert archive.read_bytes() == whole
    assert not list(home.rglob("*.tmp"))


def test_a_connection_that_breaks_is_taken_up_again(config: Make, home: Path, marco: Place) -> None:
    qrels = marco.folder / "qrels.train.tsv"
    qrels.write_text("".join(f"{query}\t0\t1\t1\n" for query in range(3000)))  # longer than the library reads at once
    stand_in(marco.url, marco.folder, *MARCO)
    marco.headers[qrels.name] = {"Accept-Ranges": "bytes"}
    marco.breaks_after = 10_000
    config("ir_datasets", name="msmarco-passage").fetch()
    assert [wanted for name, wanted in marco.asked if name == qrels.name] == ["", "bytes=8192-"]
    assert (home / "msmarco-passage" / "train" / "qrels").read_bytes() == qrels.read_bytes()


def test_a_file_with_another_digest_is_refused(tmp_path: Path, config: Make, home: Path, marco: Place) -> None:
    source = config("ir_datasets", name="msmarco-passage")
    source.fetch()
    qrels = home / "msmarco-passage" / "train" / "qrels"
    qrels.write_text("10\t0\t0\t1\n")
    with pytest.raises(UserError) as error:
        read_collection(source, tmp_path / "out")
    names(str(error.value), str(qrels), "MD5", "remove it")
    qrels.unlink()
    (marco.folder / "qrels.train.tsv").write_text("changed on the way\n")
    with pytest.raises(UserError) as error:
        source.fetch()
    names(str(error.value), "data.name", "qrels.train.tsv", "md5")
    assert not list(home.rglob("*.tmp"))


def test_without_a_network_one_line_says_where_the_file_goes(tmp_path: Path, config: Make, home: Path) -> None:
    (tmp_path / "empty").mkdir()
    stand_in("http://127.0.0.1:9", tmp_path / "empty", *MARCO)  # nobody listens there
    with pytest.raises(UserError) as error:
        read_collection(config("ir_datasets", name="msmarco-passage"), tmp_path / "out")
    names(str(error.value), "data.name", "127.0.0.1:9", "the same command", str(home / "msmarco-passage"))


@pytest.mark.parametrize(
    ("name", "called", "splits"),
    [
        ("msmarco-passage", "msmarco", {"train": "train", "test": "dev/small", "dl19": "trec-dl-2019/judged"}),
        ("msmarco-document", "msmarco-documents", {"train": "train", "test": "dev", "dl20": "trec-dl-2020/judged"}),
        ("beir/msmarco", "msmarco", {"train": "train", "test": "dev"}),
        ("beir/nfcorpus", "nfcorpus", {"train": "train", "dev": "dev", "test": "test"}),
        ("beir/scifact", "scifact", {"train": "train", "test": "test"}),
        ("beir/trec-covid", "trec-covid", {"test": ""}),
        ("beir/cqadupstack/android", "cqadupstack/android", {"test": ""}),
        ("mmarco/v2/de", "mmarco-v2-de", {"train": "train", "test": "dev/small"}),
        ("dpr-w100/natural-questions", "nq", {"train": "train", "test": "dev"}),
        ("dpr-w100/trivia-qa", "triviaqa", {"train": "train", "test": "dev"}),
    ],
)
def test_each_collection_is_known_with_its_splits_and_digests(
    config: Make, name: str, called: str, splits: dict[str, str]
) -> None:
    source = config("ir_datasets", name=name)
    assert source.called == called
    found = {split: source.parts[f"queries of {split}"].id for split in source.judged_splits()}
    assert {split: found[split] for split in splits} == {
        split: f"{name}/{below}".rstrip("/") for split, below in splits.items()
    }
    assert all(len(one.md5 or "") == 32 and one.size and one.urls for one in source.downloads())
    assert source.expected()["passages"] > 1000


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("name", "msmarco-pasage", ["did you mean", "msmarco-passage"]),
        ("name", "beir/signal1m", ["by hand", "data=beir"]),
        ("name", "mmarco", ["mmarco/"]),
        ("documents", "msmarco-docs.tsv", ["did you mean", "msmarco-document"]),
        ("splits", {"train": None, "dev": None, "test": "nothing", "dl19": None, "dl20": None}, ["nothing"]),
    ],
)
def test_an_unknown_id_is_one_line(config: Make, key: str, value: object, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        config("ir_datasets", **{"name": "msmarco-passage", key: value}).fingerprint()
    names(str(error.value), "data.splits.test" if key == "splits" else f"data.{key}", *words)


@pytest.mark.parametrize(
    ("name", "values", "title", "text"),
    [
        ("nyt", {"headline": "Rain", "body": "It falls."}, "Rain", "It falls."),
        ("natural-questions", {"document_title": "Rain", "text": "It falls."}, "Rain", "It falls."),
        ("pmc/v2", {"title": "Rain", "abstract": "It falls.", "body": "Often."}, "", "Rain It falls. Often."),
        ("gov2", {"body": b"<p>It <b>falls</b>.</p>", "body_content_type": "text/html"}, "", "It falls."),
        ("msmarco-document", {"title": "Rain", "body": "It falls."}, "Rain", "It falls."),
        ("beir/scifact", {"title": None, "text": None}, "", ""),
    ],
)
def test_a_document_is_read_with_its_title_and_abstract_and_without_tags(
    name: str, values: dict[str, str | bytes | None], title: str, text: str
) -> None:
    fields = ir_datasets.load(name).docs_cls()
    found = _text(fields(**{field: values.get(field, "") for field in fields._fields}))
    assert (found[0], " ".join(found[1].split())) == (title, text)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("codesearchnet", ["data.name", "the documents of codesearchnet have no text"]),
        ("wapo/v2/trec-news-2018", ["data.splits.test", "the queries of wapo/v2/trec-news-2018 are not texts"]),
    ],
)
def test_what_has_no_text_is_one_line_before_anything_is_fetched(config: Make, name: str, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        config("ir_datasets", name=name).check()
    names(str(error.value), *words)


def test_what_can_only_be_had_by_hand_names_file_and_page(config: Make, home: Path) -> None:
    with pytest.raises(UserError) as error:
        config("ir_datasets", name="disks45/nocr/trec-robust-2004").check()
    names(str(error.value), "data.name", "by hand", str(home / "disks45" / "corpus"), "https://trec.nist.gov")


def test_the_identity_depends_on_what_is_read(config: Make, marco: Place) -> None:
    some = {"train": "auto", "dev": None, "test": "auto", "dl19": None, "dl20": None}
    of = [
        config("ir_datasets", name="msmarco-passage"),
        config("ir_datasets", name="msmarco-passage", splits=some),
        config("ir_datasets", name="msmarco-passage", splits=some | {"test": "trec-dl-2019/judged"}),
        config("ir_datasets", name="msmarco-passage", relevant_from=1),
        config("ir_datasets", name="msmarco-passage", positives="first"),
    ]
    assert len({one.fingerprint() for one in of}) == len(of)
    same_by_id = config("ir_datasets", name="msmarco-passage", splits=some | {"test": "msmarco-passage/dev/small"})
    assert same_by_id.fingerprint() == of[1].fingerprint()


def test_without_the_library_one_line_says_what_to_install(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_datasets", None)  # as if it were not installed
    with pytest.raises(UserError) as error:
        config("ir_datasets", name="msmarco-passage").check()
    names(str(error.value), "data.format=ir_datasets", "pip install ir_datasets")
