"""Where sentences begin, in whatever script they are written."""

import pytest

from condensery.tokens.workers import sentence_begins

SENTENCES = {
    "english": ["Bees dance. ", "They fly far, e.g. to a lake. ", "Do they?"],
    "chinese": ["蜜蜂用跳舞告诉同伴花在哪里。", "它们飞得很远！", "真的吗？", "是的。"],
    "japanese": ["蜂は踊りで花の場所を教える。", "「そうか。」", "と言った。"],
    "japanese quotes": ["彼は言った。", "『本当？』", "彼女は笑った。", "【注意！】 ", "次。"],
    "japanese numbers": ["これは１．５倍です．", "価格は３．１４です．", "終わり．"],
    "chinese, then digits and small letters": ["他生于北京。", "1990年去上海！", "iPhone很好？", "“是2部。”", "3天"],
    "chinese brackets": ["他来了。)", "〈真的？〉", "好。"],
    "greek": ["Τι κάνεις; ", "Καλά\u037e) ", "Αλήθεια\u0301; ", "Ναι."],
    "greek letters": ["The roots α; β and γ; δ are real. ", "So is ε."],
    "hindi": ["मधुमक्खियाँ नाचती हैं। ", "वे दूर तक उड़ती हैं।", "सच है?"],
    "burmese": ["ပျားများသည် ကခုန်ကြသည်။ ", "သူတို့သည် ဝေးဝေးပျံသန်းသည်။"],
    "arabic": ["يرقص النحل ليخبر رفاقه. ", "هل هذا صحيح؟ ", "نعم."],
    "khmer": ["ឃ្មុំរាំដើម្បីប្រាប់។ ", "ពួកវាហើរឆ្ងាយ។", "ផ្កា ស្លឹក ។ល។ នៅទីនោះ៕"],
    "khmer quotes": ["ឃ្មុំរាំ។» ", "ពួកវាហើរ។"],
    "tibetan marks that stand twice": ["བོད་སྐད།། །། ", "བོད་ཡིག།"],
    "tibetan": ["བོད་སྐད། ", "བོད་ཡིག། ", "ཡིག་རིགས།"],
    "thai": ["ผึ้งเต้นรำ ", "เหล็กขึ้นสนิมในเดือน 5 ของปี ", "ต่างๆ นานา ที่ ABC".replace(" ที่", "")],
    "lao": ["ເຜິ້ງເຕັ້ນລຳ  ", "ພວກມັນບິນໄກ"],
}


@pytest.mark.parametrize("language", SENTENCES)
def test_sentences_begin_where_the_one_before_ends(language: str) -> None:
    parts = SENTENCES[language]
    text = "".join(parts)
    begins = sentence_begins(text)
    assert [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)] == parts


BY_LANGUAGE = {
    "de": ["Am 3. Juni kam er an. ", "Er blieb usw. bis zum 5. Juli."],
    "ru": ["А. С. Пушкин родился в Москве в 1799 г. по ул. Ленина. ", "Вот."],
    "hy": ["Նա եկավ: ", "Ի՞նչ է սա: ", "Այո:"],
    "es": ["La Dra. Ruiz vino. ", "Ud. sabe."],
    "gsw": ["Am 3. Juni isch er cho. ", "Ja."],  # Alemannic has German's rules
    "sv": ["Se s. 5 f.ö. ", "Ja."],  # has no rules, and takes English's
}


@pytest.mark.parametrize("language", BY_LANGUAGE)
def test_a_language_has_abbreviations_and_ordinals_of_its_own(language: str) -> None:
    parts = BY_LANGUAGE[language]
    text = "".join(parts)
    begins = sentence_begins(text, language)
    assert [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)] == parts
    assert (sentence_begins(text) == begins) == (language == "sv")
