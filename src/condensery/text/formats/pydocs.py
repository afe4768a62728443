"""Read *pydocs*, the collection that needs no download: the docstrings of installed Python packages.

Each docstring with at least ``minimum_words`` words after its first sentence gives a passage. The first sentence is the
query, whose relevant passage is the rest. The module is the document. A hash of the module's name assigns the whole module
to train, dev or test. The collection leaves out:

- tests and tools for tests, ``idlelib``, ``lib2to3``, ``turtledemo``, vendored code (``LEFT_OUT``);
- the files from which transformers generates copies (``COPIES``), because the copies are read;
- near-duplicates of an earlier passage (MinHash over runs of three words), which are frequent among copied docstrings;
- boilerplate: paragraphs that occur in more than ``BOILERPLATE`` docstrings;
- docstrings that only list parameters.

A passage has no query if the first sentence of its docstring meets one of three conditions:

- The sentence has fewer than three or more than 32 words.
- The sentence is also the first sentence of another passage's docstring, so that the query would be ambiguous.
- The sentence occurs inside a passage of the collection. Without such queries, the text for pre-training contains no query.

The text differs between versions of the interpreter and of the packages, so report the content hash with every result.
"""

import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from condensery.errors import UserError
from condensery.system.children import Parent, cores
from condensery.system.progress import progress
from condensery.system.signals import deaf_to_ctrl_c
from condensery.system.spawning import spawning
from condensery.text.docstrings import Docstring, read_file
from condensery.text.duplicates import contained, first_of_each, sketches, words
from condensery.text.formats import CollectionWriter
from condensery.text.records import Passage, Query
from condensery.text.sizes import CollectionSizes
from condensery.text.source import DataConfig
from condensery.text.words import number_of_words

if TYPE_CHECKING:
    from datasketch import MinHash

STDLIB = "stdlib"
LEFT_OUT = {"test", "tests", "testing", "idlelib", "lib2to3", "turtledemo", "_vendor"}
LEFT_OUT |= {"site-packages", "dist-packages", "__pycache__"}
COPIES = "modular_"  # prefix of the files from which transformers generates its modelling files
BOILERPLATE = 12
FILES = 16  # files that a worker reads at a time
SHARE_DEV, SHARE_TEST = 0.04, 0.16  # shares of the modules


class SourceFile(NamedTuple):
    """A Python file: module name, path, and size in bytes."""

    module: str
    path: str
    size: int


class PydocsSource(DataConfig):
    """The docstrings of ``packages``: installed top-level packages, or ``stdlib`` for the standard library."""

    format: Literal["pydocs"] = "pydocs"
    packages: list[str] = Field(min_length=1)
    minimum_words: int = Field(ge=1)
    near_duplicate: float = Field(gt=0, le=1)
    workers: int = Field(ge=0)

    outside_identity: ClassVar[set[str]] = {"workers"}

    def check(self) -> None:
        """Raise ``UserError`` when a package is not installed. No package is imported."""
        for package in self.packages:
            package_folder(package)

    def sizes(self) -> CollectionSizes:
        """Estimate the size of the collection from the size of the source files.

        The standard library, torch, transformers and numpy give 126 passages per megabyte.
        """
        megabytes = sum(file.size for package in self.packages for file in source_files(package)) / 1e6
        passages = 126 * megabytes
        query_count = 0.87 * passages
        shares = {"train": 1 - SHARE_DEV - SHARE_TEST, "dev": SHARE_DEV, "test": SHARE_TEST}
        queries = {split: share * query_count for split, share in shares.items()}
        return CollectionSizes(passages, 127, None, None, queries, reading=0.23 * megabytes)

    def fingerprint(self) -> str:
        """Return the identity of the input: a hash of versions, of module names and file sizes, and of config keys.

        The versions are the version of the interpreter and the versions of the packages.
        """
        versions = [platform.python_implementation(), platform.python_version()]
        versions += [_version(package) for package in self.packages if package != STDLIB]
        files = [[file.module, file.size] for package in self.packages for file in source_files(package)]
        return self._digest([versions, files])


def package_folder(package: str) -> Path:
    """Return the folder of an installed package. Raises ``UserError`` when no such package is installed."""
    if package == STDLIB:
        return Path(sysconfig.get_path("stdlib"))
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f'data.packages: no package "{package}" is installed; install it or leave it out')
    return Path(next(iter(spec.submodule_search_locations)))


def _version(package: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return "unknown"


def source_files(package: str) -> tuple[SourceFile, ...]:
    """Return the Python files of a package that are read, sorted by module. Tests are left out."""
    return _files_below(package_folder(package), () if package == STDLIB else (package,))


@cache
def _files_below(root: Path, prefix: tuple[str, ...]) -> tuple[SourceFile, ...]:
    """Return the Python files below ``root``, sorted by module; module names begin with ``prefix``.

    The list is cached for the process, because the sizes, the fingerprint and the reader need the same thousands of
    files.
    """
    files = []
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in LEFT_OUT]
        parts = prefix + Path(folder).relative_to(root).parts
        for name in names:
            if name.endswith(".py") and not name.startswith(COPIES):
                module = ".".join(parts if name == "__init__.py" else (*parts, name[:-3]))
                path = os.path.join(folder, name)  # a string, because making a Path takes longer than reading the size
                files.append(SourceFile(module, path, os.stat(path).st_size))
    return tuple(sorted(files, key=lambda file: (file.module, file.path.split(os.sep))))


def read(config: PydocsSource, writer: CollectionWriter) -> None:
    """Read the docstrings into ``writer``. Ids are ``module:line``. The result does not depend on ``workers``."""
    files = [file for package in dict.fromkeys(config.packages) for file in source_files(package)]
    entries, min_hashes = _extract(files, config)
    keep = first_of_each(min_hashes, config.near_duplicate)
    writer.dropped["near_duplicates"] += len(keep) - sum(keep)
    entries = [entry for entry, new in zip(entries, keep, strict=True) if new]
    entries = _without_boilerplate(entries, config.minimum_words, writer)
    for entry in _without_unclear_queries(entries, writer):
        identifier = f"{entry.module}:{entry.line}"
        writer.add_passage(Passage(identifier, "", entry.passage, entry.module), identifier)
        if entry.query:
            writer.add_judgement(split_of(entry.module), identifier, identifier, 1, identifier)
            writer.add_query(Query(identifier, entry.query), identifier)


def _extract(files: list[SourceFile], config: PydocsSource) -> tuple[list[Docstring], "list[MinHash]"]:
    """Return the docstrings of all files, in order, and the MinHash of each docstring."""
    entries: list[Docstring] = []
    min_hashes: list[MinHash] = []
    with _mapper(config.workers) as run, progress("reading docstrings", len(files), "files") as task:
        for found, sketched in run(partial(_read_one, minimum_words=config.minimum_words), files, FILES):
            entries += found
            min_hashes += sketched
            task.advance()
    return entries, min_hashes


def _read_one(file: SourceFile, minimum_words: int) -> tuple[list[Docstring], "list[MinHash]"]:
    """Return the docstrings of a file and their MinHashes."""
    entries = read_file(file.module, Path(file.path), minimum_words)
    return entries, sketches([entry.passage for entry in entries])


@contextmanager
def _mapper(workers: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """Yield a function that maps items in order, in ``workers`` processes (1: this process, 0: one per core).

    A process gets as many items at a time as the third argument of the function says.
    """
    workers = workers or cores()
    if workers == 1:
        yield lambda work, items, size: map(work, items)
        return
    # a process starts fastest by fork, but a fork is unsafe while other threads run
    alone = sys.platform == "linux" and threading.active_count() == 1
    context = multiprocessing.get_context("fork") if alone else spawning(f"workers={workers}")
    with ProcessPoolExecutor(workers, context, Parent.here().end_with) as pool:

        def mapped(work: Callable[[Any], Any], items: Iterable[Any], size: int) -> Iterator[Any]:
            with deaf_to_ctrl_c():
                return pool.map(work, items, chunksize=size)

        yield mapped


def _without_boilerplate(entries: list[Docstring], minimum_words: int, writer: CollectionWriter) -> list[Docstring]:
    """Remove paragraphs that occur in more than ``BOILERPLATE`` passages. Then remove passages that are now too short."""
    counts = Counter(part for entry in entries for part in set(entry.passage.split("\n")))
    kept = []
    for entry in entries:
        passage = "\n".join([part for part in entry.passage.split("\n") if counts[part] <= BOILERPLATE])
        if number_of_words(passage) >= minimum_words:
            kept.append(entry._replace(passage=passage))
    writer.dropped["only_boilerplate"] += len(entries) - len(kept)
    return kept


def _without_unclear_queries(entries: list[Docstring], writer: CollectionWriter) -> list[Docstring]:
    """Replace each query that several passages have, or that occurs inside a passage, by an empty string."""
    counts = Counter(" ".join(words(entry.query)) for entry in entries)
    repeated = [counts[" ".join(words(entry.query))] > 1 for entry in entries]
    quoted = contained([entry.query for entry in entries], (entry.passage for entry in entries))
    clear = []
    for entry, again, inside in zip(entries, repeated, quoted, strict=True):
        if entry.query and (again or inside):
            writer.dropped["repeated_queries" if again else "queries_inside_passages"] += 1
            entry = entry._replace(query="")
        clear.append(entry)
    return clear


def split_of(module: str) -> str:
    """Return the split of a module, train, dev or test, by the hash of the module's name."""
    from condensery.randomness import hash64  # imports NumPy, which a dry run does not need

    draw = hash64("pydocs", module) / 2.0**64
    return "test" if draw < SHARE_TEST else "dev" if draw < SHARE_TEST + SHARE_DEV else "train"
