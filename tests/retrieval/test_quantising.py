"""Indexes of int8 and of single bits: what a code stands for, what they find, what they say that they lose."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from error_lines import names
from simulated_processes import in_parts
from test_encoding import VOCABULARY, Store, contents

from condensery.errors import UserError
from condensery.retrieval.indexes.dense import DenseIndex, search_array
from condensery.retrieval.indexes.encoding import EncoderInput, Encoding, write_dense_index
from condensery.retrieval.indexes.quantisation_loss import share_found
from condensery.retrieval.indexes.quantiser import Quantiser
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.tokens.batches import Chunk
from condensery.tokens.text_reader import TextReader

DIM = 20
SIZES = {"int8": 1.0, "binary": 1 / 8}


class Words:
    """The sum of a random vector for each token; one dimension is far larger than the others."""

    def __init__(self) -> None:
        # a generator of its own: two parts make theirs at the same time
        self.words = torch.randn(50, DIM, generator=torch.Generator().manual_seed(0))
        self.words[:, 3] *= 30
        self.calls, self.fail_after = 0, 10**9

    def __call__(self, chunk: Chunk) -> torch.Tensor:
        self.calls += 1
        if self.calls > self.fail_after:
            raise KeyboardInterrupt
        found: torch.Tensor = (self.words[chunk.input_ids] * chunk.attention_mask[..., None]).sum(dim=1)
        return found


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(5, 50, random.integers(3, 12)).tolist() for _ in range(150)]


def encoded(
    folder: Path,
    texts: list[list[int]],
    dtype: Any,
    queries: int = 30,
    encoder: Words | None = None,
    group: ProcessGroup = SINGLE_PROCESS,
    **source: Any,
) -> dict[str, Any]:
    """An index of all texts, with some of them as queries; what it says of itself."""
    passages = EncoderInput(TextReader(Store(texts), VOCABULARY, source.pop("length", 16)), **source)
    settings: dict[str, Any] = {"shard_size": 40, "budget": 256, "dtype": dtype, "group": group}
    encoder = encoder or Words()
    if queries:
        Encoding(folder, **settings).queries(encoder, EncoderInput(TextReader(Store(texts[:queries]), VOCABULARY, 16)))
    quantising = Encoding(folder, **settings).passages(encoder, passages)
    group.leave_unless_rank_zero()
    return write_dense_index(folder, passages.cut if passages.windows > 1 else None, quantising)


@pytest.mark.parametrize("bits", [8, 1])
def test_a_code_stands_for_a_number_near_the_one_that_it_was_made_of(bits: int) -> None:
    vectors = np.random.default_rng(1).normal(3, [1, 10, 0.1, 0, 5, 2, 1, 1, 1], (500, 9)).astype(np.float32)
    quantiser = Quantiser.fitted(vectors, bits)
    codes = quantiser.codes(vectors)
    assert (codes.dtype, codes.shape) == ((np.int8, (500, 9)) if bits == 8 else (np.uint8, (500, 2)))
    assert quantiser.width == codes.shape[1]
    error = np.abs(quantiser.vectors(codes) - vectors)
    if bits == 8:
        assert (error <= 0.5001 * quantiser.step + 1e-5).all(), "half a step at most"
        assert (quantiser.codes(vectors * 100) >= -128).all(), "what lies beyond gets the last level"
    else:
        assert (error[:, 3] < 1e-6).all(), "a dimension that is always the same"
        spread = vectors.std(axis=0)
        assert (error.std(axis=0) <= spread).all()
        np.testing.assert_allclose(np.square(error).mean(axis=0), spread**2 * (1 - 2 / np.pi), rtol=0.15, atol=1e-9)


@pytest.mark.parametrize("dtype", SIZES)
def test_searching_finds_what_the_levels_say_whoever_searches(
    dtype: str, texts: list[list[int]], tmp_path: Path
) -> None:
    about = encoded(tmp_path, texts, dtype)
    index = DenseIndex(tmp_path, device="cpu")
    assert (about["dim"], about["passages"], about["queries"], about["dtype"]) == (DIM, 150, 30, dtype)
    stored = np.concatenate([np.load(path) for path in sorted((tmp_path / "passages").iterdir())])
    assert stored.nbytes == 150 * -(-DIM * 8 * SIZES[dtype] // 8)
    levels = Quantiser.load(tmp_path).vectors(stored)
    np.testing.assert_array_equal(index.passage_vectors(np.arange(150)), levels)
    queries = index.query_vectors(np.arange(30))
    assert np.load(tmp_path / "queries.npy").dtype == np.float32
    scores, rows = index.search(np.arange(30), 12)
    wanted = search_array(queries, levels, 12, "cpu")
    np.testing.assert_array_equal(rows, wanted[1])
    np.testing.assert_allclose(scores, wanted[0], rtol=1e-5)
    np.testing.assert_allclose(index.score(np.arange(30), rows), scores, rtol=1e-4, atol=1e-3)
    one = np.concatenate([index.search(np.array([row]), 12)[1] for row in range(30)])
    assert (one == rows).mean() > 0.99, "one query goes another way"


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("queries", [30, 0])
def test_what_is_said_to_be_lost_is_what_is_lost(
    dtype: str, queries: int, texts: list[list[int]], tmp_path: Path
) -> None:
    about = encoded(tmp_path / "few", texts, dtype, queries)
    whole = encoded(tmp_path / "whole", texts, "float32", queries)
    assert "recall_10" not in whole
    one, other = (DenseIndex(tmp_path / name, device="cpu") for name in ("few", "whole"))
    asked = other.query_vectors(np.arange(30)) if queries else other.passage_vectors(np.arange(150))
    exact, found = (index.search_vectors(asked, 101)[1] for index in (other, one))
    if not queries:  # a passage does not find itself
        exact, found = (np.array([row[row != i][:100] for i, row in enumerate(rows)]) for rows in (exact, found))
    for depth in (10, 100):
        share = np.mean([np.isin(a[:depth], b[:depth]).mean() for a, b in zip(exact, found, strict=True)])
        assert about[f"recall_{depth}"] == pytest.approx(share, abs=0.002)
    assert about["compared"] == len(asked)
    assert about["recall_10"] > {"int8": 0.9, "binary": 0.1}[dtype]
    assert not (tmp_path / "few" / "exact").exists()


def test_eight_bits_lose_less_than_one_although_a_dimension_is_large(texts: list[list[int]], tmp_path: Path) -> None:
    lost = {dtype: encoded(tmp_path / dtype, texts, dtype)["recall_10"] for dtype in SIZES}
    assert lost["binary"] < lost["int8"] <= 1


@pytest.mark.parametrize("dtype", SIZES)
def test_windows_rank_by_their_best(dtype: str, texts: list[list[int]], tmp_path: Path) -> None:
    about = encoded(tmp_path, texts, dtype, length=6, windows=3)
    index = DenseIndex(tmp_path, device="cpu")
    assert about["windows"] > about["passages"] == 150
    queries, levels = index.query_vectors(np.arange(30)), index.passage_vectors(np.arange(about["windows"]))
    products = queries @ levels.T
    best = np.maximum.reduceat(products, index.starts[:-1], axis=1)
    scores, rows = index.search(np.arange(30), 5)
    np.testing.assert_allclose(scores, -np.sort(-best, axis=1)[:, :5], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(index.score(np.arange(30), rows), scores, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", SIZES)
def test_interrupted_anywhere_and_shared_by_processes_it_is_the_same_to_the_byte(
    dtype: str, texts: list[list[int]], tmp_path: Path
) -> None:
    wanted = encoded(tmp_path / "whole", texts, dtype)
    calls = Words()
    encoded(tmp_path / "counted", texts, dtype, encoder=calls)
    for stop in range(1, calls.calls, 3):
        broken = Words()
        broken.fail_after = stop
        with pytest.raises(KeyboardInterrupt):
            encoded(tmp_path / f"{stop}", texts, dtype, encoder=broken)
        assert encoded(tmp_path / f"{stop}", texts, dtype) == wanted
        assert contents(tmp_path / f"{stop}") == contents(tmp_path / "whole")
    assert encoded(tmp_path / "whole", texts, dtype) == wanted, "told again where all is there"
    in_parts(2, lambda part: encoded(tmp_path / "parts", texts, dtype, group=part))
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_another_dtype_in_the_same_folder_begins_anew(texts: list[list[int]], tmp_path: Path) -> None:
    encoded(tmp_path / "one", texts, "int8")
    encoded(tmp_path / "one", texts, "binary")
    encoded(tmp_path / "other", texts, "binary")
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_levels_that_are_missing_or_of_other_codes_are_one_line(texts: list[list[int]], tmp_path: Path) -> None:
    encoded(tmp_path / "one", texts, "int8")
    encoded(tmp_path / "other", texts, "binary")
    (tmp_path / "one" / "quantiser.npz").write_bytes((tmp_path / "other" / "quantiser.npz").read_bytes())
    with pytest.raises(UserError) as raised:
        DenseIndex(tmp_path / "one", device="cpu").passage_vectors(np.arange(3))
    names(str(raised.value), "00000.npy", "quantiser.npz")
    (tmp_path / "one" / "quantiser.npz").write_bytes(b"x")
    with pytest.raises(UserError, match=r"quantiser\.npz"):
        DenseIndex(tmp_path / "one", device="cpu")
    np.savez(tmp_path / "one" / "quantiser.npz", bits=8)
    with pytest.raises(UserError, match=r"quantiser\.npz: not the levels"):
        DenseIndex(tmp_path / "one", device="cpu")


def test_shares_leave_out_the_query_itself_and_padding() -> None:
    exact, found = np.array([[7, 1, 2, 3], [4, 5, -1, -1]]), np.array([[7, 2, 9, 1], [5, 4, -1, -1]])
    assert share_found(exact, found, np.array([7, -1]), 2) == 3 / 4
    assert share_found(exact, found, np.array([-1, -1]), 2) == 3 / 4
    assert share_found(exact[:, :0], found, np.array([7, -1]), 2) == 1
