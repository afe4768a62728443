"""Co-occurrences are those of a plain double loop, and their decomposition is that of the dense matrix."""

import math
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from forked import peak_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from real_text import prose, write_store
from scipy import sparse
from threadpoolctl import threadpool_limits

from condensery.models.warm_start import token_vectors
from condensery.tokens import cooccurrence
from condensery.tokens.cooccurrence import cooccurrences, positive_pmi, truncated_svd, unigrams
from condensery.tokens.store import TokenStore

SIZE = 12
# documents of texts of ids: empty ones, one of a single token, one longer than any window
DOCUMENTS = [
    [[5, 6, 7], [5, 5]],
    [],
    [[8]],
    [[], [9, 6, 6, 5, 11, 10, 9, 8, 7, 6, 5, 9, 6], [], [5, 9]],
    [[]],
    [[11, 5], [11, 5, 11], [6]],
]
Documents = list[list[list[int]]]


def by_hand(documents: Documents, size: int, window: int) -> NDArray[np.float64]:
    """Each pair of places of a document with the inverse of its distance, both ways round: (V, V)."""
    counts = np.zeros((size, size))
    for document in documents:
        ids = [number for text in document for number in text]
        for i, a in enumerate(ids):
            for j, b in enumerate(ids):
                if 0 < abs(i - j) <= window:
                    counts[a, b] += 1 / abs(i - j)
    return counts


def counted(store: TokenStore, window: int, size: int = SIZE) -> NDArray[np.float64]:
    return cooccurrences(store, size, window).toarray() / math.lcm(*range(1, window + 1))


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return write_store(tmp_path / "store", DOCUMENTS)


@pytest.fixture(scope="module")
def associations(tmp_path_factory: pytest.TempPathFactory) -> sparse.csr_array:
    """Of 600 words of real text, a few of which occur nowhere."""
    text = prose(600, without=20)
    return positive_pmi(cooccurrences(write_store(tmp_path_factory.mktemp("prose"), text.documents), text.size, 10))


@pytest.mark.parametrize("window", [1, 3, 10, 40])
def test_pairs_of_a_document_count_by_their_distance(store: TokenStore, window: int) -> None:
    np.testing.assert_allclose(counted(store, window), by_hand(DOCUMENTS, SIZE, window), rtol=1e-12)


def test_pairs_cross_from_text_to_text_of_a_document_and_never_to_another_document(tmp_path: Path) -> None:
    together = counted(write_store(tmp_path / "one", [[[5, 6], [7]]]), window=3)
    apart = counted(write_store(tmp_path / "two", [[[5, 6]], [[7]]]), window=3)
    assert (together[6, 7], together[5, 7]) == (1, 0.5)
    assert (apart[5, 6], apart[6, 7], apart[5, 7]) == (1, 0, 0)


@pytest.mark.parametrize("window", [1, 3, 10])
def test_the_size_of_blocks_changes_no_bit(store: TokenStore, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, words = cooccurrences(store, SIZE, window), unigrams(store, SIZE)
    for block in (1, 2, 7, 23, 50):
        monkeypatch.setattr(cooccurrence, "BLOCK", block)
        found = cooccurrences(store, SIZE, window)
        for name in ("data", "indices", "indptr"):
            assert getattr(found, name).tobytes() == getattr(whole, name).tobytes(), (block, name)
        assert np.array_equal(unigrams(store, SIZE), words)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=3), max_size=4),
    st.integers(1, 8),
    st.integers(1, 30),
)
def test_any_documents(tmp_path_factory: pytest.TempPathFactory, documents: Documents, window: int, block: int) -> None:
    store = write_store(tmp_path_factory.mktemp("any"), documents)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(cooccurrence, "BLOCK", block)
        found = cooccurrences(store, 6, window)
        np.testing.assert_allclose(
            found.toarray() / math.lcm(*range(1, window + 1)), by_hand(documents, 6, window), rtol=1e-12
        )
        left, values = truncated_svd(positive_pmi(found), 3)
    assert (found.toarray() == found.toarray().T).all()
    assert np.isfinite(left).all()
    assert (np.diff(values) <= 0).all()


def test_progress_ends_at_the_number_of_tokens(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    class Task:
        def advance(self, n: int = 1) -> None:
            done.append(n)

        def note(self, text: str) -> None: ...

    monkeypatch.setattr(cooccurrence, "BLOCK", 12)
    cooccurrences(store, SIZE, 3, Task())
    assert sum(done) == store.token_count
    assert len(done) == -(-store.token_count // 4), "four tokens of three pairs each are a block of twelve"


def test_unigrams_are_those_of_all_texts(store: TokenStore) -> None:
    ids = [number for document in DOCUMENTS for text in document for number in text]
    assert unigrams(store, SIZE).tolist() == np.bincount(ids, minlength=SIZE).tolist()


def test_memory_grows_with_the_vocabulary_and_not_with_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cooccurrence, "BLOCK", 5000)

    def peak(tokens: int, size: int) -> int:
        ids = np.random.default_rng(0).integers(0, size, tokens).tolist()
        store = write_store(tmp_path / f"{tokens}-{size}", [[ids[at : at + 50]] for at in range(0, tokens, 50)])
        assert len(store.document_starts) == tokens // 50 + 1
        return peak_memory(lambda: cooccurrences(store, size, window=5))

    short = peak(20_000, 150)  # in which almost any two ids meet
    assert peak(200_000, 150) < 1.2 * short
    assert peak(20_000, 300) > 1.5 * short, "the test would not see what grows"


@pytest.mark.parametrize("smoothing", [0.75, 1.0])
def test_positive_pmi_is_the_formula(store: TokenStore, smoothing: float) -> None:
    counts = cooccurrences(store, SIZE, window=3)
    dense = counts.toarray()
    words, contexts = dense.sum(axis=1), dense.sum(axis=0) ** smoothing
    wanted = np.zeros((SIZE, SIZE))
    for a in range(SIZE):
        for b in range(SIZE):
            if dense[a, b]:
                p_b = contexts[b] / contexts.sum()
                wanted[a, b] = max(0.0, math.log(dense[a, b] / dense.sum() / (words[a] / dense.sum() * p_b)))
    found = positive_pmi(counts, smoothing)
    assert (wanted > 0).sum() < (dense > 0).sum(), "some pairs are rarer than by chance"
    np.testing.assert_allclose(found.toarray(), wanted, rtol=1e-12, atol=1e-15)
    assert (found.data > 0).all(), "nothing is kept for pairs without information"
    np.testing.assert_allclose(positive_pmi(counts * 7.0, smoothing).toarray(), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dim", [40, 300])  # 580 tokens: by ARPACK, and densely
def test_singular_vectors_are_those_of_the_dense_matrix_but_for_their_sign(
    associations: sparse.csr_array, dim: int
) -> None:
    left, values = truncated_svd(associations, dim)
    wanted, falling, _ = np.linalg.svd(associations.toarray())
    np.testing.assert_allclose(values, falling[:dim], rtol=1e-9)
    agreement = np.abs((left * wanted[:, :dim]).sum(axis=0))
    apart = np.abs(np.diff(falling[: dim + 1])) > 1e-4 * falling[0]  # neighbouring values that are equal share a plane
    alone = apart & np.concatenate([[True], apart[:-1]])
    assert alone.sum() > 0.3 * dim
    np.testing.assert_allclose(agreement[alone], 1.0, atol=1e-8)
    np.testing.assert_allclose(left.T @ left, np.eye(dim), atol=1e-9)


@pytest.mark.parametrize("dim", [40, 300])
def test_the_decomposition_is_the_same_each_time(associations: sparse.csr_array, dim: int) -> None:
    first, again = truncated_svd(associations, dim), truncated_svd(associations, dim)
    assert [one.tobytes() for one in first] == [one.tobytes() for one in again]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one core")
@pytest.mark.parametrize("dim", [64, 300])  # by ARPACK, and densely
def test_the_decomposition_does_not_depend_on_the_number_of_threads(dim: int) -> None:
    matrix = sparse.random_array((1000, 1000), density=0.05, rng=np.random.default_rng(4)).tocsr()
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            found.append(b"".join(one.tobytes() for one in truncated_svd(matrix, dim)))
    assert found[0] == found[1]


def test_dimensions_beyond_the_vocabulary_are_zeros(store: TokenStore) -> None:
    matrix = positive_pmi(cooccurrences(store, SIZE, window=3))
    left, values = truncated_svd(matrix, 20)
    assert (left.shape, values.shape) == ((SIZE, 20), (20,))
    assert not left[:, SIZE:].any()
    assert not values[SIZE:].any()
    dense = matrix.toarray()
    np.testing.assert_allclose((left * values**2) @ left.T, dense @ dense.T, atol=1e-10)


@pytest.mark.parametrize("size", [40, 400])  # densely, and by ARPACK if all of it were decomposed
def test_dimensions_beyond_the_rank_are_zeros_and_tokens_without_pairs_have_none(size: int) -> None:
    random = np.random.default_rng(0)
    factor = random.random((30, 3))
    dense = np.zeros((size, size))
    dense[5:35, 5:35] = factor @ factor.T
    dense[5] = 0  # the token occurs as a context alone
    left, values = truncated_svd(sparse.csr_array(dense), 16)
    assert (values > 0).tolist() == [True] * 3 + [False] * 13
    assert np.flatnonzero(token_vectors(left, values, seed=1).any(axis=1)).tolist() == list(range(6, 35))


def test_a_text_without_pairs_has_no_associations_and_no_vectors(tmp_path: Path) -> None:
    store = write_store(tmp_path, [[[5]], [[6]], [[]]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        left, values = truncated_svd(positive_pmi(cooccurrences(store, 300, window=10)), 8)
        assert not token_vectors(left, values, seed=1).any()
    assert (left.shape, values.tolist()) == ((300, 8), [0.0] * 8)


def test_vectors_rank_a_tokens_neighbours_as_a_dense_decomposition_does(associations: sparse.csr_array) -> None:
    dim = 64
    assert associations.shape[0] - 20 > 4 * dim, "the matrix is decomposed by ARPACK"
    left, falling, _ = np.linalg.svd(associations.toarray())
    ours, dense = token_vectors(*truncated_svd(associations, dim), seed=1), left[:, :dim] * falling[:dim] ** 0.5
    known = ours.any(axis=1)
    assert known.sum() > 550
    dense = dense[known] / np.linalg.norm(dense[known], axis=1, keepdims=True)
    cosines, wanted = ours[known] @ ours[known].T, dense @ dense.T
    np.testing.assert_allclose(cosines, wanted, atol=1e-9)
    np.fill_diagonal(cosines, -2)
    np.fill_diagonal(wanted, -2)
    assert np.array_equal(np.argsort(-cosines, axis=1)[:, :10], np.argsort(-wanted, axis=1)[:, :10])


def test_vectors_have_length_1_turn_with_the_seed_and_no_dimension_dominates(associations: sparse.csr_array) -> None:
    decomposed = truncated_svd(associations, 64)
    vectors, others = token_vectors(*decomposed, seed=1), token_vectors(*decomposed, seed=2)
    known = vectors.any(axis=1)
    assert np.array_equal(known, np.diff(associations.indptr) > 0), "others have zeros"
    np.testing.assert_allclose(np.linalg.norm(vectors[known], axis=1), 1.0)
    assert np.abs(vectors - others).max() > 0.1
    np.testing.assert_allclose(vectors @ vectors.T, others @ others.T, atol=1e-12)
    unturned = (decomposed[0] * decomposed[1] ** 0.5)[known]
    largest = [64 * (v**2).mean(axis=0).max() / (v**2).sum(axis=1).mean() for v in (vectors[known], unturned)]
    assert largest[0] < 1.5, "a dimension's share of the squared lengths, against 1 / 64"
    assert largest[1] > 3
