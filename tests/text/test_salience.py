"""Sentences are ranked by how rare their words are, and are of a length that counts words of every script."""

import pytest

from condensery.text.salience import Salience

ENGLISH = ["Bees dance and bees hum.", "Iron rusts in damp air.", "It is so.", "Bees dance."]
CHINESE = ["蜜蜂用跳舞告诉同伴花在哪里。", "铁在潮湿的空气里会生锈。", "是的。", "它们飞得很远。"]
THAI = ["ผึ้งเต้นรำเพื่อบอกเพื่อนว่าดอกไม้อยู่ที่ไหน", "เหล็กขึ้นสนิมในอากาศชื้น", "ใช่", "ฝนตกเมื่อหยดน้ำหนัก"]


@pytest.mark.parametrize("sentences", [ENGLISH, CHINESE, THAI], ids=["english", "chinese", "thai"])
def test_only_sentences_of_a_length_are_ranked(sentences: list[str]) -> None:
    salience = Salience.of(sentences)
    assert {0, 1} <= set(salience.ranked(sentences, 4, 40))
    assert 2 not in salience.ranked(sentences, 4, 40)
    assert salience.ranked(sentences * 9, 1, 40)
    assert salience.ranked(["".join(sentences) * 9], 4, 40) == []


@pytest.mark.parametrize(
    ("usual", "rare"),
    [
        ("bees dance in the sun", "iron rusts in the rain"),
        ("蜜蜂用跳舞告诉同伴", "铁在潮湿的空气里生锈"),
        ("मधुमक्खियाँ धूप में नाचती हैं", "लोहा बारिश में जंग खाता है"),
    ],
)
def test_the_rarer_words_come_first(usual: str, rare: str) -> None:
    salience = Salience.of([usual] * 9 + [rare])
    assert salience.ranked([usual, rare], 1, 40) == [1, 0]
