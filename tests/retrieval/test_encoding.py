"""Encoding: vectors in row order, whole shards kept on restart, bad vectors refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from simulated_processes import in_parts

from condensery.errors import UserError
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.encoding import EncoderInput, Encoding, write_dense_index
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.tokens.batches import Chunk
from condensery.tokens.store import TokenStore
from condensery.tokens.text_reader import TextReader
from condensery.tokens.vocabulary import Vocabulary

CLS, SEP, PAD = 2, 3, 0
VOCABULARY = Vocabulary(
    size=50, pad=PAD, cls=CLS, sep=SEP, mask=4, unk=1, special=np.arange(5), continues=np.zeros(50, bool)
)


class Store(TokenStore):
    """A token store in memory: only what encoding reads of one."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.tokens = np.array([token for text in texts for token in text], np.uint16)
        self.starts = np.cumsum([0] + [len(text) for text in texts])


@pytest.fixture
def texts() -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(5, 50, random.integers(1, 30)).tolist() for _ in range(23)]


class Encoder:
    """Sum of ids, number of tokens, weighted sum: a vector that any wrong token changes. Counts its calls."""

    def __init__(self, budget: int) -> None:
        self.budget, self.rows, self.fail_after = budget, 0, 10**9

    def __call__(self, chunk: Chunk) -> torch.Tensor:
        assert chunk.input_ids.numel() <= self.budget
        if self.rows >= self.fail_after:
            raise KeyboardInterrupt
        self.rows += len(chunk)
        ids = (chunk.input_ids * chunk.attention_mask).float()
        places = torch.arange(1, ids.shape[1] + 1).float()
        return torch.stack([ids.sum(1), chunk.lengths.float(), (ids * places).sum(1)], dim=1)


def expected(texts: list[list[int]], length: int, titles: list[list[int]] | None = None) -> np.ndarray:
    rows = []
    for i, text in enumerate(texts):
        body = [*titles[i], SEP, *text] if titles and titles[i] else text
        ids = np.array([CLS, *body[: length - 2], SEP])
        rows.append([ids.sum(), len(ids), (ids * np.arange(1, len(ids) + 1)).sum()])
    return np.array(rows, np.float32)


def stored(folder: Path) -> np.ndarray:
    return np.concatenate([np.load(path) for path in sorted((folder / "passages").iterdir())])


@pytest.mark.parametrize("shard_size", [1, 7, 23, 100])
def test_vectors_stand_in_row_order_whatever_the_shards(
    tmp_path: Path, texts: list[list[int]], shard_size: int
) -> None:
    source = EncoderInput(TextReader(Store(texts), VOCABULARY, 16))
    Encoding(tmp_path / "o", shard_size=shard_size, budget=40).passages(Encoder(40), source)
    np.testing.assert_array_equal(stored(tmp_path / "o"), expected(texts, 16))


def test_titles_go_before_the_text_behind_a_separator(tmp_path: Path, texts: list[list[int]]) -> None:
    titles = [[7, 8], []] * 11 + [[9]]
    source = EncoderInput(TextReader(Store(texts), VOCABULARY, 16, Store(titles)))
    Encoding(tmp_path / "o", shard_size=10, budget=64).passages(Encoder(64), source)
    np.testing.assert_array_equal(stored(tmp_path / "o"), expected(texts, 16, titles))


def test_an_interrupted_encoding_keeps_its_whole_shards(tmp_path: Path, texts: list[list[int]]) -> None:
    source = EncoderInput(TextReader(Store(texts), VOCABULARY, 32))
    broken = Encoder(64)
    broken.fail_after = 15
    with pytest.raises(KeyboardInterrupt):
        Encoding(tmp_path / "o", shard_size=5, budget=64).passages(broken, source)
    kept = len(list((tmp_path / "o" / "passages").iterdir()))
    assert kept >= 2
    with pytest.raises(UserError, match="not encoded"):
        write_dense_index(tmp_path / "o")
    again = Encoder(64)
    Encoding(tmp_path / "o", shard_size=5, budget=64).passages(again, source)
    assert again.rows == 23 - 5 * kept
    np.testing.assert_array_equal(stored(tmp_path / "o"), expected(texts, 32))


def test_shards_of_another_layout_are_not_mixed_in(tmp_path: Path, texts: list[list[int]]) -> None:
    source = EncoderInput(TextReader(Store(texts), VOCABULARY, 32))
    Encoding(tmp_path / "o", shard_size=15, budget=64).passages(Encoder(64), source)  # 15 + 8
    # 8 + 8 + 7: shard 1 has 8 rows again
    Encoding(tmp_path / "o", shard_size=8, budget=64).passages(Encoder(64), source)
    np.testing.assert_array_equal(stored(tmp_path / "o"), expected(texts, 32))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_several_processes_that_go_on_where_one_stopped_write_the_same_index(
    tmp_path: Path, texts: list[list[int]]
) -> None:
    passages, queries = (
        EncoderInput(TextReader(Store(texts), VOCABULARY, 32)),
        EncoderInput(TextReader(Store(texts[:8]), VOCABULARY, 32)),
    )
    settings = {"shard_size": 5, "budget": 64}

    def encode(folder: Path, encoder: Encoder, part: ProcessGroup) -> None:
        Encoding(folder, group=part, **settings).passages(encoder, passages)
        Encoding(folder, group=part, **settings).queries(encoder, queries)
        part.leave_unless_rank_zero()
        write_dense_index(folder)

    encode(tmp_path / "whole", Encoder(64), SINGLE_PROCESS)
    broken = Encoder(64)
    broken.fail_after = 7
    with pytest.raises(KeyboardInterrupt):
        encode(tmp_path / "o", broken, SINGLE_PROCESS)
    assert len(list((tmp_path / "o" / "passages").iterdir())) == 1
    encoders = [Encoder(64), Encoder(64)]
    in_parts(2, lambda part: encode(tmp_path / "o", encoders[part.rank], part))
    assert [encoder.rows for encoder in encoders] == [5 + 5 + 5, 5 + 3 + 3], "4 shards of passages, 2 of queries"
    assert contents(tmp_path / "o") == contents(tmp_path / "whole")


def test_what_was_encoded_can_be_searched(tmp_path: Path, texts: list[list[int]]) -> None:
    source = EncoderInput(TextReader(Store(texts), VOCABULARY, 32))
    queries = EncoderInput(TextReader(Store(texts[:4]), VOCABULARY, 32))
    folder = tmp_path / "o"
    Encoding(folder, shard_size=9, budget=64, dtype="float16").passages(Encoder(64), source)
    Encoding(folder, shard_size=3, budget=64, dtype="float16").queries(Encoder(64), queries)
    about = write_dense_index(folder)
    assert (about["passages"], about["queries"], about["dim"], about["dtype"]) == (23, 4, 3, "float16")
    vectors, asked = expected(texts, 32).astype(np.float16), expected(texts[:4], 32).astype(np.float16)
    np.testing.assert_array_equal(np.load(folder / "queries.npy"), asked)
    scores = asked.astype(np.float32) @ vectors.astype(np.float32).T
    _, rows = DenseIndex(folder, device="cpu").search(np.arange(4), 1)
    np.testing.assert_array_equal(rows[:, 0], scores.argmax(axis=1))
    assert not (folder / "queries.parts").exists()


@pytest.mark.filterwarnings("ignore:overflow")
def test_vectors_that_are_not_finite_are_a_user_error(tmp_path: Path, texts: list[list[int]]) -> None:
    source = EncoderInput(TextReader(Store(texts), VOCABULARY, 32))
    with pytest.raises(UserError, match="not finite"):
        Encoding(tmp_path / "o", shard_size=9, budget=64).passages(
            lambda chunk: torch.full((len(chunk), 2), torch.nan), source
        )
    with pytest.raises(UserError, match="float16"):
        Encoding(tmp_path / "h", shard_size=9, budget=64, dtype="float16").passages(
            lambda chunk: torch.full((len(chunk), 2), 1e6), source
        )
