"""Articles with headings, and the triplets that are drawn from their sections."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from condensery.errors import UserError
from condensery.text.sections import read_articles, section_triplets

SECTIONS = [["a1", "a2", "a3"], ["b1"], ["c1", "c2"], []]
OF = {sentence: number for number, sentences in enumerate(SECTIONS) for sentence in sentences}


def _article(folder: Path, **fields: Any) -> Path:
    path = folder / "documents.jsonl"
    first = {"_id": "1", "title": "t", "passages": ["x"], "headings": [""]}
    path.write_text(json.dumps(first) + "\n" + json.dumps({"_id": "2", "title": "t"} | fields) + "\n")
    return path


def test_passages_under_one_heading_are_one_section(tmp_path: Path) -> None:
    headings = ["", "", "History", "Legacy", "History"]
    _, (name, sections) = read_articles(_article(tmp_path, passages=["p0", "p1", "h0", "l0", "h1"], headings=headings))
    assert name == "2"
    assert sections == [["p0", "p1"], ["h0", "h1"], ["l0"]]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"passages": ["x"]}, ':2: the field "headings" is missing'),
        ({"passages": ["x"], "headings": "History"}, ':2: the field "headings" must be a list'),
        ({"passages": ["x", "y"], "headings": ["a"]}, ':2: "headings" must hold a string for each of the 2 passages'),
        ({"passages": ["x"], "headings": [3]}, ':2: "headings" must hold a string for each of the 1 passages'),
        ({"passages": ["x"], "headings": [None]}, ':2: "headings" must hold a string for each of the 1 passages'),
        ({"passages": ["x"], "headings": {}}, ':2: the field "headings" must be a list'),
        ({"passages": ["\ud800"], "headings": [""]}, ":2: the article holds half a character"),
        ({"_id": "1", "passages": ["x"], "headings": [""]}, ":2: this id is also at "),
    ],
)
def test_headings_that_do_not_fit_are_named_with_file_and_line(
    fields: dict[str, Any], wanted: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        list(read_articles(_article(tmp_path, **fields)))
    assert str(error.value).startswith(f"{tmp_path / 'documents.jsonl'}{wanted}")


def test_positives_are_of_the_anchors_section_and_negatives_of_another() -> None:
    found = list(section_triplets(SECTIONS, 2000, 1, "x"))
    assert len(found) == len(set(found)) == 3 * 2 * 3 + 2 * 1 * 4, "every possible one, once"
    for anchor, positive, negative in found:
        assert anchor != positive
        assert OF[anchor] == OF[positive] != OF[negative]
    assert {anchor for anchor, _, _ in found} == {"a1", "a2", "a3", "c1", "c2"}
    assert {negative for _, _, negative in found} == set(OF)


def test_draws_depend_on_the_keys_alone_and_are_uniform() -> None:
    assert list(section_triplets(SECTIONS, 5, 1, "x")) == list(section_triplets(SECTIONS, 5, 1, "x"))
    assert list(section_triplets(SECTIONS, 5, 1, "x")) != list(section_triplets(SECTIONS, 5, 2, "x"))
    assert list(section_triplets(SECTIONS, 3, 1, "x")) == list(section_triplets(SECTIONS, 5, 1, "x"))[:3]
    drawn = [triplet for key in range(3000) for triplet in section_triplets(SECTIONS, 1, key)]
    anchors = Counter(anchor for anchor, _, _ in drawn)
    assert all(abs(number / 3000 - 1 / 5) < 0.04 for number in anchors.values())
    negatives = Counter(negative for anchor, _, negative in drawn if OF[anchor] == 0)
    assert all(abs(number / negatives.total() - 1 / 3) < 0.05 for number in negatives.values())


@pytest.mark.parametrize("sections", [[], [["a", "b"]], [["a"], ["b"]], [["a", "a"], ["b"]]])
def test_an_article_without_two_sentences_in_a_section_and_another_section_gives_none(
    sections: list[list[str]],
) -> None:
    assert list(section_triplets(sections, 20, 1)) == []
