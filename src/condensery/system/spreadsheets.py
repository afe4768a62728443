"""Keeps spreadsheet programs from taking cells of a CSV file for formulas."""

import re

NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # first characters of a formula


def harmless(text: str) -> str:
    """The text of a cell, with an apostrophe before it where a spreadsheet would compute it as a formula."""
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text
