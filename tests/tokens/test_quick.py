"""The tokenizer without the library gives the ids that the library gives."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from transformers import AutoTokenizer

from condensery.errors import UserError
from condensery.tokens import light_tokenizer as quick
from condensery.tokens.tokenizer import train_wordpiece

TEXTS = [
    "read a JSON file",
    "Zürich, naïve  café\t[MASK] end",
    "漢字 and \u200b more",
    "x" * 300,
    "[CLS] [UNK]",
    "a\x00b",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train_wordpiece(["read a json file", "write a naive cafe text"] * 20, 120, tmp_path)
    return tmp_path


def test_the_ids_are_those_of_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    monkeypatch.setattr(quick, "load_tokenizer", lambda _: pytest.fail("the library was asked"))
    ours = quick.load_quick_tokenizer(folder)
    for text in TEXTS:
        assert ours(text, 1_000) == theirs(text)["input_ids"]
        assert ours(text, 4) == [*theirs(text)["input_ids"][:-1][:3], theirs.sep_token_id]


@pytest.mark.parametrize("lost", ["tokenizer_config.json", "tokenizer.json"])
def test_what_is_not_as_we_write_it_is_left_to_the_library(
    folder: Path, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / lost).write_text("{}")
    if lost == "tokenizer.json":
        with pytest.raises(UserError, match="no tokenizer in this folder"):
            quick.load_quick_tokenizer(folder)
    monkeypatch.setattr(quick, "load_tokenizer", Mock(side_effect=UserError("the library was asked")))
    with pytest.raises(UserError, match="the library was asked"):
        quick.load_quick_tokenizer(folder)
