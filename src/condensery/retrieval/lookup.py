"""Map the ids in a file to row numbers of a collection. An unknown id raises an error that names its line."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.text.collection import Collection
from condensery.text.lines import check_whole, field
from condensery.text.table import TextTable

OTHER = "; take a file of this collection, or remove the line"
LINES = 4096  # lines whose ids are looked up together

Item = TypeVar("Item")
Kind = Literal["query", "passage"]


def in_blocks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of ``size``; the last list may be shorter."""
    rest = iter(items)
    while block := list(islice(rest, size)):
        yield block


def rows_of(table: TextTable, ids: Sequence[str] | pa.Array) -> NDArray[np.int64]:
    """Return the row number of each id (n,), -1 for an unknown id. Every distinct id is looked up once."""
    encoded = pa.array(ids, pa.string()).dictionary_encode()
    rows: NDArray[np.int64] = table.rows_of(encoded.dictionary.to_pylist())
    return rows[encoded.indices.to_numpy()] if len(rows) else np.empty(0, np.int64)


def known_rows(
    collection: Collection, kind: Kind, ids: Sequence[str] | pa.Array, place: Callable[[int], str]
) -> NDArray[np.int64]:
    """Return the row numbers (n,) of ids of queries, or of passages.

    Args:
        collection: the collection of the queries and passages.
        kind: whether the ids are query ids or passage ids.
        ids: the ids (n,).
        place: maps the index of an id to its file and line, for the error message.

    Raises:
        UserError: an id is unknown. The message begins with the file and line of the first unknown id.
    """
    table = collection.queries if kind == "query" else collection.passages
    rows = rows_of(table, ids)
    if len(rows) and rows.min() < 0:
        at = int(np.argmax(rows < 0))
        name = str(ids[at])
        known = f"is unknown (in '{collection.name}'){table.unlike(name) or OTHER}"
        raise UserError(f"{place(at)}: {kind} {shown(name)!r} {known}")
    return rows


def rows_of_lists(
    collection: Collection, places: Sequence[str], lists: Sequence[Sequence[str]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lengths (n,) of n lists of passage ids, and the row numbers of all their passages, concatenated.

    ``places``: the file and line of each list. Raises ``UserError`` as ``known_rows`` does.
    """
    lengths = np.array([*map(len, lists)], np.int64)
    list_of = np.repeat(np.arange(len(lists)), lengths)
    return lengths, known_rows(collection, "passage", [*chain(*lists)], lambda at: places[int(list_of[at])])


def first_repeated(values: NDArray[np.int64]) -> int | None:
    """Return the index of the first value that repeats an earlier value; None if all values are distinct."""
    order = np.argsort(values, kind="stable")
    repeated = order[1:][values[order][1:] == values[order][:-1]]
    return int(repeated.min()) if len(repeated) else None


def query_and_ids(record: dict[str, Any], name: str, place: str) -> tuple[str, list[str]]:
    """Return the ``query_id`` of a JSON object, and the list of ids in its field ``name``.

    ``place``: file and line of the object, for error messages.

    Raises:
        UserError: a field is missing, or an id is not a string.
    """
    query, ids = field(record, "query_id", place, str), field(record, name, place, object)
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise UserError(f"{place}: {name} must be a list of strings")
    for identifier in (query, *ids):
        check_whole(identifier, "id", place)
    return query, ids
