"""What mkdocs calls: adds the pages that are made from other files of the project, and sets their links right.

A page is written once. README.md is the first page of the site, the studies in ``experiments/`` and the top-level
documents are pages as they stand, ``conf/`` becomes the pages of recipes and keys, ``examples/`` a page of code. Links are
written as they hold in the repository, so that they work there too; here they lead to the page that shows the file.
"""

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

import conf_pages
import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

PROJECT = conf_pages.PROJECT
AS_THEY_STAND = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
EXAMPLES = "examples.md"
API = "reference/api.md"
ON_GITHUB = re.compile(r"^(?:\[[^\]]+\]: \.\./\.\./|\[!\[).*\n", re.MULTILINE)  # badges, and links to releases
LINK = re.compile(r"""(?<=\]\()(?P<target>[^)\s]+)(?=\))|(?<=src=")(?P<source>[^"]+)(?=")""")


def on_files(files: Files, config: "MkDocsConfig") -> Files:
    """Add the pages that are not in ``docs/``."""
    studies = sorted((PROJECT / "experiments").glob("**/*.md"))
    for path in [*(PROJECT / name for name in AS_THEY_STAND), *studies]:
        name = path.relative_to(PROJECT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for name, text in {**conf_pages.pages(), EXAMPLES: _examples()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: Files) -> str:
    """Set links to files outside of ``docs/`` right, and end the API reference with the base classes."""
    uri = page.file.src_uri
    if uri == API:
        markdown += _base_classes()
    if page.file.generated_by and not (PROJECT / uri).exists():
        return markdown  # its links are written for the site
    markdown = ON_GITHUB.sub("", markdown)
    origin = uri if page.file.generated_by else f"docs/{uri}"
    for target in {link[0] for link in LINK.finditer(markdown)}:
        _bring_along(_named(target, origin), origin, config, files)
    return LINK.sub(lambda link: _link(link[0], origin, uri), markdown)


def on_page_content(html: str, page: "Page", config: "MkDocsConfig", files: Files) -> str:
    """In the API reference, the name of a class of the page is a link to it."""
    if page.file.src_uri != API:
        return html
    places = {path.rpartition(".")[2]: path for path in re.findall(r'<h3 id="(condensery\.[\w.]+)"', html)}
    return re.sub(
        r"<code>(\w+)</code>",
        lambda code: f'<a href="#{places[code[1]]}">{code[0]}</a>' if code[1] in places else code[0],
        html,
    )


def _named(target: str, origin: str) -> str | None:
    """The file or folder of the project that a link of the file ``origin`` names; None = it leads elsewhere."""
    path = target.partition("#")[0]
    if not path or re.match(r"[a-z]+:", path):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))


def _bring_along(name: str | None, origin: str, config: "MkDocsConfig", files: Files) -> None:
    """A file that is linked and has no page becomes part of the site as it is. Raises ``PluginError`` if it is missing."""
    if name is None or files.get_file_from_path(_shown(name).partition("#")[0]):
        return
    path = PROJECT / name
    if not path.is_file():
        raise PluginError(
            f"{origin}: a link to {name}: there is no such file in the project, or it is a folder without a page"
        )
    files.append(File.generated(config, name, abs_src_path=str(path)))


def _link(target: str, origin: str, page: str) -> str:
    """A link of the file ``origin`` as it must stand on ``page``."""
    name = _named(target, origin)
    if name is None:
        return target
    heading = target.partition("#")[2]
    found = posixpath.relpath(_shown(name), posixpath.dirname(page))
    return f"{found}#{heading}" if heading else found


def _shown(name: str) -> str:
    """The page of the site that shows a file or folder of the project."""
    path = PROJECT / name
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if path.is_relative_to(conf_pages.CONF):
        return conf_pages.place_of(path)
    if name.startswith("examples"):
        part = path.relative_to(PROJECT / "examples").parts[:1]
        return f"{EXAMPLES}#{part[0].removesuffix('.py')}" if part else EXAMPLES
    return f"{name}/README.md" if path.is_dir() else name


def _examples() -> str:
    """The programs of ``examples/``, which the tests run."""
    lines = ["# Examples", "", "The programs of `examples/`. The tests run them as they stand, with a small model.", ""]
    folder = PROJECT / "examples"
    for path in sorted(folder.glob("*.py")):
        lines += [f"## {path.name} {{ #{path.stem} }}", "", *_fenced(path), ""]
    shown = {path.parent for pattern in ("*/*.py", "*/*.yaml") for path in folder.glob(pattern)}
    for package in sorted(shown):
        lines += [f"## {package.name} {{ #{package.name} }}", ""]
        for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".yaml")):
            lines += [f"`{path.relative_to(folder)}`", "", *_fenced(path), ""]
    return "\n".join(lines)


def _fenced(path: Path) -> list[str]:
    return [f"```{path.suffix[1:]}", path.read_text(encoding="utf-8").rstrip(), "```"]


def _base_classes() -> str:
    """Our classes that public ones are made of, with what they share, below a heading of their own."""
    package = griffe.load("condensery", search_paths=[str(PROJECT / "src")])
    assert isinstance(package, griffe.Module)
    imported = [one for one in package.members.values() if isinstance(one, griffe.Alias)]
    classes = [one.final_target for one in imported if one.target_path.startswith("condensery.")]
    shared: dict[str, None] = {}
    for one in classes:
        if isinstance(one, griffe.Class):
            shared |= dict.fromkeys(base.path for base in one.mro() if base.path.startswith("condensery."))
    bases = [path for path in shared if path not in {one.path for one in classes}]
    if not bases:
        return ""
    entries = (f"::: {path}\n    options:\n      heading_level: 3\n" for path in sorted(bases))
    return (
        "\n\n## What they are made of\n\nNot imported by hand; what they say holds for the classes above.\n\n"
        + "\n".join(entries)
    )
