"""Which queries choose by what was held out: sentences that are cut out of their passages."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import textbook
import trainings

from condensery.models.biencoder import PASSAGE
from condensery.tokens.prefixes import NO_PREFIXES
from condensery.training.held_out import SHARE, chosen_queries, held_out, held_out_sample


def made(folder: Path, places: Any) -> tuple[Any, Any]:
    """400 passages of 9 tokens with two queries each, of which ``places`` says what they are."""
    texts = trainings.store(folder / "texts", [9] * 400)
    queries = trainings.store(folder / "asked", [3] * 800, seed=1)
    asked = SimpleNamespace(
        store=queries, first=np.arange(0, 801, 2), counts=np.full(400, 2), places=places and places(texts)
    )
    return asked, SimpleNamespace(store=texts, titles=None, vocabulary=textbook.vocabulary())


def sentences(texts: Any) -> np.ndarray:
    """The first query of a passage is its title, the second its tokens 2 to 4."""
    places = np.full((800, 2), -1, np.int64)
    places[1::2] = np.stack([texts.starts[:400] + 2, np.full(400, 3)], axis=1)
    return places


def test_what_is_trained_on_is_not_held_out(tmp_path: Path) -> None:
    asked, _ = made(tmp_path, sentences)
    chosen = chosen_queries(asked, 300, seed=1)
    assert len(set(chosen.tolist())) == 300
    assert not held_out(chosen // 2).any()
    assert 0.5 * SHARE < held_out(np.arange(4_000)).mean() < 2 * SHARE
    assert set(chosen_queries(asked, 100, seed=1).tolist()) <= set(chosen.tolist()), "a smaller set inside a larger one"


def test_a_sentence_is_cut_out_of_its_passage_and_titles_do_not_choose(tmp_path: Path) -> None:
    asked, texts = made(tmp_path, sentences)
    sample = held_out_sample(asked, texts, (8, 16), 20, 30, budget=100, prefixes=NO_PREFIXES)
    assert sample is not None
    assert sample.relevant.shape == (20, 50)
    assert np.array_equal(np.argwhere(sample.relevant), np.stack([np.arange(20)] * 2, axis=1))
    lengths = np.zeros(50, int)
    for chunk in sample.passages:
        assert chunk.tower == PASSAGE
        lengths[chunk.rows] = chunk.lengths
    assert lengths.tolist() == [2 + 9 - 3] * 20 + [2 + 9] * 30


def test_where_nothing_would_be_left_nothing_is_asked(tmp_path: Path) -> None:
    def whole(texts: Any) -> np.ndarray:
        return np.repeat(np.stack([texts.starts[:400], np.full(400, 9)], axis=1), 2, axis=0)

    asked, texts = made(tmp_path, whole)
    assert held_out_sample(asked, texts, (8, 16), 20, 30, budget=100, prefixes=NO_PREFIXES) is None
    asked, texts = made(tmp_path, None)  # generated queries are no part of their passages
    sample = held_out_sample(asked, texts, (8, 16), 20, 0, budget=100, prefixes=NO_PREFIXES)
    assert sample is not None
    assert sample.relevant.shape == (20, 20)
