"""What a tokenizer loses of a text is measured: words that it does not know, and words that get each other's ids."""

from pathlib import Path

import pytest
from transformers import BertTokenizer

from condensery.tokens.coverage import coverage
from condensery.tokens.tokenizer import SPECIAL, load_tokenizer, train_wordpiece

HINDI = ["मेल और मल", "कुल या कल", "पुल तथा पल", "सेब या सब"]
VIETNAMESE = ["ma má mà mả mã mạ", "la lá là lả lã lạ", "bo bó bò bỏ bõ bọ"]
RUSSIAN = ["мой мои твой твои", "свой свои"]
ENGLISH = ["The river bends behind the old mill, and the Mill is red."] * 3


def test_nothing_is_lost_of_english(tmp_path: Path) -> None:
    tokenizer = train_wordpiece(ENGLISH, 100, tmp_path)
    found = coverage(tokenizer, ENGLISH)
    assert (found.unknown, found.merged) == (0, 0)
    assert found.metrics(trained=True) == {"unknown_share": 0, "merged_share": 0}


@pytest.mark.parametrize("texts", [HINDI, RUSSIAN, ["ชื่อ ชอ", "ที่ ที", "มา ม้า"]])
def test_words_that_differ_by_a_mark_that_is_dropped_are_counted_and_said(texts: list[str], tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"of another word \(such as .* and .*\); set stage\.tokenizer\.strip_accents=false"
    ):
        train_wordpiece(texts, 120, tmp_path, strip_accents=True)
    assert coverage(load_tokenizer(tmp_path), texts).merged > 0.5
    assert coverage(train_wordpiece(texts, 120, tmp_path), texts).merged == 0


def test_latin_letters_with_marks_that_make_words_are_said_and_can_be_kept(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="strip_accents=false"):
        train_wordpiece(VIETNAMESE, 120, tmp_path)
    assert coverage(train_wordpiece(VIETNAMESE, 120, tmp_path, strip_accents=False), VIETNAMESE).merged == 0


def test_a_released_tokenizer_is_measured_and_not_changed(tmp_path: Path) -> None:
    alphabet = sorted({letter for text in HINDI for letter in text if letter != " "})
    entries = [*SPECIAL.values(), *alphabet, *(f"##{letter}" for letter in alphabet)]
    BertTokenizer(vocab={entry: number for number, entry in enumerate(entries)}).save_pretrained(str(tmp_path))
    found = coverage(load_tokenizer(tmp_path), HINDI)
    assert found.merged == 8 / 11  # four pairs, and three words beside them
    line = found.warnings(trained=False)[0]
    assert "backbone.tokenizer" in line
    assert "strip_accents" not in line
    foreign = coverage(load_tokenizer(tmp_path), ["река и море", "मेल"])
    assert foreign.unknown == 3 / 5  # of the second text two letters are left
    assert (
        "are unknown to the tokenizer ([UNK]); choose a tokenizer for this language"
        in foreign.warnings(trained=False)[0]
    )


def test_marks_that_are_lost_within_a_run_without_blanks_are_seen(tmp_path: Path) -> None:
    texts = ["นี่คือเรื่องของม้าและมา" * 3, "ที่นี่มีข้าวและขาวมาก" * 3]
    assert coverage(train_wordpiece(texts, 120, tmp_path, strip_accents=True, warn=False), texts).merged > 0.05
    assert coverage(train_wordpiece(texts, 120, tmp_path), texts).merged == 0


def test_forms_case_and_invisible_characters_make_no_other_word(tmp_path: Path) -> None:
    texts = ["\u00e9t\u00e9 e\u0301te\u0301 \u00c9T\u00c9 co\u00adop coop", "mot, (mot) mot."]
    assert coverage(train_wordpiece(texts, 100, tmp_path), texts).merged == 0


def test_a_sample_is_taken_of_the_whole(tmp_path: Path) -> None:
    texts = ["river stone"] * 9_000 + ["река камень"] * 1_000
    tokenizer = train_wordpiece(texts[:100], 100, tmp_path)
    assert coverage(tokenizer, texts).unknown > 0.05
    assert coverage(tokenizer, []).unknown == 0
