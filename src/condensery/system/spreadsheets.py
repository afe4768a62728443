"""Write CSV files, and prevent spreadsheet programs from reading their cells as formulas."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # first characters of a formula


def harmless(text: str) -> str:
    """Return the text of a cell, with an apostrophe before a text that a spreadsheet would evaluate as a formula."""
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text


def csv_of(rows: Iterable[Sequence[object]]) -> str:
    """Return the rows as CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()
