"""The command line: Hydra composes the config, and this module runs it and reports a failure in one line.

The module itself imports nothing heavy.
"""

import gc
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from condensery.errors import UserError
from condensery.pipeline import recipe_guard, sweep
from condensery.pipeline.complaints import Stopped, in_one_line, quoted
from condensery.pipeline.reports.study import typed
from condensery.system import signals
from condensery.system.terminal import check_arguments, print_anything

FOLDER_FILE = "CONDENSERY_FOLDER_FILE"  # environment variable: a file that gets the path of the run's folder
COMMAND = "data"  # `condensery data NAME`
ALONE = "stages.corpus={stage: corpus}"  # the stages of that command where no recipe is named
GROUPS = re.compile(r"^((stages?|data|backbone|trainer|launcher|logger|table|figures)\.[^=]+|push_to_hub[^=]*)=")
PLAIN = re.compile(r"""[\w.@/+-]+=[^'"()\[\]{}$=]+""")  # nothing in it is quoted, nested, or to be resolved


def main(cfg: DictConfig) -> None:
    """Run one composed config: once, or as one job of a sweep.

    Raises:
        Stopped: any exception ended the run; that exception is the cause.
    """
    from condensery.pipeline import run

    if not gc.isenabled():  # run.py switched the collector off
        gc.freeze()
        gc.enable()
    multirun = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    try:
        if multirun:
            run.run_job(cfg)
        else:
            _write_folder(run.run(cfg).folder)
    except Exception as error:
        raise Stopped from error


def _write_folder(folder: Path | None) -> None:
    """Write the path of the run's folder into the file that the calling program reads (``condensery.results.run``)."""
    if path := os.environ.get(FOLDER_FILE):
        Path(path).write_text(str(folder or ""), encoding="utf-8")


def run_program(program: Callable[[], Any], home: Path) -> int:
    """Run ``program``, a function under ``hydra.main``, and return the exit code.

    Bad input, Hydra's complaints and a full or read-only disk give one line and the code 1. Ctrl-C gives 130, SIGTERM 143.
    An unexpected exception keeps its traceback, because it is a fault of this project.

    Args:
        program: the function that Hydra has wrapped.
        home: the folder that holds ``outputs``.
    """
    print_anything()
    try:
        check_arguments([*sys.argv[1:], str(home)])
    except UserError as refused:
        print(in_one_line(refused), file=sys.stderr)
        return 1
    os.environ["CONDENSERY_HOME"] = str(home)
    typed(sys.argv[1:])
    recipe_guard.install(shows="--cfg" in sys.argv and "--package" not in sys.argv)
    if os.environ.get("HYDRA_FULL_ERROR") == "1":  # a developer wants to see the whole traceback
        program()
        return 0
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and this function makes its message one line
    signals.leave_upon((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1), lambda number: KeyboardInterrupt())
    try:
        sys.argv[1:] = prepared(sys.argv[1:])
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
    finally:
        recipe_guard.install()  # what else this process composes is not to be shown
    return 1 if sweep.failed else 0


def prepared(arguments: list[str]) -> list[str]:
    """Return the command line as Hydra wants it: options first, so that ``-m`` may stand anywhere.

    - ``stages.round1.steps=9`` may set a key that the recipe leaves to the defaults, so the argument gets Hydra's ``++``.
      The check of the config finds a key that does not exist.
    - In ``output_root=~/x`` the ``~`` becomes the home folder.
    - A question (``ask=``) is taken as it is typed, with its commas and quotes. The same holds for a value with letters
      that Hydra's grammar does not know.

    Raises:
        UserError: a key is given twice, of which Hydra would silently take the last; or a path of a sweep has a comma,
            which would make two values of it.
    """
    arguments = _of_data(arguments)
    sweep = not {"-m", "--multirun"}.isdisjoint(arguments)
    keys = [
        argument.partition("=")[0].lstrip("+") for argument in arguments if "=" in argument and argument[0] not in "-~"
    ]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UserError(f"{twice}: given twice; leave one out")
    if old := next((argument for argument in arguments if re.match(r"\+*study=", argument)), None):
        raise UserError(f"{old}: the group is now called base: base={old.partition('=')[2]}")

    def one(argument: str) -> str:
        if argument.startswith("ask="):
            return f"ask={_verbatim(argument.removeprefix('ask='))}"
        if argument.startswith("output_root=~"):
            return "output_root=" + os.path.expanduser(argument.removeprefix("output_root="))
        key, _, value = argument.partition("=")
        if PLAIN.fullmatch(argument) and not value.isascii() and (sweep or "," not in value):
            argument = f"{key}={','.join(map(_verbatim, value.split(',')))}"
        return f"++{argument}" if GROUPS.match(argument) else argument

    if sweep:
        _check_paths(arguments)
    return [one(a) for a in sorted(arguments, key=lambda a: a.startswith("~") or ("=" in a and not a.startswith("-")))]


def _check_paths(arguments: list[str]) -> None:
    for argument in arguments:
        key, _, value = argument.partition("=")
        if "," in value and os.path.exists(os.path.expanduser(value)):
            raise UserError(
                f"{argument}: is one path, and in a sweep a comma stands between two values; quote it: {quoted(key, value)}"
            )


def _of_data(arguments: list[str]) -> list[str]:
    """Turn ``data NAME [key=value ...]`` into keys: the recipe that is named, or the collection alone, with ``fetch=true``.

    Where no ``data=`` names a library, ir_datasets is taken if it knows the name, and the Hugging Face hub otherwise.
    Other arguments stay as they are. Without the word ``data`` all arguments stay as they are.

    Raises:
        UserError: no name follows ``data``.
    """
    if COMMAND not in arguments:
        return arguments
    at = arguments.index(COMMAND)
    name = arguments[at + 1] if len(arguments) > at + 1 else "="
    if "=" in name or name.startswith("-"):
        raise UserError("data: give a name, as in `condensery data msmarco-passage` or `condensery data mteb/scifact`")
    rest = [*arguments[:at], *arguments[at + 2 :]]
    if not any(one.startswith("data=") for one in rest):
        rest.append(f"data={_library_of(name)}")
    if not any(one.startswith(("experiment=", "stages.")) for one in rest):
        rest.append(ALONE)
    return [*rest, f"data.name={name}", "fetch=true"]


def _library_of(name: str) -> str:
    from condensery.text.formats.ir_datasets import knows

    return "ir_datasets" if knows(name) else "huggingface"


def _verbatim(text: str) -> str:
    """Quote a text, so that Hydra does not read its commas, brackets and quotes; null and quoted texts stay as they are."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if text in ("", "null") or re.fullmatch(r"""'[^']*'|"[^"]*\"""", text):
        return text
    plain = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # OmegaConf's escape of ${
    return QuotedString(plain, Quote.single).with_quotes()
