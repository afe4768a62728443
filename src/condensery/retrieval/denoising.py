"""Use cross-encoder scores to denoise hard negatives, and to pseudo-label queries without relevance judgements.

Shapes: n queries, k candidates per query.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.retrieval.negatives import DIGITS, Negatives
from condensery.retrieval.no_negatives import packed
from condensery.retrieval.passage_lists import PassageLists, write_lists
from condensery.system.files import atomic
from condensery.text.collection import Collection

Rows = NDArray[np.integer]
Scores = NDArray[np.float32]
BLOCK = 1024  # queries per block
NONE = np.empty(0, np.int64)


def probabilities(scores: Scores) -> Scores:
    """Return the cross-encoder's probability that each pair is relevant: the sigmoid of its logit, 0 for -inf."""
    return (0.5 * (1.0 + np.tanh(0.5 * scores.astype(np.float64)))).astype(np.float32)


def write_denoised(
    path: Path, collection: Collection, scored: PassageLists, below: float, kept: Rows = NONE
) -> dict[str, Any]:
    """Write the negatives whose probability of relevance is less than the threshold (RocketQA, Qu et al. 2021, §4.3).

    The order of the negatives does not change. The file has the format of mined negatives, with the probabilities as scores.

    Args:
        path: the file to write.
        collection: the collection of the queries and passages.
        scored: negatives of n queries, with the cross-encoder's logits as scores.
        below: the threshold. A negative with this probability or more is left out.
        kept: int64 (m,), confirmed negatives as (query << 32) + passage. They are written whatever their probability.

    Returns:
        Counts for the manifest.
    """
    read = written = without = 0

    def blocks() -> Iterator[Negatives]:
        nonlocal read, written, without
        for block in scored.blocks(BLOCK):
            rows, likely = block.passage_rows, probabilities(np.asarray(block.scores))
            there = block.filled
            keep = there & ((likely < below) | np.isin(packed(block.query_rows[:, None], rows), kept))
            read, written = read + int(there.sum()), written + int(keep.sum())
            without += int((~keep.any(axis=1)).sum())
            yield Negatives(block.query_rows, np.where(keep, rows, -1), likely)

    write_lists(path, blocks(), collection, "negative_ids", DIGITS)
    return {
        "queries": len(scored.query_rows),
        "negatives": written,
        "left_out": read - written,
        "queries_without": without,
    }


def write_labels(
    path: Path, collection: Collection, scored: PassageLists, above: float, below: float
) -> dict[str, Any]:
    """Pseudo-label the candidates of unlabelled queries by two thresholds of the probability (RocketQA, §4.4).

    The file has one line per query: {"query_id": ..., "positive_ids": [...], "negative_ids": [...]}. The ids are in the order
    of the candidates. Queries without a pseudo-labelled positive are left out.

    Args:
        path: the file to write.
        collection: the collection of the queries and passages.
        scored: candidates of n queries, with the cross-encoder's logits as scores.
        above: probability above which a candidate is positive.
        below: probability below which a candidate is negative.

    Returns:
        Counts for the manifest.
    """
    labelled = positives = negatives = 0
    with atomic(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as stream:
        for block in scored.blocks(BLOCK):
            likely = probabilities(np.asarray(block.scores))
            good, bad = block.filled & (likely > above), block.filled & (likely < below)
            positives, negatives = positives + int(good.sum()), negatives + int(bad[good.any(axis=1)].sum())
            for at, query in enumerate(collection.queries.ids_at(block.query_rows)):
                if good[at].any():
                    labelled += 1
                    names = [collection.passages.ids_at(block.passage_rows[at][chosen[at]]) for chosen in (good, bad)]
                    line = {"query_id": query, "positive_ids": names[0], "negative_ids": names[1]}
                    stream.write(json.dumps(line, ensure_ascii=False) + "\n")
    counts = {"queries": labelled, "left_out": len(scored.query_rows) - labelled}
    return {**counts, "positives": positives, "negatives": negatives}
