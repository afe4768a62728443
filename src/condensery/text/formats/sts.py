"""Read the STS benchmark (Cer et al. 2017): pairs of sentences with a human similarity score from 0 to 5."""

from collections.abc import Iterator
from pathlib import Path

from condensery.errors import UserError, shown
from condensery.text.input_file import InputFile
from condensery.text.lines import at_least_one, decimal, read_csv
from condensery.text.words import is_blank

HEADER = ["sentence1", "sentence2", "score"]
HIGHEST = 5.0
SPLITS = ("train", "dev", "test")
EXPECTED = "comma-separated with the header sentence1,sentence2,score"
ORIGINAL = "the original sts-*.csv is tab-separated (genre, file, year, id, score, sentence1, sentence2)"
OTHERS = f"{ORIGINAL} and MTEB's is JSON lines; write their three columns as CSV"

ScoredPair = tuple[str, str, float]  # sentence, sentence, score


def sts_files(root: Path) -> dict[str, InputFile]:
    """Return the file of each split, plain or .gz."""
    hint = f" of STS-b, {EXPECTED}; {OTHERS}"
    return {split: InputFile(f"{split} split", root / f"{split}.csv", hint) for split in SPLITS}


def read_sts(path: Path) -> Iterator[ScoredPair]:
    """Yield the pairs of one file.

    Raises:
        UserError: the header or the number of columns is wrong, a sentence is empty, a score is not a number from 0 to 5,
            or a quoted field is not closed. The message names file and line. The error is also raised if there is no pair.
    """
    rows = (one for one in read_csv(path, EXPECTED) if one != (f"{path}:1", HEADER))
    for place, row in at_least_one(rows, path, f"no pair of sentences; the file is {EXPECTED}"):
        if row[0].startswith("{") or any("\t" in field for field in row):
            raise UserError(f"{place}: this file must be {EXPECTED}; {OTHERS}")
        if len(row) != len(HEADER):
            raise UserError(f"{place}: {len(row)} columns; the file must be {EXPECTED}; quote sentences with commas")
        first, second, written = (field.strip() for field in row)
        if is_blank(first) or is_blank(second):
            raise UserError(f"{place}: a sentence is empty; fill it, or remove the line")
        score = decimal(written)
        if not 0 <= score <= HIGHEST:
            wanted = f"a number from 0 to {HIGHEST:g}"
            raise UserError(f'{place}: the score must be {wanted}, not "{shown(written)}"; the file is {EXPECTED}')
        yield first, second, score
