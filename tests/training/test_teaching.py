"""A batch has the scores of its teacher, those of other queries' passages too, and a passage with a copy has one score."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import trainings

from condensery.retrieval.no_negatives import NoNegatives
from condensery.retrieval.pair_scores import PairScores, TeacherScores
from condensery.text.same_texts import SameTexts
from condensery.training.checkpoint_fingerprint import described
from condensery.training.data.steps import Share
from condensery.training.data.teaching import coverage, taught
from condensery.training.data.training_queries import TrainingQueries


def with_scores(training: TrainingQueries, *scores: dict[int, dict[int, float]]) -> TrainingQueries:
    """``scores``: of each source, query row -> passage -> score."""
    sources = []
    for source in scores:
        width = max(map(len, source.values()))
        rows, values = np.full((len(source), width), -1), np.full((len(source), width), np.nan, np.float32)
        for at, own in enumerate(source.values()):
            rows[at, : len(own)], values[at, : len(own)] = list(own), list(own.values())
        sources.append(PairScores(np.array(list(source)), rows, values))
    return replace(training, teacher=TeacherScores(sources, training.rows))


def test_a_batch_has_the_scores_of_its_pairs_and_nan_elsewhere(tmp_path: Path) -> None:
    training = trainings.training_queries()
    every = {int(row): {p: float(100 * row + p) for p in range(0, 30, 2)} for row in training.rows[1:]}
    batches = trainings.triple_batches(tmp_path, with_scores(training, every))
    for step in range(3):
        batch = batches.batch(step)
        _, chosen = batches.order(step)
        assert batch.teacher is not None
        assert batch.teacher.dtype == torch.float32
        for row, query in zip(batch.teacher.tolist(), training.rows[chosen].tolist(), strict=True):
            for found, passage in zip(row, batch.passages.tolist(), strict=True):
                wanted = every.get(query, {}).get(passage)
                assert (found != found) if wanted is None else found == wanted


def test_without_a_teacher_nothing_travels(tmp_path: Path) -> None:
    batch = trainings.triple_batches(tmp_path).batch(0)
    assert (batch.teacher, batch.scored, batch.scores) == (None, None, None)


def test_a_batch_that_travels_keeps_its_teacher(tmp_path: Path) -> None:
    import pickle

    training = trainings.training_queries()
    batches = trainings.triple_batches(tmp_path, with_scores(training, {int(training.rows[0]): {3: 1.5}}))
    for share in (Share(), Share(1, 2)):
        batch = batches.batch(0, share)
        again = pickle.loads(pickle.dumps(batch))
        for name in ("teacher", "scored", "scores"):
            torch.testing.assert_close(getattr(again, name), getattr(batch, name), equal_nan=True)


def test_a_passage_that_stands_for_its_copies_has_its_own_score_or_that_of_a_copy() -> None:
    pools = np.array([[14, 3], [14, 9]], np.int32)
    passages = SameTexts(np.array([9, 14]), np.array([7, 2]))  # 14 is a copy of 2, 9 of 7
    known = NoNegatives(SameTexts(np.empty(0, np.int64), np.empty(0, np.int64)), passages, np.array([(0 << 32) + 5, 6]))
    training = TrainingQueries(np.array([0, 4]), np.array([5, 6]), np.array([0, 1, 2]), pools, known=known)
    training = with_scores(training, {0: {14: 1.0, 2: 2.0, 3: 3.0}}, {0: {2: -1.0}, 4: {14: 4.0, 6: 6.0}})
    pairs, scores = taught(training, np.array([0, 1]))
    found = {tuple(pair): score for pair, score in zip(pairs.tolist(), scores.tolist(), strict=True)}
    assert found == {(0, 2): 2.0, (0, 3): 3.0, (1, 2): 4.0, (1, 6): 6.0}
    assert coverage(training) == (4, 6), "positives 5 and 6, and 2, 3, 2, 7 of the pools"


def test_other_scores_are_other_data_to_a_checkpoint(tmp_path: Path) -> None:
    training = trainings.training_queries()
    row = int(training.rows[0])
    prints = [
        described(trainings.triple_batches(tmp_path / name, with_scores(training, {row: {3: score}})))
        for name, score in (("a", 1.0), ("b", 1.0), ("c", 2.0))
    ]
    assert prints[0] == prints[1] != prints[2]
