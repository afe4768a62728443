"""Map ids of a file to rows of a collection; an unknown id is an error that names its place in the file."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.text.collection import Collection
from condensery.text.lines import check_whole, field
from condensery.text.table import TextTable


def rows_of(table: TextTable, ids: Sequence[str] | pa.Array) -> NDArray[np.int64]:
    """Return the row of each id (n,), -1 where the table has no such id. Every distinct id is looked up once."""
    encoded = pa.array(ids, pa.string()).dictionary_encode()
    rows: NDArray[np.int64] = table.rows_of(encoded.dictionary.to_pylist())
    return rows[encoded.indices.to_numpy()] if len(rows) else np.empty(0, np.int64)


def known_rows(
    collection: Collection,
    kind: Literal["query", "passage"],
    ids: Sequence[str] | pa.Array,
    place: Callable[[int], str],
) -> NDArray[np.int64]:
    """Return the row of each id (n,) of queries or of passages.

    Raises:
        UserError: an id is unknown; the message begins with ``place`` of the number of the first unknown id.
    """
    table = collection.queries if kind == "query" else collection.passages
    rows = rows_of(table, ids)
    if len(rows) and rows.min() < 0:
        at = int(np.argmax(rows < 0))
        name = str(ids[at])
        known = f"is unknown (in '{collection.name}'){table.unlike(name)}"
        raise UserError(f"{place(at)}: {kind} {shown(name)!r} {known}")
    return rows


def first_repeated(values: NDArray[np.int64]) -> int | None:
    """Return the first place of a value that occurred before; None where no value repeats."""
    order = np.argsort(values, kind="stable")
    repeated = order[1:][values[order][1:] == values[order][:-1]]
    return int(repeated.min()) if len(repeated) else None


def query_and_ids(record: dict[str, Any], name: str, place: str) -> tuple[str, list[str]]:
    """The ``query_id`` of a JSON object, and the ids in its field ``name``. Raises ``UserError`` for other than strings."""
    query, ids = field(record, "query_id", place, str), field(record, name, place, object)
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise UserError(f"{place}: {name} must be a list of strings")
    for identifier in (query, *ids):
        check_whole(identifier, "id", place)
    return query, ids
