"""Lines of files: encodings, line ends, gzip, and the place of every fault."""

import gzip
from pathlib import Path

import pytest

from condensery.errors import UserError
from condensery.system.inputs import resolve
from condensery.text.lines import field, integer, read_columns, read_lines, read_objects


@pytest.mark.parametrize("name", ["text.tsv", "text.tsv.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_byte_order_mark_line_end_and_gzip_do_not_change_what_is_read(
    tmp_path: Path, name: str, end: str, mark: bytes
) -> None:
    raw = mark + f"1\täö {end}2\tx\u2028y{end}".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    assert list(read_columns(path, ["id", "text"])) == [(f"{path}:1", ["1", "äö "]), (f"{path}:2", ["2", "x\u2028y"])]


def test_the_last_line_needs_no_line_end_and_blank_lines_keep_the_count(tmp_path: Path) -> None:
    path = tmp_path / "objects.jsonl"
    path.write_text('{"a": 1}\n\n  \n{"a": 2}')
    assert [place for place, _ in read_objects(path)] == [f"{path}:1", f"{path}:4"]


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.txt", b"good\nb\xe4d\n", "a.txt:2: not valid UTF-8"),
        ("a.txt", gzip.compress(b"text", mtime=0), "name it .gz"),
        ("a.txt", "text".encode("utf-16-le"), "a.txt: holds NUL bytes, so it is UTF-16"),
        ("a.txt.gz", gzip.compress("text".encode("utf-16-be"), mtime=0), "a.txt.gz: holds NUL bytes"),
        ("a.txt.gz", b"plain text", "not a whole gzip file"),
        ("a.txt.gz", gzip.compress(b"text " * 9999, mtime=0)[:-30], "not a whole gzip file"),
    ],
)
def test_unreadable_bytes_are_one_clear_error(tmp_path: Path, name: str, raw: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UserError, match=message):
        list(read_lines(tmp_path / name))


def test_a_missing_file_and_a_folder_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        list(read_lines(tmp_path / "none.txt"))
    with pytest.raises(UserError, match="a folder, not a file"):
        list(read_lines(tmp_path))


def test_a_file_is_found_with_and_without_gz(tmp_path: Path) -> None:
    (tmp_path / "a.tsv.gz").touch()
    (tmp_path / "b.tsv").touch()
    assert resolve(tmp_path / "a.tsv") == tmp_path / "a.tsv.gz"
    assert resolve(tmp_path / "b.tsv.gz") == tmp_path / "b.tsv"
    assert resolve(tmp_path / "c.tsv") is None


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condensery.text.lines.LONGEST", 1000)
    path = tmp_path / "a.txt"
    path.write_text(f"short\n{'x' * 998}\n")
    assert [len(line) for _, line in read_lines(path)] == [5, 998]
    path.write_text(f"short\n{'x' * 1001}\n")
    with pytest.raises(UserError, match=r"a\.txt:2: a line of more than 1,000 bytes; is it the right file\?"):
        list(read_lines(path))


@pytest.mark.parametrize("value", ["1.0", "one", "", "1_0", " ", "²", "9" * 5000])
def test_a_grade_is_a_whole_number(value: str) -> None:
    with pytest.raises(UserError, match="f:3: the grade must be a whole number"):
        integer(value, "grade", "f:3")


def test_long_files_show_progress_in_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []

    class Task:
        def advance(self, n: int = 1) -> None:
            shown.append(n)

    class Shown:
        def __init__(self, label: str, total: int, unit: str) -> None:
            shown.append(-total)

        def __enter__(self) -> Task:
            return Task()

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr("condensery.text.lines.SHOW_FROM", 1)
    monkeypatch.setattr("condensery.text.lines.progress", Shown)
    path = tmp_path / "long.txt"
    path.write_text(("x" * 1023 + "\n") * 4096)
    assert sum(1 for _ in read_lines(path)) == 4096
    assert shown[0] == -4
    assert 3 <= sum(shown[1:]) <= 4


def test_a_field_that_is_missing_is_said_beside_the_fields_that_are_there_each_cut_short() -> None:
    with pytest.raises(UserError, match=r'^x:1: the field "a" is missing \(fields here: b, c{20}') as raised:
        field({"b": 1, "c" * 9_000: 2}, "a", "x:1", str)
    assert len(str(raised.value)) < 300
