"""The registry of all kinds of stages: config class, function and product of each kind.

A stage of this project consists of a config class in ``config.py`` of its family, and a function in a module beside it::

    @stage("mine", "mine:mine", version=1, makes="negatives")
    class MineConfig(StageConfig):
        retriever: Annotated[str, Input("index")]
        "the stage with an index"  # what the key means; conf/stage/mine.yaml has it too (make conf)
        depth: Count = 200
        "negatives kept for each query"

    def mine(config: MineConfig, context: Context) -> dict[str, Any]:
        index = context.input("retriever")  # the folder of the input artifact
        ...                                 # write into context.folder
        return {"queries": 1000}            # metrics for the manifest

A config module imports pydantic but not torch. The function's module, which imports torch, is loaded when the stage runs. So
a dry run is fast. A plugin may have config and function in one file and decorate the function (``@stage("mine", version=1,
makes=...)``).
"""

import importlib.util
import os
import pkgutil
import re
import traceback
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar

from condensery.errors import UserError
from condensery.stages.base import NAME, Context, StageConfig

PLUGINS = "CONDENSERY_STAGES"  # environment variable: comma-separated modules with further stages, losses and formats
BASELINES = "condensery.baselines"  # package with a package for each baseline

Function = Callable[[Any, Context], Mapping[str, Any] | None]
Decorated = TypeVar("Decorated", bound=type[StageConfig] | Function)


@dataclass(frozen=True)
class Stage:
    """One entry of the registry.

    Attributes:
        kind: name of the kind.
        place: the function that runs the stage, as ``module:function``.
        version, makes, adapts, together: the arguments of ``stage``.
        config: the config class; for a decorated function, the annotation of its argument ``config``.
        decorated: the config class or function that ``stage`` decorates.
    """

    kind: str
    place: str
    version: int
    makes: str
    adapts: str | None
    together: bool | str
    config: type[StageConfig]
    decorated: type[StageConfig] | Function

    @cached_property
    def function(self) -> Function:
        """The function that runs the stage; its module is imported on first access."""
        return self._beside(self.place.partition(":")[2]) if isinstance(self.decorated, type) else self.decorated

    def by_several(self, config: StageConfig, context: Context) -> bool:
        """Return whether several processes compute the stage if ``trainer.devices`` > 1."""
        return bool(self._beside(self.together)(config, context)) if isinstance(self.together, str) else self.together

    def _beside(self, name: str) -> Callable[..., Any]:
        """Return the function ``name`` from the module that defines the stage's function."""
        found: Callable[..., Any] = getattr(importlib.import_module(self.place.partition(":")[0]), name)
        return found


_STAGES: dict[str, Stage] = {}


def stage(
    kind: str, function: str = "", *, version: int, makes: str, adapts: str | None = None, together: bool | str = False
) -> Callable[[Decorated], Decorated]:
    """Register the stage ``kind``: decorate its config class, or the function itself.

    Args:
        kind: name of the kind.
        function: for a decorated class, the function as ``module:function``; the module is in the package of the class.
        version: version of the code, raised when a change of the code changes the stage's product.
        makes: name of the product, such as ``encoder`` or ``index``. A stage that reads it declares ``Input(product)``.
        adapts: a field of the config, if stages of this kind can be added automatically. For example, ``encode`` reads an
            encoder in the field ``model``, and makes an index. If a key needs an index but names an encoder, a stage
            ``<named>.<makes>`` of kind ``encode`` is added between the two.
        together: whether several processes call the function in parallel with ``trainer.devices`` > 1, all with the same
            ``context.folder``. Processes other than the first may only write shards (``sharing.ProcessGroup``) and end with
            ``NotRankZero``. In place of a bool: the name of a function in the same module that takes config and context and
            returns whether several processes save time.

    Raises:
        UserError: another stage already has this name, a name or the version has a wrong form, or the config is not a
            ``StageConfig``.
    """

    def register(decorated: Decorated) -> Decorated:
        package = decorated.__module__.rpartition(".")[0]
        place = f"{package}.{function}" if function else f"{decorated.__module__}:{decorated.__qualname__}"
        if kind in _STAGES and _STAGES[kind].place != place:
            raise UserError(f"two stages are called {kind!r}: {_STAGES[kind].place} and {place}; rename one")
        config = decorated if isinstance(decorated, type) else typing.get_type_hints(decorated).get("config")
        if not (isinstance(config, type) and issubclass(config, StageConfig)):
            raise UserError(f"stage {kind!r}: the class of its argument config must be a subclass of StageConfig")
        if not (re.fullmatch(NAME, kind) and re.fullmatch(NAME, makes) and type(version) is int):
            raise UserError(f"stage {kind!r}: kind and makes must match {NAME}, and version must be a whole number")
        _STAGES[kind] = Stage(kind, place, version, makes, adapts, together, config, decorated)
        return decorated

    return register


def _import_plugin(name: str) -> Any:
    """Import a module of a plugin. Raises ``UserError`` that names the module's line at which the import fails."""
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):  # or its package
            raise UserError(
                f"{PLUGINS}: there is no module {name!r}; write its name without .py, and add its folder to PYTHONPATH"
            ) from None
        named = [(one.f_globals.get("__name__", ""), one, line) for one, line in traceback.walk_tb(error.__traceback__)]
        own = [(one, line) for module, one, line in named if module.partition(".")[0] == name.partition(".")[0]]
        place = "".join(f"{one.f_code.co_filename}:{line}: " for one, line in own[-1:])
        raise UserError(f"{PLUGINS}: {place or f'{name}: '}{type(error).__name__}: {error}") from error


@cache
def _import_all(plugins: str) -> None:
    """Import the plugins with their submodules, then this project's configs, which use what the plugins register."""
    for name in filter(None, (name.strip() for name in plugins.split(","))):
        for submodule in pkgutil.walk_packages(getattr(_import_plugin(name), "__path__", []), f"{name}."):
            if not submodule.name.endswith(".__main__"):  # importing a program would run it
                _import_plugin(submodule.name)
    for package in ("condensery.stages", BASELINES):  # each subpackage is a family or a baseline
        for family in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            # a baseline that consists of a loss has no config module
            if family.ispkg and importlib.util.find_spec(f"{family.name}.config"):
                importlib.import_module(f"{family.name}.config")


def registry() -> dict[str, Stage]:
    """Return all stages by kind: this project's stages, and stages of the modules in ``CONDENSERY_STAGES``, imported now."""
    _import_all(os.environ.get(PLUGINS, ""))
    return _STAGES
