"""The metadata in a checkpoint's folder: ``condensery.json``, or sentence-transformers' files. This file imports no torch."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from condensery.errors import UserError
from condensery.models.checkpoints.sentence_transformers import ABOUT as THEIR_ABOUT
from condensery.models.checkpoints.sentence_transformers import (
    COUNT,
    KINDS,
    MODULES,
    Route,
    SavedLayer,
    longest_input,
    must_be,
    read_modules,
    routed,
)
from condensery.models.vectors import NAMES, POOLED, VectorSettings
from condensery.system.files import read_json

ABOUT = "condensery.json"
COLBERT = "HF_ColBERT"
TOKEN_VECTORS = "late_interaction.json"  # describes an encoder of token vectors
RETRIEVER = "SentenceTransformer"  # sentence-transformers' model_type of a model that makes one vector of each text
QUERY_ENCODER = "query_encoder"  # the folder of the query encoder, if the towers are separate
# transformers' model_type of the families in ``models/families.py``, which imports torch
FAMILY_NAMES = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "mpnet", "distilbert", "modernbert")
_LONGEST = 1 << 20  # tokens; far more than any model can read
_KEYS: dict[str, tuple[Callable[[Any], bool], str]] = {  # name -> test of a value, and its description in messages
    "pooling": (lambda value: value in tuple(POOLED), f"one of {', '.join(POOLED)}"),
    "normalise": (lambda value: isinstance(value, bool), "true or false"),
    "query_prefix": (lambda value: isinstance(value, str), "a text"),
    "passage_prefix": (lambda value: isinstance(value, str), "a text"),
    "truncate_dim": (lambda value: type(value) is int and value >= 1, COUNT),
    "towers": (lambda value: value in ("shared", "separate"), "shared or separate"),
    "shape": (lambda value: isinstance(value, dict), "an object"),
}


def read_about(folder: Path, *numbers: str) -> dict[str, Any]:
    """Read and check the ``condensery.json`` of a checkpoint's folder.

    Args:
        folder: folder of the checkpoint.
        numbers: keys that must exist and hold integers of 1 or more.

    Raises:
        UserError: the file is missing, or a key is missing or has a value that this project does not write. The message
            is one line that names file and key.
    """
    path = folder / ABOUT
    about = read_json(path)
    if not isinstance(about, dict):
        raise UserError(f"{path}: must be a JSON object, not a list or a single value; copy or download it again")
    for name in numbers:
        value = about.get(name, "missing")
        must_be(COUNT, type(value) is int and 1 <= value <= _LONGEST, f"{path}: {name}", value)
    for name, (may_be, needed) in _KEYS.items():
        must_be(needed, name not in about or may_be(about[name]), f"{path}: {name}", about.get(name))
    return about


@dataclass(frozen=True)
class SavedTower:
    """The location of a saved encoder, and the layers that follow its pooling.

    Attributes:
        folder: folder of the encoder's weights and tokenizer.
        behind: the layers after pooling, before the vector is truncated and normalised; None = a layer that normalises.
    """

    folder: Path
    behind: tuple[SavedLayer | None, ...] = ()


def saved_towers(folder: Path) -> tuple[SavedTower, SavedTower | None]:
    """Find the encoders in the folder of a checkpoint.

    Returns:
        the encoder of passages, and the encoder of queries. The second is None if one encoder encodes all texts.

    Raises:
        UserError: ``condensery.json`` contradicts the folder, or sentence-transformers would compute vectors in a way that
            this project does not support.
    """
    own, settings = folder / QUERY_ENCODER, vector_settings(folder)
    passages = _tower(folder, "document", settings)
    if not _two_towers(folder):
        return passages, None
    return passages, _tower(own if own.is_dir() else folder, "query", settings)


def _two_towers(folder: Path) -> bool:
    """Return whether a checkpoint has separate encoders for queries and passages.

    Raises ``UserError`` if ``condensery.json`` contradicts the folder.
    """
    separate = (folder / QUERY_ENCODER).is_dir()
    towers = read_about(folder).get("towers") if (folder / ABOUT).exists() else None
    if towers == "shared" and separate:
        raise UserError(
            f"{folder / QUERY_ENCODER}: one tower encodes queries and passages, according to {ABOUT} beside it; remove this"
            ' folder, or set "towers" to "separate" in that file'
        )
    if towers == "separate" and not separate:
        raise UserError(f"{folder / QUERY_ENCODER}: no such folder, but {ABOUT} says towers=separate; copy it too")
    return separate or routed(folder)


def _tower(folder: Path, route: Route, settings: VectorSettings) -> SavedTower:
    if not (folder / MODULES).exists():
        return SavedTower(folder)
    found = read_modules(folder, route)
    return SavedTower(
        found.folder, found.head[:-1] if found.head[-1:] == (None,) and settings.normalise else found.head
    )


def vector_settings(folder: Path) -> VectorSettings:
    """Return the vector settings of the checkpoint in a folder.

    The settings are read from ``condensery.json``, or else from the files of sentence-transformers. If the folder has
    neither, the default settings are returned.

    Raises:
        UserError: sentence-transformers would compute vectors in a way that this project does not support.
    """
    if (folder / ABOUT).exists():
        about = read_about(folder)
        return VectorSettings(**{name: about[name] for name in NAMES if name in about})
    if not (folder / MODULES).exists():
        return VectorSettings()
    settings = read_modules(folder).settings
    if routed(folder) and read_modules(folder, "query").settings != settings:
        raise UserError(f"{folder / MODULES}: queries and passages must have the same pooling and normalisation")
    return settings


def longest_inputs(folder: Path) -> tuple[int, int] | None:
    """Return the maximum lengths in tokens of queries and passages from a checkpoint's folder.

    The result is None if the folder lacks one of the two lengths.
    """
    if (folder / ABOUT).exists():
        about = read_about(folder, "query_length", "passage_length")
        return about["query_length"], about["passage_length"]
    if not (folder / MODULES).exists():
        return None
    passages, queries = saved_towers(folder)
    query, passage = (longest_input(tower.folder) for tower in (queries or passages, passages))
    return None if query is None or passage is None else (query, passage)


def described(folder: Path) -> bool:
    """Return whether a folder has a metadata file of this project, of sentence-transformers or of transformers."""
    return any((folder / name).is_file() for name in (ABOUT, MODULES, "config.json"))


def check_files(folder: Path) -> None:
    """Check that a retriever's folder has a config of a supported family, and weights. The weights are not read.

    A folder without any description of a model is not checked here, but by the stage that loads it.

    Raises:
        UserError: a file is missing, the family is unknown, or sentence-transformers would compute vectors in a way that
            this project does not support.
    """
    check_no_adapter(folder)
    if not described(folder):
        return
    check_compares(folder)
    for tower in filter(None, saved_towers(folder)):
        check_encoder(tower.folder)


def check_encoder(folder: Path) -> None:
    """Raise ``UserError`` if a folder lacks the config of a supported family, or weights. The weights are not read."""
    check_no_adapter(folder)
    config = folder / "config.json"
    if not config.is_file():
        raise UserError(f"{config}: no such file; give a folder with a checkpoint that transformers saved")
    check_family(read_json(config), config)
    if not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        raise UserError(f"{folder}: has no weights; copy model.safetensors or pytorch_model.bin into it")


def check_family(about: Any, where: object) -> None:
    """Raise ``UserError`` if ``about``, the content of the ``config.json`` at ``where``, names an unsupported family."""
    family = about.get("model_type", "bert") if isinstance(about, dict) else "bert"
    if family not in FAMILY_NAMES:
        known = ", ".join(FAMILY_NAMES)
        raise UserError(f"{where}: model_type is {json.dumps(family)[:40]}; use one of the families {known}")


def check_compares(folder: Path) -> None:
    """Raise ``UserError`` if a folder holds a model that does not make one vector of each text."""
    if (folder / TOKEN_VECTORS).exists():
        raise _no_retriever(folder / TOKEN_VECTORS, "it describes an encoder of token vectors")
    kind = value_in(folder / THEIR_ABOUT, "model_type") or RETRIEVER
    if kind != RETRIEVER:
        raise _no_retriever(folder / THEIR_ABOUT, f"model_type is {json.dumps(kind)[:40]}")
    names = [] if (folder / MODULES).exists() else value_in(folder / "config.json", "architectures")
    if any(str(name).endswith("ForSequenceClassification") for name in names or []):
        raise _no_retriever(folder / "config.json", "architectures names a classifier, such as a cross-encoder")
    if COLBERT in (names or []):
        raise _no_retriever(folder / "config.json", f"architectures names {COLBERT}, a ColBERT of its authors' code")


def value_in(path: Path, key: str) -> Any:
    """Return the value of a key in a JSON file; None if the file or the key does not exist."""
    about = read_json(path) if path.is_file() else {}
    return about.get(key) if isinstance(about, dict) else None


def _no_retriever(path: Path, why: str) -> UserError:
    kinds = "sparse_encoder, token_encoder and cross_encoder are the stages for such models"
    return UserError(f"{path}: {why}; a retriever makes one vector of each text ({kinds})")


def check_no_adapter(folder: Path) -> None:
    """Raise ``UserError`` if a folder holds an adapter. Adapters are not read, and without them a model has other vectors."""
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"{folder}/adapter_config.json: PEFT adapters are not supported; merge this adapter into its base model"
            " (merge_and_unload of the library peft), and save the result with its tokenizer"
        )


def made_for_search(folder: Path) -> str | None:
    """Describe how a released retriever computes vectors; return None if the folder holds no released retriever.

    A folder with a ``condensery.json`` was written by this project. It counts as a released retriever only if its vectors
    are not plain CLS states. Raises ``UserError`` for an adapter.
    """
    check_no_adapter(folder)
    settings, layers = vector_settings(folder), saved_towers(folder)[0].behind
    if settings.plain and not layers and ((folder / ABOUT).exists() or not (folder / MODULES).exists()):
        return None
    pooled = "CLS" if settings.pooling == "cls" else f"{settings.pooling} pooling"
    kinds = [KINDS[type(layer.shape)] for layer in layers if layer]
    further = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    cut = [f"truncated to {settings.truncate_dim}"] if settings.truncate_dim else []
    return ", ".join([pooled, *further, *cut, "cosine" if settings.normalise else "inner product"])
