"""Whole documents, one JSON object a line: ``{"_id", "title", "passages": [...]}``; their passages are searched."""

from typing import TYPE_CHECKING, ClassVar, Literal

from condensery.system.files import expanded
from condensery.text.beir import document_of, question_files, read_questions
from condensery.text.blank import is_blank
from condensery.text.lines import read_objects
from condensery.text.records import Passage
from condensery.text.source import FolderSource, InputFile, Splits, at_least_one

if TYPE_CHECKING:
    from condensery.text.writer import CollectionWriter


class DocumentsSource(FolderSource):
    """A folder with a file of documents; ``extra`` names further files of documents anywhere.

    Queries and judgements, where wanted, lie in the root as in a BEIR folder; they name passages as
    ``<document>#<number>``.
    """

    format: Literal["documents"] = "documents"
    documents: str
    extra: list[str]
    splits: Splits

    outside_identity: ClassVar[set[str]] = {"root", "documents", "extra", "splits"}

    def input_files(self) -> list[InputFile]:
        """The file of documents, the extra ones, the queries and the qrels."""
        extra = [InputFile("extra documents", expanded(path)) for path in self.extra]
        main = InputFile("documents", self.folder / self.documents)
        return [main, *extra, *question_files(self.folder, self.splits)]


def read(config: DocumentsSource, writer: "CollectionWriter") -> None:
    """Read the documents into ``writer``, passage by passage (ids ``<document>#<number>``, numbered from 0)."""
    files = config.input_files()
    read_questions(files, writer)
    for file in files:
        if file.role not in ("documents", "extra documents"):
            continue
        for place, record in at_least_one(read_objects(file.open_path()), file, "documents"):
            document = document_of(record, place)
            if not document.passages:
                writer.dropped["empty_documents"] += 1
            for number, passage in enumerate(document.passages):
                title = (
                    "" if is_blank(passage) else document.title
                )  # the title must not stand in for an empty paragraph
                writer.add_passage(Passage(f"{document.id}#{number}", title, passage, document.id), place)
