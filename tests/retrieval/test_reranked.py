"""A searcher whose best passages a cross-encoder puts in order."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import some_text, write_beir

from condensery import BM25, Fused, Reranked, UserError, evaluate

PASSAGES = {
    "a": {"title": "rain", "text": "water falls from clouds"},
    "b": {"title": "", "text": "clouds are water in the air"},
    "c": {"title": "stone", "text": "a hard thing"},
    "d": {"title": "river", "text": "water that runs"},
}


def letters(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """A short passage is better, whatever the query."""
    return [-float(len(passage)) for _, passage in pairs]


class Weights(torch.nn.Linear):
    """An object with weights and ``predict``."""

    def predict(self, pairs: Sequence[tuple[str, str]]) -> torch.Tensor:
        return torch.tensor(letters(pairs))


def test_what_the_searcher_finds_stands_in_the_order_of_the_cross_encoder() -> None:
    found = Reranked(BM25().index(PASSAGES), letters).search("water from clouds", 10)
    assert [hit.id for hit in found] == ["d", "b", "a"], "c shares no word with the query"
    assert [hit.score for hit in found] == [-len("river water that runs"), -27, -len("rain water falls from clouds")]
    first = BM25().index(PASSAGES).search("water from clouds", 2)
    assert {hit.id for hit in Reranked(BM25().index(PASSAGES), letters, depth=2).search("water from clouds", 10)} == {
        hit.id for hit in first
    }


def test_it_indexes_scores_joins_and_is_evaluated_as_every_searcher(tmp_path: Path) -> None:
    reranked = Reranked(BM25(), letters)
    with pytest.raises(UserError, match="nothing is indexed yet"):
        reranked.search("water")
    reranked.index(PASSAGES)
    scores = reranked.score(["water", "stone"], np.array([[0, -1], [2, 3]]))
    assert scores[1].tolist() == [-len("stone a hard thing"), -len("river water that runs")]
    assert np.isnan(scores[0, 1])
    assert len(Fused([reranked, BM25().index(PASSAGES)]).search("water", 4)) == 3
    data = write_beir(tmp_path, some_text(documents=8))
    assert 0 < evaluate(Reranked(BM25(), letters), data, ["NDCG@10"])["NDCG@10"] < 1


def test_a_copy_that_indexes_other_passages_leaves_the_first_as_it_was() -> None:
    reranked = Reranked(BM25().index(PASSAGES), letters)
    first = reranked.search("water from clouds")
    Fused([reranked, BM25()]).index(["a stone", "clouds", "water"])
    assert reranked.search("water from clouds") == first


def test_what_it_reads_by_is_known_by_its_weights() -> None:
    one, other = Weights(2, 3), Weights(2, 3)
    assert Reranked(BM25(), one).identity() == Reranked(BM25(), one).identity() != Reranked(BM25(), other).identity()
    reranked = Reranked(BM25(), one)
    before = reranked.identity()
    assert reranked.identity() == Reranked(BM25(), one.eval()).identity() == before
    torch.nn.init.zeros_(one.weight)
    assert reranked.identity() == Reranked(BM25(), one).identity() != before, "it was trained in between"


@pytest.mark.parametrize(("name", "value"), [("max_length", 8), ("activation_fn", torch.nn.Identity()), ("scale", 2.0)])
def test_what_it_reads_by_is_known_by_its_settings(name: str, value: object) -> None:
    one = Weights(2, 3)
    before = Reranked(BM25(), one).identity()
    setattr(one, name, value)
    assert Reranked(BM25(), one).identity() == Reranked(BM25(), one).identity() != before


def test_a_cross_encoder_without_weights_is_new_in_each_object() -> None:
    reranked = Reranked(BM25(), letters)
    assert reranked.identity() == reranked.identity()
    assert Reranked(BM25(), letters).identity() != Reranked(BM25(), letters).identity()


def test_wrong_ones_are_one_line() -> None:
    for searcher, judge in ((BM25, letters), (BM25(), "cross-encoder"), (BM25(), torch.nn.Linear(2, 2))):
        with pytest.raises(UserError, match=r"Reranked: (searcher must be|give) a [Ss]earcher"):
            Reranked(searcher, judge)  # type: ignore[arg-type]
    for scores, said in (
        (lambda pairs: [1.0], "pairs it returned shape"),
        (lambda pairs: [float("nan")] * len(pairs), "finite"),
    ):
        with pytest.raises(UserError, match=said):
            Reranked(BM25().index(PASSAGES), scores).search("water from clouds")
