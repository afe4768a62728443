"""The STS benchmark (Cer et al. 2017): pairs of sentences and how similar people find them, from 0 to 5."""

import csv
from collections.abc import Iterator
from pathlib import Path

from condensery.errors import UserError, shown
from condensery.text.blank import is_blank
from condensery.text.lines import csv_rows, decimal, read_lines
from condensery.text.source import InputFile

HEADER = ["sentence1", "sentence2", "score"]
HIGHEST = 5.0
SPLITS = ("train", "dev", "test")
EXPECTED = "comma-separated with the header sentence1,sentence2,score"
ORIGINAL = "the original sts-*.csv is tab-separated (genre, file, year, id, score, sentence1, sentence2)"
OTHERS = f"{ORIGINAL} and MTEB's is JSON lines; write their three columns as CSV"

ScoredPair = tuple[str, str, float]  # sentence, sentence, score


def sts_files(root: Path) -> dict[str, Path]:
    """The file of each split, plain or .gz. Raises ``UserError`` that says what is missing and what is expected."""
    hint = f" of STS-b, {EXPECTED}; {OTHERS}"
    return {split: InputFile(f"{split} split", root / f"{split}.csv", hint).open_path() for split in SPLITS}


def read_sts(path: Path) -> Iterator[ScoredPair]:
    """Yield the pairs of one file.

    Raises ``UserError`` with file and line: another header, another number of columns, an empty sentence, a score that
    is no number from 0 to 5, a quotation that does not end; and for a file without pairs.
    """
    number, begin = 0, 1
    rows = csv_rows((line + "\n" for _, line in read_lines(path)), strict=True)
    try:
        for row in rows:
            place, begin = f"{path}:{begin}", rows.line_num + 1
            if row == HEADER and place.endswith(":1"):
                continue
            if row:
                yield _pair(row, place)
                number += 1
    except csv.Error as error:
        raise UserError(f"{path}:{begin}: not valid CSV ({error}); the file is {EXPECTED}") from None
    if not number:
        raise UserError(f"{path}: no pair of sentences; the file is {EXPECTED}")


def _pair(row: list[str], place: str) -> ScoredPair:
    if row[0].startswith("{") or any("\t" in field for field in row):
        raise UserError(f"{place}: this file must be {EXPECTED}; {OTHERS}")
    if len(row) != len(HEADER):
        raise UserError(f"{place}: {len(row)} columns; the file is {EXPECTED}: quote sentences with commas")
    first, second, written = (field.strip() for field in row)
    if is_blank(first) or is_blank(second):
        raise UserError(f"{place}: a sentence is empty")
    score = decimal(written)
    if not 0 <= score <= HIGHEST:
        raise UserError(
            f'{place}: the score must be a number from 0 to {HIGHEST:g}, not "{shown(written)}"; the file is {EXPECTED}'
        )
    return first, second, score
