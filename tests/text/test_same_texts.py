"""Texts that stand several times: told by their text, not by how it was written."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest

from condensery.text.collection import Collection
from condensery.text.ids import IdIndex
from condensery.text.records import Passage
from condensery.text.same_texts import PassageTexts, SameTexts, plain, text_hashes
from condensery.text.writer import CollectionWriter

NFD = unicodedata.normalize("NFD", "für Ångström")


@pytest.mark.parametrize("other", ["  für\tÅngström \n", "für\u00a0\u3000Ångström", NFD, f"\n{NFD}  "])
def test_white_space_and_the_form_of_unicode_make_no_difference(other: str) -> None:
    assert plain(other) == "für Ångström"


@pytest.mark.parametrize("other", ["Für Ångström", "fur Angstrom", "für Ångström.", "fürÅngström"])
def test_case_accents_punctuation_and_words_do(other: str) -> None:
    assert plain(other) != plain("für Ångström")


def test_the_first_row_stands_for_all_of_its_text() -> None:
    texts = ["a", "b", "a", "c", "b", "a", "d"]
    same = SameTexts.of(IdIndex.of(text_hashes(texts)))
    assert same.rows.tolist() == [2, 4, 5]
    rows = np.array([[0, 1, 2, 3], [4, 5, 6, -1]])
    assert same.first(rows).tolist() == [[0, 1, 0, 3], [1, 0, 6, -1]]
    assert same.copies(np.array([1, 0, 3])).tolist() == [0, 1, 2, 3, 4, 5]
    assert same.numbers(np.array([0, 1, 3, 6])).tolist() == [3, 2, 1, 1]


def test_different_texts_are_left_as_they_are() -> None:
    same = SameTexts.of(IdIndex.of(text_hashes(["a", "b"])))
    assert same.first(np.array([1, 0, -1])).tolist() == [1, 0, -1]
    assert same.copies(np.array([1])).tolist() == [1]
    assert same.numbers(np.array([1, 0])).tolist() == [1, 1]


def test_passages_are_the_same_by_their_text_or_with_the_title_and_found_by_either(tmp_path: Path) -> None:
    given = [("", "x y"), ("x", "y"), ("t", "z"), ("u", "z"), ("t", " z"), ("x", "v"), ("t", ""), ("u", " ")]
    with CollectionWriter(tmp_path, "few") as writer:
        for number, (title, text) in enumerate(given):
            writer.add_passage(Passage(f"p{number}", title, text))
    texts = PassageTexts(Collection(tmp_path).passages)
    assert texts.same.rows.tolist() == [1, 3, 4]
    assert texts.same.firsts.tolist() == [0, 2, 2]
    places, rows = texts.with_texts(text_hashes(["t z", "x  y", "nothing", "y"]))
    found = {place: sorted(set(rows[places == place].tolist())) for place in range(4)}
    assert found == {0: [2], 1: [0], 2: [], 3: [0]}
