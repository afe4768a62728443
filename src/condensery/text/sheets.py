"""Sheets that people fill in: CSV files. Their cells are written so that spreadsheet programs do not change them.

A filled sheet is read as a spreadsheet program saves it, with commas, semicolons or tabs between the columns.
"""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from condensery.errors import UserError
from condensery.system.files import atomic, expanded
from condensery.system.inputs import fault
from condensery.system.spreadsheets import FORMULA
from condensery.text.lines import at_least_one, csv_rows

SEPARATORS = ",;\t"
CELL = 30_000  # characters; spreadsheet programs cut a cell at 32,767
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NOWHERE = 1 << 30  # the index of a missing column


def write_sheet(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a sheet, with the byte-order mark by which spreadsheet programs recognise UTF-8."""
    with atomic(path) as temporary, open(temporary, "w", encoding="utf-8-sig", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(rows)


def cell(text: str) -> str:
    """Make a text fit for a cell: one line, no control characters, at most ``CELL`` characters, no formula."""
    line = _plain(text)[:CELL].rstrip()
    return f"'{line}" if line.startswith(FORMULA) else line  # +5 gets a quote too: a spreadsheet would save 5


def bare(text: str) -> str:
    """Return a cell without the parts that a spreadsheet program may add or remove, to compare cells."""
    return _plain(text).lstrip("'").strip()


def _plain(text: str) -> str:
    """Return the text as one line that UTF-8 can encode; a text from a JSON file may contain lone surrogates."""
    return " ".join(CONTROL.sub(" ", unicodedata.normalize("NFC", text.encode(errors="replace").decode())).split())


def filled_sheets(sheets: str | Path | Sequence[str | Path], key: str = "sheets") -> list[Path]:
    """Return the files that the config key ``key`` names: a list of files, or all ``*.csv`` of a folder.

    Raises ``UserError`` if a file is missing or the folder has no CSV file.
    """
    if isinstance(sheets, Sequence) and not isinstance(sheets, str):
        paths = [expanded(path) for path in sheets]
    elif expanded(sheets).is_dir():
        paths = sorted(path for path in expanded(sheets).glob("*.csv") if not path.name.startswith("."))
        if not paths:
            raise UserError(f"{sheets}: no filled sheets (*.csv) in this folder; set {key} to a folder or list of them")
    else:
        paths = [expanded(sheets)]
    for path in paths:
        if why := fault(path):
            raise UserError(f"{path}: {why}; set {key} to the folder, or the list, of filled sheets")
    return paths


def sheet_rows(path: Path, columns: Sequence[str], others: Sequence[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, the cells of ``columns`` and ``others``) for every line that is not blank.

    The file may have further columns, in any order. A column of ``others`` may be missing; its cells are then empty.

    Raises:
        UserError: the file is not a sheet with ``columns``. The message names the line.
    """
    text = _decoded(path)
    heading = next((line for line in text.splitlines() if line.strip()), "")
    separator = max(SEPARATORS, key=heading.count)  # column names contain no separator
    rows = csv_rows(io.StringIO(text, newline=""), path, separator=separator)
    none = f"the sheet is empty; its first line must name the columns {', '.join(columns)}"
    filled = at_least_one((one for one in rows if any(map(str.strip, one[1]))), path, none)
    place, names = next(filled)
    places = _places(names, columns, others, place)
    for place, row in filled:
        yield place, [row[at] if at < len(row) else "" for at in places]


def _places(row: list[str], columns: Sequence[str], others: Sequence[str], place: str) -> list[int]:
    names = [" ".join(one.split()).casefold() for one in row]
    for name in (*columns, *others):
        if names.count(name) > 1 or (name in columns and name not in names):
            raise UserError(
                f'{place}: the column "{name}" {"is missing" if name not in names else "comes twice"}; '
                f"the first line of a sheet names the columns {', '.join(columns)}"
            )
    return [names.index(name) if name in names else NOWHERE for name in (*columns, *others)]


def _decoded(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not valid UTF-8 (byte {error.start}); save the sheet as CSV in UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
