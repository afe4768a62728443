"""Read a folder of plain text: every ``.txt`` and ``.md`` file is a document, and its paragraphs are the passages."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal
from unicodedata import category, normalize

from pydantic import Field

from condensery.errors import UserError
from condensery.system.inputs import FOLDER, HEAD, opened, standing
from condensery.text.formats import CollectionWriter
from condensery.text.formats.qrels import question_files, read_questions
from condensery.text.input_file import InputFile
from condensery.text.lines import read_lines
from condensery.text.records import Passage, percent_encoded
from condensery.text.source import FolderSource, Splits
from condensery.text.words import MARKED, is_blank, number_of_words, unspaced

ENDINGS = (".txt", ".md", ".txt.gz", ".md.gz")
TEXTS = ", ".join("*" + ending for ending in ENDINGS)
MANY = 50  # a file of one paragraph with this many line breaks causes a warning: its lines may be separate texts
ONE = "without a blank line are one passage; put a blank line between separate texts"
OTHERS = "; rename files of plain text to *.txt, and convert other files"


class TextSource(FolderSource):
    """A folder of text files. Subfolders are read too, but hidden files and folders are not.

    A paragraph ends at a blank line. A paragraph of fewer than ``minimum_words`` words (a heading, a caption) is joined to
    the next paragraph of the same file. Optional queries and judgements lie in the root, as in a BEIR folder. Judgements
    name passages as ``<file>#<number>``.
    """

    format: Literal["text"] = "text"
    minimum_words: int = Field(ge=1)
    splits: Splits

    outside_identity: ClassVar[set[str]] = {"root", "splits"}

    def text_files(self) -> list[tuple[str, Path]]:
        """Return (path relative to the root in NFC, path) of every text file. The order is the same on every machine."""
        return sorted((below, path) for below, path in self._files() if below.lower().endswith(ENDINGS))

    def unread(self) -> str:
        """Count the files that are not read, for each ending, such as ``3 .png, 1 .csv``."""
        read = {file.path for file in self.input_files()}
        endings = Counter(path.suffix or path.name for _, path in self._files() if path not in read)
        return ", ".join(f"{number:,} {ending}" for ending, number in endings.most_common(5))

    def _files(self) -> Iterator[tuple[str, Path]]:
        for path in self.folder.rglob("*"):
            below = path.relative_to(self.folder)
            if not any(part.startswith(".") for part in below.parts) and standing(path) != FOLDER:
                yield normalize("NFC", below.as_posix()), path  # a Mac may store é as e + U+0301

    def input_files(self) -> list[InputFile]:
        """Return the text files, the queries and the qrels."""
        texts = [InputFile(f"text {below}", path, exact=True, may_be_empty=True) for below, path in self.text_files()]
        return texts + question_files(self.folder, self.splits)

    def _digest(self, content: Any) -> str:
        # Earlier versions read a text in a script without spaces as one passage. So the fingerprint of a folder with such
        # texts must differ from its earlier one. All other fingerprints stay valid.
        files = [path for _, path in self.text_files()]
        return super()._digest([content, "unspaced"] if any(map(_is_unspaced, files)) else content)

    def check(self) -> None:
        """Raise ``UserError`` as ``FolderSource.check`` does, for a folder without text files and for invalid file names.

        A name is invalid if it has control characters, is not UTF-8, or differs from another name only in its Unicode form.
        """
        super().check()
        files = self.text_files()
        for below, _ in files:
            if any(category(character) in ("Cc", "Cs", "Zl", "Zp") for character in below):
                encoding = sys.getfilesystemencoding()
                way = "rename the file" if encoding == "utf-8" else f"Python reads it as {encoding}: set PYTHONUTF8=1"
                raise UserError(f"{self.folder}: the file name {below!r} has control characters or is not UTF-8; {way}")
        for (below, _), (after, _) in pairwise(files):
            if below == after:
                raise UserError(
                    f"{self.folder}: two files are called {below!r}, one composed and one decomposed (Unicode's NFC and NFD);"
                    " their passages would have the same ids; rename one"
                )
        if not files:
            others = {"corpus.jsonl": "beir", "documents.jsonl": "documents", "collection.tsv": "msmarco"}
            others["*.csv"] = f"huggingface_documents data.name={self.folder} data.text=COLUMN"
            hints = (
                f"; set data={kind} to read its {name}"
                for name, kind in others.items()
                if [*self.folder.glob(f"{name}*")]
            )
            raise UserError(f"{self.folder}: no text files here ({TEXTS}){next(hints, OTHERS)}")


def _is_unspaced(path: Path) -> bool:
    """Return whether a file begins with text in a script without spaces between words, or with marks in their place."""
    with opened(path) as (stream, _):
        beginning = stream.peek(HEAD)[:HEAD].decode(errors="ignore")
    return unspaced(beginning) or any(mark in beginning for mark in MARKED)


def add_paragraphs(
    document: str, title: str, lines: Iterable[tuple[str, str]], minimum_words: int, writer: CollectionWriter
) -> None:
    """Add each paragraph of a document as a passage, with the id ``<document>#<number>``, numbered from 0.

    Args:
        document: the id of the document.
        title: the title of every passage.
        lines: (place, line) of the document's lines. A paragraph ends at a blank line. Its line breaks are kept.
        minimum_words: see ``joined``.
        writer: writer to which the passages are added.
    """
    number = -1
    for number, (place, text) in enumerate(joined(_blocks(lines), minimum_words)):
        writer.add_passage(Passage(f"{document}#{number}", title, text, document), place)
    if number < 0:
        writer.dropped["empty_documents"] += 1
    elif number == 0 and text.count("\n") >= MANY and ONE not in "".join(writer.warnings):
        writer.warnings.append(f"{place}: {len(text.splitlines()):,} lines {ONE}")


def joined(parts: Iterable[tuple[str, str]], minimum_words: int) -> Iterator[tuple[str, str]]:
    """Join the short paragraphs (place, text) of one document to neighbouring paragraphs.

    A paragraph of fewer than ``minimum_words`` words is joined to the next paragraph. At the end of the document it is
    joined to the previous paragraph.
    """
    ready: tuple[str, list[str]] | None = None
    place, blocks = "", list[str]()
    for where, block in parts:
        place = place if blocks else where
        blocks.append(block)
        if sum(map(number_of_words, blocks)) >= minimum_words:
            if ready:
                yield ready[0], "\n\n".join(ready[1])
            ready, blocks = (place, blocks), []
    if ready:
        yield ready[0], "\n\n".join(ready[1] + blocks)
    elif blocks:
        yield place, "\n\n".join(blocks)


def _blocks(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield (place of the first line, text) for each run of lines between blank lines."""
    for blank, run in groupby(lines, lambda one: is_blank(one[1])):
        if not blank:
            places, texts = zip(*run, strict=True)
            yield places[0], "\n".join(text.strip() for text in texts)


def read(config: TextSource, writer: CollectionWriter) -> None:
    """Read the text files into ``writer``. A file is a document, whose title is the file name without the extension."""
    read_questions(question_files(config.folder, config.splits), writer, "NFC")
    if unread := config.unread():
        print(f"[{config.name}] files that are not read: {unread} (only {TEXTS} are read)", flush=True)
    for below, path in config.text_files():
        title = below.rpartition("/")[2].removesuffix(".gz").rpartition(".")[0]
        add_paragraphs(percent_encoded(below), title, read_lines(path), config.minimum_words, writer)
