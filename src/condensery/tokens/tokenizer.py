"""Tokenizers: a pre-trained one by name or folder, or a WordPiece trained on the collection."""

import sys
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from condensery.errors import UserError
from condensery.system.files import expanded, is_hub_name, read_json
from condensery.system.progress import ProgressTask, progress
from condensery.text.lines import check_whole
from condensery.tokens.coverage import coverage
from condensery.tokens.store import Texts
from condensery.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.normalizers import Normalizer
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
MOST_CHARACTERS = 1000  # of the alphabet, as BERT's: rarer characters become [UNK]
FEWEST_CHARACTERS = 100  # the alphabet is not cut below this, whatever the size of the vocabulary
COVERED = 0.999  # share of the characters of a text that the alphabet should hold, where more ideographs can help
StripAccents = Literal["latin"] | bool

# marks behind a Latin letter, behind a character that is neither letter nor mark, and at the beginning of a text
LATIN_ACCENTS = r"(?:(?<=[\p{Latin}[^\p{L}\p{Mn}\p{Mc}]])|\A)\p{Mn}+"
ALL_ACCENTS = r"\p{Mn}+"
# A run of letters without a blank, as Thai and Burmese are written. WordPiece turns a word of more than 100 characters
# into [UNK], so a run is cut before that. Latin letters are left as BERT has them: so long a run of them is no word.
LONG_RUN = r"[\p{L}\p{M}&&[^\p{Latin}]][\p{L}\p{M}\p{N}]{79,99}(?!\p{M})"
ROUTER = "router_config.json"  # the file in which sentence-transformers names the folders of two towers
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
    """Raise ``UserError`` for settings that the library accepts, but on which it fails when it reads a text.

    The settings are a longest input that is not a number, and an unknown token that is not in the vocabulary. ``what``
    begins the message.
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
    """The number of tokens that are not special. It is 0 for a folder that lacks its files, which the library accepts."""
    return len(tokenizer) - len(set(tokenizer.all_special_ids))


def _read(name: str, local: bool) -> Any:
    """Read a tokenizer; a folder with nothing but BERT's ``vocab.txt`` counts as one (cased if it has capitals).

    Where sentence-transformers keeps two towers in subfolders, the tokenizer of passages is read.
    """
    from transformers import AutoTokenizer, BertTokenizer

    folder = Path(name)
    if local and (folder / ROUTER).is_file() and not (folder / "tokenizer_config.json").is_file():
        folder = folder / read_json(folder / ROUTER)["structure"]["document"][0]
        name = str(folder)
    described = any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json", "config.json"))
    if local and not described and (folder / "vocab.txt").is_file():
        words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        cased = any(word != word.lower() for word in words if not word.startswith("["))
        return BertTokenizer(vocab={word: number for number, word in enumerate(words)}, do_lower_case=not cased)
    return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def train_wordpiece(
    texts: Texts,
    vocab_size: int,
    folder: Path,
    lowercase: bool = True,
    label: str = "tokenizer",
    strip_accents: StripAccents = "latin",
    warn: bool = True,
) -> "PreTrainedTokenizerFast":
    """Train a WordPiece tokenizer like BERT's on ``texts`` and save it as a Hugging Face folder.

    The alphabet holds the most frequent characters (at most a quarter of the vocabulary) and the ideographs that the
    text needs beyond them. Each frequent character is there twice: at the beginning and inside of a word. The same text
    gives the same tokenizer in every process.

    Args:
        texts: gives a list of strings for a slice; read twice.
        vocab_size: entries, special tokens included; fewer when the text has no more to offer.
        folder: gets the files of the tokenizer.
        lowercase: turn all letters into lower case.
        label: shown with the progress.
        strip_accents: which accents ``normaliser`` removes: "latin", True (all) or False (none).
        warn: give a Python warning where the tokenizer loses much of the texts, as ``tokens.coverage`` measures it.

    Returns:
        The tokenizer, read from ``folder``.

    Raises:
        UserError: when there is no text, or ``vocab_size`` does not hold the special tokens and the alphabet.
    """
    from tokenizers.trainers import WordPieceTrainer
    from transformers import BertTokenizer, PreTrainedTokenizerFast

    backend = BertTokenizer().backend_tokenizer
    _as_ours(backend, lowercase, strip_accents)
    with progress(label, 2 * len(texts), "texts") as task:
        alphabet = _alphabet(_batches(texts, task), backend.normalizer.normalize_str, vocab_size)
        trainer = WordPieceTrainer(
            vocab_size=vocab_size,
            # The library numbers "##x" in the order of a hash table, and breaks ties between merges by these numbers.
            # Tokens named here are numbered in our order, so the same text gives the same tokenizer in every process.
            special_tokens=[*SPECIAL.values(), *(f"##{character}" for character in alphabet[: _most(vocab_size)])],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        backend.train_from_iterator(_batches(texts, task), trainer=trainer)
    backend = BertTokenizer(vocab=backend.get_vocab()).backend_tokenizer
    _as_ours(backend, lowercase, strip_accents)
    # The library's class for BERT would put BERT's normaliser in the place of ours when the folder is opened.
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in SPECIAL.items()},
    )
    tokenizer.save_pretrained(str(folder))
    trained = load_tokenizer(folder)
    for line in coverage(trained, texts).warnings(trained=True) if warn else ():
        warnings.warn(line, stacklevel=2)
    return trained


def _as_ours(backend: "Tokenizer", lowercase: bool, strip_accents: StripAccents) -> None:
    """Give a tokenizer our normaliser, and make it cut runs of letters that are longer than a word."""
    from tokenizers import Regex, pre_tokenizers

    backend.normalizer = normaliser(lowercase, strip_accents)
    cut = pre_tokenizers.Split(Regex(LONG_RUN), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.BertPreTokenizer()])


def normaliser(lowercase: bool = True, strip_accents: StripAccents = "latin") -> "Normalizer":
    """BERT's normaliser of texts, with two changes: accents have a setting of their own, and all text is decomposed.

    Invisible characters are removed, blanks are put around ideographs, and all characters are decomposed (NFD), Korean
    syllables too, so composed and decomposed forms are the same. A decomposed accent is a mark of its own behind its
    letter (Unicode's Mn). ``strip_accents`` removes:

    - ``"latin"``: marks behind a Latin letter, a number or a sign, so English reads as in BERT's uncased models. Marks of
      all other scripts are kept: the vowel signs of Hindi and Thai are letters, and so is the breve of Cyrillic й.
    - ``True``: all marks, as BERT's uncased models do.
    - ``False``: no marks.
    """
    from tokenizers import Regex, normalizers

    cleaned = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    stripped = {"latin": LATIN_ACCENTS, True: ALL_ACCENTS}.get(strip_accents)
    steps = [cleaned, normalizers.NFD()]
    steps += [normalizers.Replace(Regex(stripped), "")] if stripped else []
    steps += [normalizers.Lowercase()] if lowercase else []
    return normalizers.Sequence(steps)


def _alphabet(batches: Iterator[Sequence[str]], normalise: Callable[[str], str], vocab_size: int) -> list[str]:
    """The characters that the vocabulary spells words with, most frequent first.

    Behind the most frequent characters come the ideographs that are needed to spell a share ``COVERED`` of the text.
    They are cut where the alphabet would fill more than three quarters of the vocabulary.

    ``normalise`` must treat each character by itself, except combining marks, which may depend on the character before
    them. It is therefore called once for each distinct character, and on every batch of texts with marks.
    """
    counts = _characters(batches, normalise)
    ordered = [
        character for character in sorted(counts, key=lambda one: (-counts[one], one)) if not character.isspace()
    ]
    if not ordered:
        raise UserError("there is no text to train the tokenizer on: the collection is empty")
    needed = len(SPECIAL) + 2 * min(len(ordered), FEWEST_CHARACTERS)  # each at the beginning and inside of a word
    if vocab_size < needed:
        raise UserError(f"vocab_size={vocab_size} is too small for this text; give at least {needed}")
    most = _most(vocab_size)
    occurrences = np.cumsum([counts[character] for character in ordered])
    covering = int(np.searchsorted(occurrences, COVERED * occurrences[-1])) + 1
    # an ideograph always stands alone, so one entry holds it
    ideographs = [character for character in ordered[most:covering] if normalise(character) == f" {character} "]
    return ordered[:most] + ideographs[: max(0, 3 * vocab_size // 4 - 2 * most)]


def _most(vocab_size: int) -> int:
    """The largest number of characters that words are spelt with, both at their beginning and inside."""
    return min(MOST_CHARACTERS, max(FEWEST_CHARACTERS, vocab_size // 4))


def _characters(batches: Iterator[Sequence[str]], normalise: Callable[[str], str]) -> Counter[str]:
    """Count how often each character occurs in the normalised texts."""
    marks = [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) == "Mn"]
    is_mark = np.zeros(sys.maxunicode + 1, bool)
    is_mark[marks] = True
    occurrences = np.zeros(sys.maxunicode + 1, np.int64)
    counts: Counter[str] = Counter()
    for batch in batches:
        check_whole(" ".join(batch), "text", "texts")
        characters = np.frombuffer(" ".join(batch).encode("utf-32-le"), np.uint32)
        if is_mark[characters].any():
            counts.update(normalise(" ".join(batch)))
            continue
        seen = np.bincount(characters)
        occurrences[: len(seen)] += seen
    for number in np.flatnonzero(occurrences).tolist():
        for character in normalise(chr(number)):
            counts[character] += int(occurrences[number])
    return counts


def _batches(texts: Texts, task: ProgressTask) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), _BATCH):
        batch = texts[start : start + _BATCH]
        yield batch
        task.advance(len(batch))
