"""Files of queries in every form in which they are published, and what is said of broken ones."""

from pathlib import Path

import numpy as np
import pytest
from small_runs import write

from condensery.errors import UserError
from condensery.text.hashes import id_hash
from condensery.text.ids import SUFFIX, IdIndex
from condensery.text.queries import by_passage, distinct, format_of, query_files, read_query_files
from condensery.text.salience import Salience
from condensery.text.table import TableWriter, TextTable

IDS = ["a#0", "a#1", "7"]
PAIRS = [(0, "who was it"), (0, "was it"), (1, "where"), (2, "when")]
FORMS = {
    "q.jsonl": [
        '{"id": "a#0", "queries": ["who was it", "was it"]}',
        "",
        '{"_id": "a#1", "query": "where", "text": "a passage"}',
        '{"passage": 7, "predicted_queries": ["when"]}',
    ],
    "q.json.gz": [
        '{"id": "a#0", "querygen": "who was it\\nwas it"}',
        '{"id": "a#1", "text": "where"}',
        '{"id": "7", "queries": "when"}',
    ],
    "q.tsv": ["a#0\twho was it", "a#0\twas it", "a#1\twhere", "7\twhen"],
    "q.tsv.gz": ["a#0\twho was it", "a#0\twas it", "a#1\twhere", "7\twhen"],
    "tabs.txt": ["a#0\twho was it", "a#0\twas it", "a#1\twhere", "7\twhen"],
    "objects.txt": ['{"id": "a#0", "text": ["who was it", "was it"]}', '{"id": "a#1", "text": "where"}'],
}


@pytest.fixture
def passages(tmp_path: Path) -> TextTable:
    path = tmp_path / "table" / "passages.arrow"
    path.parent.mkdir()
    with TableWriter(path, ("id",)) as table:
        for name in IDS:
            table.add((name,), 1)
    IdIndex.of(np.array([id_hash(name) for name in IDS], np.uint64)).save(path.with_suffix(SUFFIX))
    return TextTable(path)


@pytest.mark.parametrize("name", FORMS)
def test_each_form_gives_the_same_pairs(name: str, passages: TextTable, tmp_path: Path) -> None:
    files = query_files(str(write(tmp_path / name, FORMS[name])))
    found = list(read_query_files(files, format_of(files), passages))
    assert found == (PAIRS if name != "objects.txt" else PAIRS[:3])


def test_lines_are_read_side_by_side_from_a_file_a_folder_and_a_pattern(passages: TextTable, tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    write(folder / "sample1.txt.gz", ["was it", "", "when"])
    write(folder / "sample0.txt", ["who was it", "where", "  "])
    wanted = [(0, "who was it"), (0, "was it"), (1, "where"), (1, ""), (2, "  "), (2, "when")]
    for path in (folder, folder / "sample*"):
        files = query_files(str(path))
        assert [file.name for file in files] == ["sample0.txt", "sample1.txt.gz"]
        assert format_of(files) == "lines"
        assert list(read_query_files(files, "lines", passages)) == wanted
    one = query_files(str(folder / "sample0.txt"))
    assert list(read_query_files(one, "lines", passages)) == wanted[::2]


BROKEN = {
    "an unknown passage in jsonl": ("q.jsonl", 3, '{"id": "b", "query": "x"}', "q.jsonl:3: no passage has the id 'b'"),
    "an unknown passage in tsv": ("q.tsv", 2, "b\tx", "q.tsv:2: no passage has the id 'b'"),
    "no JSON": ("q.jsonl", 1, '{"id": "a#0"', "q.jsonl:1: not valid JSON"),
    "no object": ("q.jsonl", 1, '["a#0"]', "q.jsonl:1: a JSON object is expected"),
    "no id": (
        "q.jsonl",
        1,
        '{"query": "x"}',
        "q.jsonl:1: needs one of the fields id, _id, passage (fields here: query)",
    ),
    "no query": ("q.jsonl", 1, '{"id": "a#0"}', "q.jsonl:1: needs one of the fields queries, "),
    "an id that is true": ("q.jsonl", 1, '{"id": true, "query": "x"}', "q.jsonl:1: the id of the passage must be"),
    "a query that is a number": ("q.jsonl", 1, '{"id": "a#0", "query": 3}', 'q.jsonl:1: the field "query" must be'),
    "a list with a number": ("q.jsonl", 1, '{"id": "a#0", "queries": ["x", 3]}', 'q.jsonl:1: the field "queries" must'),
    "one column": ("q.tsv", 4, "a#0", "q.tsv:4: 2 columns separated by tabs are expected"),
    "half a character": (
        "q.jsonl",
        1,
        '{"id": "a#0", "query": "\\ud800"}',
        "q.jsonl:1: the query holds half a character",
    ),
    "a number of 5,000 digits": ("q.jsonl", 1, '{"id": ' + "9" * 5000 + ', "query": "x"}', "q.jsonl:1: not valid JSON"),
    "no finite number": ("q.jsonl", 1, '{"id": NaN, "query": "x"}', "q.jsonl:1: the id of the passage must be"),
    "an id of nothing": ("q.tsv", 1, "\tx", "q.tsv:1: no passage has the id ''"),
    "NUL bytes": ("q.tsv", 1, "a#0\0\tx", "q.tsv: holds NUL bytes"),
    "three columns": ("q.tsv", 4, "a#0\tx\ty", "q.tsv:4: 2 columns separated by tabs are expected"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_line_is_named(name: str, passages: TextTable, tmp_path: Path) -> None:
    file, number, line, wanted = BROKEN[name]
    lines = [*FORMS[file]]
    lines[number - 1] = line
    files = [write(tmp_path / file, lines)]
    with pytest.raises(UserError) as raised:
        list(read_query_files(files, format_of(files), passages))
    assert wanted in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["x", "y"], "b.txt: ends after 2 lines, but line i must be a query of passage i of 3"),
        (["x", "y", "z", ""], "b.txt:4: there are more lines than passages"),
        ([], "b.txt: ends after 0 lines"),
    ],
)
def test_a_wrong_number_of_lines_is_said(lines: list[str], wanted: str, passages: TextTable, tmp_path: Path) -> None:
    bad = write(tmp_path / "b.txt", lines)
    good = write(tmp_path / "a.txt", ["x", "y", "z"])
    with pytest.raises(UserError, match=wanted.replace(".", r"\.")):
        list(read_query_files([good, bad], "lines", passages))
    if not lines:
        with pytest.raises(UserError, match="ends after 0 lines"):
            list(read_query_files([bad], "lines", passages))


def test_a_path_that_names_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: this folder holds no file;"):
        query_files(str(tmp_path / "empty"))
    for path in ("nix.tsv", "nix*.tsv"):
        with pytest.raises(
            UserError, match="no such file or folder, and no file matches the pattern; give files of queries"
        ):
            query_files(str(tmp_path / path))


def test_empty_and_repeated_queries_are_left_out() -> None:
    assert distinct(["  a  b ", "", " \n", "\u200b", "\ufffd", "\u0301", "c", "a b", "A b"]) == ["a b", "c", "A b"]


def test_queries_in_any_order_come_back_by_passage(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = draw.integers(0, 9000, 20_000)
    rows = rows[rows != 5000]
    pairs = [(int(row), f"query {number % 7}") for number, row in enumerate(rows)]
    wanted: list[dict[str, None]] = [{} for _ in range(9000)]
    for row, query in pairs:
        wanted[row][query] = None
    found = list(by_passage(pairs, 9000, tmp_path / "unsorted.arrow"))
    assert found == [list(one) for one in wanted]
    assert found[5000] == []
    assert not list(tmp_path.iterdir())


def test_salience_is_the_mean_idf_of_distinct_words() -> None:
    texts = ["The river is wide.", "The river is deep, deep.", "The stone is on it."]
    salience = Salience.of(texts)
    idf = {n: np.log(1 + (3 - n + 0.5) / (n + 0.5)) for n in (1, 2, 3)}
    assert salience.of_words(["the", "river", "deep", "deep"]) == pytest.approx((idf[3] + idf[2] + idf[1]) / 3)
    assert salience.of_words(["new"]) > salience.of_words(["stone"]) > salience.of_words(["river"])
    sentences = ["The river is", "stone on it", "too long a sentence for us", "deep", "Stone, on it!"]
    assert salience.ranked(sentences, 3, 4) == [1, 4, 0]
