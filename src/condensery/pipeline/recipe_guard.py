"""Composes a recipe, and limits what its files may set, because they may come from an untrusted source.

Hydra merges files and the command key by key. One of ``steps``, ``epochs`` and ``token_budget`` sets the length of training.
So ``epochs`` of one file and ``steps`` of another could both be set. Here, setting one unsets the others.

A recipe must not run commands, and may write only where the user requested it. The limits hold for every YAML file: recipes,
options of groups, a folder of ``--config-dir``. Two exceptions belong to the user: ``conf/config.yaml``, and
``conf/launcher/``, which describes the machine. The command line also belongs to the user, and only ``may_be_called`` checks
it. SECURITY.md explains the limits for users.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra._internal.hydra
import omegaconf._utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import GroupDefault, InputDefault, ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import Container, DictConfig, Node, OmegaConf
from omegaconf.base import Box

from condensery.errors import UserError
from condensery.pipeline.recipe_files import LOADER, check_file, environment
from condensery.pipeline.sweep import JoinedTable
from condensery.recipes import ADDED_BETWEEN, ADDED_FIRST, RECIPES, RUN_LENGTHS
from condensery.system.files import NAME

ROOT = "config"  # the name of the root config
MODE = "hydra.mode=RUN"  # Hydra adds this override, unless the command or a file sets the key
GROUPS = ("data", "backbone", "trainer", "launcher", "logger", "stage", "stages", "table", "figures")  # all mappings
# keys over which a recipe may sweep; only the command line or the user's own files may sweep over other keys
SWEEPABLE = {"experiment", "name", "seed", "jobs", "force", "ask", "next", "fetch", "estimate", "choose"}
SWEEPABLE |= {"dry_run", "dry_run_gpu", "dry_run_share", "published_cost", "sentence_language", *GROUPS} - {"launcher"}

# Keys of `hydra` and `launcher` that a recipe may set: no key names a command, a class, a file, a host or a variable
HYDRA = ("mode", "sweeper.params", "sweeper.max_batch_size")
LAUNCHER = ("kind", "cluster", "nodes", "hours", "cpus_per_process", "memory")

CALLED = {f"{one.__module__}.{one.__qualname__}": one for one in (JoinedTable,)}  # classes that a config may name

# The beginning of an override of a key that a recipe may leave at its default. Hydra needs ++ before such an override.
ADDED = re.compile(
    r"^\+*(?=((stage|data|backbone|trainer|launcher|logger|table)\.[^=]+|(stages|figures|push_to_hub)[^=]*)(=|$))"
)

_follow = Container.resolve_parse_tree

REFERENCES = 2_000  # maximum number of ${...} resolved for one composed config; the project's largest recipe has 160
TEXT = 1 << 20  # maximum characters of the value of one reference
_followed = [0]  # number of references that were resolved since the config was composed


def install(whole: bool = False, home: Path | None = None, helps: bool = False) -> None:
    """Make Hydra compose with ``RecipeLoader``, and count the resolved references. A second call only changes the settings.

    Args:
        whole: whether the config has the defaults of all kinds of stages, including kinds that the recipe does not use.
        home: the folder of the program, whose folder ``conf`` is the user's own; None = keep the folder that is set.
        helps: whether the command prints only the help, which needs only the root config.
    """
    RecipeLoader.whole, RecipeLoader.helps = whole, helps
    RecipeLoader.home = home or RecipeLoader.home
    hydra._internal.hydra.ConfigLoaderImpl = RecipeLoader  # type: ignore[misc]
    omegaconf._utils.get_yaml_loader = lambda: LOADER
    OmegaConf.register_new_resolver("oc.env", environment, replace=True)
    Container.resolve_parse_tree = _counted_reference  # type: ignore[method-assign]


class RecipeLoader(ConfigLoaderImpl):
    """Hydra's composition of a config, with checks of each file, of the keys that it sets, and of what Hydra would call."""

    whole = helps = False
    home = Path()
    _first: tuple[list[str], DictConfig] = [MODE], OmegaConf.create()  # overrides of the command, their config

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = _Files(config_search_path)
        self._repositories: dict[tuple[str | None, tuple[str, ...]], Any] = {}
        self.lengths: dict[str, set[str]] = {}  # a stage or kind -> the key of training length that the last file sets
        self.words: frozenset[str] = frozenset()  # the words of the command, and so all kinds that it names
        self._read: dict[tuple[str | None, str | None], Any] = {}  # files that are read and not yet merged

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str], *more: Any
    ) -> Any:
        """Compute this once per command, because Hydra's list of options in the help requests it a hundred times."""
        key = (config_name, tuple(overrides))
        if key not in self._repositories:
            self._repositories[key] = super()._parse_overrides_and_create_caching_repo(config_name, overrides, *more)
        return self._repositories[key]

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Compose the config of a command.

        Hydra calls this twice, and a third time for ``hydra.verbose``. The first call is only to look up ``hydra.mode``, and
        does not check the sweep. The second call takes the config of the first.

        Raises:
            UserError: the files include each other in a cycle, or name a class that may not be called.
        """
        overrides = [] if self.helps else overrides
        (given, config), self._first = self._first, RecipeLoader._first
        if run_mode == RunMode.RUN and overrides == [*given, MODE]:
            self.validate_sweep_overrides_legal(OverridesParser.create().parse_overrides(given), run_mode, from_shell)
            config.hydra.overrides.hydra.append(MODE)
            return config
        if not validate_sweep_overrides:
            run_mode = RunMode.RUN
        _followed[0] = 0
        self.words = frozenset(re.findall(r"\w+", " ".join(overrides)))
        try:
            config = super().load_configuration(config_name, overrides, run_mode, from_shell, validate_sweep_overrides)
        except RecursionError:
            raise UserError("experiment: the `defaults` of its files form a circle") from None
        release(config, lengths(typed(overrides)))
        if params := items(OmegaConf.select(config, "hydra.sweeper.params")):
            config.hydra.sweeper.params = {ADDED.sub("++", key): value for key, value in params}
        for called in ("callbacks", "launcher", "sweeper") if run_mode == RunMode.MULTIRUN else ("callbacks",):
            refuse_foreign_targets(config.hydra.get(called))
        if not validate_sweep_overrides:
            self._first = list(overrides), config
        return config

    def _load_single_config(self, default: Any, repo: Any) -> Any:
        part = self._read.pop((default.config_path, default.package), None) or self._checked(default, repo)
        self.lengths |= lengths(part.config)
        return part

    def _checked(self, default: Any, repo: Any) -> Any:
        part = super()._load_single_config(default, repo)
        if part.path.startswith("file://"):
            folder = part.path.removeprefix("file://")
            if not (_own(folder) and default.config_path == ROOT):
                path = Path(folder, f"{default.config_path.removesuffix('.yaml')}.yaml")
                check_content(path, part.config, _own(folder) and default.config_path.startswith("launcher/"))
                if default.config_path.startswith("experiment/") and part.header.get("package") != "_global_":
                    raise UserError(f"{path}: the first line of a recipe must be `# @package _global_`")
        return part

    def _compose_config_from_defaults_list(self, defaults: Any, repo: Any) -> DictConfig:
        defaults = self._with_used_kinds(defaults, repo)
        self.lengths = {}
        set_parents = Box._re_parent
        Box._re_parent = lambda self: None  # type: ignore[method-assign]  # each merge of a file would visit all keys so far
        try:
            config = super()._compose_config_from_defaults_list(defaults, repo)
        except ConfigCompositionException:
            self._refuse_other_kinds(defaults, repo)
            raise
        finally:
            Box._re_parent = set_parents  # type: ignore[method-assign]
        config._re_parent()
        release(config, self.lengths)
        return config

    def _with_used_kinds(self, defaults: list[ResultDefault], repo: Any) -> list[ResultDefault]:
        """Put the files of the kinds of stages that are used before all other files.

        A kind of stage is used if a stage has this kind, or if a reference or the command names it. A kind is also used if
        the program may add a stage of this kind. Without a recipe, all kinds are used. This method reads all files, and
        Hydra then merges them.
        """
        read = [self._checked(one, repo) for one in defaults]
        kinds = {kind: ResultDefault(f"stage/{kind}", ROOT) for kind in repo.delegate.kinds}
        if any(one.parent == ROOT and str(one.config_path).startswith("stage/") for one in defaults):
            kinds = {}  # the recipe lists its kinds: override /stage: [...]
        used = {*ADDED_FIRST, *ADDED_BETWEEN, *self.words}.union(*(kinds_in(part.config) for part in read))
        recipe = "stages" in self.words or any(items(part.config.get("stages")) for part in read)
        if self.whole or not recipe or any("$" in kind for kind in used):
            used.update(kinds)
        of_kinds: dict[str, Any] = {}
        while new := [kind for kind in kinds if kind in used and kind not in of_kinds]:
            of_kinds |= {kind: self._checked(kinds[kind], repo) for kind in new}
            used = used.union(*(kinds_in(of_kinds[kind].config) for kind in new))
        files = [*(kinds[kind] for kind in of_kinds), *defaults]
        parts = [*of_kinds.values(), *read]
        self._read = {(one.config_path, one.package): part for one, part in zip(files, parts, strict=True)}
        return files

    def _refuse_other_kinds(self, defaults: Any, repo: Any) -> None:
        """Raise ``UserError`` about the first key that is a list in one file and a mapping in another file."""
        kinds: dict[str, bool] = {}  # key -> whether it is a list
        for default in defaults:
            for key, is_list in _collections(self._load_single_config(default, repo).config):
                if kinds.setdefault(key, is_list) != is_list:
                    kind, other = ("a list", "a mapping") if is_list else ("a mapping", "a list")
                    raise UserError(f"{default.config_path}.yaml: {key}: is {kind} where {other} is needed") from None


def lengths(config: Any) -> dict[str, set[str]]:
    """Return which of ``RUN_LENGTHS`` a file or a command sets, for each ``stage.KIND`` and ``stages.NAME``."""
    found = {}
    for group in ("stage", "stages"):
        for name, settings in items(OmegaConf.select(config, group)):
            if given := {key for key, value in items(settings) if key in RUN_LENGTHS and value is not None}:
                found[f"{group}.{name}"] = given
    return found


def release(config: DictConfig, given: Mapping[str, set[str]]) -> None:
    """Keep the training length that was given last, and set the other training lengths to null.

    For each stage in ``given``: if a given key still has a value, the keys of ``RUN_LENGTHS`` that are not given become null.
    """
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


def kinds_in(config: Any) -> set[str]:
    """Return the kinds of the stages in a file, and all words in its references, which include the kinds that they name."""
    leaves = [(key, str(value)) for key, value in _leaves(config, "")]
    named = {word for _, value in leaves if "${" in value for word in re.findall(r"\w+", value)}
    return named | {value for key, value in leaves if re.fullmatch(r"\.stages\.[^.]+\.stage", key)}


class _Files(ConfigRepository):
    """The files of a composition; each is checked before Hydra reads it.

    Attributes:
        kinds: the kinds of stages in the list `defaults` of the root config. They are removed before Hydra reads the list.
            The file of a kind is read only if the kind is used: reading all takes half of the time of a composition.
    """

    kinds: Sequence[str] = ()

    def load_config(self, config_path: str) -> Any:
        """Return the content of a file.

        Raises:
            UserError: the file is invalid, or chooses an option of Hydra's own groups, which only the user may choose.
        """
        if "\0" in config_path or len(config_path) > NAME:
            raise UserError(f"defaults: {config_path[:40]!r}: not a possible name of a file")
        source = next((one for one in self.get_sources() if one.is_config(config_path)), None)
        if source is None or source.scheme() != "file":
            return super().load_config(config_path)
        name = source._normalize_file_name(config_path)
        path, own = Path(source.path, name), _own(source.path) and name == f"{ROOT}.yaml"
        check_file(path, own)
        try:
            loaded: Any = super().load_config(config_path)
        except (ValueError, AssertionError, AttributeError) as error:  # Hydra's, about a heading or list of defaults
            raise UserError(f"{path}: {' '.join(str(error).split())}") from None
        if not own:
            _check_choices(path, loaded.defaults_list or [])
        elif RecipeLoader.helps:
            loaded.defaults_list = [one for one in loaded.defaults_list or [] if one.is_self() or one.is_override()]
        for one in loaded.defaults_list or [] if own else []:
            if isinstance(one, GroupDefault) and one.group == "stage":
                self.kinds, one.value = one.get_options(), []
        return loaded


def _check_choices(path: Path, defaults: list[InputDefault]) -> None:
    """Reject options of Hydra's own groups in the list ``defaults`` of a file."""
    for default in defaults:
        group = str(default.group if isinstance(default, GroupDefault) else default.get_name()).removeprefix("/")
        if group.startswith("hydra/"):
            raise UserError(f"{path}: {group}: a recipe may not choose this; write {group}=... on the command line")


def _own(folder: str) -> bool:
    """Whether a folder is ``conf`` beside ``run.py``, or the folder of recipes in the installed package."""
    return os.path.realpath(folder) in map(os.path.realpath, (RecipeLoader.home / "conf", RECIPES))


def _counted_reference(self: Container, *args: Any, **kwargs: Any) -> Any:
    """Resolve a reference ``${...}``, unless references multiply: ``a: ${b}${b}``, ``b: ${c}${c}`` and so on."""
    _followed[0] += 1
    target = _follow(self, *args, **kwargs) if _followed[0] <= REFERENCES else None
    text = target._value() if isinstance(target, Node) else target
    if _followed[0] > REFERENCES or (isinstance(text, str) and len(text) > TEXT):
        raise UserError("the ${...} of the recipe multiply to more than a config can hold; use fewer")
    return target


def _collections(config: Any, key: str = "") -> Iterator[tuple[str, bool]]:
    """Yield (key, whether it is a list) for all lists and mappings in a config."""
    for name, value in items(config):
        if OmegaConf.is_config(value) and not value._is_none():
            yield f"{key}{name}", OmegaConf.is_list(value)
            yield from _collections(value, f"{key}{name}.")


def check_content(place: Path | str, config: Any, machine: bool = False) -> None:
    """Check that a file sets only the keys that a recipe may set.

    Args:
        place: path of the file, for the error message.
        config: content of the file.
        machine: whether the file is in ``conf/launcher``, which may set every key of ``launcher``.

    Raises:
        UserError: the file sets a key that only the user may set, or a group that is not a mapping.
    """
    for key, value in items(config):
        if key == "hydra":
            _check_node(place, key, value, HYDRA)
            check_sweep(place, OmegaConf.select(config, "hydra.sweeper.params"))
        elif key == "launcher" and not machine:
            _check_node(place, key, value, LAUNCHER)
        elif key in ("output_root", "push_to_hub"):
            raise UserError(f"{place}: {key}: a recipe may not set this; write {key}=... on the command line")
        if key in GROUPS and not _is_mapping(value):
            kind = "a list" if OmegaConf.is_list(value) else repr(value)
            raise UserError(f"{place}: {key}: must be a mapping{EXAMPLES.get(key, '')}, got {kind}")


EXAMPLES = {"stages": ", such as {corpus: {stage: corpus}}", "figures": ", such as {curves: {kind: training}}"}


def check_sweep(place: Path | str, params: Any) -> None:
    """Raise ``UserError`` if a recipe sweeps over a key that it may not set. Hydra reads the values like a typed command."""
    for key, value in items(params):
        if re.split(r"[^A-Za-z_]", key.lstrip("+"))[0] not in SWEEPABLE:
            raise UserError(f"{place}: hydra.sweeper.params.{key}: a recipe may not sweep over this")
        if "$" in str(value):
            raise UserError(f"{place}: hydra.sweeper.params.{key}: plain values are expected, got {value}")


def _check_node(place: Path | str, key: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Reject settings in the node ``key`` that are not among ``allowed``; a key without a value is accepted."""
    for name, leaf in _leaves(value, key):
        inside = name.partition(".")[2]
        if leaf is not None and not any(inside == one or inside.startswith(f"{one}.") for one in allowed):
            raise UserError(f"{place}: {name}: a recipe may not set this; write {name}=... on the command line")


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values in a node as written; an empty mapping or list yields nothing."""
    if OmegaConf.is_dict(value) and not OmegaConf.is_interpolation(value):
        for name, inner in items(value):
            yield from _leaves(inner, f"{key}.{name}")
    elif not (OmegaConf.is_list(value) and not OmegaConf.is_interpolation(value) and len(value) == 0):
        yield key, value


def _is_mapping(value: Any) -> bool:
    """Whether a value is a mapping, a reference that may lead to a mapping, or missing."""
    return value is None or OmegaConf.is_dict(value) or (isinstance(value, str) and (value == "???" or "${" in value))


def refuse_foreign_targets(config: Any) -> None:
    """Raise ``UserError`` about a ``_target_`` anywhere in ``config`` that may not be called."""
    if OmegaConf.is_dict(config) and "_target_" in config and not may_be_called(str(config["_target_"])):
        key = config._get_full_key("_target_")
        raise UserError(
            f"{key}: {config['_target_']!r} may not be called; allowed are only {', '.join(CALLED)} and the launchers"
            " and sweepers that are installed as plugins of Hydra"
        )
    if OmegaConf.is_config(config):
        for value in config.values() if OmegaConf.is_dict(config) else config:
            refuse_foreign_targets(value)


def may_be_called(target: str) -> bool:
    """Whether a ``_target_`` may be called: a class of ``CALLED``, or a launcher or sweeper among Hydra's plugins.

    Both lists name a class by the module that defines it, so other names of the same class are rejected.
    """
    plugin = Plugins.instance().class_name_to_class.get(target)
    return target in CALLED or (plugin is not None and issubclass(plugin, Launcher | Sweeper))
