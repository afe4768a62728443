"""What a run is part of and how it was asked for: the question of its recipe, its command, the sweep around it.

Imports nothing heavy: the command line asks it at every start.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig

from condensery.recipes import INSTALLED, PROGRAM
from condensery.reporting.plain import one_line

if TYPE_CHECKING:
    from condensery.pipeline.graph import Graph

# Environment variables, for a launcher's processes too: the arguments as typed, and the keys that a sweep varies.
COMMAND, SWEPT = "CONDENSERY_COMMAND", "CONDENSERY_SWEPT"
MULTIRUN = {"-m", "--multirun"}
ONCE = (
    "ask=",
    "force=",
    "dry_run=",
    "dry_run_gpu=",
    "dry_run_share=",
)  # what is asked of one run alone, and not of those who repeat it


@dataclass(frozen=True)
class Job:
    """A job of a sweep: the study's name, and the overrides that made the job."""

    study: str
    overrides: Sequence[str]


def typed(arguments: Sequence[str]) -> None:
    """Keep what the user typed behind ``run.py``."""
    os.environ[COMMAND] = shlex.join(arguments)


def command(overrides: Sequence[str] | None = None) -> str:
    """The command of this process; or, with its overrides, that of one job of the sweep. Empty where none was typed."""
    given = shlex.split(os.environ.get(COMMAND, ""))
    if overrides is not None:  # options such as --config-dir DIR hold for each job
        options = [one for one in given if ("=" not in one or one.startswith("-")) and not one.startswith("~")]
        given = [*(one for one in options if one not in MULTIRUN), *overrides]
    given = [one for one in given if not one.lstrip("+").startswith(ONCE)]
    called = ["python", "run.py"] if _by_file() else ["condensery"]
    return shlex.join([*called, *given]) if given else ""


def _by_file() -> bool:
    """Whether the command is ``python run.py``, not the installed one."""
    return os.environ.get(PROGRAM) != INSTALLED


def going_on(lines: Sequence[str]) -> list[str]:
    """How to go on, as the recipe has it: ``{command}`` is this process's command, ``{program}`` how the
    program is called.

    A line with ``{command}`` is left out where no command was typed.
    """
    own, called = command(), "condensery"
    typed_so = own
    if _by_file():
        called = f"{shlex.quote(_python())} run.py"
        typed_so = called + own.removeprefix("python run.py") if own else ""
    return [
        line.replace("{command}", typed_so).replace("{program}", called)
        for line in lines
        if own or "{command}" not in line
    ]


def _python() -> str:
    """What a shell calls this Python: its name where that leads to it, else its path, short where it lies below."""
    known, path = shutil.which("python"), Path(sys.executable)
    if known and Path(known).absolute() == path:
        return "python"
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def about() -> list[str]:
    """The comment at the head of the recipe that Hydra composed, as paragraphs; a line that is indented is a command."""
    if not HydraConfig.initialized():
        return []
    runtime = HydraConfig.get().runtime
    recipe = runtime.choices.get("experiment")
    folders = [Path(source.path) for source in runtime.config_sources if source.path]
    files = [folder / "experiment" / f"{recipe}.yaml" for folder in folders]
    file = next((path for path in files if recipe and path.is_file()), None)
    return paragraphs(file.read_text(encoding="utf-8")) if file else []


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a YAML file's leading comment; consecutive lines that are indented stay lines of one of them."""
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


def meant_to_sweep() -> list[str]:
    """The keys over which the recipe that Hydra composed sweeps where it is run with ``-m``."""
    if not HydraConfig.initialized():
        return []
    return [str(key).lstrip("+") for key in HydraConfig.get().sweeper.get("params") or {}]


def swept_keys(overrides: Iterable[str]) -> list[str]:
    """The keys of the overrides that Hydra would sweep over."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return [str(override.key_or_group) for override in parsed if override.is_sweep_override()]


def labels(graph: "Graph", overrides: Sequence[str]) -> dict[str, str]:
    """For each stage those of a job's swept overrides that can reach it: what comes before the change has no label.

    ``stages.NAME.`` reaches this stage and what reads it, ``stage.KIND.`` the stages of the kind, ``table.`` none, and
    anything else, such as ``seed``, all.
    """
    swept = os.environ.get(SWEPT, "").split()
    parts = [(one.partition("=")[0], one.partition("=")[2]) for one in overrides]
    label_of: dict[str, str] = {}
    behind: dict[str, set[str]] = {}  # a stage, all that it reads, and the kinds of them
    for name, node in graph.nodes.items():
        behind[name] = {f"stages.{name}", f"stage.{node.kind}"}.union(*(behind[parent] for parent in node.parents))
        settings = [
            one_line(f"{key.rpartition('.')[2]}={value}")  # W&B shows it
            for key, value in parts
            if key in swept and not key.startswith("table.") and _reaches(key, behind[name])
        ]
        if settings:
            label_of[name] = " ".join(settings)
    return label_of


def _reaches(key: str, behind: set[str]) -> bool:
    return not key.startswith(("stages.", "stage.")) or ".".join(key.split(".")[:2]) in behind


def tidied(text: str, root: Path) -> str:
    """The text without what tells whose machine it was: the output folder, the working folder and the home are short."""
    shorter = {
        str(root): root.name,
        str(Path.cwd()): ".",
        os.environ.get("CONDENSERY_HOME", ""): ".",
        str(Path.home()): "~",
    }
    for long in sorted(filter(lambda path: len(path) > 1, shorter), key=len, reverse=True):
        whole = re.compile(rf"(?<![\w/.-]){re.escape(long)}(?![\w.-])")
        text = shorter[long].join(whole.split(text))
    return text
