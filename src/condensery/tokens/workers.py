"""Tokenise texts in one or several processes. The results (ids and sentence starts) keep the order of the texts.

A worker process imports this module but neither torch nor transformers, so it starts in a fraction of a second.
"""

import os
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from sentencex import get_sentence_boundaries
from tokenizers import Encoding, Tokenizer

from condensery.errors import UserError
from condensery.system.children import Parent
from condensery.system.signals import deaf_to_ctrl_c
from condensery.system.spawning import spawning

LONG = 4096  # from this number of tokens on, binary search is faster than the tokenizer's linear search
AHEAD = 2  # batches queued per worker: enough to keep the worker busy, few enough to keep memory small
ENGLISH = "en"  # default of the sentence splitter, which uses the sentence marks of all languages anyway
_ENDS = re.compile(
    r"[。！？｡]+[”’]*(?=[0-9a-z])"  # Chinese and Japanese, before a year or a name such as iPhone
    r"|[\u0f0d-\u0f11](?:\s*[\u0f0d-\u0f11])*[»”’)]*\s*"  # Tibetan, whose mark may be doubled, with a space between
    r"|(?<!\u17d4\u179b)[\u17d4\u17d5](?!\u179b\u17d4)[»”’)]*\s*"  # Khmer, except its "and so on"
    r"|(?<=[\u0370-\u03ff\u1f00-\u1fff][\u0300-\u03ff\u1f00-\u1fff])[;\u037e][»”’)]*\s+"  # a question mark in Greek
    # a space between Thai or Lao letters, but not a space after a sign of repetition or abbreviation
    r"|(?<=[\u0e01-\u0e2e\u0e30-\u0e45\u0e47-\u0e4e\u0e81-\u0eae\u0eb0-\u0ec4\u0ec8-\u0ecd\u0edc-\u0edf])\s+"
    r"(?=[\u0e01-\u0e2e\u0e40-\u0e44\u0e81-\u0eae\u0ec0-\u0ec4\u0edc-\u0edf])"
)
# closing brackets, which belong to the sentence before them
_CLOSING = re.compile(r"(?:[」』】〉》〕〗〙〛］｝｣]|(?<=[。！？])[)\]])+\s*")
_DECIMAL = re.compile(r"(?<=\d．)\d")  # a fullwidth full stop within a number

Batch = TypeVar("Batch")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Piece:
    """A batch of tokenised texts.

    Attributes:
        ids: (T,) uint16 or uint32, the token ids of all texts, concatenated.
        lengths: (n,) int64, number of tokens of each text.
        sentences: (s,) int64, the start of each sentence in ``ids``; empty if sentences were not requested.
    """

    ids: NDArray
    lengths: NDArray[np.int64]
    sentences: NDArray[np.int64]


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read the ``tokenizers`` object of a tokenizer folder, without truncation and padding.

    Raises:
        UserError: ``tokenizer.json`` is missing or cannot be read.
    """
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{path}: no such file; a tokenizer folder must hold a fast tokenizer (tokenizer.json)")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise UserError(f"{path}: not a tokenizer ({' '.join(str(error).split())})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str], dtype: str, sentences: bool, language: str = ENGLISH) -> Piece:
    """Tokenise each text as a whole, without special tokens. With ``sentences``, also detect where sentences begin."""
    run = tokenizer.encode_batch if sentences else tokenizer.encode_batch_fast  # the fast method returns no offsets
    encodings = run(list(texts), add_special_tokens=False)
    lengths = np.fromiter((len(encoding) for encoding in encodings), dtype=np.int64, count=len(encodings))
    flat = chain.from_iterable(encoding.ids for encoding in encodings)
    ids = np.fromiter(flat, dtype=dtype, count=int(lengths.sum()))
    if not sentences:
        return Piece(ids, lengths, np.empty(0, dtype=np.int64))
    return Piece(ids, lengths, _sentence_starts(texts, encodings, language))


def sentence_begins(text: str, language: str = ENGLISH) -> list[int]:
    """Return the characters at which the sentences of a text begin. The first sentence includes the spaces before it.

    ``language``: code of the language. A full stop after an abbreviation or ordinal of this language does not end a sentence.

    The library sentencex finds the beginnings, with two corrections. First, ends that sentencex misses are added. Khmer
    and Tibetan have special marks. Thai and Lao have only a space between sentences. A Greek question ends with a
    semicolon. A Chinese or Japanese sentence can begin with a digit or a small Latin letter. Second, wrong ends are
    moved or removed: closing brackets stay with the text that they close, and a number in fullwidth digits is not split.
    """
    begins = [boundary["start_index"] for boundary in get_sentence_boundaries(language, text)]
    if text.isascii():
        return begins
    ends = (match.end() for match in _ENDS.finditer(text))
    whole = (_behind_closing(text, at) for at in {*begins, *ends} if not _DECIMAL.match(text, at))
    return sorted({at for at in whole if at < len(text)})


def _behind_closing(text: str, at: int) -> int:
    """Return the position after the closing brackets at ``at``. Without brackets, or if ``at`` is 0, return ``at`` itself."""
    closing = _CLOSING.match(text, at) if at else None
    return closing.end() if closing else at


def _sentence_starts(texts: Sequence[str], encodings: Sequence[Encoding], language: str) -> NDArray[np.int64]:
    """Return the tokens at which sentences begin, counted over all texts.

    A sentence begins with the first token that ends after the sentence's first character. With byte-level BPE this token
    includes the space before the sentence. Each text begins a sentence. Spaces after the last token begin no sentence.
    """
    starts, first = [], 0
    for text, encoding in zip(texts, encodings, strict=True):
        found = {0, *(_first_behind(encoding, at) for at in sentence_begins(text, language))}
        starts += [first + token for token in sorted(found) if token < len(encoding)]
        first += len(encoding)
    return np.array(starts, dtype=np.int64)


def _first_behind(encoding: Encoding, at: int) -> int:
    """Return the first token that ends after the character ``at``; the number of tokens if there is no such token."""
    covering = encoding.char_to_token(at) if len(encoding) < LONG else None
    if covering is not None:
        return int(covering)
    return bisect_right(range(len(encoding)), at, key=lambda token: (encoding.token_to_chars(token) or (0, 0))[1])


def in_order(
    work: Callable[[Tokenizer, Batch], Result], batches: Iterable[Batch], folder: Path, workers: int
) -> Iterator[Result]:
    """Yield the results of ``work(tokenizer, batch)`` from ``workers`` processes, in the order of the batches.

    Each process reads the tokenizer of ``folder``. With 1 worker, or fewer than 2 batches, the work is done in this process.
    """
    first = list(islice(rest := iter(batches), 2))
    if workers <= 1 or len(first) < 2:
        tokenizer = read_tokenizer(folder)
        yield from (work(tokenizer, batch) for batch in chain(first, rest))
        return
    pool = ProcessPoolExecutor(
        workers, spawning(f"workers={workers}"), initializer=_start, initargs=(Parent.here(), folder)
    )
    waiting: deque[Future[Result]] = deque()
    try:
        for batch in chain(first, rest):
            with deaf_to_ctrl_c():
                waiting.append(pool.submit(_work, work, batch))
            if len(waiting) > workers * AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_tokenizer: Tokenizer | None = None  # of this worker process


def _start(parent: Parent, folder: Path) -> None:
    global _tokenizer
    parent.end_with()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the worker processes already run in parallel
    _tokenizer = read_tokenizer(folder)


def _work(work: Callable[[Tokenizer, Batch], Result], batch: Batch) -> Result:
    assert _tokenizer is not None
    return work(_tokenizer, batch)
