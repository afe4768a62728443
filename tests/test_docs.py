"""The documentation: what its pages say can be run, is run; and nothing public is left out of them."""

import gzip
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import conf_pages
import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from paq_files import write_paq
from safetensors.numpy import save_file
from small_runs import PROJECT, run_command
from test_recipes import BY_NAME, GIVEN, OPTIONS, RECIPES, roots, sentences_of  # noqa: F401 - roots is a fixture

import condensery

DOCS = PROJECT / "docs"
PAGES = sorted(
    [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *DOCS.rglob("*.md"), *PROJECT.glob("experiments/*/*.md")]
)
FORMATS = {
    "data=squad": "cocondenser_squad",
    "data=beir": "cocondenser_squad",
    "base=msmarco_sample": "cocondenser_squad",
    "base=openstax": "openstax",
    "data=documents": "condenser_stsb",
    "data=tevatron": "data=tevatron",
}
LIKE = {  # a recipe of examples/ -> one of ours with the same kind of data
    "search": "cocondenser_local",
    "two_pretrainings": "cocondenser_squad",
}
LINK = re.compile(r"""\]\(([^)\s]+)\)|src="([^"]+)\"""")


def named(path: Path) -> str:
    return path.relative_to(PROJECT).as_posix()


def commands(text: str) -> list[str]:
    """The calls of the program in a page: in lines of their own, with what continues them, and between backticks."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = re.findall(r"^(?: {4})?((?:python run\.py|condensery) .*)$", joined, re.MULTILINE)
    return lines + re.findall(r"`((?:python run\.py|condensery) [^`]*=[^`]*)`", joined)


def commands_of_table(text: str) -> list[str]:
    """The calls of the program in a file of conf/table: in its comments, and what it prints where nothing is measured."""
    lines = re.findall(r"^(?:# +|command: )(python run\.py .*)$", text, re.MULTILINE)
    return [command for line in lines for command in re.split(r"; |  +", line) if command.startswith("python")]


def words_of(command: str) -> tuple[str, ...]:
    """Its arguments, without the comment behind it; what a shell would put in is put in."""
    return tuple(shlex.split(command.replace("$(hostname)", "node1"), comments=True)[1:])


def one_job(words: Iterable[str]) -> list[str]:
    """The arguments of the first job of a sweep, or of what is no sweep."""
    plain = [word for word in words if word not in ("run.py", "-m")]
    return [word if word.startswith(("-", "~", "ask=")) else _first_value(word) for word in plain]


def _first_value(word: str) -> str:
    if "=" not in word:  # the command data, and its name
        return word
    override = OverridesParser.create().parse_override(word)
    if not override.is_sweep_override():
        return word
    return f"{word.split('=')[0]}={next(iter(override.sweep_string_iterator()))}"


TABLES = sorted(PROJECT.glob("conf/table/*.yaml"))
COMMANDS = {  # each once, with the page that has it
    **{words_of(command): named(file) for file in TABLES for command in commands_of_table(file.read_text())},
    **{
        words_of(command): named(page)
        for page in PAGES
        for command in commands(page.read_text())
        if "NAME" not in command
    },
}
GROUPS = {"-m", *(folder.name for folder in (PROJECT / "conf").iterdir() if folder.is_dir())}
# with these keys alone a command is one that test_recipes composes
PLAIN = {"experiment", "data", "data.root", "stage.read_sts.root", "seed", "ask", "dry_run", "jobs"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands name: files of queries, a generator, filled sheets."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "queries").mkdir()
    (folder / "queries" / "some.jsonl.gz").write_bytes(b"")
    (folder / "data").mkdir()
    (folder / "data" / "msmarco-hard-negatives.jsonl.gz").write_bytes(gzip.compress(b"{}"))
    (folder / "FOLDER").mkdir()
    (folder / "FOLDER" / "sheet-1.csv").write_text("")
    (folder / "DIR").mkdir()
    (folder / "DIR" / "config.json").write_text("{}")
    save_file({}, folder / "DIR" / "model.safetensors")
    write_paq(folder / "PAQ")
    for name in ("SNLI", "MULTINLI"):
        (folder / name).write_text('{"premise": "a", "hypothesis": "b", "label": "neutral"}\n')
    (folder / "GLOVE").write_text("a 0.1 0.2\n")
    return folder


def filled(words: list[str], roots: dict[str, Path], folder: Path) -> list[str]:  # noqa: F811
    """The arguments with small folders in the places of DIR, FOLDER and the like."""
    recipe = next((word.partition("=")[2] for word in words if word.startswith("experiment=")), "")
    recipe = {"RECIPE": "quickstart"}.get(recipe, recipe)
    root = next(
        (roots[FORMATS[word]] for word in words if word in FORMATS), roots.get(LIKE.get(recipe, recipe), folder)
    )
    given = [f"data.root={root}"] if recipe in roots else []
    places = {
        "experiment": recipe,
        "data.root": str(root),
        "data.extra": f"[{root}/documents.jsonl]",
        "stage.read_sts.root": str(roots["condenser_wiki_sections"]),
        "stages.ict_tuned.backbone.name": "a/ict",
        "backbone.name": "a/model",
        "backbone.tokenizer": "a/model",
        "output_root": str(folder / "out"),
    }
    own = [f"{key}={places.get(key, value)}" if sign else key for key, sign, value in (w.partition("=") for w in words)]
    named = {word.partition("=")[0] for word in own} | {
        "data.root" for word in own if word in {*BY_NAME, "data", "data=pydocs"}
    }
    given = [*given, *GIVEN.get(recipe, []), *sentences_of(recipe, roots)]
    return [*(word for word in given if word.partition("=")[0] not in named), *own]


def repeated(words: tuple[str, ...]) -> bool:
    """Whether a command composes the same files as an earlier one, and differs from it in single values."""
    return files_of(words) in map(files_of, [*COMMANDS][: [*COMMANDS].index(words)])


def files_of(words: tuple[str, ...]) -> set[str]:
    return {word for word in words if word.partition("=")[0] in GROUPS}


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=pytest.mark.slow if repeated(words) else ()) for words in COMMANDS],
    ids=lambda words: f"{COMMANDS[words]}: {' '.join(words)[:80]}",
)
def test_a_command_composes(
    words: tuple[str, ...],
    roots: dict[str, Path],  # noqa: F811
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(here)
    given = [str(PROJECT / word) if word.startswith("examples/recipes") else word for word in one_job(words)]
    chosen = dict(word.split("=", 1) for word in given if "=" in word)
    besides = {"output_root": tmp_path / "out", "dry_run": "plan"}
    asked = filled(given, roots, tmp_path) + [f"{key}={besides[key]}" for key in besides if key not in chosen]
    asked = ["dry_run=plan" if one == "dry_run=true" else one for one in asked]  # test_dry_run measures this machine
    if chosen.get("experiment") == "haiku":  # tests/library/test_plugins.py runs it
        assert " ".join(given) in (PROJECT / "examples" / "plugin" / "haiku.py").read_text()
    elif "experiment" in chosen and chosen["experiment"] not in LIKE and chosen.keys() <= PLAIN:
        assert chosen["experiment"] in RECIPES
        assert f"data={chosen.get('data', 'pydocs')}" in OPTIONS
    elif chosen.keys() == {"table"}:  # tests/reporting prints each from nothing
        assert given[0] in OPTIONS
    elif "mteb/scifact" in given or chosen.get("data", "").startswith(
        "huggingface"
    ):  # the hub is asked, so no key is wrong
        done = run_command(*asked)
        assert re.fullmatch(r"error: data.name: .* the hub cannot be reached .*\n", done.err), done.err
    elif given == ["--help"]:
        run_command("--help").sound()
    else:
        run_command(*asked).sound()


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 50
    page = "    python run.py experiment=a \\\n        b=1  # c\nand `condensery experiment=d`, `python run.py`"
    assert commands(page) == ["python run.py experiment=a b=1  # c", "condensery experiment=d"]
    words = words_of("python run.py -m experiment=a 'b=[1,2]' c=3,4 ask=\"d, e\"  # f")
    assert one_job(words) == ["experiment=a", "b=[1,2]", "c=3", "ask=d, e"]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_on_a_page_is_that_of_an_example(page: Path) -> None:
    """The examples are run by tests/library."""
    examples = [path.read_text() for path in (PROJECT / "examples").rglob("*.py")]
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        assert any(block in example for example in examples), block


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_recipe_on_a_page_is_that_of_an_example(page: Path) -> None:
    """Its command, which stands below it, is composed above."""
    examples = [path.read_text() for path in (PROJECT / "examples").rglob("*.yaml")]
    for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        assert block in examples, block


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files_of_the_project(page: Path) -> None:
    for target in chain.from_iterable(LINK.findall(page.read_text())):
        if target and not target.startswith(("#", "https://")):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_the_api_reference_has_every_public_name() -> None:
    shown = re.findall(r"^::: condensery\.(\w+)$", (DOCS / "reference" / "api.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(condensery.__all__)


class _Settings(yaml.SafeLoader):
    """mkdocs.yml may name functions of Python, which are not needed here."""


_Settings.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def entries(nav: Any) -> list[str]:
    """The pages of a navigation, in its order."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in entries(part)]


def test_the_navigation_lists_every_page() -> None:
    listed = entries(yaml.load((PROJECT / "mkdocs.yml").read_text(), _Settings)["nav"])
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    studies = {named(path) for path in PROJECT.glob("experiments/*/README.md")}
    assert pages | studies | conf_pages.pages().keys() | {"README.md"} <= set(listed)
    assert len(listed) == len(set(listed))


def test_the_readme_is_short() -> None:
    assert len((PROJECT / "README.md").read_text().splitlines()) <= 150


def test_the_readmes_table_is_that_of_the_study() -> None:
    part = (PROJECT / "README.md").read_text().split("## Minutes, no data or model to download\n")[1].split("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    assert len(lines) == 9
    assert set(lines) <= set((PROJECT / "experiments" / "quickstart" / "README.md").read_text().splitlines())


def test_the_tours_table_is_the_first_seed_of_the_study() -> None:
    rows = json.loads((PROJECT / "experiments" / "quickstart" / "results.json").read_text())
    measured = {row["row"]: row["metrics"] for row in rows if row["seed"] == 1}
    shown = re.findall(
        r"^    │ (.*?) +│ +(.*?)†? │ +(.*?)†? │ +(.*?)†? │$", (DOCS / "tour.md").read_text(), re.MULTILINE
    )
    assert {name for name, *_ in shown} == measured.keys()
    for name, *cells in shown:
        assert cells == [f"{100 * measured[name][metric]:.1f}" for metric in ("MRR@10", "Recall@100", "NDCG@10")], name


def test_every_key_is_explained() -> None:
    assert conf_pages.unexplained() == []
    for path in (PROJECT / "conf").rglob("*.yaml"):
        assert path.read_text().startswith("#"), f"{named(path)}: the first line says what the file is"


def test_comments_are_read_beside_above_and_from_the_file_below(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("# What it is.\na: 1 # of the base\nb: 2 # too\n")
    text = "# @package x\n# Head.\ndefaults: [base, _self_]\na: 3\nc: '#' # beside\n# above\nd: null\ne:\n  f: [1,\n    2]\n"
    (tmp_path / "file.yaml").write_text(text)
    file = conf_pages.read(tmp_path / "file.yaml")
    assert file.head == "Head."
    explained = {key.name: (key.default, key.comment.strip()) for key in file.explained()}
    assert explained == {
        "a": ("3", "of the base"),
        "c": ("'#'", "beside"),
        "d": ("null", "above"),
        "e.f": ("[1, 2]", ""),
    }


def test_the_pages_of_the_configuration_have_every_recipe_and_key() -> None:
    pages = conf_pages.pages()
    recipes = pages["reference/recipes.md"]
    for name in RECIPES:
        section = recipes.split(f"\n## `{name}` ")[1].split("\n## ")[0]
        assert f"experiment={name}" in section or "python run.py" not in section, name
        stages = (conf_pages.read(PROJECT / "conf" / "experiment" / f"{name}.yaml")).whole()["stages"]
        kinds = {stage: value.get("stage", stage) for stage, value in stages.items() if value}
        assert all(f"| `{stage}` | [`{kind}`]" in section for stage, kind in kinds.items()), name
    finetune = pages["reference/keys/stage.md"].split("\n## `finetune` ")[1].split("\n## ")[0]
    defaults = conf_pages.read(PROJECT / "conf" / "stage" / "finetune.yaml").whole()
    assert len(defaults) > 30
    assert all(f"| `{key}` |" in finetune for key in defaults)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed; `make docs` installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "index.html").exists()
