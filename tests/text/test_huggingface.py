"""Data sets by their name on the Hugging Face hub, of which a small one is served here; its layouts as folders too."""

import bz2
import gzip
import importlib.util
import io
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from condensery.errors import UserError
from condensery.text import read_collection
from condensery.text.collection import Collection
from condensery.text.formats.hub import Repository
from tests.error_lines import names
from tests.served import Place, publish_data_set, served

from .conftest import Make, Write

pytest.importorskip("datasets")

PASSAGES = [
    {"_id": "a", "title": "Cats", "text": "Cats sleep most of the day."},
    {"_id": "b", "title": "", "text": "Dogs bark."},
    {"_id": "c", "title": "Fish", "text": "Fish swim in the sea."},
]
QUERIES = [{"_id": "q1", "text": "what do cats do"}, {"_id": "q2", "text": "who barks"}]
QRELS = {
    "train": [{"query-id": "q1", "corpus-id": "a", "score": 1}],
    "test": [{"query-id": "q2", "corpus-id": "b", "score": 2}, {"query-id": "q2", "corpus-id": "c", "score": 0}],
}
MTEB_CARD = """---
configs:
- config_name: default
  data_files:
  - {split: train, path: qrels/train.jsonl}
  - {split: test, path: qrels/test.jsonl}
- config_name: corpus
  data_files:
  - {split: corpus, path: corpus/*}
- config_name: queries
  data_files:
  - {split: queries, path: queries.jsonl}
dataset_info:
- config_name: corpus
  splits:
  - {name: corpus, num_examples: 3}
---
# A small retrieval task
"""


def parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


MTEB = {
    "README.md": MTEB_CARD.encode(),
    "corpus/0.parquet": parquet(PASSAGES[:2]),
    "corpus/1.parquet": parquet(PASSAGES[2:]),
    "queries.jsonl": jsonl(QUERIES),
    "qrels/train.jsonl": jsonl(QRELS["train"]),
    "qrels/test.jsonl": jsonl(QRELS["test"]),
}
BEIR = {
    "README.md": b"# BEIR\n",
    "corpus.jsonl.gz": gzip.compress(jsonl(PASSAGES)),
    "queries.jsonl.gz": gzip.compress(jsonl(QUERIES)),
}
HEAD = "query-id\tcorpus-id\tscore\n"
BEIR_QRELS = {"train.tsv": f"{HEAD}q1\ta\t1\n".encode(), "test.tsv": f"{HEAD}q2\tb\t2\nq2\tc\t0\n".encode()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A hub on this machine, without data sets, and an empty cache."""
    from huggingface_hub import constants

    (tmp_path / "hub").mkdir()
    with served(tmp_path / "hub") as place:
        monkeypatch.setattr(constants, "ENDPOINT", place.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", place.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield place


def native(config: Make, write: Write, files: dict[str, str], tmp_path: Path) -> Collection:
    return read_collection(config("beir", root=write(dict(files))), tmp_path / "native")


def same(one: Collection, other: Collection) -> bool:
    return one.content_hash == other.content_hash and one.description["splits"] == other.description["splits"]


def test_mteb_s_layout_holds_what_a_beir_folder_holds(
    tmp_path: Path, config: Make, write: Write, beir_files: dict[str, str], hub: Place
) -> None:
    publish_data_set(hub, "mteb/pets", MTEB)
    named = read_collection(config("huggingface", name="mteb/pets"), tmp_path / "named")
    assert same(named, native(config, write, beir_files, tmp_path))


def test_beir_s_layout_holds_what_a_beir_folder_holds(
    tmp_path: Path, config: Make, write: Write, beir_files: dict[str, str], hub: Place
) -> None:
    publish_data_set(hub, "BeIR/pets", BEIR)
    publish_data_set(hub, "BeIR/pets-qrels", BEIR_QRELS)
    named = read_collection(config("huggingface", name="BeIR/pets"), tmp_path / "named")
    assert same(named, native(config, write, beir_files, tmp_path))


def test_a_folder_in_the_layout_is_read_the_same(
    tmp_path: Path, config: Make, write: Write, beir_files: dict[str, str]
) -> None:
    for name, content in MTEB.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(content)
    named = read_collection(config("huggingface", name=str(tmp_path / "folder")), tmp_path / "named")
    assert same(named, native(config, write, beir_files, tmp_path))


@pytest.mark.parametrize(
    ("entry", "chosen"),
    [
        ("{data_files: {train: data/**/*.jsonl}}", ["data/0.jsonl", "data/old/1.jsonl"]),
        ("{data_files: {train: data/*}}", ["data/0.jsonl"]),
        ("{data_files: {train: ./data/*}}", ["data/0.jsonl"]),
        ("{data_dir: data}", ["data/0.jsonl", "data/old/1.jsonl"]),
        ("{data_files: '**'}", ["2.jsonl", "data/0.jsonl", "data/old/1.jsonl"]),
    ],
)
def test_patterns_of_the_card_choose_the_files_that_the_library_chooses(
    entry: str, chosen: list[str], tmp_path: Path
) -> None:
    hidden = ("data/.ipynb_checkpoints/0-checkpoint.jsonl", "__MACOSX/data/0.jsonl", "data/._0.jsonl")
    for name in ("data/0.jsonl", "data/old/1.jsonl", "2.jsonl", *hidden):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(jsonl(PASSAGES))
    (tmp_path / "README.md").write_text(f"---\nconfigs: [{entry}]\n---\n")
    assert Repository(str(tmp_path), None, "data.name").select(None, "train") == chosen


def test_a_pattern_that_the_library_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nconfigs: [{data_files: a**/b}]\n---\n")
    with pytest.raises(UserError, match=r"^data.name: .*'\*\*' can only be an entire path component"):
        Repository(str(tmp_path), None, "data.name").select(None, "train")


def test_an_empty_file_and_a_byte_order_mark_add_nothing(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").write_bytes(parquet(PASSAGES))
    pq.write_table(pq.read_table(tmp_path / "0.parquet").slice(0, 0), tmp_path / "1.parquet")
    (tmp_path / "2.txt").write_bytes(b"\xef\xbb\xbfone\r\n\ntwo")
    folder = Repository(str(tmp_path), None, "data.name")
    assert [row["_id"] for _, row in folder.rows(["1.parquet", "0.parquet"])] == [one["_id"] for one in PASSAGES]
    assert [row["text"] for _, row in folder.rows(["2.txt"])] == ["one", "", "two"]


def test_only_what_is_read_is_fetched_and_then_no_network_is_needed(tmp_path: Path, config: Make, hub: Place) -> None:
    publish_data_set(hub, "mteb/pets", {**MTEB, "large.parquet": parquet(PASSAGES)})
    before = config("huggingface", name="mteb/pets").fingerprint()
    assert not [name for name, _ in hub.asked if name.endswith((".parquet", ".jsonl"))]  # what it is is known before
    config("huggingface", name="mteb/pets").fetch()
    assert "large.parquet" not in [name for name, _ in hub.asked]
    publish_data_set(hub, "mteb/pets", {**MTEB, "queries.jsonl": jsonl(QUERIES[:1])}, commit="1" * 40)
    asked = len(hub.asked)
    again = config("huggingface", name="mteb/pets")
    assert again.fingerprint() == before  # the commit of the cache, not the newer one
    assert len(read_collection(again, tmp_path / "out").passages) == 3
    assert len(hub.asked) == asked
    assert config("huggingface", name="mteb/pets", revision="1" * 40).fingerprint() != before


def test_an_interrupted_download_goes_on(
    tmp_path: Path, config: Make, hub: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    publish_data_set(hub, "mteb/pets", MTEB)
    source = config("huggingface", name="mteb/pets")
    hub.breaks_after = 10
    with pytest.raises(UserError) as error:
        source.check()
    names(str(error.value), "data.name", "not complete", "resume the download")
    source.check()
    hub.breaks_after = 10  # of a file: the library takes it up again
    source.fetch()
    path = next(one.path for one in source.wanted() if one.path.name == "1.parquet")
    path.resolve().unlink()  # as if it had not come yet
    path.unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError) as error:
        read_collection(config("huggingface", name="mteb/pets"), tmp_path / "out")
    names(str(error.value), "data.name", "not complete", "resume the download")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.asked.clear()
    assert len(read_collection(config("huggingface", name="mteb/pets"), tmp_path / "out").passages) == 3
    assert {name for name, _ in hub.asked} == {"1.parquet"}


def test_a_broken_file_in_the_cache_is_refused(tmp_path: Path, config: Make, hub: Place) -> None:
    publish_data_set(hub, "mteb/pets", MTEB)
    source = config("huggingface", name="mteb/pets")
    source.fetch()
    path = next(one.path for one in source.wanted() if one.path.name == "queries.jsonl")
    path.resolve().write_bytes(jsonl(QUERIES).replace(b"cats", b"cows"))
    with pytest.raises(UserError) as error:
        read_collection(source, tmp_path / "out")
    names(str(error.value), str(path), "digest", "remove")


@pytest.mark.parametrize(
    ("part", "ids", "said"),
    [
        ("corpus", [1, "1"], r"corpus/1\.jsonl:1: this id is also at .*corpus/0\.jsonl:1: '1'"),
        ("corpus", ["1", 1], r"corpus/1\.jsonl:1: this id is also at .*corpus/0\.jsonl:1: '1'"),
        ("queries", [1, "1"], r"queries/1\.jsonl:1: the number 1 and the text '1' are the same id"),
        ("queries", ["1", 1], r"queries/1\.jsonl:1: the number 1 and the text '1' are the same id"),
        ("queries", [1, "01"], ""),
        *(
            ("corpus", [wrong], "corpus/0\\.jsonl:1: an id must be a text or a whole number")
            for wrong in (True, 1.5, [1])
        ),
    ],
)
def test_ids_of_two_kinds_that_are_written_alike_are_refused(
    tmp_path: Path, config: Make, write: Write, part: str, ids: list[object], said: str
) -> None:
    files: dict[str, str | bytes] = {
        "corpus/9.jsonl": jsonl(PASSAGES),
        "queries/9.jsonl": jsonl(QUERIES),
        "qrels/test.jsonl": jsonl(QRELS["test"]),
    }
    files |= {f"{part}/{at}.jsonl": jsonl([{"_id": name, "text": f"text {at}"}]) for at, name in enumerate(ids)}
    source = config("huggingface", name=str(write(files)), splits={"train": None, "dev": None, "test": "test"})
    if not said:
        assert len(read_collection(source, tmp_path / "out").queries) == 1
        return
    with pytest.raises(UserError, match=said) as error:
        read_collection(source, tmp_path / "out")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("pack", [None, bz2, lzma])
def test_ids_and_texts_of_json_and_csv_stay_as_they_are_written(
    tmp_path: Path, config: Make, write: Write, pack: Any
) -> None:
    ids = ["007", "2020-01-01", "NA", "1e5"]
    files: dict[str, str | bytes] = {
        "corpus.jsonl": jsonl([{"_id": one, "title": "2021-01-01", "text": f"text {one}"} for one in ids]),
        "queries.csv": "_id,text\n" + "".join(f"0{number},{one}\n" for number, one in enumerate(ids)),
        "qrels/test.tsv": HEAD + "".join(f"0{number}\t{one}\t1\n" for number, one in enumerate(ids)),
    }
    if pack is not None:
        end = {bz2: "bz2", lzma: "xz"}[pack]
        plain = {name: text if isinstance(text, bytes) else text.encode() for name, text in files.items()}
        files = {f"{name}.{end}": pack.compress(text) for name, text in plain.items()}
    source = config("huggingface", name=str(write(files)), splits={"train": None, "dev": None, "test": "test"})
    collection = read_collection(source, tmp_path / "out")
    assert collection.passages.ids == ids == collection.queries.column("text")[:]
    assert collection.queries.ids == ["00", "01", "02", "03"]
    assert len(collection.qrels("test")) == 4
    assert not collection.description["dropped"]


def test_a_folder_is_the_same_input_in_another_place_and_a_missing_column_is_named(
    tmp_path: Path, config: Make
) -> None:
    sources = []
    for place in ("one", "other"):
        (tmp_path / place / "pets").mkdir(parents=True)
        for name in ("corpus", "queries"):
            (tmp_path / place / "pets" / f"{name}.csv").write_text("_id,body\na,words\n")
        splits = dict.fromkeys(("train", "dev", "test"))
        sources.append(config("huggingface", name=str(tmp_path / place / "pets"), splits=splits))
    assert len({source.fingerprint() for source in sources}) == 1
    with pytest.raises(UserError, match=r"corpus\.csv:2: no column text \(fields here: _id, body\)"):
        read_collection(sources[0], tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "d.csv",
            "id,text\n1,a text, with a comma\n",
            r"d\.csv:2: 3 columns, the header has 2; quote texts that hold commas",
        ),
        ("d.tsv", 'text\n"a\nb\n', r"d\.tsv:2: not valid CSV .* the file is CSV or TSV with a header"),
        ("d.csv", b"text\n\xe9cole\n", r"d\.csv:2: not valid UTF-8"),
        ("d.csv", "id;text\n1;a\n", r"d\.csv:1: the header is one column, 'id;text'; put commas between .* of ';'"),
        ("d.tsv", "id,text\n1,a\n", r"d\.tsv:1: the header is one column, 'id,text'; put tabs between .* of ','"),
        ("d.csv", "id,body\n1,a\n", r"d\.csv:2: no column text \(fields here: id, body\)"),
        ("d.json", '[\n{"text": "a"},\n{"text": 5}]', r"d\.json:3: a text is expected"),
        ("d.jsonl", '{"text": "\\ud800"}\n', r"d\.jsonl:1: the passage holds half a character"),
        ("d.jsonl.xz", lzma.compress(b'{"text": "a"}')[:-8], r"d\.jsonl\.xz: not a whole lzma file"),
        ("d.jsonl.xz", b'{"text": "a"}', r"d\.jsonl\.xz: not a whole lzma file"),
        ("d.jsonl.bz2", b'{"text": "a"}', r"d\.jsonl\.bz2: cannot be read"),
        ("d.parquet", b"PAR1", r"data\.name: \S*input/d\.parquet: \w+: "),
    ],
)
def test_a_fault_in_a_local_file_is_one_line_with_its_place(
    tmp_path: Path,
    config: Make,
    write: Write,
    capfd: pytest.CaptureFixture[str],
    name: str,
    content: str | bytes,
    said: str,
) -> None:
    source = config("huggingface_documents", name=str(write({name: content})), title=None)
    with pytest.raises(UserError, match=said) as error:
        read_collection(source, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not capfd.readouterr().err


def judged(config: Make, write: Write, folder: Path, query_ids: list[Any], grade: int = 1) -> Collection:
    """The collection with these query ids in the judgements of the split test."""
    rows = [{"query-id": one, "corpus-id": "a", "score": grade} for one in query_ids]
    parts = {"corpus": PASSAGES, "queries": QUERIES, "qrels/test": rows}
    files: dict[str, str | bytes] = {f"{name}.parquet": parquet(content) for name, content in parts.items()}
    splits = {"train": None, "dev": None, "test": "test"}
    return read_collection(config("huggingface", name=str(write(files)), splits=splits), folder / "out")


def test_judgements_of_unknown_queries_are_told(tmp_path: Path, config: Make, write: Write) -> None:
    (warning,) = judged(config, write, tmp_path, ["q1", "ｑ1", "q9"]).description["warnings"]
    for words in (
        "test.parquet:2: the query 'ｑ1' is not among the queries",
        "2 judgements of the split test are left",
    ):
        assert words in warning


@pytest.mark.parametrize(
    ("query_ids", "grade", "said"),
    [
        ([1.0, 2.0], 1, r"test.parquet:1: an id must be a text or a whole number, not 1\.0$"),
        (["q8", "q9"], 1, "test.parquet:1: the query 'q8' is not among the queries; .*data.splits.test=null$"),
        (["q1", "q2"], 0, "test.parquet:1: the query 'q1' has no positive passage .*data.splits.test=null$"),
    ],
)
def test_a_split_without_a_judgement_to_use_is_one_line(
    tmp_path: Path, config: Make, write: Write, query_ids: list[Any], grade: int, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        judged(config, write, tmp_path, query_ids, grade)


def test_a_row_whose_text_is_null_is_an_empty_document(tmp_path: Path, config: Make, write: Write) -> None:
    files: dict[str, str | bytes] = {"d.parquet": parquet([{"text": "five words make a passage"}, {"text": None}])}
    source = config("huggingface_documents", name=str(write(files)), title=None)
    assert read_collection(source, tmp_path / "out").description["dropped"] == {"empty_documents": 1}


@pytest.mark.parametrize("offline", [True, False])
def test_without_a_network_one_line_says_so(
    tmp_path: Path, config: Make, hub: Place, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError) as error:
        config("huggingface", name="mteb/pets").check()
    names(str(error.value), "data.name", "mteb/pets", "the hub cannot be reached")


def test_what_is_not_there_is_named(config: Make, hub: Place) -> None:
    publish_data_set(hub, "mteb/pets", MTEB)
    with pytest.raises(UserError) as error:
        config("huggingface", name="mteb/pests").check()
    names(str(error.value), "data.name", "mteb/pests", "huggingface.co/datasets")
    splits = {"train": "train", "dev": "validation", "test": "test"}
    with pytest.raises(UserError) as error:
        config("huggingface", name="mteb/pets", splits=splits).check()
    names(
        str(error.value), "data.name", "validation", "train", "set the data.splits.* whose value is validation to null"
    )
    with pytest.raises(UserError) as error:
        config(
            "huggingface", name="mteb/pets", configs={"corpus": "corpora", "queries": "queries", "qrels": "auto"}
        ).check()
    names(str(error.value), "data.name", "corpora", "corpus")


TRIPLES = [
    {"query": "what do cats do", "positive": "Cats sleep.", "negative": "Dogs bark."},
    {"query": "what do cats do", "positive": "Cats sleep.", "negative": "Fish swim."},
    {"query": "who barks", "positive": "Dogs bark.", "negative": "Cats sleep."},
]


@pytest.mark.parametrize("shape", ["rows", "columns", "list"])
def test_triples_become_passages_queries_and_negatives(tmp_path: Path, config: Make, hub: Place, shape: str) -> None:
    both = {"query": "what do cats do", "positive": "Cats sleep."}
    wide: dict[str, list[dict[str, Any]]] = {
        "rows": TRIPLES,
        "columns": [
            both | {"negative_1": "Dogs bark.", "negative_2": "Fish swim."},
            {**TRIPLES[2], "negative_1": "Cats sleep.", "negative_2": None, "negative": None},
        ],
        "list": [
            {"anchor": both["query"], "answer": both["positive"], "negative": ["Dogs bark.", "Fish swim."]},
            {"anchor": "who barks", "answer": "Dogs bark.", "negative": ["Cats sleep."]},
        ],
    }
    publish_data_set(hub, "sentence-transformers/pets", {"triplet/train-00000-of-00001.parquet": parquet(wide[shape])})
    source = config("huggingface_triples", name="sentence-transformers/pets", dev_queries=0)
    collection = read_collection(source, tmp_path / "out")
    texts = collection.passages.column("text")[:]
    assert texts == ["Cats sleep.", "Dogs bark.", "Fish swim."]
    assert collection.queries.column("text")[:] == ["what do cats do", "who barks"]
    assert {q: rows.tolist() for q, rows in collection.qrels("train").positives().items()} == {0: [0], 1: [1]}
    assert collection.given_negatives is not None
    assert collection.given_negatives.tolist() == [[0, 1], [0, 2], [1, 0]]


def test_rows_of_text_become_documents(tmp_path: Path, config: Make, hub: Place) -> None:
    rows = [
        {
            "title": "Bees",
            "text": "Bees fly from flower to flower.\n\nHoney\n\nThey make honey out of what they find.\n",
        },
        {"title": "Nothing", "text": "\n"},
    ]
    publish_data_set(
        hub, "wikimedia/wikipedia", {"en/train.parquet": parquet(rows), "de/train.parquet": parquet(rows[1:])}
    )
    source = config("huggingface_documents", name="wikimedia/wikipedia", config="en")
    collection = read_collection(source, tmp_path / "out")
    assert collection.passages.column("text")[:] == [
        "Bees fly from flower to flower.",
        "Honey\n\nThey make honey out of what they find.",
    ]
    assert collection.passages.ids == ["0#0", "0#1"]
    assert collection.passages.column("title")[:] == ["Bees", "Bees"]


def test_rows_that_are_sentences_are_joined(tmp_path: Path, config: Make, hub: Place) -> None:
    rows = [{"text": f"this is sentence number {number} ."} for number in range(5)]
    publish_data_set(hub, "bookcorpus/bookcorpus", {"plain_text/train/0000.parquet": parquet(rows)})
    source = config("huggingface_documents", name="bookcorpus/bookcorpus", rows_per_document=2)
    collection = read_collection(source, tmp_path / "out")
    assert [len(text.splitlines()) for text in collection.passages.column("text")[:]] == [2, 2, 1]


def test_without_the_library_one_line_says_what_to_install(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # as if it were not installed
    with pytest.raises(UserError) as error:
        config("huggingface", name="mteb/pets").check()
    names(str(error.value), "data.format=huggingface", "pip install datasets")
