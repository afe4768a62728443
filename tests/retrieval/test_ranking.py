"""One key for score and row: its order is the order of a ranking."""

import numpy as np
import pytest
import torch

from condensery.retrieval.indexes.dense import pack_tensor
from condensery.retrieval.ranking import EMPTY, pack, strictly_falling, top, unpack

EXTREMES = np.array([-3e38, -1.5, -1e-40, -0.0, 0.0, 1e-40, 0.5, 2.0, 3e38, np.inf], np.float32)


@pytest.mark.parametrize("k", [2000, 1000, 10])
def test_keys_sort_by_score_then_by_row_and_give_both_back(k: int) -> None:
    random = np.random.default_rng(0)
    scores = random.choice(EXTREMES, 2000)
    rows = random.permutation(2**31 - 1 - np.arange(2000))
    found_scores, found_rows = unpack(top(pack(scores, rows), k))
    order = np.lexsort((rows, -scores))[:k]
    np.testing.assert_array_equal(found_rows, rows[order])
    np.testing.assert_array_equal(found_scores, scores[order])


@pytest.mark.parametrize("k", [1, 3, 7, 20])
def test_the_k_best_of_many_ties_are_those_with_the_lowest_rows(k: int) -> None:
    scores = np.array([1, 2, 1, 2, 1, 1, 0], np.float32)
    found, rows = unpack(top(pack(scores, np.arange(7)), k))
    expected = [1, 3, 0, 2, 4, 5, 6][:k]
    assert rows.tolist() == expected + [-1] * (k - len(expected))
    assert found[len(expected) :].tolist() == [-np.inf] * (k - len(expected))


def test_torch_and_numpy_make_the_same_keys() -> None:
    rows = np.arange(100, 100 + len(EXTREMES))
    keys = pack_tensor(torch.from_numpy(EXTREMES)[None], torch.from_numpy(rows))
    np.testing.assert_array_equal(keys[0].numpy(), pack(EXTREMES, rows))
    assert keys.min() > EMPTY


@pytest.mark.parametrize("number", [2, 7, 1000])
@pytest.mark.parametrize(
    "score", [*EXTREMES[np.isfinite(EXTREMES)], np.finfo(np.float32).min, np.finfo(np.float32).max]
)
def test_equal_scores_fall_by_the_least_there_is(score: np.float32, number: int) -> None:
    falling = strictly_falling(np.full((2, number), score, np.float32))
    assert np.isfinite(falling).all()
    assert (np.diff(falling.astype(np.float64), axis=1) < 0).all()
    np.testing.assert_array_equal(falling[0], falling[1])
    lowest = score == np.finfo(np.float32).min
    expected = np.full(number, score, np.float32)
    for place in range(1, number):  # from the top, or at the lower end from the bottom
        expected[place] = np.nextafter(expected[place - 1], np.float32(np.inf if lowest else -np.inf))
    np.testing.assert_array_equal(falling[0], expected[::-1] if lowest else expected)


def test_scores_that_fall_stay_to_the_bit() -> None:
    scores = np.unique(np.random.default_rng(0).normal(size=12_000).astype(np.float32))[::-1][:11_900].reshape(-1, 350)
    whole = np.array([3, 2, 1, -0.0, -1e-45, -2, -3e38], np.float32)
    for given in (scores, whole, scores[:, :1], scores[:, :0]):
        assert strictly_falling(given).tobytes() == given.tobytes()
