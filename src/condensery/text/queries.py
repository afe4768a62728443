"""Read published files of queries that were generated for passages, and sort the queries by the row of their passage."""

import glob
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Any, Literal
from unicodedata import category

import numpy as np

from condensery.errors import UserError, shown
from condensery.system.files import expanded
from condensery.system.inputs import FOLDER, fault, standing
from condensery.system.progress import progress
from condensery.text.lines import check_whole, fields_of, read_columns, read_lines, read_objects
from condensery.text.table import TableWriter, TextTable

Format = Literal["jsonl", "tsv", "lines"]
Pair = tuple[int, str]  # row of the passage, query

_IDS = ("id", "_id", "passage")
_QUERIES = ("queries", "predicted_queries", "query", "querygen", "text")
_ENDINGS: dict[str, Format] = {".jsonl": "jsonl", ".json": "jsonl", ".tsv": "tsv"}
_READ = 4096  # rows at a time


def query_files(path: str) -> list[Path]:
    """Return the sorted files that ``path`` (a file, a folder or a glob) names. Raises ``UserError`` if none exists."""
    named = expanded(path)
    what = standing(named)
    if what == FOLDER:
        none = "this folder holds no file; give a folder with files of queries"
        fitting = [file for file in named.iterdir() if not file.name.startswith(".")]
    else:
        none = "no such file or folder, and no file matches the pattern; give files of queries"
        fitting = [named] if what else [*map(Path, glob.glob(str(named), recursive=True))]
    files = [file for file in fitting if standing(file) != FOLDER]
    if not files:
        raise UserError(f"{named}: {none}")
    for file in files:
        if why := fault(file):
            raise UserError(f"{file}: {why}; it should be a file of queries")
    return sorted(files)


def format_of(files: list[Path]) -> Format:
    """Return the format that ``auto`` stands for, judged by the extension of the first file or else by its first line."""
    name = files[0].name.removesuffix(".gz")
    for ending, known in _ENDINGS.items():
        if name.endswith(ending):
            return known
    line = next((text for _, text in read_lines(files[0]) if text.strip()), "")
    return "jsonl" if line.lstrip().startswith("{") else "tsv" if "\t" in line else "lines"


def read_query_files(files: list[Path], kind: Format, passages: TextTable) -> Iterator[Pair]:
    """Yield (row of the passage, query) for every query, in the order of the files.

    Args:
        files: the files of queries, as ``query_files`` lists them.
        kind: the format of the files:

            - jsonl: one object per line, with the id of a passage (id, _id or passage) and its queries. The field
              queries, predicted_queries, query or text holds a string or a list of strings. The field querygen holds one
              string with one query per line.
            - tsv: id of a passage, tab, query. A passage may have several lines.
            - lines: line i of each file is a query of passage i. A blank line is ignored. The queries of docTTTTTquery
              are published in this form.
        passages: the table of passages that the ids, or the line numbers, refer to.

    Raises:
        UserError: a line is malformed or names an unknown passage, or the number of lines of a ``lines`` file differs
            from the number of passages.
    """
    if kind == "lines":
        yield from _by_line(files, len(passages))
        return
    read = _objects if kind == "jsonl" else _columns
    for place, identifier, queries in chain.from_iterable(map(read, files)):
        row = int(passages.rows_of([identifier])[0])
        if row < 0:
            raise UserError(
                f"{place}: no passage has the id {shown(identifier)!r}; the ids are those of passages.arrow"
                f"{passages.unlike(identifier)}"
            )
        for query in queries:
            yield row, query


def _columns(file: Path) -> Iterator[tuple[str, str, list[str]]]:
    for place, (identifier, query) in read_columns(file, ["passage id", "query"]):
        yield place, identifier, [query]


def _objects(file: Path) -> Iterator[tuple[str, str, list[str]]]:
    for place, record in read_objects(file):
        identifier = record[_one_of(record, _IDS, place)]
        if not isinstance(identifier, str | int) or isinstance(identifier, bool):
            raise UserError(f"{place}: the id of the passage must be a string or a whole number")
        name = _one_of(record, _QUERIES, place)
        value = record[name]
        queries = value.split("\n") if name == "querygen" and isinstance(value, str) else value
        queries = [queries] if isinstance(queries, str) else queries
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            raise UserError(f'{place}: the field "{name}" must be a string or a list of strings')
        for query in queries:
            check_whole(query, "query", place)
        yield place, str(identifier), queries


def _one_of(record: dict[str, Any], names: tuple[str, ...], place: str) -> str:
    name = next((name for name in names if record.get(name) is not None), None)
    if name is None:
        raise UserError(f"{place}: needs one of the fields {', '.join(names)} ({fields_of(record)})")
    return name


def _by_line(files: list[Path], passages: int) -> Iterator[Pair]:
    """Read line i of all files before line i + 1, so that all queries of a passage are consecutive."""
    wanted, row = f"line i must be a query of passage i of {passages:,}", -1
    with progress("reading queries", passages, "passages") as task:
        for row, lines in enumerate(zip_longest(*(read_lines(file, show=False) for file in files))):
            for file, line in zip(files, lines, strict=True):
                if line is None and row < passages:
                    raise UserError(f"{file}: ends after {row:,} lines, but {wanted}")
                if line is not None and row >= passages:
                    raise UserError(f"{line[0]}: there are more lines than passages; {wanted}")
                if line is not None:
                    yield row, line[1]
            task.advance()
    if row + 1 < passages:
        raise UserError(f"{files[0]}: ends after {row + 1:,} lines, but {wanted}")


def distinct(queries: Iterable[str]) -> list[str]:
    """Return the distinct queries that have a visible character, in order. Each run of white space becomes one space.

    Letters, numbers, punctuation and symbols are visible, because every tokenizer keeps them. U+FFFD, which replaces an
    invalid byte, counts as invisible.
    """
    evened = (" ".join(query.split()) for query in queries)
    return list(dict.fromkeys(one for one in evened if any(category(c)[0] in "LNPS" and c != "\ufffd" for c in one)))


def by_passage(pairs: Iterable[Pair], passages: int, scratch: Path) -> Iterator[list[str]]:
    """Read all pairs, in any order. Yield the distinct queries (see ``distinct``) of each passage, by row.

    The queries are stored in the file ``scratch``, which is removed at the end. Memory holds only the row of each query's
    passage.
    """
    row_numbers = array("q")
    with TableWriter(scratch, ("text",)) as table:
        for row, query in pairs:
            table.add((query,), len(query))
            row_numbers.append(row)
    rows = np.frombuffer(row_numbers, np.int64)
    order = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(passages + 1))
    column = TextTable(scratch).column("text")
    for first in range(0, passages, _READ):
        last = min(first + _READ, passages)
        texts = column.take(order[starts[first] : starts[last]])
        for begin, end in pairwise((starts[first : last + 1] - starts[first]).tolist()):
            yield distinct(texts[begin:end])
    scratch.unlink()
