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
COVERED = 0.999  # of the characters of a text that the alphabet is to hold, where more ideographs can help
StripAccents = Literal["latin"] | bool

# marks behind a Latin letter, behind what is neither letter nor mark, and behind nothing
LATIN_ACCENTS = r"(?:(?<=[\p{Latin}[^\p{L}\p{Mn}\p{Mc}]])|\A)\p{Mn}+"
ALL_ACCENTS = r"\p{Mn}+"
# A run of letters without a blank, as Thai and Burmese are written. A WordPiece takes a word of more than 100 characters
# for [UNK], so it is cut before that. Latin letters are left as BERT has them: so long a run of them is no word.
LONG_RUN = r"[\p{L}\p{M}&&[^\p{Latin}]][\p{L}\p{M}\p{N}]{79,99}(?!\p{M})"
ROUTER = "router_config.json"  # in which sentence-transformers names the folders of two towers
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
    """Read a tokenizer; a folder with nothing but BERT's ``vocab.txt`` counts as one (cased if it has capitals).

    Where sentence-transformers keeps two towers in folders below, it is that of passages.
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
    """Train a WordPiece tokenizer as BERT's on ``texts`` and save it as a Hugging Face folder.

    The alphabet is the most frequent characters (at most a quarter of the vocabulary), each once at the beginning and
    once inside of a word, and ideographs that the text needs beyond them. The same text gives the same tokenizer, in
    every process.

    Args:
        texts: gives a list of strings for a slice; read twice.
        vocab_size: entries, special tokens included; fewer when the text has no more to offer.
        folder: written into.
        lowercase: lower case.
        label: shown with the progress.
        strip_accents: whose accents are taken away; see ``normaliser``.
        warn: give a Python warning where it loses much of the texts; see ``tokens.coverage``.

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
            # The library numbers "##x" in the order of a hash table, and breaks ties between merges by these numbers;
            # named here, they are numbered in our order, and the same text gives the same tokenizer in every process.
            special_tokens=[*SPECIAL.values(), *(f"##{character}" for character in alphabet[: _most(vocab_size)])],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        backend.train_from_iterator(_batches(texts, task), trainer=trainer)
    backend = BertTokenizer(vocab=backend.get_vocab()).backend_tokenizer
    _as_ours(backend, lowercase, strip_accents)
    # not the library's class for BERT: it would put BERT's normaliser in the place of ours when the folder is opened
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
    """Give a tokenizer our normaliser, and cut what is longer than a word before it is looked for in the vocabulary."""
    from tokenizers import Regex, pre_tokenizers

    backend.normalizer = normaliser(lowercase, strip_accents)
    cut = pre_tokenizers.Split(Regex(LONG_RUN), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.BertPreTokenizer()])


def normaliser(lowercase: bool = True, strip_accents: StripAccents = "latin") -> "Normalizer":
    """BERT's normaliser of texts, but that accents are a choice of their own, and composed and decomposed forms are one.

    Text is cleaned of what is invisible, ideographs are set apart, and all is decomposed (NFD), Korean syllables too. Of
    what stands behind a letter as a mark of its own (Unicode's Mn) ``strip_accents`` takes away:

    - ``"latin"``: what stands behind a Latin letter, a number or a sign: English reads as in BERT's uncased models. Marks
      of all other scripts are kept: the vowel signs of Hindi and Thai are letters, and so is the breve of Cyrillic й.
    - ``True``: all of them, as BERT's uncased models do.
    - ``False``: none.
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

    Behind the most frequent ones come those ideographs without which less than ``COVERED`` of the text could be spelt, as
    far as three quarters of the vocabulary hold them.

    ``normalise`` must treat each character by itself but for combining marks, which may depend on what they stand behind.
    So it is asked once for each character that there is, and for the texts with marks.
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
    """The most characters that are spelt with, at the beginning and inside of words."""
    return min(MOST_CHARACTERS, max(FEWEST_CHARACTERS, vocab_size // 4))


def _characters(batches: Iterator[Sequence[str]], normalise: Callable[[str], str]) -> Counter[str]:
    """How often each character is there in the normalised texts."""
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
