"""Thresholds on the probability of relevance: what denoising keeps, what augmentation labels."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from condensery.retrieval.denoising import probabilities, write_denoised, write_labels
from condensery.retrieval.negatives import read_negatives
from condensery.retrieval.runs import Run
from condensery.text.collection import Collection

QUERIES = np.array([3, 1, 8])
CANDIDATES = np.array([[9, 4, 7, 5], [2, 11, -1, -1], [30, 31, 32, 33]], np.int32)


def logits(*chances: float) -> list[float]:
    return [math.log(chance / (1 - chance)) for chance in chances]


SCORES = np.full((3, 4), -np.inf, np.float32)
SCORES[0] = logits(0.05, 0.95, 0.0999, 0.1001)
SCORES[1, :2] = logits(0.3, 0.5)
SCORES[2] = logits(0.91, 0.01, 0.89, 0.999)

SCORED = Run(QUERIES, CANDIDATES, SCORES)


def lines(path: Path) -> list[dict[str, list[str]]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_probabilities_are_the_sigmoid_and_do_not_overflow() -> None:
    found = probabilities(np.array([0.0, 2.0, -2.0, 1e4, -1e4, -np.inf], np.float32))
    wanted = [0.5, 1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2)), 1, 0, 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_denoising_keeps_negatives_below_the_threshold_in_their_order(collection: Collection, tmp_path: Path) -> None:
    path = tmp_path / "negatives.jsonl"
    counts = write_denoised(path, collection, SCORED, below=0.1)
    assert counts == {"queries": 3, "negatives": 3, "left_out": 7, "queries_without": 1}
    found = lines(path)
    assert [(line["query_id"], line["negative_ids"]) for line in found] == [
        ("q3", ["p9", "p7"]), ("q1", []), ("q8", ["p31"])
    ]  # fmt: skip
    assert found[0]["scores"] == pytest.approx([0.05, 0.0999], rel=1e-4)
    again = read_negatives(path, collection)
    assert again.query_rows.tolist() == QUERIES.tolist()
    assert again.counts.tolist() == [2, 0, 1]


@pytest.mark.parametrize("below", [0.0, 1.0])
def test_denoising_with_no_or_all_negatives_left(below: float, collection: Collection, tmp_path: Path) -> None:
    counts = write_denoised(tmp_path / "n.jsonl", collection, SCORED, below)
    assert counts["negatives"] == (10 if below else 0)
    assert read_negatives(tmp_path / "n.jsonl", collection).counts.sum() == counts["negatives"]


def test_augmentation_labels_what_is_sure_and_leaves_queries_without_a_positive_out(
    collection: Collection, tmp_path: Path
) -> None:
    path = tmp_path / "labels.jsonl"
    counts = write_labels(path, collection, SCORED, above=0.9, below=0.1)
    assert counts == {"queries": 2, "left_out": 1, "positives": 3, "negatives": 3}
    assert lines(path) == [
        {"query_id": "q3", "positive_ids": ["p4"], "negative_ids": ["p9", "p7"]},
        {"query_id": "q8", "positive_ids": ["p30", "p33"], "negative_ids": ["p31"]},
    ]
    positives = read_negatives(path, collection, "positive_ids")
    assert positives.query_rows.tolist() == [3, 8]
    assert positives.passage_rows.tolist() == [[4, -1], [30, 33]]
    assert read_negatives(path, collection).passage_rows.tolist() == [[9, 7], [31, -1]]
