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

_CHILDREN_DIFFER = {"__name__", "current_process"}  # names whose value differs between a child and its parent


def spawning(asked: str) -> SpawnContext:
    """Return ``multiprocessing.get_context("spawn")``, the context for starting processes.

    A spawned process that reaches this call while it imports the program is ended.

    Args:
        asked: the setting that requests processes, such as workers=2, for error messages.

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
            f"{path}, line {place}: {asked} starts processes, which import this program and come here themselves;"
            ' put the program below `if __name__ == "__main__":`, or do without it'
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
    """Return whether the line is inside ``if __name__ == "__main__":`` or a similar condition."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):  # unknown without the source code
        return True
    nodes = list(ast.walk(tree))
    telling = {*_CHILDREN_DIFFER, *(name for node in nodes for name in _telling_names(node))}
    return any(
        node.lineno <= line <= (node.end_lineno or line) and _mentions(telling, *_asked_by(node))
        for node in nodes
        if isinstance(node, ast.stmt | ast.expr)
    )


def _telling_names(node: ast.AST) -> list[str]:
    """Return the names that a node gives to a value that differs in a child: ``MAIN = __name__ == "__main__"``."""
    if isinstance(node, ast.FunctionDef):
        return [node.name] if _mentions(_CHILDREN_DIFFER, *(x for x in node.body if isinstance(x, ast.Return))) else []
    if not isinstance(node, ast.Assign) or not _mentions(_CHILDREN_DIFFER, node.value):
        return []
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _asked_by(node: ast.AST) -> list[ast.expr]:
    """Return the expressions that decide whether the code in a node runs: conditions, or arguments with a condition."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            return [test]
        case ast.Match(subject=subject):
            return [subject]
        case ast.BoolOp(values=[*first, _]):
            return first
        case ast.Expr(value=ast.Call(args=given)):  # main(__name__)
            return [one for one in given if isinstance(one, ast.Name)]
    return []


def _mentions(names: set[str], *parts: ast.AST) -> bool:
    return any(getattr(one, "id", getattr(one, "attr", "")) in names for part in parts for one in ast.walk(part))
