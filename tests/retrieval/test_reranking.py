"""Candidates get the mean of the cross-encoders' scores and their order, whatever is interrupted on the way."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from simulated_processes import in_parts

from condensery.errors import UserError
from condensery.retrieval import cross_encoders
from condensery.retrieval.cross_encoders import PairScorer, logits, score_in_shards, search_candidates
from condensery.retrieval.indexes.bm25 import BM25Index, build_bm25
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.indexes.reranked import write_reranked
from condensery.retrieval.shards import compute_in_shards
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.text.collection import Collection
from condensery.tokens.batches import Chunk
from condensery.tokens.pairs import PairReader
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary

WORDS = Vocabulary(size=99, pad=0, cls=2, sep=3, mask=4, unk=1, special=np.arange(5), continues=np.zeros(99, bool))
QUERIES = np.arange(7)
CANDIDATES = np.random.default_rng(0).permuted(np.tile(np.arange(20), (7, 1)), axis=1)[:, :6].astype(np.int32)
CANDIDATES[2, 4:] = -1
CANDIDATES[5] = -1


class Store(TokenStore):
    """A token store in memory: only what pairs read of one."""

    def __init__(self, texts: list[list[int]]) -> None:
        self.tokens = np.array([token for text in texts for token in text], np.uint16)
        self.starts = np.cumsum([0] + [len(text) for text in texts])


@pytest.fixture
def reader() -> PairReader:
    random = np.random.default_rng(1)
    asked = [[5 + query] for query in range(7)]
    texts = [[20 + passage, *random.integers(50, 99, random.integers(1, 9))] for passage in range(20)]
    return PairReader(Store(asked), Store(texts), None, WORDS, 6, 14)


class Model:
    """A score that query and passage alone decide; it may give up after some pairs."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale, self.pairs, self.last, self.longest = scale, 0, 10**9, 0

    def __call__(self, chunk: Chunk) -> torch.Tensor:
        if self.pairs >= self.last:
            raise KeyboardInterrupt
        self.pairs += len(chunk)
        self.longest = max(self.longest, chunk.tokens)
        return self.score(chunk.input_ids[:, 1] - 5, chunk.input_ids[:, 3] - 20)

    def score(self, query: torch.Tensor, passage: torch.Tensor) -> torch.Tensor:
        return self.scale * torch.sin(query * 31.0 + passage * 7.0 * self.scale)


def score_candidates(
    scorers: list[PairScorer],
    queries: np.ndarray,
    candidates: np.ndarray,
    path: Path,
    *,
    budget: int,
    shard_size: int,
    label: str,
    group: ProcessGroup = SINGLE_PROCESS,
) -> np.ndarray:
    """The candidates' mean scores, kept in shards as the stages keep them."""
    score = logits(scorers, budget, label)
    return score_in_shards(score, queries, candidates, path, shard_size, label, group, len(scorers))


def naive(*models: Model) -> np.ndarray:
    scores = np.full(CANDIDATES.shape, -np.inf, np.float32)
    for row, column in zip(*np.nonzero(CANDIDATES >= 0), strict=True):
        pair = torch.tensor(float(row)), torch.tensor(float(CANDIDATES[row, column]))
        scores[row, column] = np.mean([float(model.score(*pair)) for model in models])
    return scores


@pytest.mark.parametrize("shard_size", [1, 3, 100])
def test_an_ensemble_gives_the_mean_of_its_scores(reader: PairReader, shard_size: int, tmp_path: Path) -> None:
    models = Model(), Model(2.0)
    scorers = [PairScorer(reader, model) for model in models]
    path = tmp_path / "scores.npy"
    scores = score_candidates(scorers, QUERIES, CANDIDATES, path, shard_size=shard_size, budget=40, label="x")
    np.testing.assert_allclose(scores, naive(*models), rtol=1e-5, atol=1e-6)
    assert [model.pairs for model in models] == [int((CANDIDATES >= 0).sum())] * 2
    assert max(model.longest for model in models) <= 40
    assert [found.name for found in tmp_path.iterdir()] == ["scores.npy"]


@pytest.mark.parametrize("at", [0, 7, 20])
def test_what_was_scored_is_kept_when_it_is_interrupted(reader: PairReader, at: int, tmp_path: Path) -> None:
    settings = {"shard_size": 2, "budget": 40, "label": "x"}
    whole = np.array(
        score_candidates([PairScorer(reader, Model())], QUERIES, CANDIDATES, tmp_path / "w.npy", **settings)
    )
    stopped = Model()
    stopped.last = at
    path = tmp_path / "scores.npy"
    with pytest.raises(KeyboardInterrupt):
        score_candidates([PairScorer(reader, stopped)], QUERIES, CANDIDATES, path, **settings)
    assert not path.exists()
    kept = sorted((tmp_path / "scores.parts").glob("0*"))
    done = int((CANDIDATES[: 2 * len(kept)] >= 0).sum())
    again = Model()
    scores = score_candidates([PairScorer(reader, again)], QUERIES, CANDIDATES, path, **settings)
    assert again.pairs == int((CANDIDATES >= 0).sum()) - done
    np.testing.assert_array_equal(scores, whole)
    third = Model()
    score_candidates([PairScorer(reader, third)], QUERIES, CANDIDATES, path, **settings)
    assert third.pairs == 0
    assert (at > 12) == (done > 0)


@pytest.mark.parametrize("at", [0, 20])
def test_several_processes_share_the_shards_and_end_with_the_same_bits(
    reader: PairReader, at: int, tmp_path: Path
) -> None:
    settings = {"shard_size": 2, "budget": 40, "label": "x"}
    score_candidates([PairScorer(reader, Model())], QUERIES, CANDIDATES, tmp_path / "w.npy", **settings)
    stopped, path = Model(), tmp_path / "scores.npy"
    stopped.last = at
    with pytest.raises(KeyboardInterrupt):
        score_candidates([PairScorer(reader, stopped)], QUERIES, CANDIDATES, path, **settings)
    kept = len(list((tmp_path / "scores.parts").glob("0*")))
    models = [Model(), Model()]

    def score(part: ProcessGroup) -> np.ndarray:
        return score_candidates(
            [PairScorer(reader, models[part.rank])], QUERIES, CANDIDATES, path, **settings, group=part
        )

    assert in_parts(2, score)[1] is None
    assert sum(model.pairs for model in models) == int((CANDIDATES[2 * kept :] >= 0).sum())
    assert all(model.pairs for model in models)
    assert path.read_bytes() == (tmp_path / "w.npy").read_bytes()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["scores.npy", "w.npy"]


def test_shards_of_another_size_are_not_mixed_in(reader: PairReader, tmp_path: Path) -> None:
    stopped = Model()
    stopped.last = 20
    path = tmp_path / "scores.npy"
    with pytest.raises(KeyboardInterrupt):
        score_candidates([PairScorer(reader, stopped)], QUERIES, CANDIDATES, path, shard_size=2, budget=40, label="x")
    scores = score_candidates(
        [PairScorer(reader, Model())], QUERIES, CANDIDATES, path, shard_size=3, budget=40, label="x"
    )
    np.testing.assert_allclose(scores, naive(Model()), rtol=1e-5, atol=1e-6)


def test_a_score_that_is_not_finite_is_a_user_error(reader: PairReader, tmp_path: Path) -> None:
    broken = PairScorer(reader, lambda chunk: torch.full((len(chunk),), torch.nan))
    with pytest.raises(UserError, match="not finite"):
        score_candidates([broken], QUERIES, CANDIDATES, tmp_path / "s.npy", shard_size=9, budget=40, label="x")


@pytest.fixture
def reranked(collection: Collection, tmp_path: Path) -> Path:
    """The ten best passages of BM25 for the queries of the split test, scored by their rows; some scores are equal."""
    build_bm25(collection, tmp_path / "bm25", 0.9, 0.4)
    index = BM25Index(tmp_path / "bm25", collection)
    queries = np.arange(0, 12, 2)
    folder = tmp_path / "reranked"
    folder.mkdir()
    found = search_candidates(index, queries, 10, folder / "candidates.npy", "x", SINGLE_PROCESS)
    np.testing.assert_array_equal(found, index.search(queries, 10)[1])
    scores = np.where(found >= 0, (found * 7 % 5).astype(np.float32), -np.inf).astype(np.float32)
    np.save(folder / "scores.npy", scores)
    write_reranked(folder, collection, queries, 10, "test")
    return folder


def test_a_reranked_index_ranks_its_candidates_by_score_then_row(collection: Collection, reranked: Path) -> None:
    index, found = open_index(reranked, collection), np.load(reranked / "candidates.npy")
    assert len(index) == len(collection.passages)
    scores, rows = index.search(np.array([4, 0]), 14)
    for place, row in enumerate((2, 0)):
        wanted = sorted((one for one in found[row].tolist() if one >= 0), key=lambda one: (-(one * 7 % 5), one))
        assert rows[place, : len(wanted)].tolist() == wanted
        assert scores[place, : len(wanted)].tolist() == [one * 7 % 5 for one in wanted]
        assert (rows[place, len(wanted) :] == -1).all()
        assert (scores[place, len(wanted) :] == -np.inf).all()
    np.testing.assert_array_equal(index.search(np.array([4, 0]), 3)[1], rows[:, :3])


def test_a_query_that_was_not_reranked_is_named(collection: Collection, reranked: Path) -> None:
    with pytest.raises(UserError, match=r"query 'q1' was not reranked \(only those of the split 'test' were\)"):
        open_index(reranked, collection).search(np.array([0, 1]), 3)


def test_candidates_are_the_same_whoever_searches_them(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_bm25(collection, tmp_path / "bm25", 0.9, 0.4)
    index_alone = BM25Index(tmp_path / "bm25", collection)
    search_candidates(index_alone, np.arange(12), 10, tmp_path / "one.npy", "x", SINGLE_PROCESS)
    monkeypatch.setattr(cross_encoders, "compute_in_shards", partial(compute_in_shards, size=5))

    def search(part: ProcessGroup) -> np.ndarray:
        index = BM25Index(tmp_path / "bm25", collection)
        return search_candidates(index, np.arange(12), 10, tmp_path / "two.npy", "x", part)

    for found in in_parts(2, search):
        np.testing.assert_array_equal(found, np.load(tmp_path / "one.npy"))
    assert (tmp_path / "two.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bm25", "one.npy", "two.npy"]


def test_candidates_that_are_there_are_not_searched_again(collection: Collection, reranked: Path) -> None:
    class Broken:
        def __len__(self) -> int:
            return 60

    path = reranked / "candidates.npy"
    found = search_candidates(Broken(), np.arange(0, 12, 2), 10, path, "x", SINGLE_PROCESS)  # type: ignore[arg-type]
    assert found.shape == (6, 10)
