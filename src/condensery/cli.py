"""Run the command line: Hydra composes the config, and this module runs it. A failure is reported in one line.

The module imports no large package, so that the command line starts quickly.
"""

import gc
import os
import re
import shlex
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
from condensery.pipeline.error_lines import Stopped, in_one_line, quoted
from condensery.pipeline.reports import study
from condensery.system import signals
from condensery.system.terminal import check_arguments, print_anything, print_last

FOLDER_FILE = "CONDENSERY_FOLDER_FILE"  # environment variable: file into which the path of the run's folder is written
COMMAND = "data"  # `condensery data NAME`
ALONE = "stages.corpus={stage: corpus}"  # the only stage that this command computes if no recipe is named
PLAIN = re.compile(r"""[\w.@/+-]+=[^'"()\[\]{}$=]+""")  # key=value without quotes, nesting or interpolation


def main(cfg: DictConfig) -> None:
    """Run one composed config, either as a single run or as one job of a sweep.

    Raises:
        Stopped: an exception ended the run. That exception is the ``__cause__`` of ``Stopped``.
    """
    from condensery.pipeline import run

    if not gc.isenabled():  # ``command.start`` disabled garbage collection
        gc.freeze()
        gc.enable()
    multirun = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    try:
        if multirun:
            run.run_job(cfg)
        else:
            folder = run.run(cfg).folder
            if path := os.environ.get(FOLDER_FILE):  # set by ``condensery.results.run``, which started this process
                Path(path).write_text(str(folder or ""), encoding="utf-8")
    except Exception as error:
        raise Stopped from error


def run_program(program: Callable[[], Any], home: Path) -> int:
    """Run a program and return its exit code.

    For bad input, an error of Hydra, or a full or read-only disk, one line is printed and 1 is returned. If a signal ends the
    program, 128 + the signal's number is returned: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP (the terminal was closed),
    and 141 for SIGPIPE (the program that reads the output has ended). An unexpected exception is raised with its traceback,
    because it is a bug in this project.

    Args:
        program: the function wrapped by ``hydra.main``.
        home: the folder that contains ``outputs``, unless the environment variable CONDENSERY_HOME names another. The
            recipes in ``home/conf`` are the user's own.
    """
    print_anything()
    try:
        home = home.absolute()
        of_outputs = os.environ.get("CONDENSERY_HOME") or str(home)
        check_arguments([*sys.argv[1:], of_outputs])
    except (UserError, FileNotFoundError) as refused:
        print(in_one_line(refused), file=sys.stderr)
        return 1
    os.environ["CONDENSERY_HOME"] = of_outputs
    os.environ[study.COMMAND] = shlex.join(sys.argv[1:])
    whole = "--package" in sys.argv  # in --cfg job --package stage.KIND, KIND may be any kind of stage
    helps = not {"-h", "--help"}.isdisjoint(sys.argv)
    if os.environ.get("HYDRA_FULL_ERROR") == "1":  # a developer wants to see the whole traceback
        recipe_guard.install(whole, home, helps)
        program()
        return 0
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and this function prints the message in one line
    signals.leave_upon((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1), lambda _: KeyboardInterrupt())
    try:
        sys.argv[1:] = prepared(sys.argv[1:])
        recipe_guard.install(whole, home, helps)
        program()
    except (Exception, Stopped, KeyboardInterrupt, SystemExit) as stop:
        error = stop.__cause__ if isinstance(stop, Stopped) and stop.__cause__ else stop
        if isinstance(error, BrokenPipeError):  # nobody reads the output any longer, as in `| head`
            signals.came.append(signal.SIGPIPE)
        if signals.came:
            forced = any(re.match(r"\+*force=", one) for one in sys.argv)
            print_last(f"interrupted; run the same command again to continue{'; stages of force start over' * forced}")
            return 128 + signals.came[0]
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        if (line := in_one_line(error)) is None:
            raise error from None
        print(line, file=sys.stderr)
        return 1
    finally:
        recipe_guard.install()  # resets ``whole`` and ``helps`` for configs that this process composes later
    return 1 if sweep.failed else 0


def prepared(arguments: list[str]) -> list[str]:
    """Return the command line in Hydra's syntax, with options first, so that users may write ``-m`` anywhere.

    - A recipe does not contain the keys that it leaves at their defaults. So that ``stages.round1.steps=9`` may set such a
      key, the argument gets Hydra's prefix ``++``. The config check reports a key that does not exist.
    - In ``output_root=~/x``, ``~`` is replaced by the home folder.
    - A question (``ask=``) is passed to the config verbatim, with its commas and quotes. Hydra's grammar does not allow some
      letters in a value, nor a quote in a recipe's name. Arguments with such characters are passed verbatim, too.

    Raises:
        UserError: a key is given twice (Hydra would silently use the last value), or a path in a sweep contains a comma
            (Hydra would split it into two values).
    """
    arguments = _of_data(arguments)
    sweep = not {"-m", "--multirun"}.isdisjoint(arguments)
    keys = [word.partition("=")[0].lstrip("+") for word in arguments if "=" in word and word[0] not in "-~"]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise UserError(f"{twice}: given twice; leave one out")
    if old := next((argument for argument in arguments if re.match(r"\+*study=", argument)), None):
        raise UserError(f"{old}: the group is now called base; write base={old.partition('=')[2]}")

    def one(argument: str) -> str:
        if argument.startswith("ask="):
            return f"ask={_verbatim(argument.removeprefix('ask='))}"
        if argument.startswith("output_root=~"):
            return "output_root=" + os.path.expanduser(argument.removeprefix("output_root="))
        key, _, value = argument.partition("=")
        if re.match(r"experiment=\w.*['\"]", argument):
            return f"{key}={_verbatim(value)}"
        if PLAIN.fullmatch(argument) and not value.isascii() and (sweep or "," not in value):
            argument = f"{key}={','.join(map(_verbatim, value.split(',')))}"
        return recipe_guard.ADDED.sub("++", argument) if "=" in argument else argument

    if sweep:
        _check_paths(arguments)
    return [one(a) for a in sorted(arguments, key=lambda a: a.startswith("~") or ("=" in a and not a.startswith("-")))]


def _check_paths(arguments: list[str]) -> None:
    for argument in arguments:
        key, _, value = argument.partition("=")
        if "," in value and os.path.exists(os.path.expanduser(value)):
            raise UserError(
                f"{argument}: this is one path, but in a sweep a comma separates values; quote it: {quoted(key, value)}"
            )


def _of_data(arguments: list[str]) -> list[str]:
    """Translate the command ``data NAME [key=value ...]`` into config keys, with ``fetch=true``.

    If the arguments name no recipe, only the collection is built (``ALONE``). Without an argument ``data=LIBRARY``, the
    library is ir_datasets if it has a data set of this name, and the Hugging Face hub otherwise. Other arguments do not
    change. Without the word ``data``, no argument changes.

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
        from condensery.text.formats.ir_datasets import knows

        rest.append(f"data={'ir_datasets' if knows(name) else 'huggingface'}")
    if not any(one.startswith(("experiment=", "stages.")) for one in rest):
        rest.append(ALONE)
    return [*rest, f"data.name={name}", "fetch=true"]


def _verbatim(text: str) -> str:
    """Quote a string, so that Hydra does not interpret its commas, brackets and quotes.

    An empty string, null and strings in quotes do not change.
    """
    from hydra.core.override_parser.types import Quote, QuotedString

    if text in ("", "null") or re.fullmatch(r"""'[^']*'|"[^"]*\"""", text):
        return text
    plain = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # OmegaConf's escape of ${
    return QuotedString(plain, Quote.single).with_quotes()
