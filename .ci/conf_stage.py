"""Write conf/stage/ from the config classes in src/condensery/stages/: every key with its default and its explanation.

    python .ci/conf_stage.py          # `make conf` runs this
    python .ci/conf_stage.py --check  # fails if a file differs from its class

The default of a key is the default of its field. The explanation is the docstring below the field. If a class declares a key
again without a docstring, it inherits the explanation.
"""

import ast
import inspect
import itertools
import re
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from condensery.stages.base import FromRecipe, StageConfig, marks, references
from condensery.stages.registry import registry

PROJECT = Path(__file__).resolve().parents[1]
FOLDER = PROJECT / "conf" / "stage"
WIDTH = 126  # columns of a line; a longer explanation stands above its key


def files() -> dict[Path, str]:
    """The text of each file, by path."""
    configs = {kind: stage.config for kind, stage in registry().items()}
    ours = {kind: config for kind, config in configs.items() if config.__module__.startswith("condensery.")}
    return {FOLDER / f"{kind}.yaml": file_of(kind, config) for kind, config in ours.items()}


def file_of(kind: str, config: type[StageConfig]) -> str:
    """The content of the file of a kind of stage: a description of the stage, and its keys."""
    source = Path(inspect.getfile(config)).relative_to(PROJECT).as_posix()
    made = f"made by `make conf` from {config.__name__} in {source}: change it there"
    head = [f"@package stage.{kind}", made, *plain(inspect.getdoc(config) or "").splitlines()]
    return "\n".join([*(f"# {line}".rstrip() for line in head), "", *lines_of(config), ""])


def lines_of(config: type[BaseModel], indent: str = "") -> list[str]:
    """The lines of the keys.

    Keys that a recipe must set come first, then keys that name stages to read, then the other keys. Of the other keys,
    the keys of the class itself come before the keys of its base classes.
    """
    declared = dict.fromkeys(name for one in config.__mro__ for name in vars(one).get("__annotations__", {}))
    keys = [name for name in declared if name in config.model_fields]
    reads, texts = references(config), explanations(config)
    lines = []
    for key in sorted(keys, key=lambda key: (default(config, key) != "???", key not in reads)):
        value, text = default(config, key), plain(texts[key])
        nested = isinstance(value, BaseModel)
        line = f"{indent}{key}:" if nested else f"{indent}{key}: {as_yaml(value)}"
        if len(line) + len(text) + 3 <= WIDTH:
            lines.append(f"{line} # {text}")
        else:
            above = f"{indent}# "
            lines += [*textwrap.wrap(text, WIDTH, initial_indent=above, subsequent_indent=above), line]
        if nested:
            lines += lines_of(type(value), f"{indent}  ")
    return lines


def default(config: type[BaseModel], key: str) -> Any:
    """The default of a key: ``${...}`` if it is taken from another key of the recipe, ``???`` if there is none."""
    field, elsewhere = config.model_fields[key], marks(config, FromRecipe)
    if key in elsewhere:
        return f"${{{elsewhere[key].place}}}"
    return "???" if field.is_required() else field.default


def as_yaml(value: Any) -> str:
    """A default on one line."""
    if value == "???":
        return "???"
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
    return re.sub(r"e-0(\d)$", r"e-\1", text)


def explanations(config: type[BaseModel]) -> dict[str, str]:
    """The explanation of each key, in one line."""
    found: dict[str, str] = {}
    for one in reversed(config.__mro__):
        if one.__module__.startswith("condensery."):
            found |= docstrings(one)
    return found


@cache
def docstrings(config: type) -> dict[str, str]:
    """The docstrings below the fields that a class declares."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(node, ast.ClassDef)
    return {
        field.target.id: " ".join(str(below.value.value).split())
        for field, below in itertools.pairwise(node.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def plain(text: str) -> str:
    """The text of a docstring, in the form of a comment."""
    return text.replace("``", "`")


def main() -> int:
    """Write the files, or with ``--check`` return 1 if a file differs or belongs to no stage."""
    made, there = files(), set(FOLDER.rglob("*.yaml"))
    if "--check" in sys.argv:
        found = {path: path.read_text(encoding="utf-8") for path in there}
        wrong = sorted(path for path in made.keys() | there if made.get(path) != found.get(path))
        for path in wrong:
            print(f"{path.relative_to(PROJECT)}: not what its config class says; run `make conf`")
        return int(bool(wrong))
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    for path in there - made.keys():
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
