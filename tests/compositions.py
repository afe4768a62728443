"""Cache the composition of recipes for tests. Hydra composes a recipe from eighty files, and many tests use the same recipe.

Each file of the project and of the tests is read once. Each selection of files is composed once. All test processes share
these results. The overrides of a command are applied each time. Files of other folders, which a test may change, are always
read.
"""

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra._internal import config_loader_impl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from condensery.pipeline.recipe_guard import RecipeLoader

PROJECT = Path(__file__).resolve().parent.parent
UNCHANGED = (PROJECT / "conf", PROJECT / "tests", PROJECT / "src")
FOLDER = "TEST_COMPOSITIONS"  # environment variable: the folder of the cache
_kept: dict[str, bytes] = {}  # pickled, because unpickling is twice as fast as copying


def _once(make: Callable[[], Any], *key: Any) -> Any:
    """Return the result of ``make`` for this key. Only the first process that needs it calls ``make``."""
    name = hashlib.sha256(repr(key).encode()).hexdigest()
    if name not in _kept:
        file = Path(os.environ[FOLDER], name)
        if not file.exists():
            own = file.with_suffix(f".{os.getpid()}")
            own.write_bytes(pickle.dumps(make()))
            own.replace(file)
        _kept[name] = file.read_bytes()
    return pickle.loads(_kept[name])


@contextmanager
def composed_once() -> Iterator[None]:
    """Cache three results for later commands: the content of files, the list of a recipe's files, and the composed config."""
    load, create_list = ConfigRepository.load_config, config_loader_impl.create_defaults_list
    compose = RecipeLoader._compose_config_from_defaults_list

    def loaded(self: Any, config_path: str) -> Any:
        if not _all_unchanged(self):
            return load(self, config_path)
        return _once(lambda: load(self, config_path), "file", config_path, *_folders(self))

    def listed(repo: Any, config_name: str, overrides_list: Sequence[Override], **flags: bool) -> Any:
        if not _all_unchanged(repo):
            return create_list(repo, config_name, overrides_list, **flags)
        values = [one for one in overrides_list if not one.is_sweep_override() and not _chooses_files(repo, one)]
        chosen = tuple(one.input_line for one in overrides_list if one not in values)
        found = _once(
            lambda: create_list(repo, config_name, overrides_list, **flags),
            *("list", config_name, chosen, *flags.items(), *_folders(repo)),
        )
        return replace(found, config_overrides=values)

    def composed(self: Any, defaults: list[ResultDefault], repo: Any) -> DictConfig:
        if not _all_unchanged(repo):
            return compose(self, defaults, repo)
        named = self.words.intersection(["stages", *repo.get_group_options("stage")])  # kinds of the config
        key = ("config", str(defaults), sorted(named), self.whole, *_folders(repo))
        config: DictConfig = _once(lambda: compose(self, defaults, repo), *key)
        return config

    with pytest.MonkeyPatch.context() as monkeypatch:
        # a job of Hydra copies its config twice; pickling takes a third of the time of a deep copy
        copying = SimpleNamespace(deepcopy=lambda config: pickle.loads(pickle.dumps(config, pickle.HIGHEST_PROTOCOL)))
        monkeypatch.setattr("hydra.core.utils.copy", copying)
        monkeypatch.setattr(ConfigRepository, "load_config", loaded)
        monkeypatch.setattr(config_loader_impl, "create_defaults_list", listed)
        monkeypatch.setattr(RecipeLoader, "_compose_config_from_defaults_list", composed)
        yield


def _chooses_files(repo: Any, override: Override) -> bool:
    return bool(repo.group_exists(override.key_or_group)) and not isinstance(override.value(), dict)


def _folders(repo: Any) -> list[str]:
    """Return the folders in which Hydra looks for files."""
    return [source.path for source in repo.get_sources() if source.scheme() == "file"]


def _all_unchanged(repo: Any) -> bool:
    """Return whether no test changes the files of any folder."""
    return all(any(Path(folder).is_relative_to(one) for one in UNCHANGED) for folder in _folders(repo))
