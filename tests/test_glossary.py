"""The glossary: in alphabetical order, and each link in it leads to a word of it."""

import re

from small_runs import PROJECT

PAGE = (PROJECT / "docs" / "glossary.md").read_text()
WORDS = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)


def test_words_are_in_alphabetical_order() -> None:
    assert len(WORDS) > 50
    assert sorted({word.lower() for word in WORDS}) == [word.lower() for word in WORDS]


def test_each_word_is_explained_and_each_link_leads_to_one() -> None:
    anchors = {re.sub(r"[^\w -]", "", word.lower()).replace(" ", "-") for word in WORDS}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors
    assert all(part.partition("\n")[2].strip() for part in PAGE.split("\n## ")[1:])
