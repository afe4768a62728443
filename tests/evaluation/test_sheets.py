"""Sheets come back as they were filled in, however a spreadsheet program saves them; anything else is one clear line."""

import csv
import io
import random
from pathlib import Path

import numpy as np
import pytest

from condensery.errors import UserError
from condensery.evaluation.pair_audit.pairs import NO_ROW, PASSAGES, QUERIES, Pair
from condensery.evaluation.pair_audit.sheets import COLUMNS, Item, items_of, read_sheets, write_sheets
from condensery.text.sheets import filled_sheets

AWKWARD = [
    'a "quoted" word, and; more\tthere',
    "two\r\nlines\u2028and three",
    "=1+2",
    "- a list",
    "＝1+2",
    "+5",
    "'tis so",
    "cafe\u0301 名前 😀",
    "\x00 control \x1f",
    "half \ud83d of it",
    "long " * 10_000,
]


def pair(kind: str, at: int) -> Pair:
    text = AWKWARD[at] if at < len(AWKWARD) else f"passage {at} of {kind}"
    context = f"context {at}" if at % 2 else AWKWARD[at % len(AWKWARD)]
    return Pair(kind, at, NO_ROW, f"p{at}", "", text, context)


def some_items(groups: int = 1, each: int = 12) -> list[Item]:
    return items_of([[pair(kind, at) for at in range(each)] for kind in (PASSAGES, QUERIES)], groups, seed=1)


def filled(path: Path, judge: random.Random) -> dict[int, bool]:
    """Fill a written sheet in as an annotator does."""
    with open(path, encoding="utf-8-sig", newline="") as stream:
        heading, *rows = csv.reader(stream)
    answers = {int(row[0]): judge.random() < 0.5 for row in rows}
    save(path, heading, [[*row[:3], "high" if answers[int(row[0])] else "low"] for row in rows])
    return answers


def save(path: Path, heading: list[str], rows: list[list[str]], **how: str) -> None:
    with open(path, "w", encoding=how.pop("encoding", "utf-8"), newline="") as stream:
        csv.writer(stream, **how).writerows([heading, *rows])  # type: ignore[arg-type]


def load(path: Path) -> list[list[str]]:
    with open(path, encoding="utf-8-sig", newline="") as stream:
        return list(csv.reader(stream))


@pytest.fixture
def sheets(tmp_path: Path) -> list[Path]:
    """Three filled sheets of ``some_items()``."""
    paths = write_sheets(some_items(), tmp_path, annotators=3, groups=1)
    for number, path in enumerate(paths):
        filled(path, random.Random(number))
    return paths


def test_a_sheet_is_blind_and_mixed_and_has_one_line_a_pair(tmp_path: Path) -> None:
    items = some_items(each=40)
    first, second = (load(path) for path in write_sheets(items, tmp_path, annotators=2, groups=1))
    assert first == second
    assert tuple(first[0]) == COLUMNS
    assert [int(row[0]) for row in first[1:]] == list(range(1, 81))
    assert all(row[3] == "" for row in first[1:])
    assert len((tmp_path / "sheet-1.csv").read_bytes().splitlines()) == 81
    kinds = [item.pair.kind for item in items]
    assert 10 < kinds[:40].count(PASSAGES) < 30, "the kinds are shuffled together"
    for line in first[1:]:
        assert not line[1].startswith(("=", "+", "-", "@", "＝")), "a spreadsheet program would compute it"
        assert len(line[1]) <= 32_767


def test_votes_come_back_by_number(tmp_path: Path) -> None:
    items = some_items()
    paths = write_sheets(items, tmp_path, annotators=3, groups=1)
    answers = [filled(path, random.Random(number)) for number, path in enumerate(paths)]
    votes = read_sheets(paths, items, 3, 1)
    assert votes.tolist() == [[by[item.number] for by in answers] for item in items]


def test_each_group_judges_its_own_half_of_each_kind(tmp_path: Path) -> None:
    items = some_items(groups=2)
    for kind in (PASSAGES, QUERIES):
        assert [sum(item.pair.kind == kind and item.group == group for item in items) for group in (0, 1)] == [6, 6]
    paths = write_sheets(items, tmp_path, annotators=3, groups=2)
    assert [path.name for path in paths] == [f"sheet-{number}.csv" for number in range(1, 7)]
    answers = [filled(path, random.Random(number)) for number, path in enumerate(paths)]
    votes = read_sheets([paths[at] for at in (5, 0, 3, 1, 4, 2)], items, 3, 2)
    for item in items:
        own = answers[3 * item.group : 3 * item.group + 3]
        assert sorted(votes[item.number - 1]) == sorted(by[item.number] for by in own)
    with pytest.raises(UserError, match=r"sheet-1.csv: its group has more sheets than its 3 annotators"):
        read_sheets([*paths[:5], paths[0]], items, 3, 2)
    heading, *rows = load(paths[0])
    save(paths[0], heading, [*rows, load(paths[3])[1]])
    with pytest.raises(UserError, match=r"sheet-1.csv:14: the pair \d+ belongs to the sheet of another group"):
        read_sheets(paths, items, 3, 2)


def test_sheets_are_read_as_spreadsheet_programs_save_them(sheets: list[Path]) -> None:
    items = some_items()
    expected = read_sheets(sheets, items, 3, 1)
    heading, *rows = load(sheets[0])
    save(sheets[0], heading, rows[::-1], delimiter=";", encoding="utf-8-sig", lineterminator="\r\n")
    heading, *rows = load(sheets[1])
    shouted = [[f" {row[0]}.0", row[1].replace(" ", "\u00a0"), f"{row[2]}  ", f" {row[3].upper()} "] for row in rows]
    save(sheets[1], [name.title() for name in heading], [[], *shouted, ["", "", "", ""]], delimiter="\t")
    heading, *rows = load(sheets[2])
    other = [["a note", row[3].title(), row[2].lstrip("'"), row[1].lstrip("'"), row[0]] for row in rows]
    save(sheets[2], ["remarks", *heading[::-1]], other, lineterminator="\r", quoting=csv.QUOTE_ALL)  # type: ignore[arg-type]
    np.testing.assert_array_equal(read_sheets(sheets, items, 3, 1), expected)


def change(rows: list[list[str]], line: int, column: int, value: str) -> list[list[str]]:
    rows[line - 1][column] = value
    return rows


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            lambda rows: change(rows, 3, 3, "medium"),
            r"sheet-2.csv:3: 'medium' is no judgement \(number 2\); write high",
        ),
        (
            lambda rows: change(rows, 3, 3, "x" * 5000),
            r"sheet-2.csv:3: 'x{9,99}… \(5,000 characters\)' is no judgement",
        ),
        (lambda rows: change(rows, 4, 3, ""), r"sheet-2.csv:4: the judgement is empty \(number 3\)"),
        (lambda rows: change(rows, 5, 0, "1"), r"sheet-2.csv:5: the number 1 is also at .*sheet-2.csv:2"),
        (lambda rows: change(rows, 5, 0, "99"), r"sheet-2.csv:5: there is no pair 99 in this audit"),
        (
            lambda rows: change(rows, 5, 0, "four"),
            r"sheet-2.csv:5: the column number must hold the number of a pair, not 'four'",
        ),
        (
            lambda rows: change(rows, 5, 0, "9" * 5000),
            r"sheet-2.csv:5: the column number must hold the number of a pair",
        ),
        (lambda rows: change(rows, 6, 1, "other"), r"sheet-2.csv:6: the texts are not those of pair 5"),
        (lambda rows: change(rows, 6, 2, ""), r"sheet-2.csv:6: the texts are not those of pair 5"),
        (lambda rows: rows[:7] + rows[9:], r"sheet-2.csv: the number 7, 8 is missing"),
        (lambda rows: rows[:1], r"sheet-2.csv: it has no lines"),
        (lambda rows: rows[1:], r'sheet-2.csv:1: the column "number" is missing'),
        (lambda rows: [["number", *row] for row in rows], r'sheet-2.csv:1: the column "number" comes twice'),
        (lambda rows: [], r"sheet-2.csv: the sheet is empty; its first line must name"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(sheets: list[Path], broken: object, message: str) -> None:
    heading, *rows = broken(load(sheets[1])) or [[]]  # type: ignore[operator]
    save(sheets[1], heading, rows)
    with pytest.raises(UserError, match=message):
        read_sheets(sheets, some_items(), 3, 1)


def test_files_that_are_no_sheets_are_said_so(sheets: list[Path], tmp_path: Path) -> None:
    whole = sheets[0].read_bytes()
    for content, message in [
        (
            whole.decode("utf-8-sig").encode("utf-16"),
            r"sheet-1.csv: not valid UTF-8 .*; save the sheet as CSV in UTF-8",
        ),
        (whole + b'25,"open', r"sheet-1.csv:26: not valid CSV"),
        (b"PK\x03\x04" + bytes(range(256)), "not valid UTF-8"),
    ]:
        sheets[0].write_bytes(content)
        with pytest.raises(UserError, match=message):
            read_sheets(sheets, some_items(), 3, 1)
    with pytest.raises(UserError, match=r"2 sheets for 3 annotators; give one each"):
        read_sheets(sheets[:2], some_items(), 3, 1)


def test_the_key_names_a_folder_or_files(sheets: list[Path], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".~lock.csv").touch()
    assert filled_sheets(tmp_path) == sheets
    assert filled_sheets(sheets[:2]) == sheets[:2]
    assert filled_sheets(sheets[0]) == sheets[:1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no filled sheets"):
        filled_sheets(tmp_path / "empty")
    with pytest.raises(UserError, match=r"nowhere: no such file; set sheets to the folder"):
        filled_sheets(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"empty: a folder, not a file"):
        filled_sheets([tmp_path / "empty"])


def test_a_corrupted_sheet_is_a_user_error_or_reads_as_it_was(sheets: list[Path]) -> None:
    """Bytes and cells changed at random: nothing but ``UserError`` comes out, and votes change only with a judgement."""
    items = some_items(each=5)
    for path in write_sheets(items, sheets[0].parent, annotators=3, groups=1):
        filled(path, random.Random(path.name))
    whole, expected = sheets[0].read_bytes(), read_sheets(sheets, items, 3, 1)
    errors = []
    for seed in range(600):
        draw = random.Random(seed)
        sheets[0].write_bytes(corrupted(whole, draw))
        try:
            votes = read_sheets(sheets, items, 3, 1)
        except UserError as error:
            errors.append(str(error))
        else:
            assert (votes != expected).sum() <= 2, f"seed {seed}"
    assert len(errors) > 360
    assert all(error.startswith(str(sheets[0])) and "\n" not in error for error in errors)


def corrupted(whole: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.5:  # cells
        rows = list(csv.reader(io.StringIO(whole.decode("utf-8-sig"), newline="")))
        for _ in range(draw.randint(1, 2)):
            row = draw.choice(rows)
            at = draw.randrange(len(row)) if row else 0
            row[at : at + draw.randint(0, 1)] = draw.choice(
                [[], [""], ["low"], ["7"], ["x" * 200_000], ["\x00"], ['"']]
            )
        stream = io.StringIO()
        csv.writer(stream, delimiter=draw.choice(",;\t|")).writerows(rows)
        return stream.getvalue().encode(draw.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"]), "replace")
    content = bytearray(whole)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(content))
        content[at : at + draw.choice([0, 1, 40])] = bytes(draw.choices(b'",;\n\r\t\x00\xff a7=', k=draw.randint(0, 3)))
    return bytes(content)
