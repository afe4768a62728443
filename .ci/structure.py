"""Measure how much code a reader must read. `make check` runs this program, which fails where a number exceeds its limit.

    python .ci/structure.py

A limit is never raised. Whoever lowers a number also lowers its limit. There is one exception: a feature may raise the limit
of the lines of code by the lines that it adds. The changelog then names the feature.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from walk import figures as walk_figures
from walk import walk

SOURCE = Path(__file__).resolve().parents[1] / "src" / "condensery"
BASELINES = SOURCE / "baselines"
LIMITS = {
    "lines of code (neither comment nor docstring), baselines apart": 29_468,
    "lines of code of the largest baseline": 250,
    "imports of our own modules inside functions": 30,
    "blocks of imports for types alone": 22,
    # walk.py defines way, stay, room and return, and prints the way
    "stays on a recipe's way from command to table": 42,
    "rooms (files) on this way": 19,
    "returns on this way": 23,
    "stays on the way to the end of the run": 64,
    "rooms on the way to the end": 28,
    "returns on the way to the end": 36,
}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def lines_of_code(text: str, tree: ast.Module) -> int:
    """The number of lines of code. Comments and docstrings, including docstrings below a field, do not count."""
    docstrings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - docstrings)


def own_imports_in_functions(tree: ast.Module) -> int:
    """The number of import statements inside functions that import modules of this project."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    found = {id(node): node for function in functions for node in ast.walk(function)}.values()
    return sum(any(name.split(".")[0] == "condensery" for name in _imported(node)) for node in found)


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom):
        yield node.module or ""
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)


def typed_only_blocks(tree: ast.Module) -> int:
    """The number of blocks ``if TYPE_CHECKING``."""
    return sum(isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" for node in ast.walk(tree))


def main() -> int:
    """Print each number and its limit. Return 1 where a number exceeds its limit."""
    paths = sorted(SOURCE.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    trees = [ast.parse(text) for text in texts]
    lines = [lines_of_code(text, tree) for text, tree in zip(texts, trees, strict=True)]
    baselines: Counter[str] = Counter()  # by the folder in src/condensery/baselines
    for path, number in zip(paths, lines, strict=True):
        if BASELINES in path.parents and path.parent != BASELINES:
            baselines[path.relative_to(BASELINES).parts[0]] += number
    way = walk()
    figures = (
        sum(lines) - baselines.total(),
        max(baselines.values(), default=0),
        sum(map(own_imports_in_functions, trees)),
        sum(map(typed_only_blocks, trees)),
        *walk_figures(way.stays[: way.to_table]),
        *walk_figures(way.stays),
    )
    over = False
    for (name, limit), figure in zip(LIMITS.items(), figures, strict=True):
        print(f"{figure:7,} of at most {limit:,}  {name}")
        over |= figure > limit
    print(f"{baselines.total():7,} lines of code of {len(baselines)} baselines")
    print(f"{len(texts):7,} files")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
