"""How far a recipe's way from command to table leads through the files: `make check` holds the figures (structure.py).

    python .ci/walk.py      # the figures, and each stay with the functions that are read in it

A small recipe (BM25, one table) is run and traced until the table is printed. A reader enters each function of ``FILES``
once, when a function that was read before first calls it (or Hydra, which calls back), and then is in its file. A *stay* is
a stretch of the way in one file, a *room* is a file, and a *return* is a stay in a file that was visited before.

So imports do not count, nor what pydantic, a stage or another library calls, nor helpers that import no other file of the
package. A second figure goes on to the end of the run: results, page, Weights & Biases.
"""

import functools
import inspect
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from condensery.command import start
from condensery.system.memory_growth import PROCESS

PROJECT = Path(__file__).resolve().parents[1]
PACKAGE = "condensery"
# not of the way: what stages compute, the libraries of text, models and metrics, and helpers (errors, system, any leaf below)
FILES = ("command", "cli", "recipes", "results", "pipeline.", "reporting.", "stages.registry", "stages.base")
TABLE = ("reporting/table_formats.py", "show")  # the function that prints the table
WRAPPERS = ("contextlib", "functools")  # of the standard library: what they call is called by the line around them
WITHIN = ("<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # as what stands within a function


class Stay(NamedTuple):
    """A stretch of the way: a file, and the functions that are read in it, in order."""

    file: str
    functions: list[str]


class Figures(NamedTuple):
    """The figures of a way: stays = rooms + returns."""

    stays: int
    rooms: int
    returns: int


@dataclass
class Walk:
    """The way of a run.

    Attributes:
        stays: the stays, in order.
        to_table: their number until the table is printed.
    """

    stays: list[Stay] = field(default_factory=list)
    to_table: int = 0
    read: set[CodeType] = field(default_factory=set)

    def step(self, frame: FrameType, event: str, argument: object) -> None:
        """Follow a call; a function for ``sys.setprofile``."""
        code, file = frame.f_code, _file(frame.f_globals.get("__name__", ""))
        if not file:
            return
        if event == "return" and (file, code.co_name) == TABLE:
            self.to_table = self.to_table or len(self.stays)
        if event == "call" and code not in self.read and _is_written(code) and self._called_on_the_way(frame):
            self.read.add(code)
            if not self.stays or self.stays[-1].file != file:
                self.stays.append(Stay(file, []))
            self.stays[-1].functions.append(code.co_qualname)

    def _called_on_the_way(self, frame: FrameType) -> bool:
        caller = frame.f_back
        while caller and (caller.f_globals.get("__name__") in WRAPPERS or caller.f_code.co_name in WITHIN):
            caller = caller.f_back
        called_by = str(caller.f_globals.get("__name__")) if caller else ""
        return not self.read or called_by.startswith("hydra.") or (caller is not None and caller.f_code in self.read)


def _is_written(code: CodeType) -> bool:
    """Whether code is a function that stands in a file: no body of a module or class, and not made by ``dataclass``."""
    made = code.co_name.startswith("<") or code.co_filename.startswith("<")
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not made


@functools.cache
def _file(module: str) -> str:
    """The file of a module of the way, below src/condensery; empty for any other module.

    A leaf, which imports no other file of the package, is no such module.
    """
    package, _, name = module.partition(".")
    if package != PACKAGE or not name.startswith(FILES):
        return ""
    source = inspect.getsource(sys.modules[module])
    return f"{name.replace('.', '/')}.py" if re.search(rf"^\s*from {PACKAGE}\b", source, re.MULTILINE) else ""


def walk() -> Walk:
    """Run the recipe in this process, and return its way. Raises ``RuntimeError`` where the run fails."""
    os.environ.update(PROCESS)  # otherwise the program would restart this process
    os.environ.pop("HYDRA_FULL_ERROR", None)
    way, typed, printed = Walk(), sys.argv, io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed):
        sys.argv = [typed[0], *_recipe(Path(folder))]
        sys.setprofile(way.step)
        try:
            code = start(PROJECT, PROJECT / "conf")
        finally:
            sys.setprofile(None)
            sys.argv = typed
    if code or not way.to_table:
        raise RuntimeError(f"the recipe of {Path(__file__).name} printed no table:\n{printed.getvalue()}")
    return way


def _recipe(folder: Path) -> list[str]:
    """Write a collection into ``folder``, and return the command line that measures BM25 on it."""
    passages = {"cats": "cats sleep all day", "dogs": "dogs bark at night", "tea": "tea is a hot drink"}
    queries = {"q1": "sleeping cats", "q2": "a hot drink"}
    _write_lines(folder / "corpus.jsonl", [{"_id": name, "text": text} for name, text in passages.items()])
    _write_lines(folder / "queries.jsonl", [{"_id": name, "text": text} for name, text in queries.items()])
    (folder / "qrels").mkdir()
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tcats\t1\nq2\ttea\t1\n", encoding="utf-8")
    recipe = ["stages.bm25.stage=bm25", "table.rows={BM25: bm25}", "table.split=test"]
    here = [f"data.root={folder}", f"output_root={folder / 'outputs'}", "logger.wandb.enabled=false", "trainer=cpu"]
    return ["data=beir", *recipe, *here]


def _write_lines(path: Path, entries: Sequence[object]) -> None:
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")


def figures(stays: Sequence[Stay]) -> Figures:
    """Count stays, rooms and returns."""
    rooms = len({stay.file for stay in stays})
    return Figures(len(stays), rooms, len(stays) - rooms)


def main() -> int:
    """Print the way and its figures."""
    way = walk()
    for number, (file, functions) in enumerate(way.stays, 1):
        print(f"{number:4} {file:34} {', '.join(functions)}")
        if number == way.to_table:
            print("     the table is printed")
    print("stays {}, rooms {}, returns {} from command to table".format(*figures(way.stays[: way.to_table])))
    print("stays {}, rooms {}, returns {} to the end of the run".format(*figures(way.stays)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
