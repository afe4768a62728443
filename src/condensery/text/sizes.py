"""How large a collection is before it is read: counted from its files, or as it was published."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from condensery.errors import UserError
from condensery.system.inputs import opened
from condensery.text.input_file import InputFile

CHARACTERS = 4.4  # of a token: English in a WordPiece of 30,522, the spaces included
UNPACKED = 3.0  # bytes of English text in a byte of gzip
SAMPLE = 1 << 20  # bytes of a file from which the length of its lines is told
PASSAGES = ("passages", "corpus")  # roles of the files with a passage a line
TEXTS = ("text ", "documents", "extra documents")  # roles of files with whole texts
PARAGRAPH = 100.0  # tokens of a passage of such a text
JUDGED = ("queries of ", "questions of ", "qrels of ")  # roles of the files with a judged query a line
HELD_OUT_SHARE = 10  # of the train queries at most one in so many becomes dev
READ = 1.2e-7  # CPU-seconds to read and write a byte of text; one core of an EPYC (Zen 5)


@dataclass(frozen=True)
class CollectionSizes:
    """What is known of a collection; None = not known.

    Attributes:
        passages, documents: how many; each passage is a document where there are none besides.
        passage_tokens, document_tokens: of each, the mean, about.
        queries: judged queries by split.
        unjudged: queries that no split judges.
        reading: CPU-seconds to read it, about.
        published: the sizes are those that were published; nothing was counted.
    """

    passages: float | None = None
    passage_tokens: float | None = None
    documents: float | None = None
    document_tokens: float | None = None
    queries: Mapping[str, float] = field(default_factory=dict)
    unjudged: float | None = None
    reading: float | None = None
    published: bool = False


@dataclass(frozen=True)
class SentenceSizes:
    """What is known of the examples of a sentence task.

    Attributes:
        examples: pairs or triplets by split.
        each: sentences of an example.
        tokens: of a sentence, the mean, about.
        reading: CPU-seconds to read them, about.
    """

    examples: Mapping[str, float]
    each: int
    tokens: float
    reading: float

    @property
    def sentences(self) -> float:
        """Of all examples together."""
        return self.each * sum(self.examples.values())


def counted_examples(files: Mapping[str, InputFile], each: int) -> SentenceSizes | None:
    """The sizes of files with an example of ``each`` sentences a line, by split; None where one cannot be told."""
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


def counted(files: Iterable[InputFile]) -> CollectionSizes:
    """The sizes of files with a line an item, by the length of their first lines; what is not there is not counted."""
    none: tuple[float | None, float | None] = (None, None)
    passages = documents = none
    queries: dict[str, float] = {}
    size = texts = 0.0
    for file in files:
        items, tokens, bytes_read = _lines(file)
        size += bytes_read
        texts += bytes_read * file.role.startswith(TEXTS)
        if file.role in PASSAGES:
            passages = items, tokens
        elif file.role == "documents":
            documents = items, tokens
        elif items and ".json" not in file.path.suffixes and file.role.startswith(JUDGED):  # an array is no lines
            split = file.role.rpartition(" ")[2]
            queries[split] = min(items, queries.get(split, items))
    if passages == none and texts:  # they will be cut into passages, and are the documents
        passages, documents = (texts / CHARACTERS / PARAGRAPH, PARAGRAPH), none
    return CollectionSizes(*passages, *documents, queries, reading=READ * size if size else None)


def _lines(file: InputFile) -> tuple[float | None, float | None, float]:
    """The items of a file, their mean tokens and the bytes of its text; None for what cannot be told.

    Of judgements the items are the queries: lines that begin with the same word are one.
    """
    try:
        path = file.existing_path()
        if path is None:
            return None, None, 0.0
        size = os.path.getsize(path) * (UNPACKED if path.suffix == ".gz" else 1.0)
        with opened(path) as (stream, _):
            head = stream.read(SAMPLE)
    except (OSError, UserError):
        return None, None, 0.0
    lines = head.splitlines()
    if not lines:
        return None, None, 0.0
    size = len(head) if len(head) < SAMPLE else max(size, len(head))
    number = len({line.split()[0] for line in lines if line.strip()}) if file.role.startswith("qrels") else len(lines)
    return size / len(head) * number, len(head) / len(lines) / CHARACTERS, size
