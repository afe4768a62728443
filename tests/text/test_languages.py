"""A language is guessed from letters and changes which letters are one, or taken in pairs."""

import pytest

from condensery.text.languages import ANY, LANGUAGES, WORDS, check_language, guess

SAMPLES = {
    "chinese": "蜜蜂用跳舞告诉同伴花在哪里。Python 3 很好用。",
    "japanese": "蜂は踊りで花の場所を仲間に教える。",
    "korean": "벌은 춤을 추어 꽃이 있는 곳을 알린다.",
    "thai": "ผึ้งเต้นรำเพื่อบอกเพื่อน",
    "lao": "ເຜິ້ງເຕັ້ນລຳ",
    "khmer": "ឃ្មុំរាំដើម្បីប្រាប់",
    "burmese": "ပျားများသည် ကခုန်ကြသည်။",
    "arabic": "يرقص النحل ليخبر رفاقه",
    "hebrew": "הדבורים רוקדות",
    "turkish": "Arılar çiçeklerin yerini dansla anlatır.",
}


@pytest.mark.parametrize("language", SAMPLES)
def test_the_letters_tell_the_language(language: str) -> None:
    assert guess([SAMPLES[language]]) == language
    assert guess(["", SAMPLES[language], "A little English beside it."]) == language


@pytest.mark.parametrize(
    "text",
    ["Bees dance.", "Les abeilles dansent à midi.", "Пчёлы танцуют.", "मधुमक्खियाँ नाचती हैं।", "Οι μέλισσες", "123 …", ""],
)
def test_languages_of_plain_words_are_none_in_particular(text: str) -> None:
    assert guess([text] * 3) == ANY


def test_a_few_words_of_another_script_do_not_make_a_language() -> None:
    text = "The word 蜜蜂 (bee) stands in a long English text about languages of Asia; so does 벌, which is Korean."
    assert guess([text] * 5) == ANY
    assert guess([]) == ANY


def test_the_sample_is_of_all_texts() -> None:
    assert guess(["English comes first."] * 1_500 + [SAMPLES["korean"]] * 1_500) == "korean"


def test_turkish_has_two_letters_i() -> None:
    for name in ("turkish", "azerbaijani"):
        found = LANGUAGES[name].terms("ISPARTA Isparta ısparta İZMİR İzmir I\u0307zmir izmir")
        assert found == ["ısparta"] * 3 + ["izmir"] * 4


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("arabic", "العَرَبِيَّة", "العربيه"),
        ("arabic", "أحمد إلى كـتاب", "احمد الي كتاب"),
        ("arabic", "\ufe8d\ufedf\ufecc\ufeae\ufe91", "العرب"),
        ("persian", "كتابي", "کتابی"),
        ("urdu", "کتابِ", "كتاب"),
        ("arabic", "ده\u200cنگ", "دەنگ"),  # Sorani
        ("persian", "کتاب\u200cها می\u200cروند", "کتاب ها می روند"),
        ("hebrew", "שָׁלוֹם", "שלום"),
        ("hindi", "ज़रूर हाँ ऩ", "जरूर हां न"),
        ("romanian", "ŞTIINŢĂ", "știință"),
        ("serbian", "Људи, ЊЕГОШ, џеп", "ljudi njegoš džep"),
        ("thai", "เเปลก", "แปลก"),
        ("korean", "\u1112\u1161\u11ab\u1100\u116e\u11a8", "한국"),
        ("any", "क़लम", "क\u093cलम"),
    ],
)
def test_two_ways_to_write_a_word_are_one(language: str, one: str, other: str) -> None:
    assert LANGUAGES[language].terms(one) == LANGUAGES[language].terms(other)


def test_korean_is_taken_in_pairs_and_words_in_none() -> None:
    assert LANGUAGES["korean"].terms("한국어를 IT") == ["한국", "국어", "어를", "it"]
    assert LANGUAGES[ANY].terms("한국어를 我是中") == ["한국어를", "我是", "是中"]
    assert LANGUAGES[WORDS].terms("한국어를 我是中") == ["한국어를", "我是中"]
    assert LANGUAGES["chinese"].terms("我是中 it's") == ["我是", "是中", "it", "s"]


def test_an_unknown_language_is_one_line_with_what_there_is() -> None:
    for name in ("auto", *LANGUAGES):
        assert check_language(name) == name
    for name, hint in {
        "chinse": "did you mean 'chinese'",
        "german": "the key stemmer sets their stemmer",
        "x" * 500: "500 characters",
    }.items():
        with pytest.raises(ValueError, match=hint) as one:
            check_language(name)
        assert "\n" not in str(one.value)
        assert "choose from auto, any, words, chinese" in str(one.value)
