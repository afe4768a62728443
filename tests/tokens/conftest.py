"""Small tokenizers, trained here, and texts with sentences of many lengths."""

from pathlib import Path

import numpy as np
import pytest

from condensery.tokens.tokenizer import load_tokenizer, train_wordpiece
from condensery.tokens.vocabulary import Vocabulary

WORD_LIST = """
river stone quickly unaffable retrieval encoder passage naïve Zürich café 東京 don't e.g. 3.14 under-appreciated
the a of and to in is that it was for on are with as his they at be this from antidisestablishmentarianism 😀
"""
WORDS = WORD_LIST.split()


def sentence(random: np.random.Generator, words: int) -> str:
    return " ".join(random.choice(WORDS, size=words)).capitalize() + random.choice([".", "!", "?", '."'])


def texts_of(seed: int, number: int, most_sentences: int = 8, most_words: int = 30) -> list[str]:
    random = np.random.default_rng(seed)
    return [
        random.choice([" ", "  ", "\n\n"]).join(
            sentence(random, int(random.integers(1, most_words))) for _ in range(random.integers(1, most_sentences))
        )
        for _ in range(number)
    ]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """200 texts, some empty or blank."""
    found = texts_of(0, 200)
    found[3], found[50], found[199] = "", "   ", ""
    return found


@pytest.fixture(scope="session")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a WordPiece tokenizer of 150 entries."""
    folder = tmp_path_factory.mktemp("wordpiece")
    train_wordpiece(texts_of(1, 100), 150, folder)
    return folder


@pytest.fixture(scope="session")
def vocabulary(wordpiece: Path) -> Vocabulary:
    return Vocabulary.of(load_tokenizer(wordpiece))


@pytest.fixture(scope="session")
def bytelevel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level BPE tokenizer in RoBERTa's style."""
    from tokenizers import ByteLevelBPETokenizer
    from tokenizers.processors import RobertaProcessing
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts_of(2, 100), vocab_size=400, special_tokens=special, show_progress=False)
    backend = tokenizer._tokenizer
    backend.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = dict(zip(["cls_token", "pad_token", "sep_token", "unk_token", "mask_token"], special, strict=True))
    folder = tmp_path_factory.mktemp("bytelevel")
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(str(folder))
    return folder
