"""Define the config of a table's layout: columns, rows with published numbers, and the measured rows' significance test."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from condensery.errors import UserError, check_known
from condensery.keys import Keys, Text
from condensery.reporting.published import PublishedRow, find

Value = str | int | float | bool | None
Cost = Literal["CPU-seconds of training", "bytes a passage", "milliseconds a query"]


class ColumnLayout(Keys):
    """A column: the published and the measured numbers that it shows.

    Attributes:
        published: key of the published column, such as ``msmarco dev/MRR@10``. None = only measured numbers.
        metric: metric of the measured rows. None = only published numbers.
        split: split of the measured rows; None = the split of the table.
        collection: collection of the measured rows; None = one block per collection.
        where: settings that the measured rows must have, such as ``stage.finetune.train_queries: 1000``.
        ending: suffix of row names, such as `` + hard negatives``. The column shows the measured rows with this suffix, each
            in the line named by the rest of the row's name. A column without an ending shows the rows whose names have no
            other column's ending.
        best: which number is marked as the best.
    """

    published: Text | None = None
    metric: Text | None = None
    split: Text | None = None
    collection: Text | None = None
    where: dict[Text, Value] = Field({})
    ending: Text = ""
    best: Literal["highest", "lowest", "none"] = "highest"


class OwnRow(Keys):
    """A published row that is in no file of the package.

    Attributes:
        source: source of the numbers.
        values: label of a column -> the published number.
    """

    source: Text
    values: dict[Text, Decimal | None]


References = Annotated[list[Text], Field(min_length=1), BeforeValidator(lambda v: [v] if isinstance(v, str) else v)]


def _exist(value: dict[str, Any]) -> dict[str, Any]:
    try:
        list(published_rows(value))
    except UserError as error:
        raise ValueError(str(error)) from None
    return value


class TableLayout(Keys):
    """The layout of a table. Without columns, the table shows all measured numbers and no published numbers.

    Attributes:
        title: title above the table; None = the name of the run.
        columns: label -> column.
        published: class -> label of the row -> references to rows of papers (``PAPER/TABLE/ROW``), or a row with its own
            values.
        within: maximum difference from the best number of its class at which a published number is also marked.
        test: significance test of measured rows against the baseline.
        level: significance level of the Holm-corrected p-value.
    """

    title: Text | None
    columns: dict[Text, ColumnLayout]
    published: Annotated[dict[Text, dict[Text, OwnRow | References]], AfterValidator(_exist)]
    within: Annotated[float, Field(ge=0)]
    test: Literal["randomisation", "t"]
    level: Annotated[float, Field(gt=0, lt=1)]

    @model_validator(mode="after")
    def _has_columns_for_its_rows(self) -> Self:
        if self.published and not self.columns:
            raise ValueError("columns: published rows need columns, for example columns={MRR@10: {metric: MRR@10}}")
        rows = [row for _, _, rows in published_rows(self.published) for row in rows]
        known = {row.table.key(column) for row in rows for column in row.table.columns}
        for label, column in self.columns.items():
            if known and column.published is not None:
                missing = f"no table of the published rows has a column {column.published!r}"
                check_known(column.published, known, f"columns.{label}.published: {missing}", ValueError)
        for named in self.published.values():
            for name, row in named.items():
                for label in row.values if isinstance(row, OwnRow) else ():
                    missing = f"the row {name!r} has a number for {label!r}, which is no column of the table"
                    check_known(label, self.columns, f"published: {missing}", ValueError)
        return self


def published_rows(published: dict[str, Any]) -> Iterator[tuple[str, str, list[PublishedRow]]]:
    """Yield (class, label, rows of papers) for each published line. The list is empty for a row with its own values."""
    for name, named in published.items():
        for label, given in named.items():
            yield name, label, [] if isinstance(given, OwnRow) else [find(reference) for reference in given]
