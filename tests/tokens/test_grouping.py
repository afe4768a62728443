"""Documents cut into passages: none is too long, none of the text is lost, sentences stay whole where they can."""

import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from condensery.tokens.batches import text_rows
from condensery.tokens.grouping import DocumentTexts, cut, group_documents
from condensery.tokens.store import tokenise
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary
from condensery.tokens.workers import read_tokenizer

TITLES = ["", "river stone", "the encoder of a naïve passage " * 20, "   "]


def documents_of(texts: list[str]) -> list[DocumentTexts]:
    """Documents of 0 to 4 texts, with empty, short and very long titles."""
    found, place = [], 0
    while place < len(texts):
        part = texts[place : place + len(found) % 5]
        found.append(DocumentTexts(f"d{len(found)}", part, [TITLES[(place + at) % 4] for at in range(len(part))]))
        place += len(part)
    return found


@pytest.fixture(params=["wordpiece", "bytelevel"])
def folder(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


@pytest.mark.parametrize("length", [16, 40, 144])
def test_no_passage_is_longer_than_the_length_and_no_text_is_lost(
    folder: Path, texts: list[str], length: int, tmp_path: Path
) -> None:
    documents = documents_of([*texts, "antidisestablishmentarianism" * 40 + " end. 東京" * 30, "x" * 3000])
    grouped = group_documents(read_tokenizer(folder), documents, length)
    assert [name for name, _ in grouped] == [document.id for document in documents]
    flat = [one for _, found in grouped for one in found]
    store = tokenise([one.text for one in flat], folder, tmp_path / "texts", sentences=False)
    titles = tokenise([one.title for one in flat], folder, tmp_path / "titles", sentences=False)
    vocabulary = Vocabulary.of(load_tokenizer(folder))
    _, starts = text_rows(store, range(len(flat)), vocabulary, 10_000, titles)
    assert np.diff(starts).max() <= length
    assert np.diff(starts).max() > 0.7 * length, "full passages"
    for document, (_, found) in zip(documents, grouped, strict=True):
        kept = "".join("".join(one.text for one in found).split())
        assert kept == "".join("".join(document.texts).split())
        for one in found:
            assert one.text == one.text.strip() != ""
            assert any(title.strip().startswith(one.title) for title in document.titles)


def test_sentences_stay_whole_and_as_many_as_fit_are_together(wordpiece: Path) -> None:
    texts = ["The river is a stone.  The passage was\nquick. It is on.", "They are quickly at it! A stone."]
    tokenizer = read_tokenizer(wordpiece)
    sentences = ["The river is a stone.", "The passage was\nquick.", "It is on.", "They are quickly at it!", "A stone."]
    counts = [len(tokenizer.encode(sentence, add_special_tokens=False)) for sentence in sentences]
    document = DocumentTexts("d", texts, ["", ""])

    def passages(length: int) -> list[str]:
        return [one.text for one in group_documents(tokenizer, [document], length)[0][1]]

    assert passages(sum(counts) + 2) == ["The river is a stone.  The passage was\nquick. It is on. " + texts[1]]
    assert passages(sum(counts) + 1) == [
        "The river is a stone.  The passage was\nquick. It is on. They are quickly at it!",
        "A stone.",
    ]
    for length in range(16, sum(counts)):
        wanted, room = [[0]], length - 2
        for number in range(1, 5):
            if sum(counts[at] for at in [*wanted[-1], number]) <= room:
                wanted[-1].append(number)
            else:
                wanted.append([number])
        if max(counts) <= room:
            found = [" ".join(passage.split()) for passage in passages(length)]
            assert found == [" ".join(" ".join(sentences[at] for at in group).split()) for group in wanted]


def test_a_title_takes_its_part_of_the_length(wordpiece: Path) -> None:
    tokenizer = read_tokenizer(wordpiece)
    text = "The river was on it. " * 8
    with_title = group_documents(tokenizer, [DocumentTexts("d", [text], ["a stone in the river"])], 32)[0][1]
    without = group_documents(tokenizer, [DocumentTexts("d", [text], [""])], 32)[0][1]
    assert {one.title for one in with_title} == {"a stone in the river"}
    assert len(with_title) > len(without)


def test_a_sentence_is_cut_between_words_where_it_has_any(wordpiece: Path) -> None:
    tokenizer = read_tokenizer(wordpiece)
    words = "  the river and the stone of retrieval was quickly unaffable " * 5
    pieces = [words[begin:end] for begin, end in cut(tokenizer, words, 12)]
    assert " ".join(pieces).split() == words.split(), "no word is cut"
    assert all(len(tokenizer.encode(piece, add_special_tokens=False)) <= 12 for piece in pieces)
    endless = "retrieval" * 50
    pieces = [endless[begin:end] for begin, end in cut(tokenizer, endless, 12)]
    assert "".join(pieces) == endless
    assert all(len(tokenizer.encode(piece, add_special_tokens=False)) <= 12 for piece in pieces)
    assert cut(tokenizer, "   ", 12) == []


def test_a_sentence_is_cut_beside_a_character_of_more_tokens_than_the_limit(bytelevel: Path) -> None:
    tokenizer = read_tokenizer(bytelevel)
    text = "\U0001f41d" + "the river and the stone " * 9  # the bee has three tokens
    pieces = [text[begin:end] for begin, end in cut(tokenizer, text, 2)]
    assert pieces[0] == "\U0001f41d"
    assert all(len(tokenizer.encode(piece, add_special_tokens=False)) <= 2 for piece in pieces[1:])


def test_a_sentence_is_cut_between_letters_where_a_token_begins_within_one() -> None:
    backend = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(".{3}"), "isolated")  # each token has three characters
    text = "शर्मा" * 6
    assert all(re.fullmatch("(श|र्मा)+", text[begin:end]) for begin, end in cut(backend, text, 2))
