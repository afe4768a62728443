"""The study of a run: the question of its recipe, its command, and the sweep that it belongs to.

This module imports no large library, because the command line calls it at every start.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hydra.core.hydra_config import HydraConfig

from condensery.recipes import INSTALLED, PROGRAM
from condensery.reporting.plain import one_line

if TYPE_CHECKING:
    from condensery.pipeline.graph import Graph

# Environment variables, which a launcher's processes get too: the arguments as typed, and the keys that a sweep varies.
COMMAND, SWEPT = "CONDENSERY_COMMAND", "CONDENSERY_SWEPT"
KEY = re.compile(r"[\w-]+(?:\.[\w-]+)+")  # a key in a string with ${...}
OF_PLUGINS = ("CONDENSERY_STAGES", "PYTHONPATH")  # environment variables that lead to a plug-in's code
MULTIRUN = {"-m", "--multirun"}
FIRST_LOOK = "experiment=bm25_msmarco data=ir_datasets data.name=msmarco-passage"  # a recipe on MS MARCO for a CPU
SETTINGS = ("data.dev_queries=", "data.unlabelled_queries=", "data.empty_passages=")  # keys of data in any format
# keys of a single run, which are left out of the command that repeats it
ONCE = ("ask=", "force=", "dry_run=", "dry_run_gpu=", "dry_run_share=")


@dataclass(frozen=True)
class Job:
    """A job of a sweep: the name of the study, and the overrides that define the job."""

    study: str
    overrides: Sequence[str]


def command(overrides: Sequence[str] | None = None) -> str:
    """Return the command of this process, or of one job of the sweep by its overrides; empty if none was typed."""
    given = shlex.split(os.environ.get(COMMAND, ""))
    if overrides is not None:  # options such as --config-dir DIR apply to every job
        options = [one for one in given if ("=" not in one or one.startswith("-")) and not one.startswith("~")]
        given = [*(one for one in options if one not in MULTIRUN), *overrides]
    given = [one for one in given if not one.lstrip("+").startswith(ONCE)]
    return f"{_program()} {shlex.join(given)}" if given else ""


def with_data(by_name: str) -> tuple[str, str]:
    """Return two commands: this process's command with other data, and ``FIRST_LOOK``. Both are empty if no command was
    typed.

    Args:
        by_name: overrides that replace the overrides of ``data``, such as ``data=ir_datasets data.name=msmarco-passage``.
            Keys of the present format that the recipe sets are removed, since another format lacks them.
    """
    given = shlex.split(command())
    kept = [one for one in given if not re.match(r"[+~]*data[.=]", one) or one.lstrip("+").startswith(SETTINGS)]
    file = _recipe_file()
    of_recipe = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("data", {}) if file else {}
    removed = [f"~data.{key}" for key in of_recipe if f"data.{key}=" not in SETTINGS]
    return (" ".join([shlex.join(kept), by_name, *removed]), f"{_program()} {FIRST_LOOK}") if given else ("", "")


def _program(python: str = "python") -> str:
    """Return the beginning of a command: ``condensery`` if the installed command is running, else ``python run.py``."""
    return INSTALLED if os.environ.get(PROGRAM) == INSTALLED else f"{python} run.py"


def going_on(lines: Sequence[str]) -> list[str]:
    """Return the recipe's lines about how to continue (``next``), with their placeholders filled in.

    ``{command}`` becomes the command of this process, and ``{program}`` the name of the program, each with the environment
    variables that lead to a plug-in's code. A line with ``{command}`` is left out if no command was typed.
    """
    plugins = [f"{name}={shlex.quote(os.environ[name])}" for name in OF_PLUGINS if os.environ.get(name)]
    own, called = command(), " ".join([*plugins * (OF_PLUGINS[0] in os.environ), _program(shlex.quote(_python()))])
    typed_so = called + own.removeprefix(_program())
    return [
        line.replace("{command}", typed_so).replace("{program}", called)
        for line in lines
        if own or "{command}" not in line
    ]


def _python() -> str:
    """Return the shell command of this Python: ``python`` if the shell finds it so, else its path, relative if possible."""
    known, path = shutil.which("python"), Path(sys.executable)
    if known and Path(known).absolute() == path:
        return "python"
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def about() -> list[str]:
    """Return the comment at the head of the composed recipe, as paragraphs; an indented line is a command."""
    file = _recipe_file()
    return paragraphs(file.read_text(encoding="utf-8")) if file else []


def _recipe_file() -> Path | None:
    """Return the file of the composed recipe; None if there is no such file."""
    if not HydraConfig.initialized():
        return None
    runtime = HydraConfig.get().runtime
    recipe = runtime.choices.get("experiment")
    folders = [Path(source.path) for source in runtime.config_sources if source.path]
    files = [folder / "experiment" / f"{recipe}.yaml" for folder in folders]
    return next((path for path in files if recipe and path.is_file()), None)


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a YAML file's leading comment; consecutive indented lines stay lines of one paragraph."""
    blocks: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        words = line[1:].removeprefix(" ")
        if words.startswith("@package"):
            continue
        code = words.startswith("  ")
        if blocks and blocks[-1] and blocks[-1].startswith("  ") == code:
            blocks[-1] += f"\n{words}" if code else f" {words.strip()}"
        else:
            blocks.append(words if code else words.strip())
    return [text for text in blocks if text.strip()]


def swept_keys(overrides: Iterable[str]) -> list[str]:
    """Return the keys of the overrides that Hydra would sweep over."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [str(override.key_or_group) for override in parsed if override.is_sweep_override()]


def labels(graph: "Graph", overrides: Sequence[str]) -> dict[str, str]:
    """Return a label for each stage: the job's swept overrides that can affect the stage.

    A stage that no override affects has no label. An override affects these stages and all stages that depend on them:

    - ``stages.NAME.``: the stage of this name.
    - ``stage.KIND.``: the stages of this kind.
    - ``stages.``, ``stage.`` and ``table.``: also the stages with a value ``${...}`` that refers to the key.
    - Any other key, such as ``seed``: all stages.
    """
    swept = os.environ.get(SWEPT, "").split()
    parts = [(one.partition("=")[0], one.partition("=")[2]) for one in overrides]
    label_of: dict[str, str] = {}
    keys_of: dict[str, set[str]] = {}  # a stage -> keys that set values of it or of a stage that it depends on
    for name, node in graph.nodes.items():
        keys_of[name] = set(_own_keys(graph, name)).union(*(keys_of[parent] for parent in node.parents))
        settings = [
            one_line(f"{key.rpartition('.')[2]}={value}")  # in one line, because W&B shows it
            for key, value in parts
            if key in swept and _reaches(key, keys_of[name])
        ]
        if settings:
            label_of[name] = " ".join(settings)
    return label_of


def _own_keys(graph: "Graph", name: str) -> list[str]:
    """Return the keys, or beginnings of keys, that a stage's settings come from, directly or through ``${...}``."""
    root, own = graph.root, name.partition(".")[0]  # X of X.index, and of X.2 if there are several checkpoints
    found = [f"stages.{own}", f"stage.{graph.nodes[name].kind}"]
    for key in found:  # the list grows during the loop
        group, stage, *inner = key.split(".")
        if group == "stages" and (kind := root.stages.get(stage, {}).get("stage")):
            found.append(".".join(["stage", kind, *inner]))
        value: Any = {"stage": root.stage, "stages": root.stages}.get(group, {}).get(stage)
        for part in inner:
            value = value.get(part) if isinstance(value, dict) else value
        found += [one for one in KEY.findall(" ".join(_references(value))) if one not in found]
    return found


def _references(value: Any) -> Iterator[str]:
    """Yield the strings with ``${...}`` in a value of a config."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _references(one)
    elif isinstance(value, str) and "${" in value:
        yield value


def _reaches(key: str, keys: set[str]) -> bool:
    if not key.startswith(("stages.", "stage.", "table.")):
        return True
    return any(f"{key}.".startswith(f"{one}.") or f"{one}.".startswith(f"{key}.") for one in keys)


def tidied(text: str, root: Path) -> str:
    """Return the text with short names for the output, working and home folders, which would identify the machine."""
    shorter = {
        str(root): root.name,
        str(Path.cwd()): ".",
        os.environ.get("CONDENSERY_HOME", ""): ".",
        os.path.expanduser("~"): "~",
    }
    for long in sorted(filter(lambda path: len(path) > 1, shorter), key=len, reverse=True):
        text = shorter[long].join(re.compile(rf"(?<![\w/.-]){re.escape(long)}(?![\w.-])").split(text))
    return text
