"""Ids that look the same, and ids that are written alike, are told apart in one line."""

import unicodedata
from pathlib import Path

import pytest

from condensery.errors import UserError
from condensery.retrieval.searchers.bm25 import BM25
from condensery.text import read_collection
from condensery.text.ids import check_distinct, look_alike
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

from .conftest import Make, Write

NFC, NFD = (unicodedata.normalize(form, "n\u00e9.txt#0") for form in ("NFC", "NFD"))
NAME = "a\u0300/n\u00e9.txt"


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        (NFC, NFD, "NFC and NFD of one text: character 2 is U+00E9 here and U+0065 U+0301 there"),
        (NFD, NFC, "character 2 is U+0065 U+0301 here and U+00E9 there"),
        ("\ufeffq1", "q1", "character 1 is U+FEFF here and U+0071 there"),
        ("q1", "q\u200b1", "character 2 is U+0031 here and U+200B there"),
        ("q1", "q1\u00ad", "character 3 is nothing here and U+00AD there"),
        ("\uff51\uff11", "q1", "character 1 is U+FF51 here and U+0071 there"),
        ("\uac00", "\u1100\u1161", "NFC and NFD"),
    ],
)
def test_an_id_that_looks_like_one_there_is_shown_where_it_differs(here: str, there: str, said: str) -> None:
    hint = look_alike(here, ["other", there, "last"])
    assert said in hint
    assert "\n" not in str(UserError(hint))
    assert look_alike(here, ["other", here.replace("1", "2")]) == ""


def test_a_path_with_a_space_is_told_its_encoded_form() -> None:
    known = ["other#0", "sub%20dir/a%20b.txt#0", "50%25.txt#0"]
    assert "write 'sub%20dir/a%20b.txt#0': ids have %20 for a space" in look_alike("sub dir/a b.txt#0", known)
    assert "write '50%25.txt#0'" in look_alike("50%.txt#0", known)
    assert look_alike("sub dir/c.txt#0", known) == ""


@pytest.mark.parametrize("wrong", ["query", "passage", "negative"])
def test_judgements_and_negatives_say_how_an_id_differs(wrong: str, tmp_path: Path) -> None:
    writer = CollectionWriter(tmp_path, "small")
    writer.add_passage(Passage(NFD, "", "a text"), "texts:1")
    writer.add_passage(Passage("other", "", "another text"), "texts:2")
    writer.add_judgement("test", "q\u00e9", NFD, 1, "judged:1")
    if wrong == "negative":
        writer.add_negatives("q\u00e9", ["other", NFC], "judged:3")
    else:
        writer.add_judgement("test", "qe\u0301" if wrong == "query" else "q\u00e9", NFC, 1, "judged:3")
    writer.add_query(Query("q\u00e9", "a question"), "queries:1")
    with pytest.raises(UserError, match=r"judged:3: no .* looks the same but is another id.*write both the same way"):
        writer.close()


@pytest.mark.parametrize(("judged", "asked"), [("qe\u0301", "q\u00e9"), ("\uac00", "\u1100\u1161"), ("q1", "q\uff11")])
def test_a_judgement_says_which_query_it_may_have_meant_where_that_one_is_left_out(
    judged: str, asked: str, tmp_path: Path
) -> None:
    writer = CollectionWriter(tmp_path, "small")
    writer.add_passage(Passage("p", "", "a text"), "texts:1")
    for query in ("another", judged):
        writer.add_judgement("test", query, "p", 1, f"judged:{query}")
    for query in ("unjudged", "another", asked):
        writer.add_query(Query(query, "a question"), f"queries:{query}")
    with pytest.raises(UserError, match=f"judged:{judged}: no query has this query id.* {asked!r} looks the same"):
        writer.close()


@pytest.mark.parametrize("named", ["NFC", "NFD"])
@pytest.mark.parametrize("judged", ["NFC", "NFD"])
def test_a_text_file_is_the_one_that_is_judged_whatever_its_form(
    named: str, judged: str, tmp_path: Path, config: Make, write: Write
) -> None:
    folder = write(
        {
            unicodedata.normalize(named, NAME): "A first paragraph of some more words.\n",
            "queries.jsonl": '{"_id": "q1", "text": "which paragraph"}\n',
            "qrels/test.tsv": f"q1\t{unicodedata.normalize(judged, NAME)}#0\t1\n",
        }
    )
    splits = {"train": None, "dev": None, "test": "test"}
    collection = read_collection(config("text", root=folder, splits=splits), tmp_path / "out")
    assert collection.passages.ids == [unicodedata.normalize("NFC", NAME) + "#0"]
    assert collection.passages.column("title")[:] == ["n\u00e9"]


def test_two_files_whose_names_differ_by_form_alone_are_refused(tmp_path: Path, config: Make, write: Write) -> None:
    folder = write({unicodedata.normalize(form, "n\u00e9.txt"): "Some words.\n" for form in ("NFC", "NFD")})
    splits = dict.fromkeys(("train", "dev", "test"))
    with pytest.raises(UserError, match=r"two files are called 'né\.txt', one composed and one decomposed"):
        read_collection(config("text", root=folder, splits=splits), tmp_path / "out")


@pytest.mark.parametrize(("one", "other"), [(1, "1"), ("2", 2), (1.0, "1.0"), (None, "None"), (True, "True")])
def test_ids_that_become_the_same_text_are_refused(one: object, other: object) -> None:
    with pytest.raises(UserError, match=r"index: the ids .* are the same id '.*'; give every passage an id of its own"):
        check_distinct(["0", one, other], "index")
    with pytest.raises(UserError, match="are the same id"):
        BM25().index({one: "a text", other: "another text"})  # type: ignore[dict-item]
    check_distinct([1, "01", 2, "3", "1.0"], "index")


@pytest.mark.parametrize("half", ["\ud800", "a \udcff b"])
def test_half_a_character_in_a_text_of_a_program_is_one_line(half: str) -> None:
    with pytest.raises(UserError, match="index: passage 'a': the text holds half a character"):
        BM25().index({"a": half, "b": "text"})
    with pytest.raises(UserError, match="the id holds half a character"):
        BM25().index({half: "text"})
    found = BM25().index(["some text", "other words"])
    with pytest.raises(UserError, match="search: query 0: the text holds half a character"):
        found.search(half)
    with pytest.raises(UserError, match="search: query 1: the text holds half a character"):
        found.search(["text", half])
