"""Which queries choose by what was held out: sentences that are cut out of their passages."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import textbook
import trainings

from condensery.models.biencoder import PASSAGE
from condensery.tokens.prefixes import NO_PREFIXES
from condensery.training.held_out import chosen_queries, held_out, held_out_queries, held_out_sample


def made(folder: Path, places: Any) -> tuple[Any, Any]:
    """400 passages of 9 tokens with two queries each, of which ``places`` says what they are. No token occurs twice."""
    texts = trainings.store(folder / "texts", [9] * 400)
    queries = trainings.store(folder / "asked", [3] * 800, seed=1)
    written(folder / "texts")[:] = 100 + np.arange(3600)
    written(folder / "asked")[:] = 4000 + np.arange(2400)
    asked = SimpleNamespace(
        store=queries,
        first=np.arange(0, 801, 2),
        counts=np.full(400, 2),
        owners=np.arange(400).repeat(2),
        places=places and places(texts),
    )
    asked.texts_at = lambda rows: [spelt(queries, row) for row in rows]
    column = SimpleNamespace(take=lambda rows: [spelt(texts, row) for row in rows])
    table = SimpleNamespace(column=lambda name: column)
    return asked, SimpleNamespace(store=texts, titles=None, vocabulary=textbook.vocabulary(), table=table)


def written(folder: Path) -> np.ndarray:
    """The tokens of a store, which can be changed."""
    return np.memmap(folder / "tokens.bin", np.uint16, "r+")


def spelt(store: Any, row: int) -> str:
    """A text of a store, whose words are token ids."""
    return " ".join(map(str, store.text(row)))


def sentences(texts: Any) -> np.ndarray:
    """The first query of a passage is its title, the second its tokens 2 to 4."""
    places = np.full((800, 2), -1, np.int64)
    places[1::2] = np.stack([texts.starts[:400] + 2, np.full(400, 3)], axis=1)
    return places


def test_what_is_trained_on_is_not_held_out(tmp_path: Path) -> None:
    asked, _ = made(tmp_path, sentences)
    chosen = chosen_queries(asked, 300, seed=1)
    assert len(set(chosen.tolist())) == 300
    assert not held_out(400)[chosen // 2].any()
    shares = {number: float(held_out(number).mean()) for number in (400, 2_500, 20_000)}
    assert shares == pytest.approx({400: 0.3, 2_500: 0.2, 20_000: 0.1}, rel=0.3), (
        "500 passages, a tenth to three of ten"
    )
    assert set(chosen_queries(asked, 100, seed=1).tolist()) <= set(chosen.tolist()), "a smaller set inside a larger one"


def test_a_sentence_is_cut_out_of_its_passage_and_titles_do_not_choose(tmp_path: Path) -> None:
    asked, texts = made(tmp_path, sentences)
    found = held_out_queries(asked, texts, np.random.default_rng(0))
    assert sorted(found) == [2 * row + 1 for row in np.flatnonzero(held_out(400))], "the sentences, not the titles"
    sample = held_out_sample(asked, texts, (8, 16), 20, 30, budget=100, prefixes=NO_PREFIXES)
    assert sample is not None
    assert sample.relevant.shape == (20, 50)
    assert np.array_equal(np.argwhere(sample.relevant), np.stack([np.arange(20)] * 2, axis=1))
    lengths = np.zeros(50, int)
    for chunk in sample.passages:
        assert chunk.tower == PASSAGE
        lengths[chunk.rows] = chunk.lengths
    assert lengths.tolist() == [2 + 9 - 3] * 20 + [2 + 9] * 30


def test_a_passage_stands_once_for_each_sentence_that_is_cut_out_of_it(tmp_path: Path) -> None:
    def two_sentences(texts: Any) -> np.ndarray:
        starts = np.repeat(texts.starts[:400], 2) + np.tile([2, 6], 400)
        return np.stack([starts, np.full(800, 3)], axis=1)

    asked, texts = made(tmp_path, two_sentences)
    sample = held_out_sample(asked, texts, (8, 16), 500, 30, budget=100, prefixes=NO_PREFIXES)
    assert sample is not None
    number = 2 * int(held_out(400).sum())
    assert sample.relevant.shape == (number, number + 30)
    assert sample.own is not None
    assert not (sample.own & sample.relevant).any()
    assert (sample.own.sum(axis=1) == 1).all(), "the same passage without its other sentence is not ranked"


def test_a_passage_that_answers_as_well_is_not_ranked_as_wrong(tmp_path: Path) -> None:
    asked, texts = made(tmp_path, sentences)
    tokens = written(tmp_path / "texts").reshape(400, 9)
    written(tmp_path / "asked").reshape(800, 3)[1::2] = tokens[:, 2:5]
    how: Any = {"budget": 100, "prefixes": NO_PREFIXES}
    plain = held_out_sample(asked, texts, (8, 6), 500, 400, **how)
    assert plain is not None
    assert plain.own is not None
    assert not plain.own.any(), "each passage is another text"
    held, free = np.flatnonzero(held_out(400)), np.flatnonzero(~held_out(400))
    copied, quoted, alike = (held[place::3][:20] for place in range(3))
    tokens[free[:20]] = tokens[copied]
    tokens[free[20:40], 5:8] = tokens[quoted, 2:5]
    tokens[free[40:60], :4] = tokens[alike][:, [0, 1, 5, 6]]  # all that is read, without the sentence
    sample = held_out_sample(asked, texts, (8, 6), 500, 400, **how)
    assert sample is not None
    assert sample.own is not None
    assert np.array_equal(sample.relevant, plain.relevant)
    assert (sample.own.sum(axis=0) <= 1).all()
    assert sample.own.sum() == 60, "each of 20 copies, 20 quotations and 20 equal beginnings is left out for one query"


def test_where_nothing_would_be_left_nothing_is_asked(tmp_path: Path) -> None:
    def whole(texts: Any) -> np.ndarray:
        return np.repeat(np.stack([texts.starts[:400], np.full(400, 9)], axis=1), 2, axis=0)

    asked, texts = made(tmp_path, whole)
    assert not len(held_out_queries(asked, texts, np.random.default_rng(0)))
    assert held_out_sample(asked, texts, (8, 16), 20, 30, budget=100, prefixes=NO_PREFIXES) is None
    asked, texts = made(tmp_path, None)  # generated queries are no part of their passages
    sample = held_out_sample(asked, texts, (8, 16), 20, 0, budget=100, prefixes=NO_PREFIXES)
    assert sample is not None
    assert sample.relevant.shape == (20, 20)
