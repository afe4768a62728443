"""Read triplets of Wikipedia sentences (Ein Dor et al. 2018): two from one section, the third from another section."""

from collections.abc import Iterator
from pathlib import Path

from condensery.errors import UserError
from condensery.text.input_file import InputFile
from condensery.text.lines import at_least_one, read_records
from condensery.text.words import is_blank

SENTENCES = ("Sentence1", "Sentence2", "Sentence3")
FILES = {"train": "train.csv", "dev": "validation.csv", "test": "test.csv"}
EXPECTED = f"comma-separated, with the columns {', '.join(SENTENCES)} in its header"

Triplet = tuple[str, str, str]


def triplet_files(root: Path) -> dict[str, InputFile]:
    """Return the file of each split, plain or .gz."""
    hint = f" of wikipedia-sections-triplets.zip, {EXPECTED}"
    return {split: InputFile(f"{split} split", root / name, hint) for split, name in FILES.items()}


def read_triplets(path: Path) -> Iterator[Triplet]:
    """Yield the triplets of one file. Columns besides the three sentences are ignored.

    Raises:
        UserError: the header lacks one of the three columns, the lengths of a row and the header differ, a sentence is
            empty, or a quoted field is not closed. The message names file and line. The error is also raised if there is no
            triplet.
    """
    rows = read_records(path, EXPECTED, SENTENCES)
    for place, row in at_least_one(rows, path, f"no triplet of sentences; the file is {EXPECTED}"):
        first, second, third = (" ".join(row[name].split()) for name in SENTENCES)
        if is_blank(first) or is_blank(second) or is_blank(third):
            raise UserError(f"{place}: a sentence is empty; fill it, or remove the line")
        yield first, second, third
