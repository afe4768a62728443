"""Spans are contiguous, disjoint, inside their document, never too long, and lose nothing that is not counted."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.tokens import spans as module
from condensery.tokens.spans import RandomWindows, SentencePacked, SpanSet
from condensery.tokens.store import TokenStore, tokenise

LENGTH, MINIMUM = 32, 6
LIMIT = LENGTH - 2


def corpus(seed: int, documents: int = 60, most: int = 12, longest: int = 20) -> TokenStore:
    """A store of made-up sentence lengths; some documents are empty, some have one sentence, some a very long one."""
    random = np.random.default_rng(seed)
    sizes = [random.integers(1, longest, size=random.integers(0, most)) for _ in range(documents)]
    sizes[1], sizes[2], sizes[3] = np.array([], dtype=np.int64), np.array([100]), np.array([2 * MINIMUM - 1])
    return of_sizes(sizes)


def of_sizes(sizes: list[NDArray[np.int64]]) -> TokenStore:
    lengths = np.array([int(np.sum(size)) for size in sizes])
    flat = np.concatenate([np.asarray(size, dtype=np.int64) for size in sizes])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return SimpleNamespace(  # type: ignore[return-value]
        folder="made-up",
        sentences=np.cumsum(flat) - flat,
        document_starts=starts,
        document_lengths=lengths,
        token_count=int(starts[-1]),
    )


def packed(store: TokenStore, short: float = 0.1, seed: int = 0) -> SentencePacked:
    return SentencePacked(store, LENGTH, short, seed, MINIMUM)


def windows(store: TokenStore, seed: int = 0) -> RandomWindows:
    return RandomWindows(store, LENGTH, seed, MINIMUM)


def document_of(store: TokenStore, places: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(store.document_starts, places, side="right") - 1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("short", [0.0, 0.1, 1.0])
def test_packed_spans_are_disjoint_inside_documents_and_cover_all_but_what_is_counted(seed: int, short: float) -> None:
    store = corpus(seed)
    found = packed(store, short, seed)
    spans = found.spans(0)
    ends = spans.sum(axis=1)
    assert (spans[1:, 0] >= ends[:-1]).all()
    assert spans[:, 1].min() >= MINIMUM
    assert spans[:, 1].max() <= LIMIT
    assert (document_of(store, spans[:, 0]) == document_of(store, ends - 1)).all()
    assert spans[:, 1].sum() + found.dropped_tokens == store.token_count
    assert found.documents + found.dropped == len(store.document_lengths)
    assert found.dropped == (store.document_lengths < 2 * MINIMUM).sum()


def test_packing_is_greedy_at_sentence_boundaries() -> None:
    store = of_sizes([np.array([10, 10, 10, 10, 25, 10]), np.array([70, 8, 20])])
    spans = packed(store, short=0.0).spans(0)
    # 10+10+10 | 10 (25 would be too much) | 25 | 10 || 30 | 30 | 10+8 | 20: a sentence of 70 is cut
    assert spans[:, 1].tolist() == [30, 10, 25, 10, 30, 30, 18, 20]


def test_without_short_targets_no_following_sentence_would_have_fitted() -> None:
    store = corpus(5, longest=LIMIT)
    spans = packed(store, short=0.0).spans(0)
    sentences = set(store.sentences.tolist())  # type: ignore[union-attr]
    for start, size in spans.tolist():
        end = start + size
        after = next((place for place in sorted(sentences) if place > end), store.token_count)
        document_end = store.document_starts[document_of(store, np.array([start]))[0] + 1]
        if start in sentences and end < document_end:
            assert min(after, document_end) - start > LIMIT


def test_short_probability_shortens_that_share_of_the_spans() -> None:
    store = of_sizes([np.ones(60_000, dtype=np.int64)])
    lengths = packed(store, short=0.1).spans(0)[:, 1]
    share = (lengths[:-1] < LIMIT).mean()
    expected = 0.1 * (LIMIT - MINIMUM) / (LIMIT - MINIMUM + 1)
    assert abs(share - expected) < 4 * np.sqrt(0.1 * 0.9 / len(lengths))
    assert set(packed(store, short=1.0).spans(0)[:-1, 1].tolist()) == set(range(MINIMUM, LIMIT + 1))
    assert (packed(store, short=0.0).spans(0)[:, 1] == LIMIT).all()


def test_packing_block_by_block_gives_the_same_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    store = corpus(1, documents=300)
    whole = packed(store)
    monkeypatch.setattr(module, "BLOCK", 50)
    pieces = packed(store)
    assert np.array_equal(whole.spans(0), pieces.spans(0))
    assert whole.dropped_tokens == pieces.dropped_tokens


@pytest.mark.parametrize("make", [packed, windows])
@pytest.mark.parametrize("seed", range(4))
def test_a_pair_is_two_spans_of_one_document_that_do_not_overlap(make: Callable[..., SpanSet], seed: int) -> None:
    store = corpus(seed)
    found = make(store, seed=seed)
    for epoch in range(5):
        pairs = found.pairs(epoch, np.arange(found.documents))
        ordered = np.take_along_axis(pairs, np.argsort(pairs[:, :, 0], axis=1)[:, :, None], axis=1)
        assert (ordered[:, 0].sum(axis=1) <= ordered[:, 1, 0]).all()
        assert (pairs[:, :, 1] >= MINIMUM).all()
        assert (pairs[:, :, 1] <= LIMIT).all()
        assert (document_of(store, pairs[:, :, 0]) == found.usable[:, None]).all()
        assert (document_of(store, pairs.sum(axis=2) - 1) == found.usable[:, None]).all()


@pytest.mark.parametrize("make", [packed, windows])
def test_a_pair_is_a_function_of_seed_epoch_and_document(make: Callable[..., SpanSet]) -> None:
    store = corpus(0)
    found, again, other = make(store, seed=1), make(store, seed=1), make(store, seed=2)
    every = np.arange(found.documents)
    assert np.array_equal(found.pairs(3, every), again.pairs(3, every))
    assert np.array_equal(found.pairs(3, every[::-1]), found.pairs(3, every)[::-1])
    assert np.array(found.pair(3, 7)).tolist() == found.pairs(3, every)[7].tolist()
    assert not np.array_equal(found.pairs(3, every), found.pairs(4, every))
    assert not np.array_equal(found.pairs(3, every), other.pairs(3, every))


def test_every_pair_of_packed_spans_is_drawn_equally_often() -> None:
    store = of_sizes([np.full(4, LIMIT)])
    found = packed(store, short=0.0)
    drawn = [tuple(first // LIMIT for first, _ in found.pair(epoch, 0)) for epoch in range(2400)]
    counts = [drawn.count((a, b)) for a in range(4) for b in range(4) if a != b]
    assert sum(counts) == 2400
    assert all(abs(count - 200) < 4 * np.sqrt(200) for count in counts)


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ([9, 13], {9, 13}),  # one span: split at the sentence
        ([3, 3, 6, 4, 6], {12, 10}),  # at the sentence nearest to the middle
        ([22], {11}),  # one sentence: split at a token
        ([6, 23], {14, 15}),  # a sentence boundary outside the middle half
        ([6, 6], {6}),
        ([5, LIMIT, 5], {20}),  # packed into three, of which only one is long enough
    ],
)
def test_a_document_with_one_span_is_split_near_its_middle(sizes: list[int], lengths: set[int]) -> None:
    found = packed(of_sizes([np.array(sizes)]), short=0.0)
    assert found.dropped == 0
    pairs = found.pairs(0, [0])[0]
    assert set(pairs[:, 1].tolist()) == lengths
    assert pairs[:, 1].sum() == sum(sizes)
    assert {tuple(found.pair(epoch, 0)[0]) for epoch in range(40)} == {tuple(span) for span in pairs.tolist()}


@pytest.mark.parametrize("seed", range(5))
def test_windows_cover_the_corpus_once_but_for_short_ends(seed: int) -> None:
    store = corpus(seed)
    found = windows(store, seed)
    seen = np.zeros(store.token_count, dtype=np.int64)
    for start, size in found.spans(seed).tolist():
        assert MINIMUM <= size <= LIMIT
        seen[start : start + size] += 1
    assert seen.max() == 1
    for document in found.usable:
        a, b = store.document_starts[document], store.document_starts[document + 1]
        lost = np.flatnonzero(seen[a:b] == 0)
        assert all(place < MINIMUM or place >= b - a - MINIMUM for place in lost)
    assert not np.array_equal(found.spans(0), found.spans(1))


def test_window_pairs_use_the_full_width_where_there_is_room() -> None:
    found = windows(of_sizes([np.array([200]), np.array([25])]))
    pairs = np.stack([found.pairs(epoch, [0, 1]) for epoch in range(200)])
    assert (pairs[:, 0, :, 1] == LIMIT).all()
    assert (pairs[:, 1, :, 1] == 12).all()
    starts = pairs[:, 0, :, 0]
    assert starts.min() < 10
    assert starts.max() > 160
    assert abs((starts[:, 0] < starts[:, 1]).mean() - 0.5) < 0.15


def test_spans_run_over_passage_borders_inside_a_document(wordpiece: Path, tmp_path: Path) -> None:
    texts = ["the river stone.", "the of and to.", "a retrieval passage.", "encoder " * 9, "stone " * 9]
    store = tokenise(texts, wordpiece, tmp_path, sentences=True, documents=[0, 3, 5])
    found = SentencePacked(store, 64, 0.0, 0, 4)
    assert found.spans(0).tolist() == [
        [0, store.starts[3]],
        [store.starts[3], store.starts[5] - store.starts[3]],
    ]


@pytest.mark.parametrize("kind", ["packed", "windows"])
def test_a_pair_is_of_one_text_where_each_text_is_a_document(
    kind: str, texts: list[str], wordpiece: Path, tmp_path: Path
) -> None:
    grouped = tokenise(texts, wordpiece, tmp_path, sentences=True, documents=[0, 10, 10, 90, len(texts)])
    single = TokenStore(tmp_path, single_texts=True)
    make = {"packed": packed, "windows": windows}[kind]

    def texts_of(store: TokenStore) -> NDArray[np.int64]:
        """The text of each end of the spans of every pair of an epoch: (n, 4)."""
        found = make(store)
        pairs = np.concatenate([found.pairs(epoch, np.arange(found.documents)) for epoch in range(5)])
        places = np.concatenate([pairs[:, :, 0], pairs.sum(axis=2) - 1], axis=1)
        return np.searchsorted(grouped.starts, places, side="right") - 1

    inside = texts_of(single)
    assert (inside == inside[:, :1]).all()
    assert set(inside[:, 0]) == set(np.flatnonzero(grouped.lengths >= 2 * MINIMUM))
    across = texts_of(grouped)
    assert (across != across[:, :1]).any(), "these documents would not show a pair of two texts"


def test_what_cannot_give_spans_is_refused(wordpiece: Path, tmp_path: Path) -> None:
    store = of_sizes([np.array([5]), np.array([4, 4])])
    with pytest.raises(UserError, match="no document has 12 tokens"):
        packed(store)
    with pytest.raises(UserError, match="min_length=20 does not fit length=32"):
        RandomWindows(corpus(0), 32, 0, 20)
    queries = tokenise(["the river stone of the encoder passage"], wordpiece, tmp_path, sentences=False)
    with pytest.raises(UserError, match="has no sentences"):
        SentencePacked(queries, 32, 0.1, 0, 2)
