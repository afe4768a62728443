"""``condensery.json``: what the folder of a checkpoint of ours says of itself. Imports no torch."""

from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.system.files import read_json

ABOUT = "condensery.json"
QUERY_ENCODER = "query_encoder"  # the folder of the second tower, where the towers are separate
_LONGEST = 1 << 20  # tokens; far more than any model reads
_TOWERS = ("shared", "separate")


def read_about(folder: Path, *numbers: str) -> dict[str, Any]:
    """The description in a checkpoint's folder, with the whole numbers that it must have.

    Raises:
        UserError: there is none, or it lacks a number or says something else than this project writes; one line that names
            file and key.
    """
    path = folder / ABOUT
    about = read_json(path)
    if not isinstance(about, dict):
        raise UserError(f"{path}: a list or a bare value; it must be an object as this project writes it")
    for name in numbers:
        value = about.get(name)
        if type(value) is not int or not 1 <= value <= _LONGEST:
            said = f"is {str(value)[:40]!r}" if name in about else "is missing"
            raise UserError(f"{path}: {name} {said}; it must be a whole number of 1 or more")
    if about.get("towers", "shared") not in _TOWERS:
        raise UserError(f"{path}: towers is {str(about['towers'])[:40]!r}; it must be shared or separate")
    if not isinstance(about.get("shape", {}), dict):
        raise UserError(f"{path}: shape is {str(about['shape'])[:40]!r}; it must be an object")
    return about


def two_towers(folder: Path) -> bool:
    """Whether a checkpoint's folder has a second tower, in a folder of its own.

    Raises ``UserError`` where ``condensery.json`` says otherwise.
    """
    found = (folder / QUERY_ENCODER).is_dir()
    towers = read_about(folder).get("towers") if (folder / ABOUT).exists() else None
    if towers == "shared" and found:
        raise UserError(
            f"{folder / QUERY_ENCODER}: {ABOUT} beside it says that one tower encodes queries and passages; remove this"
            " folder, or have towers say separate"
        )
    if towers == "separate" and not found:
        raise UserError(
            f"{folder / QUERY_ENCODER}: no such folder, but {ABOUT} beside it says that the towers are separate"
        )
    return found
