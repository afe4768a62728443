"""The command line: Hydra composes, this runs it and says what went wrong in one line. Imports nothing heavy itself."""

import gc
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from condensery import signals
from condensery.errors import UserError, of_the_disk, said_within
from condensery.pipeline import recipe_guard
from condensery.pipeline.study import typed

TOLD = "CONDENSERY_TOLD"  # environment variable: a file that gets the run's folder
GROUPS = re.compile(r"^(stages?|data|backbone|trainer|launcher|logger|table|figures)\.[^=]+=")


class Stopped(BaseException):
    """Carries a run's exception (its cause) past Hydra, which would print lines of its own around it."""


def main(cfg: DictConfig) -> None:
    """Run one composed config: once, or as one job of a sweep. Raises ``Stopped`` from whatever goes wrong."""
    from condensery.pipeline import run, sweep

    if not gc.isenabled():  # run.py started without
        gc.freeze()
        gc.enable()
    multirun = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    try:
        if multirun:
            sweep.run_job(cfg)
        else:
            _tell(run.run(cfg).folder)
    except Exception as error:
        raise Stopped from error


def _tell(folder: Path | None) -> None:
    """Leave the run's folder where a program that called the command looks for it; see ``condensery.results``."""
    if told := os.environ.get(TOLD):
        Path(told).write_text(str(folder or ""), encoding="utf-8")


def door(program: Callable[[], Any], home: Path) -> int:
    """Run ``program``, a function under ``hydra.main``, and return the exit code.

    Bad input, Hydra's complaints and a full or read-only disk give one line and 1; Ctrl-C gives 130, SIGTERM 143.
    An unexpected exception keeps its traceback: it is a fault of ours. ``home`` is the folder of ``outputs``.
    """
    os.environ["CONDENSERY_HOME"] = str(home)
    typed(sys.argv[1:])
    if os.environ.get("HYDRA_FULL_ERROR") == "1":  # a developer wants to see the whole traceback
        program()
        return 0
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises, so that its message can be made one line here
    sys.argv[1:] = prepared(sys.argv[1:])
    recipe_guard.install()
    _compose_quickly()
    signals.leave_upon((signal.SIGINT, signal.SIGTERM), lambda number: KeyboardInterrupt())
    try:
        program()
    except (Exception, Stopped, KeyboardInterrupt, SystemExit) as stop:
        if signals.came:
            print("interrupted; run the same command again to go on", file=sys.stderr)
            return 128 + signals.came[0]
        if isinstance(stop, KeyboardInterrupt | SystemExit):
            raise
        error = stop.__cause__ if isinstance(stop, Stopped) and stop.__cause__ else stop
        line = in_one_line(error)
        if line is None:
            raise error from None
        print(line, file=sys.stderr)
        return 1
    from condensery.pipeline import sweep

    return 1 if sweep.failed else 0


def _compose_quickly() -> None:
    """Let Hydra read YAML with libyaml, and list the options of a group without copying the config of all others.

    It composes twice, and does the latter a hundred times for ``--help``: half a second of a run's start.
    """

    def once(self: ConfigLoaderImpl, name: str | None, overrides: list[str]) -> Any:
        if name or overrides:
            return prepare(self, name, overrides)
        if self not in known:
            known[self] = prepare(self, name, overrides)
        return known[self]

    known: dict[ConfigLoaderImpl, Any] = {}
    prepare = ConfigLoaderImpl._parse_overrides_and_create_caching_repo
    if prepare.__name__ != once.__name__:  # once, also for two commands
        ConfigLoaderImpl._parse_overrides_and_create_caching_repo = once  # type: ignore[method-assign,assignment]
    if yaml.__with_libyaml__:
        yaml.SafeLoader = yaml.CSafeLoader


def prepared(arguments: list[str]) -> list[str]:
    """The command line as Hydra wants it: options first, so that ``-m`` may stand anywhere.

    ``stages.round1.steps=9`` may add a key that the recipe leaves to the defaults, so it gets Hydra's ``++``; a key
    that does not exist is found when the config is checked. ``output_root=~/x`` gets its home folder. A question is taken
    as it is typed, with its commas and quotes.
    """

    def one(argument: str) -> str:
        if argument.startswith("ask="):
            return f"ask={_verbatim(argument.removeprefix('ask='))}"
        if argument.startswith("output_root=~"):
            return "output_root=" + os.path.expanduser(argument.removeprefix("output_root="))
        return f"++{argument}" if GROUPS.match(argument) else argument

    return [one(a) for a in sorted(arguments, key=lambda a: "=" in a and not a.startswith("-"))]


def _verbatim(text: str) -> str:
    """A text for Hydra, which would read commas, brackets and quotes in it; null, and what is quoted for it, stays."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if text in ("", "null") or re.fullmatch(r"""'[^']*'|"[^"]*\"""", text):
        return text
    plain = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # OmegaConf's escape of ${
    return QuotedString(plain, Quote.single).with_quotes()


def in_one_line(error: BaseException) -> str | None:
    """What is said about a foreseeable fault, or about stages that failed; ``None`` about anything else."""
    from condensery.pipeline.workers import StageError

    error = of_the_disk(error) or error
    if isinstance(error, UserError):
        return "error: " + shortened(" ".join(str(error).split()))
    if isinstance(error, StageError):
        return str(error)
    if isinstance(error, HydraException | OmegaConfBaseException) and (said := said_within(error)):
        return in_one_line(said)
    if isinstance(error, HydraException | OmegaConfBaseException) or _raised_in_hydra(error):
        return "error: " + shortened(_of_hydra(error))
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark
        return f"error: {f'{mark.name}:{mark.line + 1}: ' if mark else ''}not valid YAML ({error.problem})"
    if isinstance(error, FileNotFoundError) and _raised_in(error)[0] == "mkdir":
        return f"error: {error.filename}: no folder can be made here; choose another output_root"
    return None


def shortened(text: str) -> str:
    """A message without the middle of numbers and words that nobody reads; no file's name is as long."""
    text = re.sub(r"\d{101,}", lambda found: f"{found[0][:20]}… ({len(found[0]):,} digits)", text)
    return re.sub(r"[^\s/]{256,}", lambda found: f"{found[0][:40]}… ({len(found[0]):,} characters)", text)


def _raised_in(error: BaseException) -> tuple[str, str]:
    """The function and the module that raised it."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return (trace.tb_frame.f_code.co_name, trace.tb_frame.f_globals["__name__"]) if trace else ("", "")


def _raised_in_hydra(error: BaseException) -> bool:
    """Whether it is one of the plain exceptions with which Hydra meets ``data=null`` or a launcher that is none."""
    return isinstance(error, ValueError | RuntimeError) and _raised_in(error)[1].startswith("hydra.")


def _of_hydra(error: BaseException) -> str:
    text = str(error) or str(error.__cause__ or type(error).__name__)
    unknown = re.match(r"Could not override '([^']*)'", text)
    if unknown:
        from condensery.errors import close_to
        from condensery.pipeline.config import RootConfig

        first = unknown[1].partition(".")[0]  # what follows is known to the stage or group alone
        hint = "" if first in RootConfig.model_fields else close_to(first, RootConfig.model_fields)
        return f"{unknown[1]}: unknown key{hint}"
    merged = re.match(r"Error merging override \+*([^=]*)=", text)
    if merged and "Cannot merge" in str(error.__cause__ or error.__context__):
        return f"{merged[1]}: is a list or a mapping where the other is needed"
    if text.startswith("Config group override must be"):  # it does not say which
        groups = [argument for argument in sys.argv[1:] if re.match(r"[+~]*\w+=", argument)]
        text = f"{' or '.join(groups)}: a group takes the name of one of its options"
    if isinstance(error, OverrideParseException):
        word = (error.override or "").lstrip("+")
        return (
            f"{word}: not of the form key=value; is a bracket or quote left open, or a comma the last? "
            "(a value with special characters is quoted: 'key=\"a, b\"')"
        )
    option = re.match(
        r"In '[^']*': Could not find '([^']*)/([^'/]*)'\s*Available options in '[^']*':(.*?)Config s", text, re.S
    )
    if option:
        from condensery.errors import close_to

        return f"{option[1]}={option[2]}: there is no such option{close_to(option[2], option[3].split())}"
    text = text.partition("Config search path:")[0]
    return " ".join(text.split())
