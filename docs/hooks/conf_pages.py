"""The pages about recipes and keys, made from the YAML files of ``conf/`` and their comments.

They are written when the site is built and never by hand: a comment that changes in ``conf/`` changes the page.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parents[2]
CONF = PROJECT / "conf"
GROUPS = {  # group -> title of its page; `experiment` has a page of its own
    "data": "Data",
    "backbone": "Backbones",
    "stage": "Stages",
    "trainer": "Trainer",
    "launcher": "Launchers",
    "logger": "Loggers",
    "table": "Tables",
}


@dataclass(frozen=True)
class Key:
    """A key of a config file: its name with dots, its default as YAML, what its comment says."""

    name: str
    default: str
    comment: str


@dataclass(frozen=True)
class ConfigFile:
    """A config file: the comment at its head, its own keys, and the values that it holds."""

    path: Path
    head: str
    keys: tuple[Key, ...]
    values: dict[str, Any]

    @property
    def name(self) -> str:
        """As it is written after ``group=``."""
        group = self.path.relative_to(CONF).parts[0]
        return self.path.relative_to(CONF / group).with_suffix("").as_posix()

    @property
    def bases(self) -> list["ConfigFile"]:
        """The files of the same kind that it builds on, by its defaults list."""
        listed = [one for one in self.values.get("defaults", []) if isinstance(one, str) and one != "_self_"]
        named = [one.removesuffix("@_here_") for one in listed]
        paths = [CONF / f"{one[1:]}.yaml" if one.startswith("/") else self.path.parent / f"{one}.yaml" for one in named]
        return [read(path) for path in paths if path.exists()]

    @property
    def chosen(self) -> dict[str, str]:
        """The option of each group that it chooses, or that what it builds on chooses."""
        found: dict[str, str] = {}
        for base in self.bases:
            found |= base.chosen
        for one in self.values.get("defaults", []):
            if isinstance(one, dict):
                (group, option), *_ = one.items()
                found[str(group).removeprefix("override ").removeprefix("/")] = str(option)
        return found

    def comments(self) -> dict[str, str]:
        """What each key means, those that it builds on included."""
        found: dict[str, str] = {}
        for base in self.bases:
            found |= base.comments()
        return found | {key.name: key.comment for key in self.keys if key.comment}

    def explained(self) -> list[Key]:
        """Its own keys; one without a comment has that of the file it builds on."""
        comments = self.comments()
        return [replace(key, comment=comments.get(key.name, "")) for key in self.keys]

    def whole(self) -> dict[str, Any]:
        """Its values over those that it builds on; what is null there leaves an entry out."""
        found: dict[str, Any] = {}
        for base in self.bases:
            found = _merged(found, base.whole())
        return _merged(found, {key: value for key, value in self.values.items() if key != "defaults"})


@cache
def read(path: Path) -> ConfigFile:
    """A config file with its comments."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    head = []
    for line in lines:
        if not line.startswith("#"):
            break
        if not line.startswith(("# @package", "# made by")):
            head.append(line.removeprefix("#").removeprefix(" "))
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    keys = tuple(_keys(node, lines, "")) if isinstance(node, yaml.MappingNode) else ()
    return ConfigFile(path, "\n".join(head), keys, yaml.safe_load(text) or {})


def _keys(mapping: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[Key]:
    """The keys of a mapping. One whose entries are explained stands for itself and for each of them."""
    for name, value in mapping.value:
        dotted = f"{prefix}{name.value}"
        if not prefix and name.value in ("defaults", "hydra"):
            continue
        comment = _comment(name, value, lines)
        nested = isinstance(value, yaml.MappingNode) and not value.flow_style
        entries = list(_keys(value, lines, f"{dotted}.")) if nested else []
        if entries and (not comment or any(entry.comment for entry in entries)):
            if comment:
                yield Key(dotted, "", comment)
            yield from entries
        else:
            yield Key(dotted, _source(value, lines), comment)


def _comment(name: yaml.Node, value: yaml.Node, lines: list[str]) -> str:
    """What stands behind a key, and then what stands above it on lines of its own."""
    end = value.end_mark if value.end_mark.line == name.start_mark.line else name.end_mark
    behind = re.match(r"[^#]*#\s?(.*)", lines[name.start_mark.line][end.column :])
    above: list[str] = []
    number = name.start_mark.line - 1
    while number >= 0 and re.match(r"\s*#", lines[number]) and (number or name.start_mark.line > 1):
        above.insert(0, lines[number].strip().removeprefix("#").removeprefix(" "))
        number -= 1
    if number < 0:  # the comment at the head of the file
        above = []
    return "\n".join([*([behind[1]] if behind else []), *([f"  {above[0]}", *above[1:]] if above else [])])


def _source(value: yaml.Node, lines: list[str]) -> str:
    """A default as it is written, on one line; a long one is shortened."""
    start, end = value.start_mark, value.end_mark
    if start.line == end.line:
        return lines[start.line][start.column : end.column].strip()
    if isinstance(value, yaml.MappingNode):
        return f"{len(value.value)} entries"
    first, *rest = lines[start.line : end.line + 1]
    return " ".join(line.split("#")[0].strip() for line in [first[start.column :], *rest]).strip()


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        found[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return found


def files(group: str) -> list[ConfigFile]:
    """The files of a group, by name; those of its folders come last."""
    paths = sorted((CONF / group).rglob("*.yaml"), key=lambda path: (len(path.parts), path))
    return [read(path) for path in paths]


def unexplained() -> list[str]:
    """The keys of ``conf/`` that no comment explains. Recipes set keys of the groups, which are explained there."""
    named = [read(CONF / "config.yaml"), *(file for group in GROUPS for file in files(group))]
    return [
        f"{file.path.relative_to(PROJECT)}: {key.name}"
        for file in named
        for key in file.explained()
        if not key.comment and not (_shows_papers(file) and key.name.split(".")[0] in file.comments())
    ]


def _shows_papers(file: ConfigFile) -> bool:
    """A table with published numbers: below its keys stand names of rows and columns."""
    return file.path.parent.name == "table" and bool(file.bases)


def pages() -> dict[str, str]:
    """Path below the site's folder -> Markdown."""
    made = {"reference/recipes.md": _recipes(), "reference/keys/index.md": _root()}
    return made | {f"reference/keys/{group}.md": _group(group, title) for group, title in GROUPS.items()}


def place_of(path: Path) -> str:
    """Where the site says what a file or folder of ``conf/`` holds: page#heading."""
    parts = path.with_suffix("").relative_to(CONF).parts
    if not parts or parts == ("config",):
        return "reference/keys/index.md"
    page = "reference/recipes.md" if parts[0] in ("experiment", "base") else f"reference/keys/{parts[0]}.md"
    return page + (f"#{anchor('/'.join(parts[1:]))}" if len(parts) > 1 and parts[0] != "base" else "")


def anchor(name: str) -> str:
    """Of the heading of a recipe or an option."""
    return name.replace("/", "-")


def _root() -> str:
    file = read(CONF / "config.yaml")
    lines = [
        "# All keys",
        "",
        "Any key of a composed config can be set on the command line: `python run.py experiment=NAME key=value`.",
        "This page has the keys of the root; each group below has a page of its own. Defaults and explanations are those of",
        "the files in `conf/`.",
        "",
        "## Groups",
        "",
        "| group | chosen by default | what it is |",
        "|---|---|---|",
    ]
    defaults = {str(k): v for one in file.values["defaults"] if isinstance(one, dict) for k, v in one.items()}
    comments = dict(re.findall(r"^  - (\w+):[^#\n]*# (.*)$", file.path.read_text(encoding="utf-8"), re.MULTILINE))
    for group, title in {**GROUPS, "experiment": "Recipes"}.items():
        page = "../recipes.md" if group == "experiment" else f"{group}.md"
        default = defaults.get(group)
        chosen = code(default) if isinstance(default, str) else "all kinds" if isinstance(default, list) else "none"
        lines.append(f"| [{title}]({page}): `{group}` | {chosen} | {plain(comments[group])} |")
    return "\n".join([*lines, "", "## Keys of the root", "", *_table(file.explained()), ""])


def _group(group: str, title: str) -> str:
    lines = [f"# {title}", "", _about_group(group), ""]
    for file in files(group):
        lines += [f"## `{file.name}` {{ #{anchor(file.name)} }}", "", *_text(file.head, "../../"), ""]
        if bases := [base.name for base in file.bases]:
            names = ", ".join(f"[`{name}`](#{anchor(name)})" for name in bases)
            lines += [f"All that is not below is as in {names}.", ""]
        lines += [*(_papers(file) if _shows_papers(file) else _table(file.explained())), ""]
    return "\n".join(lines)


def _papers(file: ConfigFile) -> list[str]:
    """The columns and rows of a table with published numbers."""
    values = file.whole()
    columns, classes = values["columns"], values["published"].values()
    rows = dict.fromkeys(plain(str(row)) for rows in classes for row in rows)
    return [f"Columns: {' · '.join(plain(str(column)) for column in columns)}", "", f"Published: {' · '.join(rows)}"]


def _about_group(group: str) -> str:
    if group == "stage":
        return (
            "The kinds of stages. `stage.KIND.KEY=VALUE` sets a default for all stages of a kind, `stages.NAME.KEY=VALUE` "
            "a key of one stage of the recipe. A key without a default (`???`) must be given by the recipe."
        )
    if group == "table":
        return (
            f"Chosen with `{group}=NAME`: published numbers beside the measured ones. The keys are those of "
            "[`measured`](#measured); `python run.py table=NAME` prints a table without running anything."
        )
    return f"Chosen with `{group}=NAME`; a key is set with `{group}.KEY=VALUE`. `???` must be given."


def _table(keys: list[Key]) -> list[str]:
    if not keys:
        return []
    rows = [f"| `{key.name}` | {code(key.default)} | {_cell(key.comment)} |" for key in keys]
    return ["| key | default | what it is |", "|---|---|---|", *rows]


def _recipes() -> str:
    lines = [
        "# All recipes",
        "",
        "`python run.py experiment=NAME`. `DIR` is a folder of yours. Each page entry is the comment at the head of",
        "`conf/experiment/NAME.yaml`, and the stages that it composes to.",
        "",
        "| recipe | what it is | folders to give |",
        "|---|---|---|",
    ]
    recipes = files("experiment")
    for file in recipes:
        lines.append(f"| [`{file.name}`](#{anchor(file.name)}) | {plain(_first(file.head))} | {_needs(file)} |")
    for file in recipes:
        lines += ["", f"## `{file.name}` {{ #{anchor(file.name)} }}", "", *_text(file.head, "../"), ""]
        lines += [*_made_of(file), ""]
    return "\n".join(lines)


def _first(head: str) -> str:
    """What the first sentence says, without its citations."""
    text = " ".join(line for line in head.splitlines() if not line.startswith("  "))
    return re.split(r"[.:;](?:\s|$)", re.sub(r" \([^()]*\)", "", text), maxsplit=1)[0] + "."


def _needs(file: ConfigFile) -> str:
    """The folders that a recipe reads: keys that must be given, and keys that name a folder beside ``run.py``."""
    config = file.whole()
    data = _merged(read(CONF / "data" / f"{file.chosen.get('data', 'pydocs')}.yaml").whole(), config.get("data", {}))
    named = {f"data.{key}": value for key, value in data.items()} | {
        "backbone.name": config.get("backbone", {}).get("name")
    }
    given = {name: stage for name, stage in config.get("stages", {}).items() if stage}
    for kind in dict.fromkeys(stage.get("stage", name) for name, stage in given.items()):
        named |= {f"stage.{kind}.{key}": value for key, value in config.get("stage", {}).get(kind, {}).items()}
    needed = []
    for key, value in named.items():
        if value == "???":
            needed.append(code(f"{key}=..."))
        elif key.endswith((".root", ".path")) or str(value).startswith("./"):
            needed.append(f"{code(key)}, otherwise {code(value)}" if value and "$" not in str(value) else "")
    return "; ".join(filter(None, needed)) or "nothing"


def _made_of(file: ConfigFile) -> list[str]:
    """What a recipe reads, sweeps over and does, stage by stage."""
    config, chosen = file.whole(), file.chosen
    data, backbone = chosen.get("data", "pydocs"), chosen.get("backbone", "small")
    lines = [
        f"Collection: [`data={data}`](keys/data.md#{anchor(data)}). "
        f"Encoder: [`backbone={backbone}`](keys/backbone.md#{anchor(backbone)}). Folders to give: {_needs(file)}."
    ]
    if params := config.get("hydra", {}).get("sweeper", {}).get("params", {}):
        swept = ", ".join(code(f"{str(key).lstrip('+')}={value}") for key, value in params.items())
        lines += ["", f"With `-m` a job for each of {swept}."]
    stages = {name: stage for name, stage in config.get("stages", {}).items() if stage}
    rows: dict[str, list[str]] = {}
    for label, name in ((config.get("table") or {}).get("rows") or {}).items():
        rows.setdefault(str(name), []).append(str(label))
    lines += ["", "| stage | kind | reads | row of the table |", "|---|---|---|---|"]
    for name, stage in stages.items():
        kind = stage.get("stage", name)
        reads = ", ".join(code(one) for one in _reads(kind, config.get("stage", {}).get(kind, {}), stage, stages))
        shown = ", ".join(plain(row) for row in rows.get(name, []))
        lines.append(f"| `{name}` | [`{kind}`](keys/stage.md#{kind}) | {reads} | {shown} |")
    return lines


def _reads(kind: str, of_kind: dict[str, Any], stage: dict[str, Any], stages: dict[str, Any]) -> list[str]:
    """The stages of the recipe that a stage names, or that the recipe or ``conf/stage`` name for its kind."""
    path = CONF / "stage" / f"{kind}.yaml"
    comments = read(path).comments() if path.exists() else {}
    values = {**(read(path).whole() if path.exists() else {}), **of_kind, **stage}
    named = [
        one
        for key, value in values.items()
        if "stage" in comments.get(key, "") and key != "stage"
        for one in (value if isinstance(value, list) else [value])
    ]
    return [one for one in dict.fromkeys(map(str, named)) if one in stages or one == "backbone"]


def _text(comment: str, up: str) -> list[str]:
    """A comment as Markdown: indented lines are commands or a list, the others are text."""
    lines: list[str] = []
    fenced = False
    for line in comment.splitlines():
        if (indented := line.startswith("  ")) != fenced:
            lines += ["", "```sh"] if indented else ["```", ""]
            fenced = indented
        lines.append(line[2:] if indented else _with_links(plain(line), up))
    return lines + ["```"] * fenced


def _with_links(text: str, up: str) -> str:
    """A study that is named gets a link."""

    def link(match: re.Match[str]) -> str:
        page = PROJECT / "experiments" / match[1].replace("\\", "") / "README.md"
        return f"[{match[0]}]({up}experiments/{page.parent.name}/README.md)" if page.exists() else match[0]

    return re.sub(r"experiments/([\w\\]+)", link, text)


def _cell(comment: str) -> str:
    """A comment as a cell of a table: lines that are indented stand on lines of their own."""
    text = ""
    for line in comment.splitlines():
        between = "<br>" if line.startswith("  ") else " "
        text += (between if text else "") + plain(line.strip())
    return text


def code(text: Any) -> str:
    """As code, in a cell of a table too."""
    shown = html.escape(str(text), quote=False).replace("|", "&#124;").replace("`", "&#96;")
    return f"<code>{shown}</code>" if shown else ""


def plain(text: str) -> str:
    """A comment's text in Markdown: what is between backticks is code, nothing else is markup."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        parts = ["`".join(parts)]
    return "".join(code(part) if number % 2 else _escaped(part) for number, part in enumerate(parts))


def _escaped(text: str) -> str:
    escaped = re.sub(r"([\\*_\[\]])", r"\\\1", html.escape(text, quote=False))
    return escaped.replace("|", "&#124;")
