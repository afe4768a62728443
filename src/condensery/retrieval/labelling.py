"""Use the scores of a cross-encoder on candidates: to denoise negatives, and to label queries that have no labels.

Shapes: n queries, k candidates of each.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.negatives import format_line
from condensery.retrieval.no_negatives import packed
from condensery.system.files import atomic
from condensery.text.collection import Collection

Rows = NDArray[np.integer]
Scores = NDArray[np.float32]
BLOCK = 1024  # queries worked on at a time
NONE = np.empty(0, np.int64)


def probabilities(scores: Scores) -> Scores:
    """The probability that each pair is relevant by the cross-encoder: the sigmoid of its logit; 0 for -inf."""
    wide = scores.astype(np.float64)
    return (0.5 * (1.0 + np.tanh(0.5 * wide))).astype(np.float32)


def _by_query(
    collection: Collection, query_rows: Rows, candidates: Rows, scores: Scores
) -> Iterator[tuple[str, NDArray[np.object_], NDArray[np.float32]]]:
    """The id of each query, the ids of its candidates in their order, and the probability of each candidate."""
    for first in range(0, len(query_rows), BLOCK):
        part = slice(first, first + BLOCK)
        rows, likely = np.asarray(candidates[part], np.int64), probabilities(np.asarray(scores[part]))
        present = rows >= 0
        names = np.full(rows.shape, "", np.object_)
        names[present] = collection.passages.ids_at(rows[present])
        for query, there, own, values in zip(
            collection.queries.ids_at(query_rows[part]), present, names, likely, strict=True
        ):
            yield query, own[there], values[there]


def write_denoised(
    path: Path,
    collection: Collection,
    query_rows: Rows,
    candidates: Rows,
    scores: Scores,
    below: float,
    kept: Rows = NONE,
) -> dict[str, Any]:
    """Write the negatives whose probability is lower than ``below`` (RocketQA, Qu et al. 2021, §4.3), in their order.

    The file has the format that ``mine`` writes; its scores are the probabilities.

    Args:
        path: the file.
        collection: of queries and passages.
        query_rows: (n,).
        candidates: (n, k) the negatives of each query, padded with -1.
        scores: (n, k) logits of the cross-encoder.
        below: limit of the probability.
        kept: (m,) (query << 32) + passage of known negatives, which are written whatever their probability.

    Returns:
        Counts for the manifest.
    """
    read = written = without = 0
    with atomic(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        lines = _by_query(collection, query_rows, candidates, scores)
        for (query, names, likely), row, passages in zip(lines, query_rows, candidates, strict=True):
            keep = likely < below
            if len(kept):
                keep |= np.isin(packed(row, passages[passages >= 0]), kept)
            read, written, without = read + len(names), written + int(keep.sum()), without + int(not keep.any())
            stream.write(format_line(query, names[keep].tolist(), likely[keep]))
    return {"queries": len(query_rows), "negatives": written, "left_out": read - written, "queries_without": without}


def write_labels(
    path: Path,
    collection: Collection,
    query_rows: Rows,
    candidates: Rows,
    scores: Scores,
    above: float,
    below: float,
) -> dict[str, Any]:
    """Label the candidates of unlabelled queries (RocketQA §4.4): positive above one probability, negative below another.

    A line holds one query: {"query_id": ..., "positive_ids": [...], "negative_ids": [...]}, ids in the order of the
    candidates. Queries without a positive are left out.

    Args:
        path: the file.
        collection: of queries and passages.
        query_rows: (n,).
        candidates: (n, k) passages of each query, padded with -1.
        scores: (n, k) logits of the cross-encoder.
        above: a candidate is positive above this probability.
        below: a candidate is negative below this probability.

    Returns:
        Counts for the manifest.
    """
    labelled = positives = negatives = 0
    with atomic(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        for query, names, likely in _by_query(collection, query_rows, candidates, scores):
            good, bad = names[likely > above].tolist(), names[likely < below].tolist()
            if good:
                labelled, positives, negatives = labelled + 1, positives + len(good), negatives + len(bad)
                line = {"query_id": query, "positive_ids": good, "negative_ids": bad}
                stream.write(json.dumps(line, ensure_ascii=False) + "\n")
    counts = {"queries": labelled, "left_out": len(query_rows) - labelled}
    return {**counts, "positives": positives, "negatives": negatives}
