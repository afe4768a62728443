"""The size of a collection before it is read: estimated from its files, or the published size."""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from condensery.errors import UserError
from condensery.system.inputs import opened
from condensery.text.input_file import InputFile

CHARACTERS = 4.4  # characters per token, spaces included: English text, a WordPiece vocabulary of 30,522 tokens
UNPACKED = 3.0  # bytes of English text per byte of its gzip file
SAMPLE = 1 << 20  # bytes at the beginning of a file from which the mean length of its lines is estimated
PASSAGES = ("passages", "corpus")  # roles of the files with one passage per line
TEXTS = ("text ", "documents", "extra documents")  # roles of the files with whole texts
PARAGRAPH = 100.0  # tokens per passage that is cut from a whole text
JUDGED = ("queries of ", "questions of ", "qrels of ")  # roles of the files with one judged query per line
HELD_OUT_SHARE = 10  # at most one train query in 10 becomes a dev query
SENTENCE_END = re.compile(r"[.!?]['\"),\]]*\s|[\u3002\uff01\uff1f]")  # the last three: Chinese and Japanese
READ = 1.2e-7  # CPU-seconds to read and write one byte of text, on one core of an EPYC (Zen 5)


@dataclass(frozen=True)
class CollectionSizes:
    """The known sizes of a collection; None = not known.

    Attributes:
        passages, documents: the number of passages and of documents. Without separate documents, each passage counts as
            a document.
        passage_tokens, document_tokens: the estimated mean number of tokens per passage and per document.
        queries: the number of judged queries of each split.
        pairs: the number of pairs of a judged query and a passage that is judged for it, in each split.
        unjudged: the number of queries without judgements in any split.
        reading: the estimated time to read the collection, in CPU-seconds.
        published: whether all sizes are the published ones instead of estimates from the files.
    """

    passages: float | None = None
    passage_tokens: float | None = None
    documents: float | None = None
    document_tokens: float | None = None
    queries: Mapping[str, float] = field(default_factory=dict)
    pairs: Mapping[str, float] = field(default_factory=dict)
    unjudged: float | None = None
    reading: float | None = None
    published: bool = False


@dataclass(frozen=True)
class SentenceSizes:
    """The sizes of the examples of a sentence task.

    Attributes:
        examples: the number of pairs or triplets of each split.
        each: the number of sentences per example.
        tokens: the estimated mean number of tokens per sentence.
        reading: the estimated time to read the examples, in CPU-seconds.
    """

    examples: Mapping[str, float]
    each: int
    tokens: float
    reading: float

    @property
    def sentences(self) -> float:
        """The total number of sentences of all examples."""
        return self.each * sum(self.examples.values())


def counted_examples(files: Mapping[str, InputFile], each: int) -> SentenceSizes | None:
    """Estimate the sizes of files (split -> file) with one example of ``each`` sentences per line.

    Returns:
        The sizes; None if the size of a file is unknown.
    """
    examples: dict[str, float] = {}
    tokens = size = 0.0
    for split, file in files.items():
        lines, of_line, bytes_read = _lines(file)
        if not lines or of_line is None:
            return None
        examples[split] = lines
        tokens += lines * of_line
        size += bytes_read
    return SentenceSizes(examples, each, tokens / each / sum(examples.values()), READ * size)


def sentence_tokens(file: InputFile) -> float | None:
    """Estimate the mean number of tokens per sentence from the beginning of a file; None = no sentence ends there."""
    text = _head(file)[0].decode(errors="replace")
    return len(text) / ends / CHARACTERS if (ends := len(SENTENCE_END.findall(text))) else None


def counted(files: Iterable[InputFile]) -> CollectionSizes:
    """Estimate the sizes of a collection from the first lines of its files. Missing files are not counted."""
    none: tuple[float | None, float | None] = (None, None)
    documents = none
    queries, pairs = dict[str, float](), dict[str, float]()
    size = texts = number = length = 0.0  # number: of passages, which have ``length`` bytes together
    for file in files:
        items, tokens, bytes_read = _lines(file)
        size += bytes_read
        texts += bytes_read * file.role.startswith(TEXTS)
        if items and file.role in PASSAGES:
            number, length = number + items, length + bytes_read
        elif file.role == "documents":
            documents = items, tokens
        elif items and ".json" not in file.path.suffixes and file.role.startswith(JUDGED):
            # files of JSON are left out: they may have several lines per query
            split = file.role.rpartition(" ")[2]
            queries[split] = min(items, queries.get(split, items))
            if file.role.startswith("qrels") and tokens:  # a line is a pair
                pairs[split] = bytes_read / CHARACTERS / tokens
    passages = (number, length / CHARACTERS / number) if number else none
    if passages == none and texts:  # the texts will be cut into passages; there are no separate documents
        passages, documents = (texts / CHARACTERS / PARAGRAPH, PARAGRAPH), none
    return CollectionSizes(*passages, *documents, queries, pairs, reading=READ * size if size else None)


def _lines(file: InputFile) -> tuple[float | None, float | None, float]:
    """Estimate the number of items of a file, the mean number of tokens per item, and the bytes of the text.

    An unknown number is None. For a file of judgements, the items are its queries. Lines with the same first word belong
    to one query.
    """
    head, size = _head(file)
    lines = head.splitlines()
    if not lines:
        return None, None, 0.0
    size = len(head) if len(head) < SAMPLE else max(size, len(head))
    judged = {line.split()[0] for line in lines if line.strip()} - {b"query-id"}  # without the header
    number = len(judged) if file.role.startswith("qrels") else len(lines)
    return size / len(head) * number, len(head) / len(lines) / CHARACTERS, size


def _head(file: InputFile) -> tuple[bytes, float]:
    """Return the uncompressed beginning of a file and its estimated uncompressed size; b"" and 0 if it cannot be read."""
    with suppress(OSError, UserError):
        if path := file.existing_path():
            with opened(path) as (stream, _):
                return stream.read(SAMPLE), os.path.getsize(path) * (UNPACKED if path.suffix == ".gz" else 1.0)
    return b"", 0.0
