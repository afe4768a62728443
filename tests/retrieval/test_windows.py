"""Windows of long texts: every token is in one, and a text ranks by its best, exactly."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_encoding import VOCABULARY, Encoder, Store, expected, stored

from condensery.retrieval.indexes.dense import DenseIndex, numpy_search
from condensery.retrieval.indexes.encoding import EncoderInput, Encoding, write_dense_index
from condensery.retrieval.indexes.windows import best_of_windows, cut
from condensery.retrieval.ranking import unpack
from condensery.tokens.text_reader import TextReader


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=12), st.integers(1, 8))
def test_windows_hold_every_token_as_far_as_they_go_and_are_full(sizes: list[tuple[int, int]], most: int) -> None:
    lengths, room = np.array(sizes, np.int64).T
    windows = cut(lengths, room, most)
    assert windows.starts[0] == 0
    assert (np.diff(windows.starts) <= most).all()
    for text, (length, size) in enumerate(sizes):
        first, stop = windows.starts[text : text + 2]
        assert (windows.texts[first:stop] == text).all()
        ranges = [range(skipped, min(skipped + size, length)) for skipped in windows.skipped[first:stop].tolist()]
        assert sorted({token for one in ranges for token in one}) == list(range(min(length, most * size)))
        assert len(ranges) == max(1, min(most, -(-length // size))), "no more than are needed"
        assert all(len(one) == min(size, length) for one in ranges)


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 9), st.sampled_from([1, 3, 20, 50]))
def test_a_text_ranks_by_its_best_window_then_by_its_row(seed: int, texts: int, most: int, k: int) -> None:
    random = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(random.integers(1, most + 1, texts))])
    queries = random.integers(-2, 3, (5, 3)).astype(np.float32)  # whole numbers: many are equal
    windows = random.integers(-2, 3, (starts[-1], 3)).astype(np.float32)
    scores, rows = unpack(best_of_windows(lambda m: numpy_search(queries, iter([(0, windows)]), m), starts, k))
    best = np.maximum.reduceat(queries @ windows.T, starts[:-1], axis=1)  # (5, texts)
    for query in range(5):
        order = np.lexsort((np.arange(texts), -best[query]))[:k]
        assert rows[query, : len(order)].tolist() == order.tolist()
        np.testing.assert_array_equal(scores[query, : len(order)], best[query, order])
        assert (rows[query, len(order) :] == -1).all()


@pytest.mark.parametrize("titled", [False, True])
def test_an_index_of_windows_is_that_of_the_pieces_of_each_text(tmp_path: Path, titled: bool) -> None:
    random = np.random.default_rng(0)
    texts = [random.integers(5, 50, size).tolist() for size in (3, 40, 1, 17, 90)]
    titles = [[7, 8], [], [9], [6, 6, 6], []] if titled else [[]] * 5
    source = EncoderInput(TextReader(Store(texts), VOCABULARY, 16, Store(titles) if titled else None), windows=4)
    pieces: list[list[int]] = []
    before: list[list[int]] = []
    first = [0]
    for text, title in zip(texts, titles, strict=True):
        room = 14 - len(title) - bool(title)
        places = [min(at, max(0, len(text) - room)) for at in range(0, len(text), room)][:4]
        pieces += [text[at : at + room] for at in places]
        before += [title] * len(places)
        first.append(len(pieces))
    Encoding(tmp_path, shard_size=5, budget=48).passages(Encoder(48), source)
    Encoding(tmp_path, shard_size=5, budget=48).queries(
        Encoder(48), EncoderInput(TextReader(Store(texts[:2]), VOCABULARY, 16))
    )
    room = [14 - len(title) - bool(title) for title in titles]
    assert source.unread() == np.mean([len(text) > 4 * size for text, size in zip(texts, room, strict=True)]) > 0
    about = write_dense_index(tmp_path, source.cut)
    assert (about["passages"], about["windows"], about["queries"]) == (5, len(pieces), 2)
    vectors = expected(pieces, 16, before)
    np.testing.assert_array_equal(stored(tmp_path), vectors)
    index = DenseIndex(tmp_path, device="cpu")
    scores, rows = index.search(np.arange(2), 5)
    best = np.maximum.reduceat(index.query_vectors(np.arange(2)) @ vectors.T, first[:-1], axis=1)
    np.testing.assert_array_equal(rows, np.argsort(-best, axis=1, kind="stable"))
    np.testing.assert_array_equal(scores, np.take_along_axis(best, rows, axis=1))
    asked = np.array([[4, 0, -1], [1, 1, 3]])
    wanted = np.where(asked < 0, np.nan, np.take_along_axis(best, asked, axis=1))
    np.testing.assert_array_equal(index.score(np.arange(2), asked), wanted)
