"""What the folder of a checkpoint says of itself: ``condensery.json`` of one of ours. Imports no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.models.checkpoints.sentence_transformers import (
    MODULES,
    Route,
    SavedDense,
    longest_input,
    read_modules,
    routed,
)
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


@dataclass(frozen=True)
class SavedTower:
    """Where an encoder lies.

    Attributes:
        folder: of its weights and its tokenizer.
        behind: what its vectors go through behind pooling, before they are cut and normalised; None = they are normalised
            there already.
    """

    folder: Path
    behind: tuple[SavedDense | None, ...] = ()


def saved_towers(folder: Path) -> tuple[SavedTower, SavedTower | None]:
    """The encoders of passages and of queries in the folder of a checkpoint; None = one encodes both.

    Raises ``UserError`` where ``condensery.json`` says otherwise, or sentence-transformers would make vectors in a way that
    this project does not know.
    """
    own, settings = folder / QUERY_ENCODER, vector_settings(folder)
    passages = _tower(folder, "document", settings)
    if not _two_towers(folder):
        return passages, None
    return passages, _tower(own if own.is_dir() else folder, "query", settings)


def _two_towers(folder: Path) -> bool:
    """Whether a checkpoint encodes queries with other weights than passages.

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
    return separate or routed(folder)


def _tower(folder: Path, route: Route, settings: VectorSettings) -> SavedTower:
    if not (folder / MODULES).exists():
        return SavedTower(folder)
    found = read_modules(folder, route)
    return SavedTower(
        found.folder, found.head[:-1] if found.head[-1:] == (None,) and settings.normalise else found.head
    )


def vector_settings(folder: Path) -> VectorSettings:
    """How the checkpoint in a folder makes vectors: as ``condensery.json`` says, or the files of sentence-transformers, or
    else by the defaults.

    Raises ``UserError`` where sentence-transformers would make them in a way that this project does not know.
    """
    if (folder / ABOUT).exists():
        about = read_about(folder)
        return VectorSettings(**{name: about[name] for name in NAMES if name in about})
    if not (folder / MODULES).exists():
        return VectorSettings()
    settings = read_modules(folder).settings
    if routed(folder) and read_modules(folder, "query").settings != settings:
        raise UserError(
            f"{folder / MODULES}: queries are pooled or normalised otherwise than passages; here both are made alike"
        )
    return settings


def longest_inputs(folder: Path) -> tuple[int, int] | None:
    """The longest query and passage in tokens that a checkpoint's folder says it is searched with; None = it says none."""
    if (folder / ABOUT).exists():
        about = read_about(folder, "query_length", "passage_length")
        return about["query_length"], about["passage_length"]
    if not (folder / MODULES).exists():
        return None
    passages, queries = saved_towers(folder)
    query, passage = (longest_input(tower.folder) for tower in (queries or passages, passages))
    return None if query is None or passage is None else (query, passage)


def made_for_search(folder: Path) -> str | None:
    """How the vectors of a retriever that others released are made, in words; None where a folder is no such retriever.

    One that this project trained says so in ``condensery.json``, and counts where it pools or compares as one of others.
    """
    settings, layers = vector_settings(folder), saved_towers(folder)[0].behind
    if settings.plain and not layers and ((folder / ABOUT).exists() or not (folder / MODULES).exists()):
        return None
    pooled = "CLS" if settings.pooling == "cls" else f"{settings.pooling} pooling"
    dense = [f"{sum(layer is not None for layer in layers)} Dense"] if any(layers) else []
    cut = [f"cut to {settings.truncate_dim}"] if settings.truncate_dim else []
    return ", ".join([pooled, *dense, *cut, "cosine" if settings.normalise else "inner product"])
