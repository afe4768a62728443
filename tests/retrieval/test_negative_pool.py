"""A pool reads what a batch asks for, whatever the order of its sources."""

import pickle
from pathlib import Path

import numpy as np

from condensery.retrieval.negative_pool import NegativePool
from condensery.retrieval.negatives import Negatives, open_negatives, save_negatives
from condensery.text.collection import Collection


def test_a_pool_joins_its_sources_by_query_and_names_a_passage_once(tmp_path: Path, collection: Collection) -> None:
    first = Negatives(np.array([9, 2, 5]), np.array([[1, 2], [3, 4], [5, -1]], np.int32))
    second = Negatives(np.array([5, 7]), np.array([[6, 5, 8], [9, 9, -1]], np.int32))
    save_negatives(tmp_path, first, collection, {})
    pool = NegativePool([open_negatives(tmp_path, collection), second], np.array([2, 5, 7, 8]))
    assert pool.shape == (4, 5)
    assert pool[np.array([3, 1, 0, 2, 1])].tolist() == [
        [-1, -1, -1, -1, -1],
        [5, -1, 6, -1, 8],
        [3, 4, -1, -1, -1],
        [-1, -1, 9, -1, -1],
        [5, -1, 6, -1, 8],
    ]
    assert pickle.loads(pickle.dumps(pool))[np.array([0])].tolist() == [[3, 4, -1, -1, -1]]
    assert NegativePool([], np.array([2, 5]))[np.array([1])].shape == (1, 0)
