"""Words are whole in every script, however a text was typed; of scripts without blanks terms are pairs of characters."""

import re
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from condensery.text.words import (
    _APOSTROPHES,
    between_letters,
    first_words,
    number_of_plain_words,
    number_of_words,
    terms,
    word_spans,
    words,
)

# What Lucene's StandardTokenizer and LowerCaseFilter make of texts (the rules of UAX 29).
STANDARD = {
    "The QUICK-brown fox_2": "the quick brown fox_2",
    "हिन्दी भाषा में लिखी किताब": "हिन्दी भाषा में लिखी किताब",
    "বাংলা ভাষা": "বাংলা ভাষা",
    "தமிழ் மொழி": "தமிழ் மொழி",
    "తెలుగు లిపి": "తెలుగు లిపి",
    "العَرَبِيَّة لغة": "العَرَبِيَّة لغة",
    "שָׁלוֹם עולם": "שָׁלוֹם עולם",
    "ܣܘܪܝܝܐ ܠܫܢܐ": "ܣܘܪܝܝܐ ܠܫܢܐ",
    "Съешь ещё": "съешь ещё",
    "ሰላም ለዓለም።": "ሰላም ለዓለም",
    "Ողջույն, աշխարհ": "ողջույն աշխարհ",
    "한국어 공부": "한국어 공부",
    "re\u0301sume\u0301 na\u00efve": "résumé naïve",
    "Việt Nam": "việt nam",
}
# What CJKAnalyzer makes of them (StandardTokenizer, CJKWidthFilter, LowerCaseFilter, CJKBigramFilter).
PAIRS = {
    "我是中国人": "我是 是中 中国 国人",
    "多くの学生が試験に落ちた。": "多く くの の学 学生 生が が試 試験 験に に落 落ち ちた",
    "ｶﾀｶﾅ": "カタ タカ カナ",
    "Ｔｅｓｔ １２３４": "test 1234",
    "茶": "茶",
    "茶，水": "茶 水",
    "我爱Python编程3天": "我爱 python 编程 3 天",
    "データベース": "デー ータ タベ ベー ース",
    "人々": "人々",
    "ㄅㄆㄇ": "ㄅㄆ ㄆㄇ",
    "𠮷野家": "𠮷野 野家",
}
# Where ours differ from both, on purpose.
OURS = {
    "it's 3.14": "it s 3 14",  # as ever: UAX 29 does not part them
    "l\u2019été": "l été",
    "п\u02bcять п'ять Hawai\u02bbi Qur\u02be\u0101n \u0149": "п ять п ять hawai i qur ān n",  # UAX 29 has them as letters
    "ինչպե՞ս օ՜հ ի՛նչ": "ինչպես օհ ինչ",  # UAX 29 keeps the marks of Armenian, which stand within the word
    "\u2f64\u2f1f用 \u2ed8年": "用土 土用 \u2ed8年",  # a radical is an ideograph, where Unicode names one
    "അവന\u0d4d\u200d ഉത\u09cd\u200d ত\u09cd\u200dস": "അവൻ ഉത\u09cd ৎস",  # a letter with a joiner is the letter of later texts
    "도로ㆍ지반": "도로 지반",  # the Korean letter that most people type as a middle dot
    "👍 ok": "ok",  # StandardTokenizer has a term for an emoji
    "ที่บ้าน": "ที่บ้ บ้า าน",  # StandardTokenizer has one term for the run
    "ພາສາລາວ": "ພາ າສ ສາ າລ ລາ າວ",
    "ខ្មែរ": "ខ្មែ មែរ",
    "မြန်မာ": "မြန် န်မာ",
    "eco\u00adlogy": "ecology",  # StandardTokenizer keeps what is invisible in the word
    "می\u200cخواهم": "میخواهم",
    "كـتـاب": "كتاب",
    "١٩٤٧ १९४७ ๑๙๔๗": "1947 1947 1947",  # DecimalDigitFilter of its analysers for these languages
    "İstanbul I\u0307zmir i\u0307ki": "istanbul izmir iki",
    "Straße ΣΊΣΥΦΟΣ": "strasse σίσυφοσ",
    "ﬁne Ⅷ ㎏": "fine viii kg",
    "1\ufe0f\u20e3": "1",
    "10² 1½ x™ №5": "10² 1½ x 5",  # a power stays one, and symbols are none of letters
    "\u0301a \u0301 \u0300": "a",  # marks without a letter
    "foo\u200bbar": "foo bar",  # the zero width space parts words
    "ខ្ញុំ\u200bស្រី": "ខ្ញុំ ញុំស្ ស្រី",  # but for those of letters in pairs, which few write it between
    "ไป\u200b\u200bนา 中\u200b国\u200bfoo": "ไป ปน นา 中国 foo",
}


@pytest.mark.parametrize("table", [STANDARD, PAIRS, OURS], ids=["standard", "pairs", "ours"])
def test_terms_are_those_of_the_rules(table: dict[str, str]) -> None:
    for text, expected in table.items():
        wanted = [unicodedata.normalize("NFC", term) for term in expected.split()]
        assert terms(text) == wanted, text


def test_words_of_a_script_without_blanks_stay_in_one_run() -> None:
    assert words("我爱Python编程, 茶") == ["我爱python编程", "茶"]
    assert terms("我爱Python编程, 茶", paired="") == ["我爱python编程", "茶"]


@pytest.mark.parametrize("text", [*STANDARD, *PAIRS, *OURS, "각 กำ น้ำ Ǆ ΐ ᾳ ﬃ ẛ̣ ﷺ 가나다 か゛が"])
def test_composed_and_decomposed_texts_have_the_same_words(text: str) -> None:
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD")]
    assert words(forms[0]) == words(forms[1]) == words(text)
    assert terms(forms[0]) == terms(forms[1])


def test_every_letter_is_found_in_either_form_and_in_either_case() -> None:
    letters = [chr(code) for code in range(sys.maxunicode) if chr(code).isalpha()]
    wrong = []
    for letter in letters:
        composed, decomposed = (unicodedata.normalize(form, f"a{letter}") for form in ("NFC", "NFD"))
        same_case = letter.upper().lower() != letter.lower() or words(f"a{letter.upper()}") == words(
            f"a{letter.lower()}"
        )
        is_mark = unicodedata.normalize("NFKC", letter)[0] in f" \u0640{_APOSTROPHES}"  # on a blank or a tatweel
        if words(composed) != words(decomposed) or not (words(letter) or is_mark) or not same_case:
            wrong.append(letter)
    assert set(wrong) <= {*"\u115f\u1160\u3164\uffa0\uff9e\uff9f\u318d"}, (
        "all but Hangul's fillers and dot, and narrow marks"
    )


@pytest.mark.parametrize(
    "mark", ["\u00ad", "\u200c", "\u200d", "\u2060", "\ufeff", "\u200e", "\u200f", "\u202a", "\ufe0f"]
)
def test_what_is_invisible_does_not_count(mark: str) -> None:
    assert words(f"{mark}eco{mark}logy{mark} x") == ["ecology", "x"]
    assert terms(f"中{mark}国{mark}人") == ["中国", "国人"]


@given(st.text())
@settings(deadline=None)  # the first text fills a table
def test_the_spans_of_words_hold_all_the_words(text: str) -> None:
    assert [word for begin, end in word_spans(text) for word in words(text[begin:end])] == words(text)


def test_english_has_the_words_that_it_always_had() -> None:
    text = "It's the café\u2019s \u201cnaïve\u201d co\u00f6p \u2013 10\u00a0% of x_y, 3\u00d74 m\u00b2 \u2026 Zo\u00eb"
    assert words(text) == terms(text) == re.findall(r"\w+", text.lower())
    ascii_text = "".join(map(chr, range(128))) + " isn't I/O x_y 3.14 A"
    assert words(ascii_text) == re.findall(r"\w+", ascii_text.lower())


@pytest.mark.parametrize("text", ["It's a dog - or not?", "हिन्दी भाषा में", "", "  a \n b\u00a0c ", "привет, мир!"])
def test_words_between_blanks_are_counted_as_they_stand(text: str) -> None:
    assert number_of_words(text) == len(text.split())
    assert number_of_plain_words(text) == len(words(text))
    assert first_words(text, 2) == " ".join(text.split()[:2])


@pytest.mark.parametrize(
    ("text", "fewest", "most"),
    [
        ("蜜蜂用跳舞告诉同伴花在哪里。", 7, 10),  # 蜜蜂 用 跳舞 告诉 同伴 花 在 哪里
        ("鉄は湿った空気の中で錆びる。", 6, 9),
        ("เหล็กขึ้นสนิมในอากาศชื้น", 5, 7),  # เหล็ก ขึ้น สนิม ใน อากาศ ชื้น
        ("ຂ້ອຍມັກອ່ານປຶ້ມ", 3, 5),  # ຂ້ອຍ ມັກ ອ່ານ ປຶ້ມ
        ("ဒီစာအုပ်ကောင်းတယ်", 3, 5),
        ("ខ្ញុំចូលចិត្តអានសៀវភៅ", 4, 7),  # ខ្ញុំ ចូលចិត្ត អាន សៀវភៅ
        ("用 Python 3 编程", 4, 4),
        ("第一章", 2, 2),
        ("茶", 1, 1),
        ("སྦྲང་མས་མེ་ཏོག་གི་ཟེའུ་འབྲུ་འཁྱེར།", 8, 8),  # syllables
        ("ሰላም፡ዓለም፡ነው።", 3, 3),
    ],
)
def test_words_without_blanks_are_estimated(text: str, fewest: int, most: int) -> None:
    assert fewest <= number_of_words(text) <= most
    assert fewest <= number_of_plain_words(text) <= most


def test_the_first_words_of_a_text_without_blanks_are_its_beginning() -> None:
    text = "蜜蜂用跳舞告诉同伴花在哪里。" * 20
    for number in (1, 5, 40):
        assert text.startswith(first_words(text, number))
        assert abs(number_of_words(first_words(text, number)) - number) <= 1
    assert first_words(text, 1_000) == text
    assert first_words("two words 蜜蜂用跳舞告诉", 3) == "two words 蜜蜂"
    assert words(first_words("སྦྲང་མས་མེ་ཏོག་གི", 2)) == ["སྦྲང", "མས"]


def test_a_text_is_cut_between_letters() -> None:
    text = "ที่บ้าน"
    assert [between_letters(text, at) for at in range(1, 8)] == [1, 1, 3, 3, 5, 6, 7]
    assert between_letters("👩\u200d🔬 x", 2) == 1


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("x\u1101\u116e\u11af", 1),  # a Korean syllable of three parts
        ("xน้ำ", 1),  # the last sign is written around the tone
        ("xर्मा", 1),  # a conjunct
        ("xខ្មុំ", 1),
        ("x👍🏽", 1),
        ("x🇯🇵", 1),
    ],
)
def test_a_text_is_not_cut_within_what_a_reader_takes_for_one_character(text: str, whole: int) -> None:
    assert {between_letters(text, at) for at in range(1, len(text))} == {whole}
    assert between_letters(text + "x", len(text)) == len(text)
