"""Documents, one JSON object a line: ``{"_id", "title", "passages": [...]}``; their passages are searched, or they whole."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from condensery.system.files import expanded
from condensery.text.blank import is_blank
from condensery.text.formats.beir import document_of, question_files, read_questions
from condensery.text.input_file import InputFile
from condensery.text.lines import read_objects
from condensery.text.records import Document, Passage
from condensery.text.sizes import CollectionSizes, counted
from condensery.text.source import FolderSource, Splits, at_least_one

if TYPE_CHECKING:
    from condensery.text.writer import CollectionWriter


class DocumentsSource(FolderSource):
    """A folder with a file of documents; ``extra`` names further files of documents anywhere.

    Queries and judgements, where wanted, lie in the root as in a BEIR folder. They name what is ``searched``: passages,
    as ``<document>#<number>``, or whole documents.
    """

    format: Literal["documents"] = "documents"
    documents: str
    extra: list[str]
    searched: Literal["passages", "documents"]
    splits: Splits

    outside_identity: ClassVar[set[str]] = {"root", "documents", "extra", "searched", "splits"}

    def input_files(self) -> list[InputFile]:
        """The file of documents, the extra ones, the queries and the qrels."""
        extra = [InputFile("extra documents", expanded(path)) for path in self.extra]
        main = InputFile("documents", self.folder / self.documents)
        return [main, *extra, *question_files(self.folder, self.splits)]

    def sizes(self) -> CollectionSizes:
        """See ``DataConfig``: a document is a passage, or some."""
        if self.searched == "passages":
            return super().sizes()
        return counted(
            replace(file, role="corpus") if file.role == "documents" else file for file in self.input_files()
        )

    def _digest(self, content: Any) -> str:
        # the key came later: collections of passages are still known
        return super()._digest(content if self.searched == "passages" else [content, self.searched])


def read(config: DocumentsSource, writer: "CollectionWriter") -> None:
    """Read the documents into ``writer``: passage by passage (ids ``<document>#<number>``, from 0), or each as one."""
    files = config.input_files()
    read_questions(files, writer)
    for file in files:
        if file.role not in ("documents", "extra documents"):
            continue
        for place, record in at_least_one(read_objects(file.open_path()), file, "documents"):
            document = document_of(record, place)
            if config.searched == "documents":
                texts = [text for text in document.passages if not is_blank(text)]
                _add(writer, document, document.id, "\n\n".join(texts), place)
            elif not document.passages:
                writer.dropped["empty_documents"] += 1
            else:
                for number, passage in enumerate(document.passages):
                    _add(writer, document, f"{document.id}#{number}", passage, place)


def _add(writer: "CollectionWriter", document: Document, identifier: str, text: str, place: str) -> None:
    title = "" if is_blank(text) else document.title  # it must not stand in for a text that is empty
    writer.add_passage(Passage(identifier, title, text, document.id), place)
