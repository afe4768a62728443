"""Faults of a config that are found before any work is done."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from condensery.errors import UserError
from condensery.stages.base import StageConfig

Split = Literal["train", "dev", "test"]


def missing_split(split: Split, corpus: Sequence[StageConfig]) -> tuple[str, str] | None:
    """What ``StageConfig.misfit`` says where the collection of the stage ``corpus`` will have no such split."""
    data = getattr(corpus[0], "data", None) if corpus else None
    splits = getattr(data, "splits", None)
    if data is None or splits is None:  # the embedded collection has all three
        return None
    named = splits.named()
    if split in named or (split == "dev" and "train" in named and data.dev_queries):
        return None
    return "split", f"{split}, but the collection {data.name} has no such split: set data.splits.{split}"


def check_folder(name: str | None, key: str) -> None:
    """Raise ``UserError`` where ``name`` can only be a folder, not a name on the hub, and is not there."""
    if name and name.startswith(("/", ".", "~")) and not Path(name).expanduser().is_dir():
        raise UserError(f"{key}: {name}: no such folder")


def check_subset(number: int | None, items: int, key: str, what: str) -> None:
    """Raise ``UserError`` where a subset of the training set is larger than the set."""
    if number is not None and number > items:
        raise UserError(f"{key}={number}: there are only {items:,} {what}; null takes all")
