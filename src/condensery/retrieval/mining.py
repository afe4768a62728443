"""Mining: the passages that a retriever ranks high for a training query and that are not judged relevant to it."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.progress import progress
from condensery.retrieval.index import Retriever
from condensery.retrieval.negatives import Negatives, format_line, from_triples, read_negatives
from condensery.retrieval.ranking import Ranking
from condensery.text.collection import Collection

__all__ = ["Negatives", "from_triples", "mine", "read_negatives"]

BLOCK = 4096  # queries searched at a time; part of the result's last bits (a matrix product rounds by its shape)


def mine(
    retriever: Retriever,
    collection: Collection,
    split: str,
    depth: int,
    path: Path,
    skip_top: int = 0,
    block: int = BLOCK,
) -> dict[str, Any]:
    """Write the ``depth`` best negatives of every query of ``split`` that has a positive, in row order.

    Judged positives are left out first, then the ``skip_top`` best (which may be unjudged positives); fewer than
    ``depth`` are written only where the retriever finds no more. An interrupted file is continued behind its last
    whole line and ends with the same bytes. Returns counts for the manifest.
    """
    positives = collection.qrels(split).positives()
    query_rows = np.array(sorted(positives), np.int64)
    if not len(query_rows):
        raise UserError(f"split '{split}' of collection '{collection.name}': no query has a positive, nothing to mine")
    query_ids, passage_ids = collection.queries.ids, collection.passages.ids
    done = whole_lines(path)
    with progress(f"mine {split}", len(query_rows), "queries") as task, open(path, "ab") as stream:
        task.advance(done)
        # A block that was half written is searched as a whole again: its scores must have the same bits.
        for first in range(done // block * block, len(query_rows), block):
            rows = query_rows[first : first + block]
            judged = [positives[int(row)] for row in rows]
            k = min(skip_top + depth + max(len(one) for one in judged), len(retriever))
            ranking = without(retriever.search(rows, k), judged)
            kept = [(scores[skip_top:][:depth], found[skip_top:][:depth]) for scores, found in ranking]
            fresh = max(done - first, 0)
            for row, (scores, found) in islice(zip(rows.tolist(), kept, strict=True), fresh, None):
                names = [passage_ids[passage] for passage in found.tolist()]
                stream.write(format_line(query_ids[row], names, scores).encode())
            stream.flush()
            task.advance(len(rows) - fresh)
    return {"queries": len(query_rows), "depth": depth}


def without(
    ranking: Ranking, passages: Sequence[NDArray[np.integer]]
) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Each query's ranking without the passages listed for it (and without padding): (scores, rows) a query."""
    kept = []
    for scores, rows, left_out in zip(*ranking, passages, strict=True):
        keep = (rows >= 0) & ~np.isin(rows, left_out)
        kept.append((scores[keep], rows[keep]))
    return kept


def whole_lines(path: Path) -> int:
    """Cut a torn last line off and count the whole ones; 0 when there is no file."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return 0
    lines = end = at = 0
    with open(path, "r+b") as stream:
        while piece := stream.read(1 << 20):
            lines += piece.count(b"\n")
            last = piece.rfind(b"\n")
            end = at + last + 1 if last >= 0 else end
            at += len(piece)
        stream.truncate(end)
    return lines
