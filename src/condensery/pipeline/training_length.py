"""Exactly one of ``steps``, ``epochs`` and ``token_budget`` sets the length of training: setting one unsets the others.

Hydra merges files and the command key by key. Without this module, ``epochs`` of one file and ``steps`` of another could
both be set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from condensery.training.settings import RUN_LENGTHS


def lengths(config: Any) -> dict[str, set[str]]:
    """Return which of ``RUN_LENGTHS`` a file or a command sets, for each ``stage.KIND`` and ``stages.NAME``."""
    found = {}
    for group in ("stage", "stages"):
        for name, settings in items(OmegaConf.select(config, group)):
            if given := {key for key, value in items(settings) if key in RUN_LENGTHS and value is not None}:
                found[f"{group}.{name}"] = given
    return found


def release(config: DictConfig, given: Mapping[str, set[str]]) -> None:
    """Set the other lengths of each stage in ``given`` to null, if the length that was given last is still in effect."""
    for place, kept in given.items():
        settings = OmegaConf.select(config, place)
        set_now = {key for key, value in items(settings) if key in RUN_LENGTHS and value is not None}
        for key in set_now - kept if set_now & kept else ():
            settings[key] = None


def typed(overrides: Sequence[str]) -> DictConfig:
    """Return a config with the keys of ``RUN_LENGTHS`` that a command sets."""
    typed = OmegaConf.create()
    lines = [line for line in overrides if any(key in line for key in RUN_LENGTHS)]
    for override in OverridesParser.create().parse_overrides(lines):
        if not (override.is_delete() or override.is_sweep_override()):
            OmegaConf.update(typed, override.key_or_group, override.value(), force_add=True)
    return typed


def items(config: Any) -> list[tuple[str, Any]]:
    """Return the keys of a mapping with their values as written; an empty list for anything else."""
    if not isinstance(config, DictConfig) or config._is_none() or config._is_missing() or config._is_interpolation():
        return []
    return [(str(key), value) for key, value in config.items_ex(resolve=False)]
