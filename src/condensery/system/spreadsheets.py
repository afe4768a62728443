"""What a spreadsheet does to a cell of a CSV file, and how it is kept from it."""

import re

NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # how a cell begins that a spreadsheet takes for a formula


def harmless(text: str) -> str:
    """The text of a cell, with an apostrophe before it where a spreadsheet would take it for a formula and compute it."""
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text
