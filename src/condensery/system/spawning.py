"""Spawn processes, and check that the user's program has the main guard that spawning needs.

Processes are spawned, because a fork is unsafe while threads run. Each spawned process first imports the program that
started it ("safe importing of main module" in the documentation of multiprocessing). Without
``if __name__ == "__main__":`` the new process would itself reach the call that started it, and start further processes.
"""

import ast
import multiprocessing
import sys
import threading
from functools import cache
from multiprocessing.context import SpawnContext
from pathlib import Path
from types import FrameType

from condensery.errors import UserError


def spawning(asked: str) -> SpawnContext:
    """Return ``multiprocessing.get_context("spawn")``, the context for starting processes.

    A spawned process that reaches this call while it imports the program is ended.

    Args:
        asked: the setting that makes processes necessary, such as workers=2; error messages name it.

    Raises:
        UserError: the program cannot be imported, or has no main guard, so each process would itself reach this call.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(1)  # quietly, because the program that started this process reports the reason
    main = sys.modules["__main__"]
    path, module = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if module is None and path is not None and not Path(path).exists():
        raise UserError(
            f"{asked} starts processes, which cannot import a program that is read from {path}: write it to a file, or do"
            f" without {asked}"
        )
    place = _line_of(main.__dict__, path) if path else None
    if place is not None and not _guarded(str(path), place):
        raise UserError(
            f"{path}, line {place}: {asked} starts processes, which import this program and run this line again;"
            ' put the program below `if __name__ == "__main__":`, or leave that setting out'
        )
    return multiprocessing.get_context("spawn")


def _line_of(names: dict[str, object], path: str) -> int | None:
    """Return the line of the program's file that is running; None if the file has already run to its end."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals is names and frame.f_code.co_name == "<module>" and frame.f_code.co_filename == path:
            return frame.f_lineno
        frame = frame.f_back
    return None


@cache
def _guarded(path: str, line: int) -> bool:
    """Return whether the top-level statement at this line of the file tests if this process is the main one.

    It may test a name: ``MAIN = __name__ == "__main__"``, or a function that returns this comparison.
    """
    try:
        statements = ast.parse(Path(path).read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # unknown without the source code
        return True
    telling = {"__name__", "current_process"}  # names whose value differs between a child and its parent
    for one in statements:
        if one.lineno <= line <= (one.end_lineno or line):
            return _mentions(telling, one)
        if _mentions(telling, one):
            targets = [one] if isinstance(one, ast.FunctionDef) else getattr(one, "targets", [])
            telling |= {getattr(target, "name", getattr(target, "id", "")) for target in targets} - {""}
    return False


def _mentions(names: set[str], part: ast.AST) -> bool:
    return any(getattr(one, "id", getattr(one, "attr", "")) in names for one in ast.walk(part))
