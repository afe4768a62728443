"""Positive-aware mining on scores that are known: exact sets, ties, several positives, and the same bytes after a kill."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_scores import Table, collection_of
from simulated_processes import in_parts

from condensery.retrieval.mining import mine
from condensery.retrieval.negatives import open_negatives
from condensery.retrieval.positive_aware import ARRAYS, Below
from condensery.retrieval.relabelled import NOTHING, Relabelled
from condensery.text.collection import Collection


def mined(folder: Path, collection: Collection, scores: Any, **options: Any) -> list[list[int]]:
    mine(Table(scores), collection, "train", options.pop("depth", 5), folder, **options)
    found = open_negatives(folder, collection).passage_rows
    return [row[row >= 0].tolist() for row in found]


# p0 is the positive of q0; of the others p1 to p3 score as high or nearly so
SCORES = [[0.8, 0.9, 0.8, 0.76, 0.75, 0.5, 0.7, -0.1]]


@pytest.mark.parametrize(
    ("below", "kept"),
    [
        (Below(), [1, 2, 3, 4, 6]),
        (Below(share=0.95), [4, 6, 5, 7]),  # 0.76 is 95 % of 0.8, and not below it
        (Below(share=1.0), [3, 4, 6, 5, 7]),
        (Below(margin=0.0), [3, 4, 6, 5, 7]),
        (Below(margin=0.1), [5, 7]),  # 0.7 is 0.8 less 0.1
        (Below(score=0.75), [6, 5, 7]),
        (Below(share=0.95, score=0.7), [5, 7]),
        (Below(share=0.5, margin=0.01, score=0.79), [7]),
        (Below(score=-1.0), []),
    ],
)
def test_the_rules_keep_what_scores_below_them(tmp_path: Path, below: Below, kept: list[int]) -> None:
    collection = collection_of(tmp_path / "c", {0: [0]}, 8)
    assert mined(tmp_path / "n", collection, SCORES, below=below) == [kept]


def test_what_was_left_out_is_counted_printed_and_kept_with_its_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collection = collection_of(tmp_path / "c", {0: [0], 1: [1]}, 8)
    table = [SCORES[0], [0.1, 0.2, 0.3, 0.19, 0.15, 0.1, 0.05, 0.4]]
    about = mine(Table(table), collection, "train", 1, tmp_path / "n", below=Below(share=0.95))
    assert about["left_out_by_score"] == 6
    assert about["queries_without"] == 0
    assert "warnings" not in about
    said = "6 candidates do not score below 95 % of the positive's: they are left out; 0 of 2 queries have no negative left"
    assert said in capsys.readouterr().out
    left_out, scores, positives, own = (np.load(tmp_path / "n" / f"{name}.npy") for name in ARRAYS)
    assert (left_out >> 32).tolist() == [0, 0, 0, 1, 1, 1]
    assert (left_out & 0xFFFFFFFF).tolist() == [1, 2, 3, 7, 2, 3]
    np.testing.assert_allclose(scores, [0.9, 0.8, 0.76, 0.4, 0.3, 0.19], rtol=1e-6)
    assert positives.tolist() == [0, 1]
    np.testing.assert_allclose(own, [0.8, 0.2], rtol=1e-6)


def test_counts_of_one_are_told_in_the_singular(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    collection = collection_of(tmp_path / "c", {0: [0], 1: [1]}, 2)
    mine(Table([[0.5, 0.9], [0.2, 0.9]]), collection, "train", 1, tmp_path / "n", below=Below(share=0.95))
    said = capsys.readouterr().out
    assert (
        "] 1 candidate does not score below 95 % of the positive's: it is left out; 1 of 2 queries has no negative"
        in said
    )


def test_of_several_positives_the_lowest_counts(tmp_path: Path) -> None:
    collection = collection_of(tmp_path / "c", {0: [0, 5], 1: [1]}, 6)
    table = [[0.9, 0.8, 0.6, 0.55, 0.3, 0.6], [0.5, 1.0, 0.97, 0.94, 0.95, 0.2]]
    kept = mined(tmp_path / "n", collection, table, below=Below(share=0.95))
    assert kept == [[3, 4], [3, 0, 5]]


def test_a_share_of_a_score_below_zero_is_never_above_the_positive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collection = collection_of(tmp_path / "c", {0: [0]}, 6)
    table = [[-10.0, -9.6, -10.4, -10.5, -10.6, -2.0]]
    assert mined(tmp_path / "n", collection, table, below=Below(share=0.95)) == [[4]]
    about = json.loads((tmp_path / "n" / "negatives.json").read_text())
    said = "1 of 1 positives score below 0, for which a share of the score says little; set stage.mine.below_margin instead"
    assert about["warnings"] == [said]
    assert said not in capsys.readouterr().out, "the run prints the warnings of an artifact"
    assert mined(tmp_path / "m", collection, table, below=Below(margin=0.5)) == [[4]]
    assert "warnings" not in json.loads((tmp_path / "m" / "negatives.json").read_text())


def test_no_candidate_is_known_to_be_below_a_positive_without_a_score(tmp_path: Path) -> None:
    collection = collection_of(tmp_path / "c", {0: [0], 1: [1, 2]}, 5)
    scorer = Table([[np.nan, 0.5, 0.4, 0.3, 0.2], [0.1, np.nan, 0.5, 0.4, 0.6]])
    ranked = [[5.0, 4, 3, 2, 1]] * 2
    assert mined(tmp_path / "n", collection, ranked, below=Below(share=0.95), scorer=scorer) == [[], [0, 3]]
    about = json.loads((tmp_path / "n" / "negatives.json").read_text())
    assert about["queries_without"] == 1
    assert about["warnings"] == ["1 of 2 queries have no positive with a score: none of their candidates is kept"]
    assert mined(tmp_path / "s", collection, ranked, below=Below(score=0.45), scorer=scorer) == [[2, 3, 4], [0, 3]]


def test_another_scorer_judges_and_the_retriever_ranks(tmp_path: Path) -> None:
    collection = collection_of(tmp_path / "c", {0: [0]}, 6)
    scorer = Table([[0.5, 0.6, 0.1, 0.2, 0.5, 0.3]])
    kept = mined(tmp_path / "n", collection, [[9, 8, 7, 6, 5, 4]], below=Below(margin=0.0), scorer=scorer, depth=2)
    assert kept == [[2, 3]]
    negatives = open_negatives(tmp_path / "n", collection)
    assert negatives.scores is not None
    assert negatives.scores.tolist() == [[7, 6]]
    assert len(np.load(tmp_path / "n" / "left_out.npy")) == 1, "p4 stands behind the last that is kept"


def test_what_stands_before_a_low_positive_is_passed_over_however_much_it_is(tmp_path: Path) -> None:
    collection = collection_of(tmp_path / "c", {0: [700], 1: [0], 2: [2_999]}, 3_000)
    table = np.tile(-np.arange(3_000.0), (3, 1)) + 3_000
    kept = mined(tmp_path / "n", collection, table, below=Below(margin=0.0), depth=3)
    assert kept == [[701, 702, 703], [1, 2, 3], []], "what is ranked behind the first 1,024 is not looked at"


def test_skipped_and_answered_passages_go_after_the_rule(tmp_path: Path) -> None:
    collection = collection_of(tmp_path / "c", {0: [0]}, 8)
    assert mined(tmp_path / "n", collection, SCORES, below=Below(share=0.95), skip_top=1) == [[6, 5, 7]]


def test_a_relabelled_passage_is_a_positive_or_is_kept(tmp_path: Path) -> None:
    collection = collection_of(tmp_path / "c", {0: [0]}, 8)
    said = Relabelled(yes=np.array([1, 5]), no=np.array([2]))
    assert mined(tmp_path / "n", collection, SCORES, relabelled=said) == [[2, 3, 4, 6, 7]]
    assert mined(tmp_path / "b", collection, SCORES, relabelled=said, below=Below(share=0.95)) == [[2, 7]], (
        "p5 is a positive now, and the lowest"
    )
    about = json.loads((tmp_path / "b" / "negatives.json").read_text())
    assert (about["relabelled_relevant"], about["relabelled_not_relevant"]) == (2, 1)
    line = json.loads((tmp_path / "b" / "relabelled.jsonl").read_text())
    assert line == {"query_id": "q0", "positive_ids": ["p1", "p5"], "negative_ids": ["p2"]}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def many(tmp_path: Path) -> Collection:
    """12 queries with one to three positives, among 60 passages."""
    random = np.random.default_rng(0)
    return collection_of(
        tmp_path / "c", {query: random.permutation(60)[: 1 + query % 3].tolist() for query in range(12)}, 60
    )


@pytest.mark.parametrize("alive", [0, 1, 2])
def test_an_interrupted_mining_ends_with_the_same_bytes(tmp_path: Path, many: Collection, alive: int) -> None:
    table = np.random.default_rng(1).normal(size=(12, 60))
    options: dict[str, Any] = {"size": 5, "below": Below(share=0.9, margin=0.1)}
    whole = mine(Table(table), many, "train", 7, tmp_path / "whole", **options)
    assert whole["left_out_by_score"] > 12
    with pytest.raises(KeyboardInterrupt):
        mine(Table(table, alive), many, "train", 7, tmp_path / "n", **options)
    assert mine(Table(table), many, "train", 7, tmp_path / "n", **options) == whole
    assert contents(tmp_path / "n") == contents(tmp_path / "whole")
    found = in_parts(2, lambda part: mine(Table(table), many, "train", 7, tmp_path / "parts", group=part, **options))
    assert found == [whole, None]
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_the_sets_are_those_of_the_definition(tmp_path: Path, many: Collection) -> None:
    table = np.random.default_rng(1).normal(size=(12, 60)).astype(np.float32)
    kept = mined(tmp_path / "n", many, table, below=Below(margin=0.25), depth=7)
    for query, relevant in many.qrels("train").positives().items():
        limit = np.float32(float(table[query, relevant].min()) - 0.25)
        order = np.argsort(-table[query], kind="stable")
        wanted = [row for row in order.tolist() if row not in relevant and table[query, row] < limit][:7]
        assert kept[query] == wanted


def test_without_a_rule_nothing_further_is_written(tmp_path: Path, many: Collection) -> None:
    table = np.random.default_rng(1).normal(size=(12, 60))
    mine(Table(table), many, "train", 7, tmp_path / "n", relabelled=NOTHING)
    assert {path.name for path in (tmp_path / "n").iterdir()} == {
        "negatives.json", "negatives.jsonl", "passages.npy", "queries.npy", "scores.npy"
    }  # fmt: skip
