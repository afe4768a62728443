"""Tables of text on disk: Arrow record batches, written as a stream and memory-mapped for reading."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from condensery.errors import UserError
from condensery.text.ids import SUFFIX, IdIndex, look_alike

BATCH_ROWS = 4096
BATCH_CHARACTERS = 8_000_000  # a batch of this size ends even with few rows, so that long documents fit into memory

Value = TypeVar("Value")


class TableWriter:
    """Writes rows to one Arrow file. One record batch is in memory at a time.

    ``columns`` names all columns. ``lists`` names the columns whose values are lists of strings.
    """

    def __init__(self, path: Path, columns: Sequence[str], lists: Sequence[str] = ()) -> None:
        self.schema = pa.schema([(name, pa.list_(pa.string()) if name in lists else pa.string()) for name in columns])
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, self.schema)
        self._rows: list[tuple[Any, ...]] = []
        self._characters = 0
        self.count = 0

    def add(self, row: tuple[Any, ...], characters: int) -> None:
        """Append one row. ``characters`` is its approximate length."""
        self._rows.append(row)
        self._characters += characters
        self.count += 1
        if len(self._rows) >= BATCH_ROWS or self._characters >= BATCH_CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)]
            self._writer.write_batch(pa.record_batch(arrays, schema=self.schema))
        self._rows, self._characters = [], 0

    def close(self) -> None:
        """Write the remaining rows and the footer."""
        self._flush()
        self._writer.close()
        self._sink.close()

    def __enter__(self) -> "TableWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Column(Sequence[Value], Generic[Value]):
    """One column of a table. Values are read from disk on access.

    ``column[i]`` is one value, ``column[a:b]`` is a list of values, and ``column.take(rows)`` gives the values of any rows.
    """

    def __init__(self, data: pa.ChunkedArray) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, at: int) -> Value: ...

    @overload
    def __getitem__(self, at: slice) -> list[Value]: ...

    def __getitem__(self, at: int | slice) -> Value | list[Value]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                return self.take(range(start, stop, step))
            return self._data.slice(start, max(0, stop - start)).to_pylist()
        return self._data[at].as_py()

    def take(self, rows: ArrayLike | Sequence[int]) -> list[Value]:
        """Return the values of ``rows``, in any order, repetitions allowed. Only these rows are read, each row once.

        Arrow's own ``take`` would join the chunks first, which copies the whole column into memory.
        """
        unique, places = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        values = [self._data[row].as_py() for row in unique.tolist()]
        return [values[place] for place in places.tolist()]

    def __iter__(self) -> Iterator[Value]:
        for chunk in self._data.chunks:
            yield from chunk.to_pylist()


class TextTable:
    """A memory-mapped table of texts with ids. Opening it reads no text, and the object can be sent to other processes.

    Raises ``UserError`` when ``path`` is missing or is not an Arrow file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._table = pa.ipc.open_file(pa.memory_map(str(self.path))).read_all()
            self._table.validate()
        except FileNotFoundError:
            raise UserError(f"{self.path}: no such file") from None
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UserError(f"{self.path}: not an Arrow file ({' '.join(str(error).split())})") from None

    def __reduce__(self) -> tuple[type["TextTable"], tuple[Path]]:
        return TextTable, (self.path,)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def content(self) -> dict[str, NDArray[np.uint8]]:
        """Return the bytes of the whole table as a memory map, under the name ``rows``."""
        return {"rows": np.memmap(self.path, np.uint8, mode="r")}

    def column(self, name: str) -> Column[Any]:
        """Return the column ``name``. Raises ``KeyError`` when there is no such column."""
        return Column(self._table.column(name))

    def arrow(self, name: str) -> pa.ChunkedArray:
        """Return the column ``name`` as an Arrow array, without a copy."""
        return self._table.column(name)

    def runs(self, name: str) -> NDArray[np.int64]:
        """Return the first row of each run of equal values in a column, and at the end the number of rows: (runs + 1,)."""
        import pyarrow.compute as pc  # the import takes a tenth of a second

        values = self.arrow(name)
        changes = pc.not_equal(values.slice(1), values.slice(0, max(0, len(values) - 1))).to_numpy()
        return np.concatenate([[0], np.flatnonzero(changes) + 1, [len(values)]]).astype(np.int64)

    @cached_property
    def ids(self) -> list[str]:
        """All ids in row order, kept in memory from the first use on."""
        return self._table.column("id").to_pylist()

    def ids_at(self, rows: ArrayLike) -> list[str]:
        """Return the ids of ``rows``, in any order, read from disk."""
        return self.column("id").take(rows)

    @cached_property
    def _index(self) -> IdIndex:
        return IdIndex.load(self.path.with_suffix(SUFFIX))

    def rows_of(self, ids: Sequence[str]) -> np.ndarray:
        """Return the row of each id, int64 (n,); -1 for an unknown id."""
        return self._index.find_ids(ids)

    def unlike(self, identifier: str) -> str:
        """Return a hint for an unknown id, which names the id of the table that looks like it; empty if no id does."""
        return look_alike(identifier, self.column("id"))

    def full_texts(self, rows: ArrayLike, titles: bool = True) -> list[str]:
        """Return the texts of ``rows`` of a table of passages.

        With ``titles``, the title of a passage, if any, and a space are put before the text.
        """
        texts: list[str] = self.column("text").take(rows)
        return list(with_titles(self.column("title").take(rows), texts)) if titles else texts


def with_titles(titles: Iterable[str], texts: Iterable[str]) -> Iterator[str]:
    """Yield each text with its title, if there is one, and a space before it."""
    return (f"{title} {text}" if title else text for title, text in zip(titles, texts, strict=True))
