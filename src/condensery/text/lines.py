"""Read the lines of input files, plain or gzip, each with its place ``path:line``. All faulty lines are reported alike."""

import csv
import json
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, TypeVar

from condensery.errors import UserError, shown
from condensery.system.inputs import MEGABYTE, opened
from condensery.system.progress import progress

BOM, TAB = b"\xef\xbb\xbf", "\t"
LONGEST = 256 * MEGABYTE  # limit in bytes for a line, in characters for a field or an entry; a longer one is an error

SHOW_FROM = 32 * MEGABYTE  # progress is shown from this file size on; smaller files are read too quickly for it

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

Item = TypeVar("Item")
Kind = TypeVar("Kind")


def read_lines(path: Path, show: bool = True) -> Iterator[tuple[str, str]]:
    """Yield (place, line) for every line. The place is ``path:number``; the line comes without its line end.

    A byte-order mark and Windows line ends are removed.

    Args:
        path: the file, plain or gzip.
        show: whether to show the progress of a large file; False if several files are read side by side.

    Raises:
        UserError: the file is missing, is a corrupt gzip file, or contains bytes that are not UTF-8.
    """
    for number, raw in enumerate(_raw_lines(path, show), start=1):
        if len(raw) == LONGEST:
            raise UserError(f"{path}:{number}: a line of more than {LONGEST:,} bytes; is it the right file?")
        if number == 1 and raw.startswith(BOM):
            raw = raw[len(BOM) :]
        place = f"{path}:{number}"
        try:
            line = raw.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            reason = f"{error.reason} at byte {error.start}"
            raise UserError(f"{place}: not valid UTF-8 ({reason}); save the file as UTF-8") from None
        yield place, line


def _raw_lines(path: Path, show: bool) -> Iterator[bytes]:
    with opened(path) as (stream, file):
        lines = iter(partial(stream.readline, LONGEST), b"")
        first = next(lines, b"")
        within = b"\r" in first.rstrip(b"\r\n")
        if within and (len(first) == LONGEST or not stream.peek(1)):  # a single line, with the line ends of old Macs
            raise UserError(
                f"{path}: its lines end in a carriage return (CR) alone; save the file with line feeds (LF)"
            )
        lines = chain([first] if first else [], lines)
        yield from in_megabytes(lines, path, file, each=1024) if show else lines


def in_megabytes(items: Iterable[Item], path: Path, file: IO[bytes], each: int) -> Iterator[Item]:
    """Yield the items that are read from ``file``. For a large file, show how many megabytes have been read.

    Args:
        items: the items.
        path: path of the file.
        file: the open file on disk; its position is the number of bytes read.
        each: number of items between two checks of the position.
    """
    size = path.stat().st_size
    if size < SHOW_FROM:
        yield from items
        return
    with progress(f"reading {path.name}", size // MEGABYTE, "MB") as task:
        shown = 0
        for number, item in enumerate(items):
            if number % each == 0 and (at := file.tell() // MEGABYTE) > shown:
                task.advance(at - shown)
                shown = at
            yield item


def without_blank_end(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield (place, line) without the blank lines at the end. Of blank lines before that, the first is yielded, as ""."""
    blank: list[tuple[str, str]] = []
    for place, line in lines:
        if line.strip():
            yield from (*blank, (place, line))
            blank = []
        else:
            blank = blank or [(place, "")]


def read_objects(path: Path, show: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) for every line of a JSON-lines file. Raises ``UserError`` for a line without a JSON object.

    ``show``: whether to show the progress of a large file.
    """
    for place, line in read_lines(path, show):
        if not line.strip():
            continue
        hint = "; write one object per line, without [ and ]" if line.lstrip().startswith("[") else ""
        value = read_value(line, place, hint)
        if not isinstance(value, dict):
            raise UserError(f"{place}: a JSON object is expected, not {_called(value)}{hint}")
        yield place, value


def at_least_one(items: Iterable[Item], path: Path, none: str) -> Iterator[Item]:
    """Yield the items that are read from ``path``. Raises ``UserError`` with the message ``none`` if there are no items."""
    number = 0
    for number, item in enumerate(items, start=1):  # noqa: B007  (it counts)
        yield item
    if not number:
        raise UserError(f"{path}: {none}")


def read_columns(
    path: Path, names: Sequence[str], separator: str | None = "\t", quoted: bool = False
) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, fields) for every line of a file with the columns ``names``.

    Args:
        path: the file.
        names: the names of all columns.
        separator: string between two columns; None = any run of white space.
        quoted: whether fields between tabs may be "quoted". A quote inside a quoted field is doubled. A field cannot
            contain a line end.

    Raises:
        UserError: the number of columns is wrong.
    """
    for place, line in read_lines(path):
        if not line:
            continue
        fields = _unquoted(line, place) if quoted else line.split(separator)
        if len(fields) != len(names):
            apart = "white space" if separator is None else "tabs"
            expected = f"{len(names)} columns separated by {apart} are expected ({', '.join(names)})"
            quote = "; a quote that is opened is not closed" if quoted and line.count('"') % 2 else ""
            raise UserError(f"{place}: {expected}, not {len(fields)}{quote}")
        yield place, fields


def _unquoted(line: str, place: str) -> list[str]:
    try:
        return next(_csv_reader([line], delimiter="\t"))
    except csv.Error as error:
        raise UserError(f"{place}: not columns separated by tabs ({error})") from None


def _csv_reader(lines: Iterable[str], **how: Any) -> Any:
    """Return a ``csv.reader`` whose fields may have up to ``LONGEST`` characters; ``how`` is passed to ``csv.reader``."""
    csv.field_size_limit(LONGEST)  # applies to the whole process, so it is set only here; the default is 131,072
    return csv.reader(lines, **how)


def csv_rows(lines: Iterable[str], path: Path, hint: str = "", separator: str = ",") -> Iterator[tuple[str, list[str]]]:
    """Yield (place, fields) for every row of the ``lines`` of a CSV file. A quoted field may contain line ends.

    Raises ``UserError`` if a line is not valid CSV; ``hint`` is appended to the message.
    """
    begin = 1
    rows = _csv_reader(lines, delimiter=separator, strict=True)
    try:
        for row in rows:
            place, begin = f"{path}:{begin}", rows.line_num + 1
            yield place, row
    except csv.Error as error:
        raise UserError(f"{path}:{begin}: not valid CSV ({error}){hint}") from None


def read_csv(path: Path, expected: str, separator: str = ",", show: bool = True) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, fields) for every row of a CSV file. A quoted field may contain line ends.

    Raises ``UserError`` if the file is not valid CSV. ``expected`` describes the correct format in the message.
    """
    lines = (line + "\n" for _, line in read_lines(path, show))
    return ((place, row) for place, row in csv_rows(lines, path, f"; the file is {expected}", separator) if row)


def read_records(
    path: Path, expected: str, columns: Iterable[str] = (), separator: str = ",", show: bool = True
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, {column: field}) for every row of a CSV file whose first row names the columns.

    Args:
        path, expected, separator: as in ``read_csv``.
        columns: columns that the first row must name.
        show: whether to show the progress of a large file.

    Raises:
        UserError: the file is not valid CSV, one of ``columns`` is missing,
            or a row has more or fewer fields than the first row.
    """
    rows, sign = read_csv(path, expected, separator, show), "tabs" if separator == TAB else "commas"
    place, names = next(rows, (f"{path}:1", list[str]()))
    if len(names) == 1 and (other := re.search(r"[,;\t|]", names[0].replace(separator, ""))):
        found = f"the header is one column, {shown(names[0])!r}"
        raise UserError(f"{place}: {found}; put {sign} between columns instead of {other[0]!r}")
    if not set(columns) <= set(names):
        raise UserError(f"{place}: the file must be {expected}")
    for place, row in rows:
        if len(row) != len(names):
            raise UserError(f"{place}: {len(row)} columns, the header has {len(names)}; quote texts that hold {sign}")
        yield place, dict(zip(names, row, strict=True))


def fields_of(record: dict[str, Any]) -> str:
    """Return the names of the fields of a JSON object for an error message, at most the first eight."""
    return f"fields here: {', '.join(shown(name) for name in list(record)[:8]) or 'none'}"


def field(record: dict[str, Any], name: str, place: str, kind: type[Kind], default: Kind | None = None) -> Kind:
    """Return the field ``name`` of a JSON object, which must be of type ``kind``.

    A missing or null field gives ``default``. Raises ``UserError`` for a missing field without default and for a field
    of a different type.
    """
    value = record.get(name)
    value = default if value is None else value
    if value is None:
        raise UserError(f'{place}: the field "{name}" is missing ({fields_of(record)})')
    if not isinstance(value, kind):
        raise UserError(f'{place}: the field "{name}" must be {_NAMES[kind]}, not {_called(value)}')
    return value


def check_whole(text: str, what: str, place: str) -> bytes:
    """Return ``text`` in UTF-8. Raises ``UserError`` for a lone surrogate. JSON can write one, but UTF-8 cannot encode it."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{place}: the {what} holds half a character (a lone surrogate, \\ud800 to \\udfff)") from None


def has_items_in_order(given: object) -> bool:
    """Return whether a value that a program passes as a list can be read as a list.

    A set has no order, iterating over a table of pandas gives the names of its columns, and an array of no dimension, such
    as ``np.array("text")``, holds a single item.
    """
    single = isinstance(given, str | bytes | set | frozenset) or getattr(given, "shape", None) == ()
    return isinstance(given, Iterable) and not single and not hasattr(given, "columns")


def whole_texts(texts: Iterable[str], what: str) -> list[str]:
    """Return texts as a list. ``what``: the beginning of an error message, such as "search: query".

    Raises:
        UserError: the texts are a single string, a table of pandas or a set, or a text is not a string or holds half a
            character.
    """
    if isinstance(texts, Mapping) or not has_items_in_order(texts):
        raise UserError(f"{what}: a list of strings is expected, not one {type(texts).__name__}")
    found = list(texts)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise UserError(f"{what} {number} must be a str, not {type(text).__name__}")
        check_whole(text, "text", f"{what} {number}")
    return found


def integer(value: str, name: str, place: str) -> int:
    """Parse the value of the column ``name`` as a whole number. Raises ``UserError`` for any other string."""
    if not re.fullmatch(r"[+-]?\d{1,18}", value, re.ASCII):
        raise UserError(f'{place}: the {name} must be a whole number, not "{shown(value)}"')
    return int(value)


def decimal(value: str) -> float:
    """Parse a string of digits, decimal point and exponent as a number; return NaN for any other string.

    Python's ``float`` alone would also accept 0_1, digits of other scripts, and words such as infinity.
    """
    return float(value) if NUMBER.fullmatch(value) else math.nan


def read_value(text: str, place: str, hint: str = "") -> Any:
    """Parse a line as JSON. Raises ``UserError``, with the line's ``place`` and ``hint``, if it is not valid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not valid JSON ({json_fault(error)}){hint}") from None


def json_fault(error: Exception) -> str:
    """Describe the fault of a line of JSON, with its column. The caller adds the line number."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at')} at column {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


_NAMES: dict[type, str] = {str: "a string", list: "a list", dict: "an object", int: "a number", bool: "true or false"}


def _called(value: Any) -> str:
    return _NAMES.get(type(value), "null" if value is None else "a number")


class Places:
    """A list of places ``path:line`` or ``path:line:column``. Each path is stored once, so a place takes 8 bytes."""

    def __init__(self) -> None:
        self._paths: dict[str, int] = {}
        self._path, self._line = array("I"), array("I")

    def add(self, where: str) -> None:
        """Append ``where``: ``path:line``, or any string without a line number."""
        path, _, line = where.rpartition(":")
        if not line.isdecimal():
            path, line = where, "0"
        self._path.append(self._paths.setdefault(path, len(self._paths)))
        self._line.append(int(line))

    def path(self, row: int) -> str:
        """Return the file of a place."""
        return re.sub(r":\d+$", "", list(self._paths)[self._path[row]])  # ``_paths`` may hold path:line

    def __getitem__(self, row: int) -> str:
        path = list(self._paths)[self._path[row]]
        return f"{path}:{self._line[row]}" if self._line[row] else path
