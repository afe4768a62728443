"""Prevent spreadsheet programs from reading cells of a CSV file as formulas."""

import re

NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # first characters of a formula


def harmless(text: str) -> str:
    """Return the text of a cell, with an apostrophe before a text that a spreadsheet would evaluate as a formula."""
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text
