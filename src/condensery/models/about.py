"""What the folder of a checkpoint says of itself: ``condensery.json`` of one of ours. Imports no torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.models.sentence_transformers import MODULES, SavedDense, longest_input, read_modules
from condensery.models.vectors import NAMES, POOLED, VectorSettings
from condensery.system.files import read_json

ABOUT = "condensery.json"
QUERY_ENCODER = "query_encoder"  # the folder of the second tower, where the towers are separate
_LONGEST = 1 << 20  # tokens; far more than any model reads
_TOWERS = ("shared", "separate")
_SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {  # name -> whether a value may be, and what it must be
    "pooling": (lambda value: value in tuple(POOLED), f"one of {', '.join(POOLED)}"),
    "normalise": (lambda value: isinstance(value, bool), "true or false"),
    "query_prefix": (lambda value: isinstance(value, str), "a text"),
    "passage_prefix": (lambda value: isinstance(value, str), "a text"),
    "truncate_dim": (lambda value: type(value) is int and value >= 1, "a whole number of 1 or more"),
}


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
    for name in NAMES:
        may_be, needed = _SETTINGS[name]
        if name in about and not may_be(about[name]):
            raise UserError(f"{path}: {name} is {str(about[name])[:40]!r}; it must be {needed}")
    if not isinstance(about.get("shape", {}), dict):
        raise UserError(f"{path}: shape is {str(about['shape'])[:40]!r}; it must be an object")
    return about


def vector_settings(folder: Path) -> VectorSettings:
    """How the checkpoint in a folder makes vectors: as ``condensery.json`` says, or the files of sentence-transformers, or
    else by the defaults.

    Raises ``UserError`` where sentence-transformers would make them in a way that this project does not know.
    """
    if (folder / ABOUT).exists():
        about = read_about(folder)
        return VectorSettings(**{name: about[name] for name in NAMES if name in about})
    return read_modules(folder).settings if (folder / MODULES).exists() else VectorSettings()


def layers_behind(folder: Path) -> tuple[SavedDense | None, ...]:
    """What the vectors of a checkpoint go through behind pooling, before they are cut and normalised; None = they are
    normalised there already. Errors as above."""
    head = read_modules(folder).head if (folder / MODULES).exists() else ()
    return head[:-1] if head[-1:] == (None,) and vector_settings(folder).normalise else head


def longest_inputs(folder: Path) -> tuple[int, int] | None:
    """The longest query and passage in tokens that a checkpoint's folder says it is searched with; None = it says none."""
    if (folder / ABOUT).exists():
        about = read_about(folder, "query_length", "passage_length")
        return about["query_length"], about["passage_length"]
    length = longest_input(folder)
    return None if length is None else (length, length)


def made_for_search(folder: Path) -> str | None:
    """How the vectors of a retriever that others released are made, in words; None where a folder is no such retriever.

    One that this project trained says so in ``condensery.json``, and counts where it pools or compares as one of others.
    """
    settings, layers = vector_settings(folder), layers_behind(folder)
    if settings.plain and not layers and ((folder / ABOUT).exists() or not (folder / MODULES).exists()):
        return None
    pooled = "CLS" if settings.pooling == "cls" else f"{settings.pooling} pooling"
    dense = [f"{sum(layer is not None for layer in layers)} Dense"] if any(layers) else []
    cut = [f"cut to {settings.truncate_dim}"] if settings.truncate_dim else []
    return ", ".join([pooled, *dense, *cut, "cosine" if settings.normalise else "inner product"])


def two_towers(folder: Path) -> bool:
    """Whether a checkpoint's folder has a second tower, in a folder of its own.

    Raises ``UserError`` where ``condensery.json`` says otherwise.
    """
    separate = (folder / QUERY_ENCODER).is_dir()
    towers = read_about(folder).get("towers") if (folder / ABOUT).exists() else None
    if towers == "shared" and separate:
        raise UserError(
            f"{folder / QUERY_ENCODER}: {ABOUT} beside it says that one tower encodes queries and passages; remove this"
            " folder, or have towers say separate"
        )
    if towers == "separate" and not separate:
        raise UserError(
            f"{folder / QUERY_ENCODER}: no such folder, but {ABOUT} beside it says that the towers are separate"
        )
    return separate
