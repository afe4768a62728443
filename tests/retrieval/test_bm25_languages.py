"""BM25 finds things in every script, says what it took the language for, and where it cannot find anything."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from condensery import BM25, evaluate
from condensery.errors import UserError
from condensery.retrieval.indexes.bm25 import BM25Index, build_bm25
from condensery.retrieval.indexes.fusion import FusedIndex
from condensery.retrieval.indexes.interface import unmatched_queries
from condensery.retrieval.indexes.sampled import SampledCandidates
from condensery.retrieval.mining import mined
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

SCRIPTS = {  # passages, and a query that the first of them answers
    "chinese": (["铁在潮湿的空气里会生锈。", "蜜蜂用跳舞告诉同伴花在哪里。", "图书馆出借工具。"], "铁生锈"),
    "japanese": (["鉄は湿った空気の中で錆びる。", "蜂は踊りで花の場所を教える。"], "錆びる鉄"),
    "thai": (["เหล็กขึ้นสนิมในอากาศชื้น", "ผึ้งเต้นรำเพื่อบอกเพื่อน"], "สนิม"),
    "lao": (["ເຫຼັກຂຶ້ນໝ້ຽງ", "ເຜິ້ງເຕັ້ນລຳ"], "ໝ້ຽງ"),
    "khmer": (["ដែកច្រែះក្នុងខ្យល់សើម", "ឃ្មុំរាំដើម្បីប្រាប់"], "ច្រែះ"),
    "burmese": (["သံသည် လေစိုထဲတွင် သံချေးတက်သည်။", "ပျားများသည် ကခုန်ကြသည်။"], "သံချေး"),
    "korean": (["쇠는 습한 공기에서 녹슨다", "벌은 춤을 춘다"], "공기"),
    "hindi": (["लोहा नम हवा में जंग खाता है", "मधुमक्खी नाचती है"], "जंग"),
    "mixed": (["用 Python 写的程序", "用 Rust 写的程序"], "python程序"),
}


@pytest.mark.parametrize("settings", [{}, {"stopwords": "none", "stemmer": "none"}], ids=["english", "plain"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_words_of_every_script_are_found_without_any_setting(script: str, settings: dict[str, str]) -> None:
    passages, query = SCRIPTS[script]
    found = BM25(**settings).index(passages).search(query)
    assert found
    assert found[0].id == "0"


def test_a_word_that_is_in_no_passage_finds_none() -> None:
    plain = BM25(stopwords="none", stemmer="none")
    assert plain.index({"tomorrow": "कल आना", "pen": "कलम नीली है", "book": "किताब मोटी है"}).search("कोल") == []
    assert plain.index(["கல்", "கால்"]).search("கோல்") == []
    assert plain.index(["铁锈", "蜜蜂"]).search("锈铁") == []


@pytest.mark.parametrize(
    ("passage", "query"),
    [
        ("mon re\u0301sume\u0301", "r\u00e9sum\u00e9"),
        ("\u1112\u1161\u11ab\u1100\u116e\u11a8", "한국"),
        ("eco\u00adlogy of ponds", "ecology"),
        ("trip to İstanbul", "istanbul"),
        ("ＡＢＣ ﬁne", "abc fine"),
        ("ｶﾞｲﾄﾞ", "ガイド"),
        ("इतिहास १९४७", "1947"),
        ("пʼять", "п'ять"),
        ("Hawaiʻi", "Hawai’i"),
        ("น้ำ", "น\u0e4d\u0e49า"),
        ("ນ້ຳ", "ນ\u0ecd\u0ec9າ"),
    ],
)
def test_how_a_text_was_typed_does_not_count(passage: str, query: str) -> None:
    for one, other in ((passage, query), (query, passage)):
        found = BM25(stopwords="none", stemmer="none").index(["something else", one]).search(other)
        assert [hit.id for hit in found] == ["1"]


def test_a_single_character_finds_the_pairs_that_it_is_in() -> None:
    search = BM25().index(["喝绿茶的人", "茶叶", "他喝咖啡", "茶 水"])
    assert {hit.id for hit in search.search("茶")} == {"0", "1", "3"}
    assert [hit.id for hit in search.search("咖")] == ["2"]
    assert {hit.id for hit in search.search("茶 咖")} == {"0", "1", "2", "3"}
    assert [hit.id for hit in search.search("绿 人")] == ["0"]
    assert [hit.id for hit in search.search("绿茶 咖")] == ["0"], "pairs are preferred to single characters"
    assert BM25().index(["a bc", "b"]).search("c") == []


def test_the_guess_is_said_in_one_line_and_only_where_terms_are_no_plain_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for text in ("Bees dance.", "मधुमक्खी नाचती है"):
        BM25().index([text])
    assert capsys.readouterr().out == ""
    BM25().index(["蜜蜂用跳舞告诉同伴"])
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "Chinese" in said
    assert "BM25(language=" in said
    BM25(language="chinese").index(["蜜蜂用跳舞告诉同伴"])
    assert capsys.readouterr().out == ""


def test_a_named_language_rules_and_an_unknown_one_is_refused() -> None:
    passages = ["蜜蜂用跳舞告诉同伴", "ISPARTA"]
    assert BM25(language="words").index(passages).search("跳舞") == []
    assert BM25(language="turkish").index(passages).search("ısparta")
    assert BM25().index(passages).search("ısparta") == []
    with pytest.raises(UserError, match="BM25: language: 'klingon' does not exist"):
        BM25(language="klingon").index(passages)


@pytest.mark.parametrize(
    ("stemmer", "passage", "query"),
    [
        ("arabic", "هذه المدينة", "مدينة"),
        ("persian", "کتاب\u200cها", "کتاب"),
        ("hindi", "ज़रूरत", "जरूरतें"),
        ("turkish", "KIRMIZI", "kırmızı"),
    ],
)
def test_the_language_of_the_stemmer_rules_where_none_is_named(stemmer: str, passage: str, query: str) -> None:
    found = BM25(stopwords="none", stemmer=stemmer).index(["something else", passage]).search(query)
    assert [hit.id for hit in found] == ["1"]


def collection_of(folder: Path, passages: list[str], queries: list[str]) -> Collection:
    with CollectionWriter(folder, "small") as writer:
        for number in range(len(queries)):
            writer.add_judgement("test", f"q{number}", f"p{number}", 1)
        for number, text in enumerate(passages):
            writer.add_passage(Passage(f"p{number}", "", text))
        for number, text in enumerate(queries):
            writer.add_query(Query(f"q{number}", text))
    return Collection(folder)


@pytest.fixture
def korean(tmp_path: Path) -> Collection:
    return collection_of(tmp_path / "korean", ["쇠는 습한 공기에서 녹슨다", "벌은 춤을 춘다"], ["공기", "춤"])


def test_queries_are_analysed_as_the_passages_were(
    tmp_path: Path, korean: Collection, capsys: pytest.CaptureFixture[str]
) -> None:
    about = build_bm25(korean, tmp_path / "index", 0.9, 0.4, label="words")
    assert about["language"] == "korean"
    said = capsys.readouterr().out
    assert said.startswith("[words] ")
    assert "stages.words.language" in said
    _, rows = BM25Index(tmp_path / "index", korean).search(np.array([0, 1]), 2)
    assert rows[:, 0].tolist() == [0, 1]


def test_an_index_of_before_has_words_alone(tmp_path: Path, korean: Collection) -> None:
    build_bm25(korean, tmp_path / "index", 0.9, 0.4, language="words")
    path = tmp_path / "index" / "index.json"
    about = json.loads(path.read_text())
    del about["language"]
    path.write_text(json.dumps(about))
    index = BM25Index(tmp_path / "index", korean)
    assert (index.search_texts(["공기에서"], 1)[1], index.search_texts(["공기"], 1)[1]) == ([[0]], [[-1]])


@pytest.fixture
def strange(tmp_path: Path) -> Collection:
    """Two of three queries are of another language than the passages."""
    return collection_of(tmp_path / "strange", ["bees dance", "iron rusts", "rain falls"], ["bees", "铁生锈", "雨"])


def test_queries_that_share_no_term_with_any_passage_are_a_warning(tmp_path: Path, strange: Collection) -> None:
    build_bm25(strange, tmp_path / "index", 0.9, 0.4)
    index, rows = BM25Index(tmp_path / "index", strange), np.arange(3)
    fused = FusedIndex([index, index], [0.5, 0.5], 3)
    for retriever in (index, fused, FusedIndex([fused], [1.0], 3), SampledCandidates(index, index, {}, 1, 1)):
        (said,) = unmatched_queries(retriever, rows)["warnings"]
        assert said.startswith("2 of 3 queries share no term with any passage")
        assert "\n" not in said
        assert unmatched_queries(retriever, rows[:2]) == {}, "one of two is not most"
        assert unmatched_queries(retriever, rows[:0]) == {}
    assert unmatched_queries(object(), rows) == {}  # type: ignore[arg-type]


def test_a_program_of_ones_own_is_warned_too(strange: Collection, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(BM25(), strange, ["MRR@10"])["MRR@10"] == pytest.approx(1 / 3)
    assert capsys.readouterr().out.startswith("warning: 2 of 3 queries share no term")
    mined(BM25(), strange, "test", 1)
    assert capsys.readouterr().out.startswith("warning: 2 of 3 queries share no term")


@pytest.mark.parametrize("given", [{"stopwords": "german"}, {"stemmer": "germann"}, {"language": "germann"}])
def test_a_word_that_does_not_exist_is_refused_by_the_constructor(given: dict[str, Any]) -> None:
    (key,) = given
    with pytest.raises(UserError, match=f"BM25: {key}: '{given[key]}' "):
        BM25(**given)
