"""Store hard negatives: as memory-mapped arrays of row numbers for training, and as JSONL for exchange.

JSONL has one query per line, best negative first: {"query_id": ..., "negative_ids": [...], "scores": [...]}. ``scores`` is
optional. Every line is checked, because users also supply files from other programs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.retrieval.lookup import LINES, first_repeated, in_blocks, known_rows, query_and_ids, rows_of_lists
from condensery.retrieval.no_negatives import packed
from condensery.retrieval.passage_lists import WRITTEN, PassageLists, in_rows, write_lists
from condensery.retrieval.relabelled import FILE, NOTHING, Relabelled
from condensery.system.files import write_json
from condensery.text.collection import Collection
from condensery.text.lines import read_lines, read_value, without_blank_end

DIGITS = 6  # significant digits of the scores in JSONL


@dataclass(frozen=True)
class Negatives(PassageLists):
    """Hard negatives of queries. The queries are in the order of the file. The negatives of each query are best first."""

    scores: NDArray[np.float32] | None = None

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of negatives of each query, int64 (q,)."""
        return self.filled.sum(axis=1)


def save_negatives(folder: Path, negatives: Negatives, collection: Collection, about: dict[str, Any]) -> None:
    """Write an artifact of negatives: arrays (``queries.npy``, ``passages.npy``, ``scores.npy``), JSONL and a description.

    The description ``about`` becomes ``negatives.json``. A memory-mapped array is already a file of ``folder``, and is not
    written again.
    """
    negatives.save_arrays(folder)
    write_lists(folder / "negatives.jsonl", negatives.blocks(WRITTEN), collection, "negative_ids", DIGITS)
    write_json(folder / "negatives.json", about)


def open_negatives(folder: Path, collection: Collection) -> Negatives:
    """Open the negatives of an artifact, memory-mapped. An artifact that has only JSONL is read into memory."""
    if (folder / "passages.npy").exists():
        return Negatives.mapped(folder)
    return read_negatives(folder / "negatives.jsonl", collection)


def open_relabelled(folder: Path, collection: Collection) -> Relabelled:
    """Open the judgements that ``Relabelled.saved`` wrote into an artifact of negatives; ``NOTHING`` if there are none."""
    path = folder / FILE
    if not path.exists():
        return NOTHING
    pairs = []
    for field in ("positive_ids", "negative_ids"):
        read = read_negatives(path, collection, field)
        pairs.append(np.unique(packed(read.query_rows[:, None], read.passage_rows)[read.passage_rows >= 0]))
    return Relabelled(*pairs)


def read_negatives(path: Path, collection: Collection, field: str = "negative_ids") -> Negatives:
    """Read a file of negatives, plain or .gz.

    Args:
        path: the file to read.
        collection: the collection of the queries and passages.
        field: name of the field that lists the passages. ``positive_ids`` reads positives instead.

    Raises:
        UserError: a line is malformed JSON, a field is missing or has the wrong type, an id is unknown, or a query is
            repeated. The message names the line.
    """
    blocks = []
    for lines in in_blocks(_parsed(path, field), LINES):
        places, names, lists = zip(*lines, strict=True)
        queries = known_rows(collection, "query", names, places.__getitem__)
        counts, passages = rows_of_lists(collection, places, lists)
        blocks.append((queries, counts, passages.astype(np.int32)))
    if not blocks:
        raise UserError(f"{path}: no negatives, the file is empty")
    query_rows, numbers, flat = map(np.concatenate, zip(*blocks, strict=True))
    if (twice := first_repeated(query_rows)) is not None:
        name = collection.queries.ids_at([query_rows[twice]])[0]
        raise UserError(f"{path}:{twice + 1}: query {shown(name)!r} already has a line (in '{collection.name}')")
    return Negatives(query_rows, in_rows(numbers, flat, -1))


def _parsed(path: Path, field: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield ``path:line``, the query and the passages of each line. Only the end of the file may have empty lines."""
    for place, line in without_blank_end(read_lines(path)):
        value = read_value(line, place)
        if not isinstance(value, dict):
            raise UserError(f"{place}: expected an object with query_id and {field}")
        yield place, *query_and_ids(value, field, place)
