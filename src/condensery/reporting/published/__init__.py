"""Read the numbers printed in papers, with their sources. Tables show them beside measured numbers, marked as published.

Each YAML file in this folder describes one paper, which has a code of one or two letters: C for condenser.yaml, E for
condenser_early_version.yaml, CO for cocondenser.yaml, Q for query_as_context.yaml, and A for adaptive_batch_scheduling.yaml.
The file contains the paper's tables, with their columns and rows, and every number as printed. For each row it also has the
command that measures the row in this project, or the reason why no command does.

``CO/1/BM25`` names a row by paper, table and row. ``msmarco dev/MRR@10/1K`` names a column by data set, metric and, if there
is one, condition.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationError

from condensery.errors import UserError, check_known
from condensery.keys import Keys

FOLDER = Path(__file__).parent
UNITS = {"percent": 0, "fraction": 2, "plain": 0}  # power of ten from the printed to the shown number


class PublishedColumn(Keys):
    """A column of a table.

    Attributes:
        metric: name of the metric.
        of: data set and split; empty = the data set and split of the table.
        condition: condition of the numbers, such as the number of training queries; empty = none.
        unit: unit of the printed numbers; empty = the unit of the table.
    """

    metric: str
    of: str = ""
    condition: str = ""
    unit: Literal["percent", "fraction", "plain", ""] = ""


class PublishedTable(Keys):
    """A table of a paper.

    Attributes:
        rows: class -> row -> the printed number in each column, or ``None`` if nothing is printed.
        measured: command -> the rows of this table that it measures -> the corresponding row of the command's own table.
        not_measured: row -> the reason why no recipe measures it.
        in_part: row with a recipe -> which of its columns no recipe measures, and why.
    """

    caption: str
    of: str
    unit: Literal["percent", "fraction"] = "percent"
    columns: list[PublishedColumn]
    rows: dict[str, dict[str, list[Decimal | None]]]
    measured: dict[str, dict[str, str]] = Field({})
    not_measured: dict[str, str] = Field({})
    in_part: dict[str, str] = Field({})
    notes: list[str] = Field([])

    def by_row(self) -> dict[str, list[Decimal | None]]:
        """Return the rows of all classes in one mapping, row -> printed numbers."""
        return {name: values for named in self.rows.values() for name, values in named.items()}

    def shown(self, row: str) -> dict[str, Decimal]:
        """Return the numbers of a row in the form that tables show, by column key.

        Shares are in percent, with the printed digits.
        """
        printed = zip(self.columns, self.by_row()[row], strict=True)
        return {self.key(at): value.scaleb(UNITS[at.unit or self.unit]) for at, value in printed if value is not None}

    def key(self, column: PublishedColumn) -> str:
        """Return the key of one of the table's columns: ``of/metric`` or ``of/metric/condition``."""
        return "/".join(part for part in (column.of or self.of, column.metric, column.condition) if part)


class Paper(Keys):
    """A paper, or one version of a paper, and its tables by number."""

    key: str
    title: str
    authors: list[str]
    year: int | None
    venue: str
    tables: dict[str, PublishedTable]

    @property
    def citation(self) -> str:
        """Authors, title, venue and year in one line."""
        when = f", {self.year}" if self.year else ""
        return f"{self.key}: {', '.join(self.authors)}. {self.title.rstrip('?')}. {self.venue}{when}."


@dataclass(frozen=True)
class PublishedRow:
    """A row of a paper's table.

    Attributes:
        number: number of the table in the paper.
        values: column key -> number, in the form that tables show.
        commands: commands that measure the row here.
        reason: why no command measures the row, or some of its columns; empty if commands measure all of it.
    """

    paper: Paper
    number: str
    table: PublishedTable
    values: dict[str, Decimal]
    commands: tuple[str, ...] = ()
    reason: str = ""

    @property
    def source(self) -> str:
        """Paper and table, such as ``CO t1``."""
        return f"{self.paper.key} t{self.number}"


def read_paper(path: Path) -> Paper:
    """Read the file of a paper. Raises ``UserError``, which names the file and the error in it."""
    try:  # numbers are read as strings, so that 0.230 keeps its final zero
        return Paper.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise UserError(f"{path}:{line}: not valid YAML ({error.problem})") from None
    except ValidationError as error:
        first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")  # a misspelt key comes first
        place = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{path}: {place or 'the file'}: {first['msg']}") from None


class _Loader(yaml.BaseLoader):
    """YAML loader that reads scalars as strings, and ``null`` as None."""


NULL = "tag:yaml.org,2002:null"
_Loader.add_implicit_resolver(NULL, re.compile("null"), ["n"])
_Loader.add_constructor(NULL, lambda loader, node: None)


@cache
def papers() -> dict[str, Paper]:
    """Return all papers of the package by key."""
    return {paper.key: paper for paper in map(read_paper, sorted(FOLDER.glob("*.yaml")))}


def find(reference: str) -> PublishedRow:
    """Return the row that ``PAPER/TABLE/ROW`` names. If there is none, raise ``UserError`` with the known names."""
    parts = reference.split("/", 2)  # the name of a row may contain a slash
    if len(parts) < 3:
        raise UserError(f"{reference!r} is not of the form PAPER/TABLE/ROW, such as CO/1/BM25")
    key, number, row = parts
    paper = papers().get(key)
    if paper is None:
        raise UserError(f"{reference!r}: there is no paper {key!r} (known: {', '.join(sorted(papers()))})")
    table = paper.tables.get(number)
    if table is None:
        raise UserError(f"{reference!r}: {key} has no table {number!r} (known: {', '.join(paper.tables)})")
    check_known(row, table.by_row(), f"{reference!r}: table {number} of {key} has no row {row!r}")
    commands = tuple(command for command, own in table.measured.items() if row in own)
    reason = (table.not_measured | table.in_part).get(row, "")
    return PublishedRow(paper, number, table, table.shown(row), commands, reason)
