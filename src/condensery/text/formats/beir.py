"""Read BEIR folders (Thakur et al. 2021): ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/*.tsv``, each plain or gzip."""

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from condensery.errors import UserError
from condensery.system.files import expanded
from condensery.system.inputs import anything
from condensery.text.formats import CollectionWriter
from condensery.text.formats.qrels import question_files, read_questions
from condensery.text.input_file import InputFile
from condensery.text.lines import field, read_objects
from condensery.text.records import Document, Passage
from condensery.text.source import FolderSource, Splits

NO_DOCUMENTS = "; to leave them out, set data.documents=null"  # passages must not silently replace missing documents
IN_PARTS = "cqadupstack"  # a folder with twelve BEIR folders, which together are one data set


class BeirSource(FolderSource):
    """A BEIR folder.

    A line of the corpus may name the document of the passage (``doc_id``). ``documents`` names a file of whole documents
    for pre-training. ``auto`` stands for ``documents.jsonl`` if this file exists and the corpus names no documents.
    ``None`` stands for no file.
    """

    format: Literal["beir"] = "beir"
    splits: Splits
    documents: str | None

    @model_validator(mode="before")
    @classmethod
    def _named_as_its_folder(cls, values: Any) -> Any:
        """Replace a null ``name`` by the name of the folder. A part of CQADupStack is named ``cqadupstack/<folder>``."""
        root = values.get("root") if isinstance(values, dict) else None
        if not isinstance(root, str) or values.get("name", "") is not None:
            return values
        folder = expanded(root).absolute()
        return values | {"name": (f"{folder.parent.name}/" if folder.parent.name == IN_PARTS else "") + folder.name}

    outside_identity: ClassVar[set[str]] = {"root", "documents", "splits"}

    def _digest(self, content: Any) -> str:
        # a file that ``documents`` names is read even if the corpus names documents; ``auto`` then reads no file
        return super()._digest(content if self.documents in (None, "auto") else [content, "documents"])

    def input_files(self) -> list[InputFile]:
        """Return the corpus, the documents, the queries and the qrels."""
        files = [InputFile("corpus", self.folder / "corpus.jsonl"), *question_files(self.folder, self.splits)]
        documents = self.folder / ("documents.jsonl" if self.documents == "auto" else self.documents or "")
        if self.documents and (self.documents != "auto" or anything(documents)):
            files.append(InputFile("documents", documents, NO_DOCUMENTS))
        return files


def document_of(record: dict[str, Any], place: str) -> Document:
    """Return the document of a line of ``documents.jsonl``.

    Raises ``UserError`` when ``passages`` is not a list of strings.
    """
    passages = field(record, "passages", place, list)
    for number, passage in enumerate(passages):
        if not isinstance(passage, str):
            raise UserError(f'{place}: "passages" must be a list of strings; its entry {number} is not a string')
    return Document(field(record, "_id", place, str), field(record, "title", place, str, ""), passages)


def read(config: BeirSource, writer: CollectionWriter) -> None:
    """Read a BEIR folder into ``writer``."""
    files = config.input_files()
    read_questions(files, writer)
    named = False
    for place, record in files[0].entries(read_objects, "holds no passages"):
        document = field(record, "doc_id", place, str, "") or None
        named |= document is not None
        identifier, title = field(record, "_id", place, str), field(record, "title", place, str, "")
        text = field(record, "text", place, str, "" if "text" in record else None)  # null counts as empty
        writer.add_passage(Passage(identifier, title, text, document), place)
    for file in files:
        if file.role == "documents" and not (named and config.documents == "auto"):
            for place, record in file.entries(read_objects, f"holds no documents{NO_DOCUMENTS}"):
                writer.add_document(document_of(record, place), place)
