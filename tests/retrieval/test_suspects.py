"""Suspected false negatives: those that mining left out, or the negatives that score highest."""

from pathlib import Path

import numpy as np
from known_scores import Table, collection_of

from condensery.retrieval.mining import mine
from condensery.retrieval.negatives import open_negatives
from condensery.retrieval.positive_aware import Below
from condensery.retrieval.relabelled import Relabelled
from condensery.retrieval.suspects import are_negatives, were_left_out

TABLE = [
    [0.8, 0.9, 0.8, 0.76, 0.75, 0.5, 0.7, -0.1],
    [0.1, 0.2, 0.3, 0.19, 0.15, 0.1, 0.05, 0.6],
    [-1.0, -2.0, -0.5, -3, -4, -5, -6, -7],
]


def test_what_was_left_out_comes_in_the_order_of_how_far_it_is_above_the_positive(tmp_path: Path) -> None:
    collection = collection_of(tmp_path / "c", {0: [0], 1: [1], 2: [0]}, 8)
    mine(Table(TABLE), collection, "train", 2, tmp_path / "n", below=Below(share=0.95))
    found = were_left_out(tmp_path / "n", 2)
    pairs = list(zip(found.queries.tolist(), found.passages.tolist(), strict=True))
    assert pairs == [(1, 7), (1, 2), (2, 2), (0, 1), (0, 2)], "p3 of q0 and of q1 are their third"
    assert found.positives.tolist() == [1, 1, 0, 0, 0]
    np.testing.assert_allclose(found.ratios, [3, 1.5, np.nan, 1.125, 1], rtol=1e-6)
    assert len(were_left_out(tmp_path / "n", 1).queries) == 3


def test_without_a_rule_the_first_negatives_are_suspected(tmp_path: Path) -> None:
    collection = collection_of(tmp_path / "c", {0: [0], 1: [1, 3]}, 8)
    mine(Table(TABLE), collection, "train", 4, tmp_path / "n")
    negatives, positives = open_negatives(tmp_path / "n", collection), collection.qrels("train").positives()
    found = are_negatives(negatives, Table(TABLE), positives, np.array([(1 << 32) + 2]), 2)
    pairs = list(zip(found.queries.tolist(), found.passages.tolist(), strict=True))
    assert pairs == [(1, 7), (0, 1), (0, 2)], "p2 of q1 was judged already"
    assert found.positives.tolist() == [3, 0, 0], "of q1 the lowest"
    assert len(are_negatives(negatives, Table(TABLE), {}, np.empty(0, np.int64), 2).queries) == 0


def test_what_people_judged_is_no_suspect(tmp_path: Path) -> None:
    collection = collection_of(tmp_path / "c", {0: [0]}, 8)
    said = Relabelled(yes=np.array([1]), no=np.array([2]))
    mine(Table(TABLE[:1]), collection, "train", 2, tmp_path / "n", below=Below(share=0.95), relabelled=said)
    assert were_left_out(tmp_path / "n", 5).passages.tolist() == [3]
