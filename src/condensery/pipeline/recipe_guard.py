"""Limits on the settings of a recipe, which may come from somebody else.

A recipe must not run anything, nor write anywhere unless the user asked for it. The limits hold for every YAML file: recipes,
options of groups, a folder of ``--config-dir``. Two exceptions belong to the user: ``conf/config.yaml``, and
``conf/launcher/``, which describes the machine. The command line belongs to the user as well; only ``may_be_called`` checks
it. SECURITY.md explains the limits for users.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydra.core.plugins
import hydra.utils
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import Container, DictConfig, Node, OmegaConf

from condensery.errors import UserError
from condensery.pipeline.recipe_files import check_file, environment
from condensery.pipeline.sweep import JoinedTable
from condensery.recipes import RECIPES

ROOT = "config"  # the name of the root config
GROUPS = ("data", "backbone", "trainer", "launcher", "logger", "stage", "stages", "table", "figures")  # all mappings
KEYS: tuple[str, ...] = ("name", "seed", "output_root", "jobs", "force", "ask", "next", "push_to_hub", *GROUPS)
KEYS += ("fetch", "dry_run", "dry_run_gpu", "dry_run_share", "published_cost", "estimate", "choose")
TYPED = ("output_root", "launcher", "push_to_hub")  # keys that only the command line, or a file of one's own, may set

# Keys of `hydra` and `launcher` that a recipe may set: none of them names a command, a class, a file, a host or a variable
HYDRA = ("mode", "sweeper.params", "sweeper.max_batch_size")
LAUNCHER = ("kind", "cluster", "nodes", "hours", "cpus_per_process", "memory")

CALLED = {f"{one.__module__}.{one.__qualname__}": one for one in (JoinedTable,)}  # classes that a config may name

_load_file = ConfigRepository.load_config
_load_part = ConfigLoaderImpl._load_single_config
_list_parts = config_loader_impl.create_defaults_list
_compose = ConfigLoaderImpl._compose_config_from_defaults_list
_call = hydra.utils.instantiate
_follow = Container.resolve_parse_tree

NAME = 255  # most characters of a file's name in `defaults`
REFERENCES = 2_000  # most ${...} that are followed for one composed config; the project's largest recipe has 160
TEXT = 1 << 20  # most characters of the value of one reference
_followed = [0]  # number of references that were followed since the config was composed


def install() -> None:
    """Let Hydra check each file, each part of the config and each call before it uses it; a second call changes nothing."""
    ConfigRepository.load_config = _checked_file  # type: ignore[method-assign]
    ConfigLoaderImpl._load_single_config = _checked_part  # type: ignore[method-assign]
    config_loader_impl.create_defaults_list = _checked_list
    hydra.utils.instantiate = hydra.core.plugins.instantiate = _checked_call
    ConfigLoaderImpl._compose_config_from_defaults_list = _checked_composition  # type: ignore[method-assign]
    OmegaConf.register_new_resolver("oc.env", environment, replace=True)
    Container.resolve_parse_tree = _counted_reference  # type: ignore[method-assign]


def _own(folder: str) -> bool:
    """Whether a folder is ``conf`` beside ``run.py``, or the folder of recipes in the installed package."""
    own = (Path(os.environ.get("CONDENSERY_HOME", ".")) / "conf", RECIPES)
    return os.path.realpath(folder) in map(os.path.realpath, own)


def _checked_file(self: ConfigRepository, config_path: str) -> Any:
    if "\0" in config_path or len(config_path) > NAME:
        raise UserError(f"defaults: {config_path[:40]!r}: no file can be called so")
    source = self._find_object_source(config_path, ObjectType.CONFIG)
    if source is None or source.scheme() != "file":
        return _load_file(self, config_path)
    name = source._normalize_file_name(config_path)
    path = Path(source.path, name)
    check_file(path, own=_own(source.path) and name == f"{ROOT}.yaml")
    try:
        return _load_file(self, config_path)
    except (ValueError, AssertionError, AttributeError) as error:  # Hydra's, about a heading or list of defaults
        raise UserError(f"{path}: {' '.join(str(error).split())}") from None


def _checked_part(self: ConfigLoaderImpl, default: Any, repo: Any) -> Any:
    part = _load_part(self, default, repo)
    if part.path.startswith("file://"):
        folder = part.path.removeprefix("file://")
        if not (_own(folder) and default.config_path == ROOT):
            path = Path(folder, f"{default.config_path.removesuffix('.yaml')}.yaml")
            check_content(path, part.config, _own(folder) and default.config_path.startswith("launcher/"))
            if default.config_path.startswith("experiment/") and part.header.get("package") != "_global_":
                raise UserError(f"{path}: the first line of a recipe must be `# @package _global_`")
    return part


def _checked_list(*args: Any, **kwargs: Any) -> Any:
    """Refuse options of Hydra's own groups that a recipe has chosen; only the user may choose them."""
    try:
        defaults_list = _list_parts(*args, **kwargs)
    except RecursionError:
        raise UserError("experiment: the files that it is made of name each other in a circle in `defaults`") from None
    for group, about in defaults_list.overrides.override_metadata.items():
        by = about.containing_config_path
        if group.startswith("hydra") and not about.external_override and by != ROOT:
            raise UserError(f"{by}: {group}: not for a recipe to choose; write {group}=... on the command line")
    for default in defaults_list.defaults:
        by = default.parent or ROOT
        if str(default.config_path).startswith("hydra/") and by not in (ROOT, "<root>") and not by.startswith("hydra/"):
            raise UserError(f"{by}: {default.config_path}: not for a recipe to choose")
    return defaults_list


def _checked_composition(self: ConfigLoaderImpl, defaults: Any, repo: Any) -> Any:
    _followed[0] = 0
    try:
        return _compose(self, defaults, repo)
    except ConfigCompositionException:
        kinds: dict[str, bool] = {}  # key -> whether it is a list
        for default in defaults:
            part = _load_part(self, default, repo).config
            for key, is_list in _collections(part):
                if kinds.setdefault(key, is_list) != is_list:
                    kind, other = ("a list", "a mapping") if is_list else ("a mapping", "a list")
                    raise UserError(f"{default.config_path}.yaml: {key}: is {kind} where {other} is needed") from None
        raise


def _counted_reference(self: Container, *args: Any, **kwargs: Any) -> Any:
    """Follow a reference ``${...}``, unless references multiply: ``a: ${b}${b}``, ``b: ${c}${c}`` and so on."""
    _followed[0] += 1
    target = _follow(self, *args, **kwargs) if _followed[0] <= REFERENCES else None
    text = target._value() if isinstance(target, Node) else target
    if _followed[0] > REFERENCES or (isinstance(text, str) and len(text) > TEXT):
        raise UserError("the ${...} of the recipe multiply; more than a config can hold comes of them")
    return target


def _collections(config: Any, key: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the keys of the lists and mappings in a config, each with whether it is a list."""
    for name, value in _items(config):
        if OmegaConf.is_config(value) and not value._is_none():
            yield f"{key}{name}", OmegaConf.is_list(value)
            yield from _collections(value, f"{key}{name}.")


def check_content(place: Path | str, config: Any, machine: bool = False) -> None:
    """Check that a file sets only the keys that a recipe may set.

    Args:
        place: the file, for the message.
        config: its content.
        machine: whether the file lies in ``conf/launcher``, which may set every key of ``launcher``.

    Raises:
        UserError: the file sets a key that only the user may set, or a group that is no mapping.
    """
    for key, value in _items(config):
        if key == "hydra":
            _check_node(place, key, value, HYDRA)
            check_sweep(place, OmegaConf.select(config, "hydra.sweeper.params"))
        elif key == "launcher" and not machine:
            _check_node(place, key, value, LAUNCHER)
        elif key in ("output_root", "push_to_hub"):
            raise UserError(f"{place}: {key}: not for a recipe to set; write {key}=... on the command line")
        if key in GROUPS and not _is_mapping(value):
            kind = "a list" if OmegaConf.is_list(value) else repr(value)
            raise UserError(f"{place}: {key}: must be a mapping{EXAMPLES.get(key, '')}, got {kind}")


EXAMPLES = {"stages": ", such as {corpus: {stage: corpus}}", "figures": ", such as {curves: {kind: training}}"}


def check_sweep(place: Path | str, params: Any) -> None:
    """Raise ``UserError`` where a recipe sweeps over a key that it may not set; Hydra takes such values as if typed."""
    for key, value in _items(params):
        first = re.split(r"[^A-Za-z_]", key.lstrip("+"))[0]
        if first not in {*KEYS, "experiment"} - set(TYPED):
            raise UserError(f"{place}: hydra.sweeper.params.{key}: not for a recipe to sweep over")
        if "$" in str(value):
            raise UserError(f"{place}: hydra.sweeper.params.{key}: plain values are expected, got {value}")


def _check_node(place: Path | str, key: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuse settings in the node ``key`` that are not among ``allowed``; a key without a value is accepted."""
    for name, leaf in _leaves(value, key):
        inside = name.partition(".")[2]
        if leaf is not None and not any(inside == one or inside.startswith(f"{one}.") for one in allowed):
            raise UserError(f"{place}: {name}: not for a recipe to set; write {name}=... on the command line")


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values in a node as they are written; an empty mapping or list yields none."""
    if OmegaConf.is_dict(value) and not OmegaConf.is_interpolation(value):
        for name, inner in _items(value):
            yield from _leaves(inner, f"{key}.{name}")
    elif not (OmegaConf.is_list(value) and not OmegaConf.is_interpolation(value) and len(value) == 0):
        yield key, value


def _items(config: Any) -> list[tuple[str, Any]]:
    """Return the keys of a mapping with their values as they are written; an empty list for anything else."""
    if not isinstance(config, DictConfig) or config._is_none() or config._is_missing() or config._is_interpolation():
        return []
    return [(str(key), value) for key, value in config.items_ex(resolve=False)]


def _is_mapping(value: Any) -> bool:
    """Whether a value is a mapping, a reference that may lead to one, or no value."""
    return value is None or OmegaConf.is_dict(value) or (isinstance(value, str) and (value == "???" or "${" in value))


def _checked_call(config: Any, *args: Any, **kwargs: Any) -> Any:
    refuse_foreign_targets(config)
    return _call(config, *args, **kwargs)


def refuse_foreign_targets(config: Any) -> None:
    """Raise ``UserError`` for a ``_target_`` anywhere in ``config`` that may not be called."""
    if OmegaConf.is_dict(config) and "_target_" in config and not may_be_called(str(config["_target_"])):
        key = config._get_full_key("_target_")
        raise UserError(
            f"{key}: {config['_target_']} is not called: only {', '.join(CALLED)} and launchers and sweepers that are"
            " installed as plugins of Hydra are"
        )
    if OmegaConf.is_config(config):
        for value in config.values() if OmegaConf.is_dict(config) else config:
            refuse_foreign_targets(value)


def may_be_called(target: str) -> bool:
    """Whether a ``_target_`` may be called: a class of ``CALLED``, or a launcher or sweeper among Hydra's plugins.

    Both lists name each class by the module that defines it, so no other name of the same class passes.
    """
    plugin = Plugins.instance().class_name_to_class.get(target)
    return target in CALLED or (plugin is not None and issubclass(plugin, Launcher | Sweeper))
