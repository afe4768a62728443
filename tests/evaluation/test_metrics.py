"""Metrics are trec_eval's, in our rank order, for every judged query."""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from condensery.errors import UserError
from condensery.evaluation import metrics
from condensery.evaluation.metrics import Evaluation, evaluate, score
from condensery.retrieval.runs import Run
from condensery.text.answers import AnswerMatcher
from condensery.text.collection import Collection, Qrels
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

ALL = ["MRR@10", "MRR", "Recall@1", "R@100", "nDCG@10", "NDCG@3", "Success@1", "MAP", "P@5"]


def run_of(rankings: dict[int, list[int]], scores: list[float] | None = None) -> Run:
    depth = max(map(len, rankings.values()))
    rows = np.full((len(rankings), depth), -1, np.int64)
    values = np.full((len(rankings), depth), -np.inf, np.float32)
    for i, ranking in enumerate(rankings.values()):
        rows[i, : len(ranking)] = ranking
        values[i, : len(ranking)] = scores[: len(ranking)] if scores else -np.arange(len(ranking))
    return Run(np.array(list(rankings)), rows, values)


@pytest.fixture
def result(collection: Collection) -> Evaluation:
    # rows of the queries: q9 0, q10 1, q8 2, q7 3
    rankings = {0: [9, 8, 0], 1: [3, 2, 7, 1], 2: [4, *range(10, 21), 5]}
    return evaluate(run_of(rankings), collection, "test", ALL)


def test_values_are_those_of_the_definitions(result: Evaluation) -> None:
    assert result.query_ids == ["q10", "q7", "q8", "q9"]
    expected = {
        "MRR@10": [1 / 2, 0, 1, 1 / 3],
        "MRR": [1 / 2, 0, 1, 1 / 3],
        "Recall@1": [0, 0, 1 / 2, 0],
        "R@100": [1, 0, 1, 1],
        "nDCG@10": [
            (1 / math.log2(3) + 2 / math.log2(5)) / (2 + 1 / math.log2(3)),
            0,
            1 / (1 + 1 / math.log2(3)),
            1 / math.log2(4),
        ],
        "NDCG@3": [
            (1 / math.log2(3)) / (2 + 1 / math.log2(3)),
            0,
            1 / (1 + 1 / math.log2(3)),
            1 / math.log2(4),
        ],
        "Success@1": [0, 0, 1, 0],
        "MAP": [(1 / 2 + 2 / 4) / 2, 0, (1 + 2 / 13) / 2, 1 / 3],
        "P@5": [2 / 5, 0, 1 / 5, 1 / 5],
    }
    assert list(result.per_query) == ALL
    for metric, values in expected.items():
        np.testing.assert_allclose(result.per_query[metric], values, rtol=1e-6, err_msg=metric)
    assert result.metrics["MRR@10"] == pytest.approx((1 / 2 + 1 + 1 / 3) / 4)


@pytest.mark.parametrize(("rank", "value"), [(1, 1.0), (9, 1 / 9), (10, 1 / 10), (11, 0.0)])
def test_mrr_counts_to_its_cutoff_and_no_further(collection: Collection, rank: int, value: float) -> None:
    ranking = [*range(10, 10 + rank - 1), 0]
    found = evaluate(run_of({0: ranking}), collection, "test", ["MRR@10"])
    assert found.per_query["MRR@10"][3] == value


def test_equal_scores_are_scored_in_our_order(collection: Collection) -> None:
    ties = [1.0] * 12
    first = evaluate(run_of({0: [0, 9, 8]}, ties), collection, "test", ["MRR@10"])
    last = evaluate(run_of({0: [9, 8, 0]}, ties), collection, "test", ["MRR@10"])
    assert (first.per_query["MRR@10"][3], last.per_query["MRR@10"][3]) == (1.0, pytest.approx(1 / 3))


def test_deep_rankings_keep_their_order(collection: Collection) -> None:
    """Passage at rank 9,000 of 10,000: ranks must survive the single precision inside trec_eval."""
    qrels = Qrels(np.array([0], np.int32), np.array([77], np.int32), np.array([1], np.int32))
    ranking = np.delete(np.arange(100_000), 77)[:10_000]
    ranking[8_999] = 77
    found = score(np.array([0]), ranking[None], qrels, ["MRR", "Recall@8999", "Recall@9000"])
    assert [values.item() for values in found.values()] == [pytest.approx(1 / 9000), 0.0, 1.0]


def test_queries_without_judgements_are_ignored_and_negative_grades_are_irrelevant() -> None:
    qrels = Qrels(np.array([4, 4], np.int32), np.array([1, 2], np.int32), np.array([-1, 1], np.int32))
    found = score(np.array([9, 4]), np.array([[1, 2], [1, 2]]), qrels, ["MRR@10", "NDCG@10"])
    assert found["MRR@10"].tolist() == [0.5]
    assert found["NDCG@10"][0] == pytest.approx(1 / math.log2(3))


def test_metrics_without_grades_count_from_the_lowest_relevant_grade() -> None:
    columns = (np.array(values, np.int32) for values in ([4, 4, 4], [1, 2, 3], [1, 3, 2]))
    qrels = Qrels(*columns, relevant_from=2)  # type: ignore[arg-type]
    found = score(np.array([4]), np.array([[1, 3, 9]]), qrels, ["MRR@10", "Recall@3", "P@1", "MAP", "NDCG@10"])
    assert {name: values.item() for name, values in found.items()} == {
        "MRR@10": 1 / 2,
        "Recall@3": 1 / 2,
        "P@1": 0.0,
        "MAP": 1 / 4,
        "NDCG@10": pytest.approx((1 + 2 / math.log2(3)) / (3 + 2 / math.log2(3) + 1 / 2)),
    }


@pytest.fixture
def answered(tmp_path: Path) -> Collection:
    """Two questions with answers and judgements, three of the split test with answers alone; passage 7 holds "seven"."""
    with CollectionWriter(tmp_path / "answered", "answered") as writer:
        for name, answers in (("d1", ("number 3", "seven")), ("d0", ("nowhere",))):
            writer.add_judgement("dev", name, "p5", 1)
            writer.add_query(Query(name, "question", answers))
        for name, answers in (("t2", ("Seven",)), ("t0", ("number 1",)), ("t1", ("umber",))):
            writer.add_query(Query(name, "question", answers), split="test")
        for passage in range(30):
            text = "seven" if passage == 7 else f"it is number {passage}"
            writer.add_passage(Passage(f"p{passage}", "umber", text))
    return Collection(tmp_path / "answered")


def test_a_hit_is_an_answer_in_one_of_the_first_passages(answered: Collection) -> None:
    rankings = {2: [1, 2, 7, 3], 3: [10, 11, 12, 1], 4: [0, 1, 2]}
    found = evaluate(run_of(rankings), answered, "test", ["Hit@1", "Hit@3", "hit@100"])
    assert found.query_ids == ["t0", "t1", "t2"]
    assert {name: values.tolist() for name, values in found.per_query.items()} == {
        "Hit@1": [0, 0, 0],  # number 10 is not number 1, and titles do not count
        "Hit@3": [0, 0, 1],
        "hit@100": [1, 0, 1],
    }


def test_hits_stand_beside_metrics_of_judgements(answered: Collection) -> None:
    found = evaluate(run_of({0: [9, 3, 5]}), answered, "dev", ["Hit@2", "MRR@10", "Hit@1"])
    assert list(found.per_query) == ["Hit@2", "MRR@10", "Hit@1"]
    assert found.query_ids == ["d0", "d1"]
    assert [values.tolist() for values in found.per_query.values()] == [[0, 1], [0, 1 / 3], [0, 0]]


def test_only_passages_up_to_the_first_hit_are_looked_at(answered: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    class Noted(AnswerMatcher):
        def __call__(self, text: str) -> bool:
            looked.append(text)
            return super().__call__(text)

    monkeypatch.setattr(metrics, "AnswerMatcher", Noted)
    evaluate(run_of({2: [1, 7, 3], 3: [9, 8, 6, 5]}), answered, "test", ["Hit@3"])
    assert looked == [f"it is number {passage}" if passage != 7 else "seven" for passage in (1, 7, 9, 8, 6)]


def test_hits_need_answers_and_other_metrics_judgements(answered: Collection, collection: Collection) -> None:
    with pytest.raises(UserError, match="'graded' has no answers; Hit@3 cannot be measured"):
        evaluate(run_of({0: [1]}), collection, "test", ["Hit@3"])
    with pytest.raises(UserError, match='no split "test"'):
        evaluate(run_of({2: [1]}), answered, "test", ["MRR@10"])


@pytest.mark.parametrize(
    "name",
    ["Hit", "ERR@10", "MRR@0", "MRR@ten", "", "Recall", "MRR@10@5", "Success", f"P@{2**63}", "MRR@" + "9" * 5000, 5],
)
def test_an_unknown_metric_is_a_user_error(collection: Collection, name: Any) -> None:
    with pytest.raises(UserError, match="metric"):
        evaluate(run_of({0: [0]}), collection, "test", [name])


def test_an_evaluation_reads_back(tmp_path: Path, result: Evaluation) -> None:
    result.save(tmp_path / "per_query.npz")
    read = Evaluation.load(tmp_path / "per_query.npz")
    assert read.query_ids == result.query_ids
    assert list(read.per_query) == ALL
    for metric in ALL:
        np.testing.assert_array_equal(read.per_query[metric], result.per_query[metric])
    with pytest.raises(UserError, match="no such file"):
        Evaluation.load(tmp_path / "missing.npz")


def test_a_thousand_queries_a_thousand_deep_take_seconds() -> None:
    rows = np.random.default_rng(0).permuted(np.tile(np.arange(2000), (1000, 1)), axis=1)[:, :1000]
    queries = np.arange(1000)
    qrels = Qrels(queries.astype(np.int32), queries.astype(np.int32), np.ones(1000, np.int32))
    started = time.process_time()
    found = score(queries, rows, qrels, ["MRR@10", "Recall@1000", "NDCG@10"])
    assert time.process_time() - started < 6
    expected = [int(query in ranking) for query, ranking in zip(queries.tolist(), rows.tolist(), strict=True)]
    assert found["Recall@1000"].tolist() == expected


def test_what_lies_behind_the_cutoffs_changes_nothing() -> None:
    random = np.random.default_rng(0)
    rankings = random.permuted(np.tile(np.arange(300), (50, 1)), axis=1)
    rows, grades = np.repeat(np.arange(50), 6), random.integers(-1, 4, 300)
    qrels = Qrels(rows.astype(np.int32), random.permutation(300).astype(np.int32), grades.astype(np.int32))
    names = ["MRR@10", "Recall@100", "NDCG@10", "P@5", "Success@20", "MAP@50"]
    short = score(np.arange(50), rankings, qrels, names)
    whole = score(np.arange(50), rankings, qrels, [*names, "MAP"])  # which looks at all of them
    for name in names:
        np.testing.assert_array_equal(short[name], whole[name])
        assert 0 < short[name].mean() < 1
