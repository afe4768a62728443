"""Searchers joined into one: what they find is what the fusion of their rankings finds, and they stay as they are."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from error_lines import names

from condensery import BM25, Fused, TripleDataModule, UserError, evaluate
from condensery.retrieval.indexes.fusion import FusedIndex
from condensery.retrieval.ranking import Ranking, pack, top, unpack
from condensery.retrieval.searchers.base import Searcher
from condensery.text.to_collection import collection_of

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PASSAGES = {
    "one": "rain falls when drops grow heavy",
    "two": {"title": "rust", "text": "iron turns red in water and air"},
    "three": "heavy rain wears iron away",
    "four": "snow is frozen water",
    "five": "a river carries water to the sea",
}
QUERIES = ["heavy rain", "iron in water", "zebra"]


class Letters(Searcher):
    """Counts the letters that a query and a passage share."""

    def identity(self) -> str:
        return "letters"

    def _prepare(self, titles: list[str], texts: list[str]) -> None:
        self._counts = self._of(texts)

    def _of(self, texts: list[str]) -> np.ndarray:
        return np.array([[text.count(letter) for letter in LETTERS] for text in texts], np.float32)

    def _rank(self, queries: list[str], k: int) -> Ranking:
        scores = self._of(queries) @ self._counts.T
        return unpack(top(pack(scores, np.arange(len(self))), k))

    def _score(self, queries: list[str], passage_rows: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class Known:
    """A searcher's rankings of the queries, as those of a collection."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher

    def __len__(self) -> int:
        return len(self.searcher)

    def search(self, query_rows: np.ndarray, k: int, progress: Any = None) -> Ranking:
        return self.searcher.rank([QUERIES[row] for row in query_rows], k)


@pytest.mark.parametrize(("weights", "depth"), [([0.6, 0.4], 1000), ([1, 0], 3), (None, 2)])
def test_it_finds_what_the_fusion_of_the_rankings_finds(weights: list[float] | None, depth: int) -> None:
    members = [BM25().index(PASSAGES), Letters().index(PASSAGES)]
    index = FusedIndex([Known(one) for one in members], weights or [1, 1], depth)  # type: ignore[misc]
    scores, rows = index.search(np.arange(3), 5)
    for fused in (Fused(members, weights, depth), Fused([BM25(), Letters()], weights, depth).index(PASSAGES)):
        found, passages = fused.rank(QUERIES, 5)
        np.testing.assert_array_equal(passages, rows)
        np.testing.assert_array_equal(found, scores)
        there = np.where(rows >= 0, scores, np.nan)
        np.testing.assert_array_equal(fused.score(QUERIES, rows), there)
        assert len(fused.search("heavy rain", 2)) == 2
        assert fused.search("heavy rain")[0].id == list(PASSAGES)[rows[0, 0]]
        assert fused.rank([], 2)[0].shape == (0, 2)


def test_joined_ones_are_joined_again() -> None:
    inner = Fused([BM25(), Letters()], [0.6, 0.4]).index(PASSAGES)
    both = Fused([inner, Letters().index(PASSAGES)], [2, 1])
    assert next(hit.id for hit in both.search("iron")) in PASSAGES
    assert both.without_terms(QUERIES) == inner.without_terms(QUERIES) == 1
    assert both.identity() != inner.identity()


def test_what_is_indexed_later_leaves_the_searchers_alone(tmp_path: Path) -> None:
    member = BM25().index(PASSAGES)
    fused = Fused([member, Letters().index(PASSAGES)])
    before = fused.rank(QUERIES, 3)
    member.index(["another text"])
    np.testing.assert_array_equal(fused.rank(QUERIES, 3)[1], before[1])
    fused.index(["snow"])
    assert (len(fused), len(member)) == (1, 1)
    assert member.search("another")[0].text == "another text"


def test_it_is_measured_and_mined_from_as_any_other(world: Path) -> None:
    fused = Fused([BM25(), Letters()], [0.6, 0.4])
    measured = evaluate(fused, world, ["MRR@10"])
    assert measured["MRR@10"] == 1.0
    assert not len(fused), "its own index stays as it is"
    data = TripleDataModule(world, negatives=fused, tokenizer="not read", mining_depth=3)
    data._collection = collection_of(world)
    mined = data._sources()[0]
    assert mined.counts.sum() > 0


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The passages in the BEIR layout; "one" and "two" are judged, for test and for train."""
    monkeypatch.setenv("CONDENSERY_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    texts = {name: text if isinstance(text, dict) else {"text": text} for name, text in PASSAGES.items()}
    corpus = [{"_id": name, **text} for name, text in texts.items()]
    queries = [{"_id": "a", "text": "rain drops"}, {"_id": "b", "text": "red iron"}]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, judged in (("test", "a\tone\t1"), ("train", "b\ttwo\t1")):
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}\n")
    return folder


@pytest.mark.parametrize(
    ("weights", "words"),
    [([1], ("2 searchers",)), ([1, -1], (">= 0",)), ([0, 0], ("not all 0",)), ([1, float("nan")], (">= 0",))],
)
def test_weights_that_are_none_are_one_line(weights: list[float], words: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        Fused([BM25(), Letters()], weights)
    names(str(error.value), "weights", *words)


def test_what_cannot_be_joined_is_one_line() -> None:
    for wrong in ([], [BM25], ["bm25"]):
        with pytest.raises(UserError, match=r"Fused: a list of searchers is expected, such as"):
            Fused(wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Fused: depth must be a whole number >= 1, not 0"):
        Fused([BM25()], depth=0)
    for others in (BM25(), BM25().index(list(PASSAGES)), BM25().index(dict(reversed(PASSAGES.items())))):
        fused = Fused([Letters().index(PASSAGES), others])
        with pytest.raises(UserError, match=r"have not indexed the same passages; call index\(passages\) first"):
            fused.search("rain")


@pytest.mark.parametrize("unit", [5e-324, 1e-300, 1e39, 8e307])
def test_only_the_ratios_of_weights_count_however_large_or_small_they_are(unit: float) -> None:
    searchers = [BM25().index(PASSAGES), Letters().index(PASSAGES)]
    expected = Fused(searchers, [1.0, 2.0]).search(QUERIES, k=4)
    found = Fused(searchers, [unit, 2 * unit]).search(QUERIES, k=4)
    assert [[hit.id for hit in hits] for hits in found] == [[hit.id for hit in hits] for hits in expected]
