"""Load a pre-trained tokenizer by name or folder, or train a WordPiece tokenizer on the collection."""

import sys
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors, trainers

from condensery.errors import UserError, of_loading
from condensery.system.files import expanded, is_hub_name, read_json, write_text
from condensery.system.progress import ProgressTask, progress
from condensery.text.lines import check_whole, read_lines
from condensery.tokens.coverage import coverage
from condensery.tokens.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
MOST_CHARACTERS = 1000  # maximum size of the alphabet without ideographs, as in BERT; rarer characters become [UNK]
FEWEST_CHARACTERS = 100  # the alphabet is never cut below this size, even for a small vocabulary
COVERED = 0.999  # ideographs are added until the alphabet covers this share of the text's characters
StripAccents = Literal["latin"] | bool

# combining marks after a Latin letter, after a character that is neither letter nor mark, and at the start of a text
LATIN_ACCENTS = r"(?:(?<=[\p{Latin}[^\p{L}\p{Mn}\p{Mc}]])|\A)\p{Mn}+"
ALL_ACCENTS = r"\p{Mn}+"
# A run of letters without spaces, as in Thai and Burmese. WordPiece turns a word of more than 100 characters into [UNK],
# so a run is cut before it reaches this length. As in BERT, runs of Latin letters are not cut, because a run of this length
# is not a word.
LONG_RUN = r"[\p{L}\p{M}&&[^\p{Latin}]][\p{L}\p{M}\p{N}]{79,99}(?!\p{M})"
MODULES = "modules.json"  # the file in which sentence-transformers names the folder of each module
ROUTER = "router_config.json"  # the file in which sentence-transformers names the folders of two towers
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
IN_PYTHON = "its class splits words with a Python library; only fast tokenizers (tokenizer.json) are supported"
BROKEN = "its SentencePiece model, such as spiece.model, is broken"
_BATCH = 1024


def load_tokenizer(name: str | Path) -> "PreTrainedTokenizerFast":
    """Load a fast tokenizer from a folder or from the Hugging Face hub, for masked language modelling.

    Raises:
        UserError: the folder does not exist, the hub lacks the tokenizer or cannot be reached, there is no fast
            tokenizer, the tokenizer has no words, or one of the special tokens pad, cls, sep, mask, unk is missing.
    """
    text, folder = str(name), expanded(name)
    local = bool(text) and folder.is_dir()
    if not local and not is_hub_name(text):
        raise UserError(f"tokenizer {text!r}: no such folder; give a tokenizer's folder or its name on Hugging Face")
    try:
        tokenizer = _read(str(folder) if local else text, local)
    except Exception as error:  # missing files, broken JSON, no network: the library raises a dozen types
        reason = of_sentencepiece(error) or " ".join(str(error).split())[:200]
        if reason.startswith("You need to install"):  # the tokenizer would be refused with this library, too
            reason = IN_PYTHON
        if local and reason == BROKEN and not [*folder.glob("*.model")]:
            reason = "there is no tokenizer.json; save the model's own tokenizer there"
        told = f"no such folder, and not available from Hugging Face ({reason}); check the name and the network, or download"
        told = f"no tokenizer in this folder can be read ({reason})" if local else f"{told} it once and give its folder"
        raise of_loading(error)(f"tokenizer {text!r}: {told}") from None
    if not tokenizer.is_fast or not len(tokenizer):
        raise UserError(f"tokenizer {text!r}: has no fast tokenizer (tokenizer.json); give a tokenizer that has one")
    check_tokenizer(tokenizer, f"tokenizer {text!r}")
    _take_ends(tokenizer, f"tokenizer {text!r}")
    if not number_of_words(tokenizer):
        raise UserError(
            f"tokenizer {text!r}: knows {len(tokenizer)} special tokens and not one word, so its files (tokenizer.json or"
            " vocab.txt) are missing or empty; save the model's own tokenizer there"
        )
    Vocabulary.of(tokenizer)
    return tokenizer


def check_same_tokenizer(checkpoint: Path, vocabulary: Vocabulary, what: str, advice: str) -> None:
    """Raise ``UserError`` if the texts that a model will read were not tokenised with the model's tokenizer.

    Args:
        checkpoint: folder of the checkpoint; without a ``tokenizer.json`` nothing is checked.
        vocabulary: vocabulary of the texts.
        what: name of the checkpoint in the error message.
        advice: end of the error message, which says what to do.
    """
    stored = (checkpoint / "tokenizer.json").is_file()
    if stored and not vocabulary.agrees_with(Vocabulary.of(load_tokenizer(checkpoint))):
        raise UserError(f"{what}: the texts were tokenised with another tokenizer than its own; {advice}")


def of_sentencepiece(error: Exception) -> str:
    """Return why the library could not read a tokenizer that is only a SentencePiece model; empty for any other error.

    For such a tokenizer, the library's message names tiktoken, a package that reads no SentencePiece model.
    """
    if "tiktoken" not in str(error):
        return ""
    if find_spec("sentencepiece") is None:
        return "it is a SentencePiece model, such as spiece.model: pip install sentencepiece"
    return BROKEN


def check_tokenizer(tokenizer: "PreTrainedTokenizerBase", what: str) -> None:
    """Raise ``UserError`` for settings that the library loads without an error but that make it fail on the first text.

    These settings are a maximum input length that is not a number, and an unknown token that is missing from the
    vocabulary. The message begins with ``what``.
    """
    longest = tokenizer.model_max_length
    if type(longest) not in (int, float):
        raise UserError(f"{what}: model_max_length in tokenizer_config.json is {repr(longest)[:40]}; give a number")
    unknown = tokenizer.unk_token
    if unknown is not None and unknown not in tokenizer.get_vocab():
        raise UserError(
            f"{what}: unk_token in tokenizer_config.json is {unknown[:40]!r}, which is not in its vocabulary; name the token"
            " that stands for unknown words"
        )


def ends_of(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Return the special tokens that a tokenizer itself puts before a text, and those that it puts after a text."""
    encoding = tokenizer.encode("a")
    read = [at for at, attended in enumerate(encoding.attention_mask) if attended]  # the file may order padding
    special, tokens = [encoding.special_tokens_mask[at] for at in read], [encoding.tokens[at] for at in read]
    first, stop = (special.index(0), len(special) - special[::-1].index(0)) if 0 in special else (1, 1)
    return tokens[:first], tokens[stop:]


def _take_ends(tokenizer: "PreTrainedTokenizerBase", what: str) -> None:
    """Make [CLS] and [SEP] the tokens that the tokenizer itself puts before and after a text.

    The files may name others, which the model never read there: a tokenizer of Llama's class may name ``<cls>`` and
    ``<sep>``, but put ``<s>`` and ``</s>``. A tokenizer that puts no tokens is made to put [CLS] and [SEP], because texts
    are read so here, and other libraries must read a saved model alike.

    Raises:
        UserError: the tokenizer puts special tokens, but not one before and one after a text.
    """
    backend = tokenizer.backend_tokenizer
    before, after = ends_of(backend)
    names = {"cls_token": before, "sep_token": after}
    if before or after:
        if not len(before) == len(after) == 1:
            put = f"{' '.join(before) or 'nothing'} before a text and {' '.join(after) or 'nothing'} after it"
            raise UserError(
                f"{what}: puts {put}; supported are tokenizers that put one token before and one after a text"
            )
        for name, (token,) in names.items():
            if getattr(tokenizer, name) not in (None, token):
                setattr(tokenizer, name, token)
    elif all(getattr(tokenizer, name) in tokenizer.get_vocab() for name in names):
        cls, sep = (getattr(tokenizer, name) for name in names)
        ends = [(one, tokenizer.convert_tokens_to_ids(one)) for one in dict.fromkeys((cls, sep))]
        template = processors.TemplateProcessing([cls, "$A", sep], [cls, "$A", sep, "$B:1", f"{sep}:1"], ends)
        own = backend.post_processor
        backend.post_processor = processors.Sequence([own, template]) if own else template


def number_of_words(tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the number of ordinary tokens. It is 0 for a folder without tokenizer files, which the library accepts."""
    return len(tokenizer) - len(set(tokenizer.all_special_ids))


def _read(name: str, local: bool) -> Any:
    """Read a tokenizer. A folder with only BERT's ``vocab.txt`` gives a BERT tokenizer, cased if the file has capitals.

    A tokenizer in a subfolder, as former releases of sentence-transformers wrote it, is read too. If two towers are in
    subfolders, the tokenizer of the passage tower is read.
    """
    from transformers import BertTokenizer

    folder = Path(name)
    if local and (folder / ROUTER).is_file() and not (folder / "tokenizer_config.json").is_file():
        folder = folder / read_json(folder / ROUTER)["structure"]["document"][0]
    elif local and (folder / MODULES).is_file() and not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        folder = folder / read_json(folder / MODULES)[0]["path"]
    described = any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json", "config.json"))
    if local and not described and (folder / "vocab.txt").is_file():
        words = [line for _, line in read_lines(folder / "vocab.txt")]  # a token may be a line separator such as U+2028
        cased = any(word != word.lower() for word in words if not word.startswith("["))
        return BertTokenizer(vocab={word: number for number, word in enumerate(words)}, do_lower_case=not cased)
    return read_saved(str(folder) if local else name)


def read_saved(source: str | Path, revision: str | None = None) -> Any:
    """Read the tokenizer of a folder or hub name with transformers, as ``tokenizer.json`` describes it.

    Since release 5, a tokenizer class of transformers takes only the words from this file. The class fixes normaliser,
    splitting and model, although many checkpoints name the class of another tokenizer, or no class. So this function takes
    these parts from the file. As in release 4, only the settings of BERT's normaliser and of byte-level splitting are those
    of the class, because ``tokenizer_config.json`` may set them.
    """
    from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerFast
    from transformers.utils import cached_file

    made: Any = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
    if isinstance(made, BertTokenizer) and made.do_lower_case != made.backend_tokenizer.normalizer.lowercase:
        made = BertTokenizer.from_pretrained(source, revision=revision or "main")  # DPR's classes always lowercase
    path = cached_file(source, "tokenizer.json", revision=revision, _raise_exceptions_for_missing_entries=False)
    if path is None or not made.is_fast or type(made) is PreTrainedTokenizerFast:
        return made
    own, filed = made.backend_tokenizer, Tokenizer.from_file(path)
    for part, kind in (("normalizer", normalizers.BertNormalizer), ("pre_tokenizer", pre_tokenizers.ByteLevel)):
        if all(isinstance(getattr(one, part), kind) for one in (own, filed)):
            setattr(filed, part, getattr(own, part))
    parts = [(one.model, one.normalizer, one.pre_tokenizer) for one in (own, filed)]
    if len({tuple(part and part.__getstate__() for part in one) for one in parts}) == 1:
        return made
    how: Any = {"model_input_names": made.model_input_names, "tokenizer_object": filed, "revision": revision}
    how |= {key: str(one) for key, one in made.special_tokens_map.items() if filed.token_to_id(str(one)) is not None}
    return PreTrainedTokenizerFast.from_pretrained(source, **how)


def save_tokenizer(tokenizer: "PreTrainedTokenizerBase", folder: Path) -> None:
    """Save a tokenizer so that release 4 of transformers opens it too. For this, two names in its config are replaced."""
    tokenizer.save_pretrained(str(folder))
    text = (folder / "tokenizer_config.json").read_text(encoding="utf-8")
    text = text.replace('"TokenizersBackend"', '"PreTrainedTokenizerFast"')
    write_text(folder / "tokenizer_config.json", text.replace('"extra_special_tokens"', '"additional_special_tokens"'))


def train_wordpiece(
    texts: Sequence[str],
    vocab_size: int,
    folder: Path,
    lowercase: bool = True,
    strip_accents: StripAccents = "latin",
    warn: bool = True,
) -> "PreTrainedTokenizerFast":
    """Train a WordPiece tokenizer like BERT's on ``texts`` and save it as a Hugging Face folder.

    The alphabet contains the most frequent characters (at most a quarter of the vocabulary), and further ideographs that
    the text needs. Each frequent character has two entries: one for the beginning and one for the inside of a word. The
    same text gives the same tokenizer in every process.

    Args:
        texts: list of texts, or a column that returns a list of strings for a slice; it is read twice.
        vocab_size: number of entries, special tokens included; a small text may give fewer entries.
        folder: folder to which the tokenizer's files are written.
        lowercase: whether to convert all letters to lower case.
        strip_accents: which accents ``normaliser`` removes: "latin", True (all) or False (none).
        warn: whether to issue a Python warning if the tokenizer loses much of the texts, by ``tokens.coverage``.

    Returns:
        The tokenizer, read from ``folder``.

    Raises:
        UserError: there is no text, or ``vocab_size`` is too small for the special tokens and the alphabet.
    """
    from transformers import BertTokenizer, PreTrainedTokenizerFast

    backend = BertTokenizer().backend_tokenizer
    _as_ours(backend, lowercase, strip_accents)
    with progress("tokenizer", 2 * len(texts), "texts") as task:
        alphabet = _alphabet(_batches(texts, task), backend.normalizer.normalize_str, vocab_size)
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            # The library numbers tokens "##x" in the order of a hash table, and breaks ties between merges by these
            # numbers. Special tokens are numbered in the given order. The tokens "##x" are therefore listed among them,
            # so that the same text gives the same tokenizer in every process.
            special_tokens=[*SPECIAL.values(), *(f"##{character}" for character in alphabet[: _most(vocab_size)])],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        backend.train_from_iterator(_batches(texts, task), trainer=trainer)
    backend = BertTokenizer(vocab=backend.get_vocab()).backend_tokenizer
    _as_ours(backend, lowercase, strip_accents)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in SPECIAL.items()},
    )
    save_tokenizer(tokenizer, folder)
    trained = load_tokenizer(folder)
    for line in coverage(trained, texts).warnings(trained=True) if warn else ():
        warnings.warn(line, stacklevel=2)
    return trained


def _as_ours(backend: Tokenizer, lowercase: bool, strip_accents: StripAccents) -> None:
    """Set ``normaliser`` as the tokenizer's normaliser, and make the tokenizer cut overlong runs (``LONG_RUN``)."""
    backend.normalizer = normaliser(lowercase, strip_accents)
    cut = pre_tokenizers.Split(Regex(LONG_RUN), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.BertPreTokenizer()])


def normaliser(lowercase: bool = True, strip_accents: StripAccents = "latin") -> normalizers.Normalizer:
    """Return BERT's normaliser of texts with two changes: a setting for accents, and all characters are decomposed (NFD).

    Invisible characters are removed, and spaces are put around ideographs. Korean syllables are decomposed too, so composed
    and decomposed forms of a character become equal. A decomposed accent is a separate mark after its letter (Unicode's Mn).
    ``strip_accents`` removes:

    - ``"latin"``: marks after a Latin letter, a number or a sign, so English is normalised as in BERT's uncased models.
      Marks of all other scripts are kept. Some are letters, such as the vowel signs of Hindi and Thai. Others are parts of
      letters, such as the breve of Cyrillic й.
    - ``True``: all marks, as BERT's uncased models do.
    - ``False``: no marks.
    """
    cleaned = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    stripped = {"latin": LATIN_ACCENTS, True: ALL_ACCENTS}.get(strip_accents)
    steps = [cleaned, normalizers.NFD(), *([normalizers.Replace(Regex(stripped), "")] if stripped else [])]
    return normalizers.Sequence([*steps, *([normalizers.Lowercase()] if lowercase else [])])


def _alphabet(batches: Iterator[Sequence[str]], normalise: Callable[[str], str], vocab_size: int) -> list[str]:
    """Return the characters with which the vocabulary spells words, most frequent first.

    The most frequent characters are followed by the ideographs that are needed to spell a share ``COVERED`` of the text.
    The list is cut if the alphabet would fill more than three quarters of the vocabulary.

    ``normalise`` must treat each character independently, except combining marks, which may depend on the character
    before them. It is therefore called on every batch that contains marks, and otherwise once for each distinct character.
    """
    counts = _characters(batches, normalise)
    ordered = [one for one in sorted(counts, key=lambda one: (-counts[one], one)) if not one.isspace()]
    if not ordered:
        raise UserError("there is no text to train the tokenizer on: the collection is empty")
    needed = len(SPECIAL) + 2 * min(len(ordered), FEWEST_CHARACTERS)  # one for the start, one for the inside of words
    if vocab_size < needed:
        raise UserError(f"vocab_size={vocab_size} is too small for this text; give at least {needed}")
    most = _most(vocab_size)
    occurrences = np.cumsum([counts[character] for character in ordered])
    covering = int(np.searchsorted(occurrences, COVERED * occurrences[-1])) + 1
    # an ideograph is always a word by itself, so it needs only one entry
    ideographs = [character for character in ordered[most:covering] if normalise(character) == f" {character} "]
    return ordered[:most] + ideographs[: max(0, 3 * vocab_size // 4 - 2 * most)]


def _most(vocab_size: int) -> int:
    """Return the maximum number of characters that have an entry for the beginning and one for the inside of a word."""
    return min(MOST_CHARACTERS, max(FEWEST_CHARACTERS, vocab_size // 4))


def _characters(batches: Iterator[Sequence[str]], normalise: Callable[[str], str]) -> Counter[str]:
    """Count how often each character occurs in the normalised texts."""
    occurrences = np.zeros(sys.maxunicode + 1, np.int64)
    counts: Counter[str] = Counter()
    for batch in batches:
        check_whole(" ".join(batch), "text", "texts")
        seen = np.bincount(np.frombuffer(" ".join(batch).encode("utf-32-le"), np.uint32))
        if any(unicodedata.category(chr(code)) == "Mn" for code in np.flatnonzero(seen).tolist()):
            counts.update(normalise(" ".join(batch)))
            continue
        occurrences[: len(seen)] += seen
    for number in np.flatnonzero(occurrences).tolist():
        for character in normalise(chr(number)):
            counts[character] += int(occurrences[number])
    return counts


def _batches(texts: Sequence[str], task: ProgressTask) -> Iterator[Sequence[str]]:
    for start in range(0, len(texts), _BATCH):
        batch = texts[start : start + _BATCH]
        yield batch
        task.advance(len(batch))
