"""Lines of input files, plain or gzip, with their place; one way of saying what is wrong with a line."""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from condensery.errors import UserError, shown
from condensery.system.inputs import MEGABYTE, opened
from condensery.system.progress import progress

BOM = b"\xef\xbb\xbf"
LONGEST = 256 * MEGABYTE  # bytes of a line, characters of a field or an entry; beyond it a file is taken to be broken

SHOW_FROM = 32 * MEGABYTE  # smaller files are read before a person would look at a bar

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

Kind = TypeVar("Kind")


def read_lines(path: Path, show: bool = True) -> Iterator[tuple[str, str]]:
    """Yield (place, line) for every line; place is ``path:number``, the line has no line end.

    A byte-order mark and Windows line ends are taken away. Raises ``UserError`` for a missing file, a broken gzip file
    and bytes that are not UTF-8. ``show``: the progress of a large file; not where several are read side by side.
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
        size = path.stat().st_size
        lines = iter(partial(stream.readline, LONGEST), b"")
        first = next(lines, b"")
        _check_line_ends(first, stream, path)
        lines = chain([first] if first else [], lines)
        if size < SHOW_FROM or not show:
            yield from lines
            return
        with progress(f"reading {path.name}", size // MEGABYTE, "MB") as task:
            shown = 0
            for number, line in enumerate(lines):
                if number % 1024 == 0 and (at := file.tell() // MEGABYTE) > shown:
                    task.advance(at - shown)
                    shown = at
                yield line


def _check_line_ends(first: bytes, stream: io.BufferedReader, path: Path) -> None:
    """Raise ``UserError`` where the first line is all that there is and holds line ends of old Macs within it."""
    within = b"\r" in first.rstrip(b"\r\n")
    if within and (len(first) == LONGEST or not stream.peek(1)):
        raise UserError(f"{path}: its lines end in a carriage return (CR) alone; save the file with line feeds (LF)")


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) for every line of a JSON-lines file; ``UserError`` where a line is no JSON object."""
    for place, line in read_lines(path):
        if not line.strip():
            continue
        value = read_value(line, place)
        if not isinstance(value, dict):
            raise UserError(f"{place}: a JSON object is expected, not {_called(value)}")
        yield place, value


def read_columns(path: Path, names: Sequence[str], separator: str | None = "\t") -> Iterator[tuple[str, list[str]]]:
    """Yield (place, fields) for every line of a file of columns; ``UserError`` where the number of columns is wrong.

    ``separator=None`` splits at any run of white space.
    """
    for place, line in read_lines(path):
        if not line:
            continue
        fields = line.split(separator)
        if len(fields) != len(names):
            apart = "white space" if separator is None else "tabs"
            expected = f"{len(names)} columns separated by {apart} are expected ({', '.join(names)})"
            raise UserError(f"{place}: {expected}, not {len(fields)}")
        yield place, fields


def csv_rows(lines: Iterable[str], **how: Any) -> Any:
    """A ``csv.reader`` whose fields may be as long as a line; ``how`` as for ``csv.reader``."""
    csv.field_size_limit(LONGEST)  # of the whole process, so not before such a file is read; by default 131,072
    return csv.reader(lines, **how)


def read_csv(path: Path, expected: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, fields) for every row of a file of columns between commas; a quoted field may go over line ends.

    ``UserError`` where it is no such file; ``expected`` says then what the file is.
    """
    begin = 1
    rows = csv_rows((line + "\n" for _, line in read_lines(path)), strict=True)
    try:
        for row in rows:
            place, begin = f"{path}:{begin}", rows.line_num + 1
            if row:
                yield place, row
    except csv.Error as error:
        raise UserError(f"{path}:{begin}: not valid CSV ({error}); the file is {expected}") from None


def read_quoted(path: Path, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, fields) for every line of a file of columns between tabs, in which a field may be "quoted".

    A quote inside a quoted field is doubled, and no field goes over a line end. ``UserError`` where the number of
    columns is wrong.
    """
    for place, line in read_lines(path):
        if not line:
            continue
        try:
            fields = next(csv_rows([line], delimiter="\t"))
        except csv.Error as error:
            raise UserError(f"{place}: not columns between tabs ({error})") from None
        if len(fields) != len(names):
            expected = f"{len(names)} columns separated by tabs are expected ({', '.join(names)})"
            quote = "; a quote that is opened is not closed" if line.count('"') % 2 else ""
            raise UserError(f"{place}: {expected}, not {len(fields)}{quote}")
        yield place, fields


def fields_of(record: dict[str, Any]) -> str:
    """The fields of a JSON object as a message names them."""
    return f"fields here: {', '.join(shown(name) for name in list(record)[:8]) or 'none'}"


def field(record: dict[str, Any], name: str, place: str, kind: type[Kind], default: Kind | None = None) -> Kind:
    """The field ``name`` of a JSON object, which must be of type ``kind``.

    A missing or null field is ``default`` where one is given, otherwise a ``UserError``.
    """
    value = record.get(name)
    if value is None and default is not None:
        return default
    if value is None:
        raise UserError(f'{place}: the field "{name}" is missing ({fields_of(record)})')
    if not isinstance(value, kind):
        raise UserError(f'{place}: the field "{name}" must be {_NAMES[kind]}, not {_called(value)}')
    return value


def check_whole(text: str, what: str, place: str) -> None:
    """Raise ``UserError`` where ``text`` holds half a character, which JSON can escape and UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{place}: the {what} holds half a character (a lone surrogate \\ud800..\\udfff)") from None


def integer(value: str, name: str, place: str) -> int:
    """A whole number that is written in a column called ``name``; anything else is a ``UserError``."""
    if not re.fullmatch(r"[+-]?\d{1,18}", value, re.ASCII):
        raise UserError(f'{place}: the {name} must be a whole number, not "{shown(value)}"')
    return int(value)


def decimal(value: str) -> float:
    """A number as it is written with digits, point and exponent; NaN for anything else.

    Python alone would take 0_1, digits of other scripts, and words such as infinity.
    """
    return float(value) if NUMBER.fullmatch(value) else math.nan


def read_value(text: str, place: str) -> Any:
    """The JSON value that a line holds; ``UserError`` with its ``place`` where it holds none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not valid JSON ({json_fault(error)})") from None


def json_fault(error: Exception) -> str:
    """What is wrong with a line of JSON, with the column; its line is known to who asks."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return "nested too deeply" if isinstance(error, RecursionError) else "a number has too many digits"


_NAMES: dict[type, str] = {str: "a string", list: "a list", dict: "an object", int: "a number"}


def _called(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    return _NAMES.get(type(value), "null" if value is None else "a number")
