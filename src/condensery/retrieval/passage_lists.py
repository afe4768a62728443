"""Store a list of passages for each query: as arrays of row numbers in a collection, and as JSON lines with ids."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from condensery.system.files import atomic, load_array, save_array
from condensery.text.collection import Collection

WRITTEN = 256  # queries per block when JSON lines are written

Value = TypeVar("Value", bound=np.generic)


@dataclass(frozen=True)
class PassageLists:
    """Lists of passages for q queries, with scores. The arrays may be memory-mapped.

    Attributes:
        query_rows: int64 (q,), row numbers of the queries in the collection.
        passage_rows: int32 or int64 (q, k), row numbers of the passages; -1 is padding.
        scores: float32 (q, k), or None if the scores are not known.
    """

    query_rows: NDArray[np.int64]
    passage_rows: NDArray[np.integer]
    scores: NDArray[np.float32] | None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle memory-mapped arrays as the path of their folder, so that another process maps the files without a copy."""
        if isinstance(self.passage_rows, np.memmap) and self.passage_rows.filename:
            return type(self).mapped, (Path(self.passage_rows.filename).parent,)
        return type(self), (self.query_rows, self.passage_rows, self.scores)

    @classmethod
    def mapped(cls, folder: Path) -> Self:
        """Open ``queries.npy``, ``passages.npy`` and, if it exists, ``scores.npy`` in a folder.

        Passages and scores are memory-mapped. The queries are read into memory.
        """
        queries, passages = load_array(folder / "queries.npy"), load_array(folder / "passages.npy", mapped=True)
        scores = folder / "scores.npy"
        return cls(queries, passages, load_array(scores, mapped=True) if scores.exists() else None)

    def save_arrays(self, folder: Path) -> None:
        """Write the arrays that ``mapped`` opens. A memory-mapped array is already a file, and is not written again."""
        arrays = {"queries": self.query_rows, "passages": self.passage_rows, "scores": self.scores}
        for name, array in arrays.items():
            if array is not None and not isinstance(array, np.memmap):
                save_array(folder / f"{name}.npy", array)

    @property
    def filled(self) -> NDArray[np.bool_]:
        """Mask (q, k): True for a passage, False for padding."""
        return np.asarray(self.passage_rows) >= 0

    def blocks(self, size: int) -> Iterator[Self]:
        """Yield blocks of at most ``size`` queries, read into memory."""
        for first in range(0, len(self.query_rows), size):
            part = slice(first, first + size)
            scores = None if self.scores is None else np.asarray(self.scores[part])
            yield replace(
                self, query_rows=self.query_rows[part], passage_rows=np.asarray(self.passage_rows[part]), scores=scores
            )


def in_rows(numbers: ArrayLike, flat: NDArray[Value], padding: float) -> NDArray[Value]:
    """Return a table (n, k) with one list in each row, padded at the end. k is the length of the longest list.

    Args:
        numbers: (n,), lengths of the lists.
        flat: the concatenated lists.
        padding: value of the padding.
    """
    lengths = np.asarray(numbers, np.int64)
    filled = np.arange(lengths.max(initial=0)) < lengths[:, None]
    table = np.full(filled.shape, padding, flat.dtype)
    table[filled] = flat
    return table


def write_lists(
    path: Path, blocks: Iterable[PassageLists], collection: Collection, key: str, digits: int | None = None
) -> None:
    """Write JSON lines, one per query: {"query_id": ..., ``key``: [passage ids], "scores": [...]}.

    Args:
        path: the file to write.
        blocks: the lists, in blocks of queries.
        collection: the collection, which supplies the ids.
        key: name of the field of passage ids.
        digits: significant digits of the scores; None = as many as float32 needs.
    """
    with atomic(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        for block in blocks:
            filled = block.filled
            passages = iter(collection.passages.ids_at(block.passage_rows[filled]))
            for at, query in enumerate(collection.queries.ids_at(block.query_rows)):
                line: dict[str, Any] = {"query_id": query, key: list(islice(passages, int(filled[at].sum())))}
                if block.scores is not None:
                    line["scores"] = [_number(score, digits) for score in block.scores[at][filled[at]]]
                stream.write(json.dumps(line, ensure_ascii=False) + "\n")


def _number(score: np.float32, digits: int | None) -> float:
    # str of a float32 gives the shortest string that parses to the same number
    return float(str(score)) if digits is None else float(f"{score:.{digits}g}")
