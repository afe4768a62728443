"""Map ids of a file to rows of a table, where the same ids occur again and again."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from condensery.text.table import TextTable


def rows_of(table: TextTable, ids: Sequence[str] | pa.Array) -> NDArray[np.int64]:
    """The row of each id (n,), -1 where the table has no such id. Every distinct id is looked up once."""
    encoded = pa.array(ids, pa.string()).dictionary_encode()
    rows: NDArray[np.int64] = table.rows_of(encoded.dictionary.to_pylist())
    return rows[encoded.indices.to_numpy()] if len(rows) else np.empty(0, np.int64)
