"""Tokenizers: a pre-trained one by name or folder, or a WordPiece trained on the collection."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from condensery.errors import UserError
from condensery.system.files import expanded, is_hub_name
from condensery.system.progress import ProgressTask, progress
from condensery.tokens.store import Texts
from condensery.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
MOST_CHARACTERS = 1000  # of the alphabet, as BERT's: rarer characters become [UNK]
FEWEST_CHARACTERS = 100  # the alphabet is not cut below this, whatever the size of the vocabulary
_BATCH = 1024


def load_tokenizer(name: str | Path) -> "PreTrainedTokenizerFast":
    """A fast tokenizer from a folder or from the Hugging Face hub, fit for masked language modelling.

    Raises:
        UserError: when there is no such folder, the hub does not have it or cannot be reached, there is no fast
            tokenizer, it has no words, or it lacks one of the special tokens pad, cls, sep, mask, unk.
    """
    text, folder = str(name), expanded(name)
    local = bool(text) and folder.is_dir()
    if not local and not is_hub_name(text):
        raise UserError(f"tokenizer {text!r}: no such folder; give a tokenizer's folder or its name on Hugging Face")
    try:
        tokenizer = _read(str(folder) if local else text, local)
    except Exception as error:  # missing files, broken JSON, no network: the library raises a dozen types
        reason = " ".join(str(error).split())[:200]
        if local:
            raise UserError(f"tokenizer {text!r}: no tokenizer in this folder can be read ({reason})") from None
        raise UserError(
            f"tokenizer {text!r}: no such folder, and not available from Hugging Face ({reason}); "
            "check the name and the network, or download it once and give its folder"
        ) from None
    if not tokenizer.is_fast or not len(tokenizer):
        raise UserError(f"tokenizer {text!r}: holds no fast tokenizer (tokenizer.json); give one that does")
    check_tokenizer(tokenizer, f"tokenizer {text!r}")
    if not number_of_words(tokenizer):
        raise UserError(
            f"tokenizer {text!r}: knows {len(tokenizer)} special tokens and not one word, so its files (tokenizer.json or"
            " vocab.txt) are missing or empty; save the model's own tokenizer there"
        )
    Vocabulary.of(tokenizer)
    return tokenizer


def check_tokenizer(tokenizer: "PreTrainedTokenizerBase", what: str) -> None:
    """Raise ``UserError`` for settings that the library takes, and fails with when a text is read.

    They are a longest input that is no number, and an unknown token that is none of its tokens.
    """
    longest = tokenizer.model_max_length
    if type(longest) not in (int, float):
        raise UserError(
            f"{what}: model_max_length in tokenizer_config.json is {repr(longest)[:40]}; it must be a number"
        )
    unknown = tokenizer.unk_token
    if unknown is not None and unknown not in tokenizer.get_vocab():
        raise UserError(
            f"{what}: unk_token in tokenizer_config.json is {unknown[:40]!r}, which is not in its vocabulary; name the token"
            " that stands for unknown words"
        )


def number_of_words(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Tokens that are not special; the library makes a tokenizer without any for a folder that lacks its files."""
    return len(tokenizer) - len(set(tokenizer.all_special_ids))


def _read(name: str, local: bool) -> Any:
    """Read a tokenizer; a folder with nothing but BERT's ``vocab.txt`` counts as one (cased if it has capitals)."""
    from transformers import AutoTokenizer, BertTokenizer

    folder = Path(name)
    described = any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json", "config.json"))
    if local and not described and (folder / "vocab.txt").is_file():
        words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        cased = any(word != word.lower() for word in words if not word.startswith("["))
        return BertTokenizer(vocab={word: number for number, word in enumerate(words)}, do_lower_case=not cased)
    return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def train_wordpiece(
    texts: Texts, vocab_size: int, folder: Path, lowercase: bool = True, label: str = "tokenizer"
) -> "PreTrainedTokenizerFast":
    """Train a WordPiece tokenizer as BERT's on ``texts`` and save it as a Hugging Face folder.

    The alphabet is the most frequent characters (at most a quarter of the vocabulary), each once at the beginning and
    once inside of a word. The same text gives the same tokenizer, in every process.

    Args:
        texts: gives a list of strings for a slice; read twice.
        vocab_size: entries, special tokens included; fewer when the text has no more to offer.
        folder: written into.
        lowercase: lower case and strip accents.
        label: shown with the progress.

    Raises:
        UserError: when there is no text, or ``vocab_size`` does not hold the special tokens and the alphabet.
    """
    from tokenizers.trainers import WordPieceTrainer
    from transformers import BertTokenizer

    backend = BertTokenizer(do_lower_case=lowercase).backend_tokenizer
    with progress(label, 2 * len(texts), "texts") as task:
        alphabet = _alphabet(_batches(texts, task), backend.normalizer.normalize_str, vocab_size)
        trainer = WordPieceTrainer(
            vocab_size=vocab_size,
            # The library numbers "##x" in the order of a hash table, and breaks ties between merges by these numbers;
            # named here, they are numbered in our order, and the same text gives the same tokenizer in every process.
            special_tokens=[*SPECIAL.values(), *("##" + character for character in alphabet)],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        backend.train_from_iterator(_batches(texts, task), trainer=trainer)
    tokenizer = BertTokenizer(vocab=backend.get_vocab(), do_lower_case=lowercase)
    tokenizer.save_pretrained(str(folder))
    return load_tokenizer(folder)


def _alphabet(batches: Iterator[Sequence[str]], normalise: Callable[[str], str], vocab_size: int) -> list[str]:
    """The characters that the vocabulary spells words with, most frequent first.

    ``normalise`` must treat each character by itself, as BERT's does: so it is asked once for each that there is.
    """
    occurrences = np.zeros(sys.maxunicode + 1, np.int64)
    for batch in batches:
        characters = np.frombuffer(" ".join(batch).encode("utf-32-le"), np.uint32)
        seen = np.bincount(characters)
        occurrences[: len(seen)] += seen
    counts: Counter[str] = Counter()
    for number in np.flatnonzero(occurrences).tolist():
        for character in normalise(chr(number)):
            counts[character] += int(occurrences[number])
    ordered = [(-count, character) for character, count in counts.items() if not character.isspace()]
    if not ordered:
        raise UserError("there is no text to train the tokenizer on: the collection is empty")
    needed = len(SPECIAL) + 2 * min(len(ordered), FEWEST_CHARACTERS)  # each at the beginning and inside of a word
    if vocab_size < needed:
        raise UserError(f"vocab_size={vocab_size} is too small for this text; give at least {needed}")
    most = min(MOST_CHARACTERS, max(FEWEST_CHARACTERS, vocab_size // 4))
    return [character for _, character in sorted(ordered)[:most]]


def _batches(texts: Texts, task: ProgressTask) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), _BATCH):
        batch = texts[start : start + _BATCH]
        yield batch
        task.advance(len(batch))
