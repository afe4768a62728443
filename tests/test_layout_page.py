"""The page of the code's layout: the files that it names exist, no folder is left out, the imports are those of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_runs import PROJECT

CODE = PROJECT / "src" / "condensery"
PAGE = (PROJECT / "docs" / "layout.md").read_text()
PATHS = sorted(set(re.findall(r"`([\w./-]+(?:/|\.py|\.yaml|\.html))`", PAGE)) - {"src/condensery/", "index.html"})
FOLDERS = sorted(path.parent for path in CODE.rglob("__init__.py") if path.parent != CODE)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_on_the_page_exists(path: str) -> None:
    place = (PROJECT if path.startswith(("conf/", "docs/", "examples/", "experiments/", "tests/")) else CODE) / path
    assert place.is_dir() if path.endswith("/") else place.is_file()


def test_the_page_names_files_of_every_kind() -> None:
    assert len(PATHS) > 100


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(CODE).as_posix())
def test_every_folder_is_explained(folder: Path) -> None:
    explained = PAGE.split("\n## The folders\n")[1].split("\n## ")[0]
    assert f"`{folder.relative_to(CODE).as_posix()}/`" in explained


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All that is run, so nothing of what stands under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from _nodes(node)


def _imported(path: Path) -> Iterator[str]:
    """Names of the modules that a file imports, and of what it takes from them."""
    for node in _nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_the_table_of_imports_is_that_of_the_code() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.*)\|$", PAGE.split("\n## What imports what\n")[1].split("\n## ")[0], re.MULTILINE
    )
    stated = {folder: set(re.findall(r"`(\w+)`", cell)) for folder, cell in rows}
    folders = {folder.name for folder in FOLDERS if folder.parent == CODE}
    found = {
        folder: {
            parts[1]
            for path in (CODE / folder).rglob("*.py")
            for parts in (name.split(".") for name in _imported(path))
            if parts[0] == "condensery" and parts[1] in folders - {folder}
        }
        for folder in folders
    }
    assert stated == found
    order = list(stated)
    assert all(order.index(other) < order.index(folder) for folder, others in stated.items() for other in others)
