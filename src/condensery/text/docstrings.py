"""Read docstrings from Python source without importing it, and split each docstring into a query and a passage.

The query is the docstring's first sentence. The passage is the rest, so a query is never part of its passage.
Mark-up, doctests, code and rulers are removed. Prose and the descriptions of parameters stay.
"""

import ast
import gc
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from condensery.text.words import number_of_words

QUERY_WORDS = range(3, 33)  # a shorter sentence is a heading ("Base class."), a longer one lacks its full stop

_FENCE = re.compile(r"^\s*(```|~~~)")
_RULER = re.compile(r"^\s*[-=~^*#+_`.]{3,}\s*$")
_DIRECTIVE = re.compile(r"^(\s*)\.\.(\s|$)")
_CODE_DIRECTIVE = re.compile(
    r"^\s*\.\.\s+(code|code-block|sourcecode|math|plot|image|figure|ipython|doctest|table|testcode)\s*::"
)
_KEPT_DIRECTIVE = re.compile(r"^(\s*)\.\.\s+(note|warning|tip|important|caution|attention|seealso)\s*::\s*")
_TARGET = re.compile(r"\s*<[^<>`]*>$")
_TAG = re.compile(r"^\s*</?[A-Za-z]+[^<>]*>\s*$")
_SIGNATURE = re.compile(r"^[\w.]+\s*\(.*\)\s*(->.*)?$")
_PARAMETER = re.compile(r"^\s*[-*]?\s*[`*]*\w+[`*]*\s*(\(.*\)|:\s|\([`\[])")
_HEADING = re.compile(
    r"^\s*(args?|arguments?|parameters?|inputs?|outputs?|returns?|raises?|yields?|examples?|notes?|attributes?|references?"
    r"|see also|usage|todo|fixme|warnings?|keyword arguments?|shapes?|methods|other parameters|warns|hyperparameters)"
    r"\s*:?\s*$",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*(?=\s)(?!\s+[a-z])|[。！？।]|:(?=\s*\n)")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|al|approx|resp|incl|no|fig|eq|sec|dr|mr|st|[a-z])|\.\.)\.$", re.IGNORECASE
)
_PROMPT = re.compile(r"^\s*(>>>|In \[\d+\]:)")
_SPACES = re.compile(r"[ \t\f\v\xa0]+")
_LETTER = re.compile(r"[^\W\d_]")


class Docstring(NamedTuple):
    """A docstring of a module, split into query and passage. ``query`` is empty if the first sentence is unfit as a query."""

    module: str
    line: int
    query: str
    passage: str


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, docstring) for a module, its functions, classes and methods, in order. Nested functions are left out.

    A file that this interpreter cannot parse, such as a template or a file for another Python version, yields nothing.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from _documented(tree)


def _documented(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        text = ast.get_docstring(node)
        if text:
            yield node.body[0].lineno, text
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    for name in ("body", "orelse", "handlers", "finalbody"):
        for child in getattr(node, name, ()):
            if isinstance(child, ast.stmt | ast.ExceptHandler):
                yield from _documented(child)


def cut(text: str, minimum_words: int) -> tuple[str, str] | None:
    """Split a docstring into (query, passage).

    Returns:
        (query, passage). The query is empty if the first sentence is unfit as a query. The result is ``None`` if the
        passage has fewer than ``minimum_words`` words or the docstring only lists parameters.
    """
    if number_of_words(text) < minimum_words:
        return None
    paragraphs = [part for part in _paragraphs(_prose_lines(text.splitlines())) if not _HEADING.match(part)]
    while paragraphs and _SIGNATURE.match(paragraphs[0]):
        del paragraphs[0]
    if not paragraphs or _PARAMETER.match(paragraphs[0]):
        return None
    query, rest = first_sentence(paragraphs[0])
    if _is_query(query):
        paragraphs[0] = rest
    else:
        query = ""
    passage = "\n".join(paragraph for paragraph in paragraphs if paragraph)
    return (query, passage) if number_of_words(passage) >= minimum_words else None


def first_sentence(paragraph: str) -> tuple[str, str]:
    """Split a paragraph into (first sentence, rest). The rest is empty if the paragraph is one sentence."""
    for match in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph, 0, match.start() + 1):
            return paragraph[: match.end()].strip(), paragraph[match.end() :].strip()
    return paragraph.strip(), ""


def _is_query(sentence: str) -> bool:
    spoken = " ".join(word for word in sentence.split() if _LETTER.search(word))
    enough = number_of_words(spoken) >= QUERY_WORDS.start
    return number_of_words(sentence) in QUERY_WORDS and enough and "://" not in sentence


def _prose_lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines without doctests, fenced and indented code, directives, rulers and mark-up."""
    at, count = 0, len(lines)
    while at < count:
        line = lines[at]
        at += 1
        if _PROMPT.match(line):
            while at < count and lines[at].strip():  # a doctest and its output end at a blank line
                at += 1
        elif _FENCE.match(line):
            while at < count and not _FENCE.match(lines[at]):
                at += 1
            at += 1
        elif _CODE_DIRECTIVE.match(line):
            at = _skip_block(lines, at, _indent(line))
        elif _RULER.match(line) or _TAG.match(line):
            continue
        elif kept := _KEPT_DIRECTIVE.match(line):
            yield ""
            yield clean(kept[1] + line[kept.end() :])
        elif _DIRECTIVE.match(line):
            yield ""
        elif line.rstrip().endswith("::"):
            yield clean(line.rstrip()[:-1]) if line.strip() != "::" else ""
            at = _skip_block(lines, at, _indent(line))
        else:
            yield clean(line)


def _skip_block(lines: list[str], at: int, indent: int) -> int:
    """Return the index of the first line from ``at`` on that is neither blank nor indented deeper than ``indent``."""
    while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > indent):
        at += 1
    return at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def clean(line: str) -> str:
    """Remove reStructuredText and Markdown mark-up from a line. The indentation stays."""
    for sign, mark_up, plain in _MARK_UP:
        if sign in line:
            line = mark_up.sub(plain, line)
    return line


_MARK_UP = (  # (a string that every match contains, the pattern of the mark-up, its replacement); the order matters
    ("#", re.compile(r"^(\s*)#+\s+"), r"\1"),
    ("`", re.compile(r":[a-zA-Z:+-]+:`([^`]*)`"), lambda match: _TARGET.sub("", match[1]).lstrip("~!")),
    ("`", re.compile(r"\[`[~!]?([^`\[\]]+)`\]"), r"\1"),
    ("`", re.compile(r"`+([^`]*)`+_{0,2}"), r"\1"),
    ("<http", re.compile(r"\s*<https?://[^>\s]*>"), ""),
    ("](", re.compile(r"\[([^\[\]]+)\]\((?:[^()\s]*)\)"), r"\1"),
    ("*", re.compile(r"(?<![\w*])\*{1,2}([^\s*](?:[^*]*[^\s*])?)\*{1,2}(?![\w*])"), r"\1"),
    (":", re.compile(r"^(\s*):(?:param|arg|argument|keyword|raises?|type|var|ivar|cvar)\s+([^:]*):\s*"), r"\1\2: "),
    (":", re.compile(r"^(\s*):(?:returns?|rtype|yields?):\s*"), r"\1Returns: "),
)


def _paragraphs(lines: Iterator[str]) -> Iterator[str]:
    """Join lines into paragraphs.

    A paragraph ends at a blank line, before a heading such as "Args:", and where the indentation decreases.
    """
    held: list[str] = []
    indent = 0
    for line in lines:
        shown = _SPACES.sub(" ", line).strip()
        if held and (not shown or _indent(line) < indent or _HEADING.match(shown)):
            yield " ".join(held)
            held = []
        if shown:
            held.append(shown)
            indent = _indent(line)
    if held:
        yield " ".join(held)


def read_file(module: str, path: Path, minimum_words: int) -> list[Docstring]:
    """Return the docstrings of a module's file whose passage has at least ``minimum_words`` words, in order."""
    collecting = gc.isenabled()
    gc.disable()  # garbage collection would take a third of the time; syntax trees are freed without it
    try:
        pieces = ((line, cut(text, minimum_words)) for line, text in docstrings(path))
        return [Docstring(module, line, *both) for line, both in pieces if both]
    finally:
        if collecting:
            gc.enable()
