"""A small WordPiece tokenizer, trained here."""

from pathlib import Path

import pytest

from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece
from condensery.tokens.vocabulary import Vocabulary

TEXTS = [
    "The river carries stones to the sea.",
    "A retriever encodes passages and queries into vectors, and compares them.",
    "Stones are heavy; the sea is deep, and nobody reads passages there.",
]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Texts of different lengths; the last one is longer than 12 tokens."""
    return TEXTS


@pytest.fixture(scope="session")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer's folder."""
    folder = tmp_path_factory.mktemp("wordpiece")
    train_wordpiece(TEXTS, 120, folder)
    return folder


@pytest.fixture(scope="session")
def words(wordpiece: Path) -> Vocabulary:
    """Its vocabulary."""
    return Vocabulary.of(load_tokenizer(wordpiece))
