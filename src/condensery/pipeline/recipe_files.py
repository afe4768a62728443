"""Checks of the YAML files that Hydra composes, before they are used: each file may come from an untrusted source.

A file with a fault is rejected in one line, which names the file and the line. The faults are:

- The file is not UTF-8, or it is too large.
- It becomes too large when its aliases are expanded.
- It has a number in base 8 or 60, which a reader takes for a decimal number or a time.
- It refers to something other than values of the config and ``CONDENSERY_*`` variables.

This module imports no large library, because the command line calls it at every start.
"""

import re
from pathlib import Path
from typing import Any, NoReturn

import yaml
from omegaconf._utils import get_yaml_loader
from omegaconf.resolvers import oc
from yaml.reader import Reader

from condensery.errors import UserError

BYTES = 1 << 18  # maximum size of a file; the project's own files have at most 5 KB
NODES = 10_000  # maximum keys and values; an alias counts as its expanded nodes, and a long string by its length
DEPTH = 40  # maximum nesting of mappings and lists
TOO_DEEP = f"mappings and lists are nested more than {DEPTH} deep"
CHARACTERS = 64  # characters of a string that count as one node
VARIABLES = "CONDENSERY_"  # prefix of the environment variables that a config may read

_FAST = (yaml.CSafeLoader,) if yaml.__with_libyaml__ else ()
LOADER: Any = type("Loader", (*_FAST, get_yaml_loader()), {})
"""OmegaConf's loader of YAML files, which parses with libyaml if it is installed: ten times as fast."""

# The references ${...} that a file may contain: a key of the config, an environment variable of this project, or `oc.select`
_REFERENCES = re.compile(
    rf"\$\{{(?: [^${{}}:]+ | \s*oc\.env\s*:\s*{VARIABLES}\w*\s*(?:,[^${{}}]*)? | \s*oc\.select\s*:[^${{}}:]* )\}}",
    re.VERBOSE,
)

# numbers in base 8 and 60: 010 is 8 and 1:30 is 90 in YAML 1.1
_OTHER_BASES = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?)")


def check_file(path: Path, own: bool = False) -> None:
    """Check a YAML file before Hydra composes it.

    Args:
        path: path of the file.
        own: whether the file is the project's root config, whose references are not checked.

    Raises:
        UserError: the file is not UTF-8, not valid YAML, too large or too deeply nested, or has a forbidden reference.
    """
    raw = path.read_bytes()
    if len(raw) > BYTES:
        raise UserError(f"{path}: a recipe may have {BYTES // 1024} KiB, and this file has {len(raw) // 1024}")
    text = _decoded(path, raw)
    counter = _Counter(path)
    try:
        for event in yaml.parse(text, Loader=LOADER):
            outermost = isinstance(event, yaml.NodeEvent) and not counter.open
            if outermost and not isinstance(event, yaml.MappingStartEvent):
                counter.refuse(event, "a mapping of keys to values is expected")
            counter.add(event)
            if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and _OTHER_BASES.fullmatch(event.value):
                counter.refuse(
                    event, f"{event.value}: YAML reads this in base 8 or 60; write it in base 10 or in quotes"
                )
            if not own and isinstance(event, yaml.ScalarEvent) and (reference := foreign_reference(event.value)):
                counter.refuse(event, f"{reference}: a recipe reads only keys of the config and variables {VARIABLES}*")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f":{mark.line + 1}" if mark else ""
        problem = str(error.problem or error.context)
        if "nesting depth" in problem:  # libyaml reads ahead, and has its own limit since 0.2.6
            raise UserError(f"{path}{at}: {TOO_DEEP}") from None
        raise UserError(f"{path}{at}: not valid YAML ({problem})") from None
    except (ValueError, OverflowError):  # PyYAML without libyaml raises these for an escape such as \U00110000
        raise UserError(f"{path}: not valid YAML (an escape \\U that names no character)") from None


def _decoded(path: Path, raw: bytes) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not valid UTF-8; save it as UTF-8") from None
    if text.startswith("\ufeff"):  # Hydra would not recognise the line `# @package` after it
        raise UserError(f"{path}:1: begins with a byte order mark; save it as UTF-8 without one")
    if match := Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, match.start()) + 1
        raise UserError(f"{path}:{line}: YAML does not allow the character U+{ord(match[0]):04X}; remove it")
    return text


def foreign_reference(text: str) -> str | None:
    """Return the first forbidden reference ``${...}`` in a string; None if all references are allowed."""
    while "${" in text:
        shorter, replaced = _REFERENCES.subn("_", text)  # replaces the innermost references
        if not replaced:
            return " ".join(text[text.index("${") :].split())[:60]
        text = shorter
    return None


class _Counter:
    """Counts the nodes and the depth that a file would have with expanded aliases."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open: list[tuple[str | None, int, int]] = []  # for each open collection: anchor, nodes and depth so far
        self.anchors: dict[
            str, tuple[int, int] | None
        ] = {}  # nodes and depth; None: the anchor's node has not ended yet

    def refuse(self, event: yaml.Event, why: str) -> NoReturn:
        """Raise ``UserError`` with the line of the event."""
        raise UserError(f"{self.path}:{event.start_mark.line + 1}: {why}")

    def add(self, event: yaml.Event) -> None:
        """Count the parser's next event. Raises ``UserError`` if a limit is exceeded or an alias is wrong."""
        if isinstance(event, yaml.CollectionStartEvent):
            self.open.append((event.anchor, 1, 1))
            if event.anchor:
                self.anchors[event.anchor] = None
            if len(self.open) > DEPTH:
                self.refuse(event, TOO_DEEP)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._close(event, *self.open.pop())
        elif isinstance(event, yaml.ScalarEvent):
            self._close(event, event.anchor, 1 + len(event.value) // CHARACTERS, 0)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                self.refuse(event, f"the alias *{event.anchor} has no anchor &{event.anchor} before it")
            size = self.anchors[event.anchor]
            if size is None:
                self.refuse(event, f"the alias *{event.anchor} is inside its own anchor")
            self._close(event, None, *size)

    def _close(self, event: yaml.Event, anchor: str | None, nodes: int, depth: int) -> None:
        if anchor:
            self.anchors[anchor] = nodes, depth
        if self.open:
            around, nodes_around, depth_around = self.open[-1]
            self.open[-1] = (around, nodes_around + nodes, max(depth_around, depth + 1))
        if nodes > NODES or (self.open and self.open[-1][1] > NODES):
            self.refuse(event, f"more than {NODES:,} keys and values; each *alias counts as its content")
        if len(self.open) + depth > DEPTH:
            self.refuse(event, TOO_DEEP)


def environment(name: str, *default: Any) -> str | None:
    """Return an environment variable, as OmegaConf's ``oc.env`` does, but only variables ``CONDENSERY_*``.

    Values of a config appear in tables, pages and W&B, and other variables may contain keys and passwords.

    Raises:
        UserError: the name has another prefix.
    """
    if not str(name).startswith(VARIABLES):
        raise UserError(f"${{oc.env:{name}}}: only variables {VARIABLES}* are read; let the shell fill in ${name}")
    return oc.env(str(name), *default)
