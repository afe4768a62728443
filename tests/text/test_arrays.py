"""An array of any size is read entry by entry, wherever its blocks end, and a fault names its line."""

import gzip
import json
from pathlib import Path

import pytest
from forked import peak_memory

from condensery.errors import UserError
from condensery.text import arrays
from condensery.text.arrays import read_array

ENTRIES = [
    {"a": 1, "text": 'with "quotes", \\ and \u00e9 \U0001f600\n'},
    {},
    {"b": [True, None, -1.5e3, {"c": "x" * 90}]},
]


@pytest.mark.parametrize("block", [1, 2, 7, 50, 1 << 20])
@pytest.mark.parametrize("how", [{"indent": 4}, {}, {"ensure_ascii": False, "separators": (",", ":")}])
def test_entries_come_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, how: dict[str, object]
) -> None:
    monkeypatch.setattr(arrays, "BLOCK", block)
    text = json.dumps(ENTRIES, **how)  # type: ignore[arg-type]
    (tmp_path / "a.json").write_text("\ufeff" + text, encoding="utf-8")
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.json", "a.json.gz"):
        found = list(read_array(tmp_path / name))
        assert [value for _, value in found] == ENTRIES
        lines = text.splitlines()
        own = [str(at) for at, line in enumerate(lines, 1) if line.startswith("    {")]
        starts = [text.index(json.dumps(entry, **how)) + 1 for entry in ENTRIES] if len(lines) == 1 else []  # type: ignore[arg-type]
        numbers = own or [f"1:{start}" for start in starts]  # of an array in one line the column is wanted
        assert [place for place, _ in found] == [f"{tmp_path / name}:{number}" for number in numbers]


def test_an_empty_array_has_no_entries(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(" [\n ]")
    assert list(read_array(tmp_path / "a.json")) == []


def test_memory_holds_an_entry_and_not_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BLOCK", 1 << 14)
    with open(tmp_path / "a.json", "w") as stream:
        stream.write("[" + ",".join(json.dumps({"text": "y" * 1000}) for _ in range(20_000)) + "]")

    def read() -> None:
        assert sum(1 for _ in read_array(tmp_path / "a.json")) == 20_000

    assert peak_memory(read) < 3_000_000


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1}', ":1: a JSON array of objects is expected"),
        ("", ":1: a JSON array of objects is expected"),
        ('[\n{"a": 1},\n7]', ":3: a JSON object is expected here"),
        ('[\n{"a": 1}\n{"a": 2}]', r':3: not valid JSON \("," or "\]"'),
        ('[\n{"a": 1},\n{"a"\n: x}]', r":4: not valid JSON \(Expecting value\)"),
        ('[\n{"a": 1},\n{"a": 2', ":3: not valid JSON"),
        ('[\n{"a": 1},', ":2:10: a JSON object is expected here"),
        ('[\n{"a": "no end}]', r":2: not valid JSON \(Unterminated string starting at"),
        (b'[\n{"a": "\xff"}]', "not valid UTF-8"),
        ('[{"a": ' + "[" * 100_000, ":1:2: not valid JSON"),
        ("[{}]\n[{}]", r":2: not valid JSON \(there is text after the end"),
        ("[]x", r":1:3: not valid JSON \(there is text after the end"),
        ('[\n{"a": ' + "9" * 5000 + "}]", ":2: not valid JSON"),
    ],
)
def test_a_fault_is_one_line_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, content: str | bytes, message: str
) -> None:
    monkeypatch.setattr(arrays, "BLOCK", block)
    path = tmp_path / "a.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as caught:
        list(read_array(path))
    assert str(caught.value).startswith(f"{path}:")
    assert "\n" not in str(caught.value)


def test_a_missing_or_torn_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        list(read_array(tmp_path / "no.json"))
    (tmp_path / "torn.json.gz").write_bytes(gzip.compress(json.dumps(ENTRIES * 50).encode())[:-30])
    with pytest.raises(UserError, match="not a whole gzip file"):
        list(read_array(tmp_path / "torn.json.gz"))
