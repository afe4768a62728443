"""Read documents, one JSON object per line: ``{"_id", "title", "passages": [...]}``.

The unit of search is the passage, the section or the whole document.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from condensery.errors import UserError
from condensery.system.files import expanded
from condensery.text.formats import CollectionWriter
from condensery.text.formats.beir import document_of
from condensery.text.formats.qrels import question_files, read_questions
from condensery.text.input_file import InputFile
from condensery.text.lines import field, read_objects
from condensery.text.records import Document, Passage
from condensery.text.sizes import CollectionSizes, counted
from condensery.text.source import FolderSource, Splits
from condensery.text.words import is_blank


class DocumentsSource(FolderSource):
    """A folder with a file of documents. ``extra`` names further files of documents in any folder.

    Optional queries and judgements lie in the root, as in a BEIR folder. ``searched`` is the unit of search. Judgements
    name this unit: a passage or a section as ``<document>#<number>``, or a whole document by its id.
    """

    format: Literal["documents"] = "documents"
    documents: str
    extra: list[str]
    searched: Literal["passages", "sections", "documents"]
    splits: Splits

    outside_identity: ClassVar[set[str]] = {"root", "documents", "extra", "searched", "splits"}

    def input_files(self) -> list[InputFile]:
        """Return the file of documents, the extra files of documents, the queries and the qrels."""
        extra = [InputFile("extra documents", expanded(path)) for path in self.extra]
        main = InputFile("documents", self.folder / self.documents)
        return [main, *extra, *question_files(self.folder, self.splits)]

    def sizes(self) -> CollectionSizes:
        """Estimate the size of the collection. If sections or documents are searched, a document counts as one passage."""
        if self.searched == "passages":
            return super().sizes()
        files = self.input_files()
        return counted(replace(one, role="corpus") if one.role.endswith("documents") else one for one in files)

    def _digest(self, content: Any) -> str:
        # ``searched`` is newer than the fingerprint; the value ``passages`` is left out to keep earlier fingerprints valid
        return super()._digest(content if self.searched == "passages" else [content, self.searched])


def read(config: DocumentsSource, writer: CollectionWriter) -> None:
    """Read the documents into ``writer``.

    Each passage gets the id ``<document>#<number>``, numbered from 0. If sections are searched, all passages with the
    same entry in ``headings`` form a section, which becomes one passage. If documents are searched, each document
    becomes one passage.
    """
    files = config.input_files()
    read_questions(files, writer)
    for file in files:
        if file.role not in ("documents", "extra documents"):
            continue
        for place, record in file.entries(read_objects, "holds no documents"):
            document = document_of(record, place)
            if config.searched == "documents":
                texts = [text for text in document.passages if not is_blank(text)]
                _add(writer, document, document.id, "\n\n".join(texts), place)
            elif not document.passages:
                writer.dropped["empty_documents"] += 1
            else:
                texts = document.passages
                if config.searched == "sections":
                    texts = ["\n\n".join(one) for one in sections_of(record, texts, place).values()]
                for number, passage in enumerate(texts):
                    _add(writer, document, f"{document.id}#{number}", passage, place)


def sections_of(record: dict[str, Any], passages: Sequence[str], place: str) -> dict[str, list[str]]:
    """Return the passages of each section of a document, by heading, in the order in which the sections begin.

    Raises:
        UserError: the numbers of headings and passages differ, or a heading is not a string.
    """
    headings = field(record, "headings", place, list)
    if len(headings) != len(passages) or not all(isinstance(one, str) for one in headings):
        raise UserError(
            f'{place}: "headings" must hold a string for each of the {len(passages)} passages: the heading of its'
            f" section (empty before the first section); it has {len(headings)} entries"
        )
    sections: dict[str, list[str]] = {}
    for heading, passage in zip(headings, passages, strict=True):
        sections.setdefault(heading, []).append(passage)
    return sections


def _add(writer: CollectionWriter, document: Document, identifier: str, text: str, place: str) -> None:
    title = "" if is_blank(text) else document.title  # a title must not replace an empty text
    writer.add_passage(Passage(identifier, title, text, document.id), place)
