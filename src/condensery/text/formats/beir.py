"""Read BEIR folders (Thakur et al. 2021): ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/*.tsv``, each plain or gzip."""

from pathlib import Path
from typing import Any, ClassVar, Literal
from unicodedata import normalize

from pydantic import model_validator

from condensery.errors import UserError, shown
from condensery.system.files import expanded
from condensery.system.inputs import anything
from condensery.text.formats import CollectionWriter
from condensery.text.input_file import InputFile
from condensery.text.lines import at_least_one, field, integer, read_columns, read_lines, read_objects
from condensery.text.records import Document, Passage, Query
from condensery.text.source import FolderSource, Splits

HEADER = ["query-id", "corpus-id", "score"]
TREC = ["query id", "0", "passage id", "grade"]
HEADED = f"a header, if there is one, must be {', '.join(HEADER)}"
NO_DOCUMENTS = "; to leave them out, set data.documents=null"  # passages must not silently replace missing documents
Form = Literal["NFC"] | None  # Unicode form to which the ids of passages are normalised; None = they stay unchanged
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
        # a file that ``documents`` names is read even if the corpus names documents; with ``auto``, it is not
        return super()._digest(content if self.documents in (None, "auto") else [content, "documents"])

    def input_files(self) -> list[InputFile]:
        """Return the corpus, the documents, the queries and the qrels."""
        files = [InputFile("corpus", self.folder / "corpus.jsonl"), *question_files(self.folder, self.splits)]
        documents = self.folder / ("documents.jsonl" if self.documents == "auto" else self.documents or "")
        if self.documents and (self.documents != "auto" or anything(documents)):
            files.append(InputFile("documents", documents, NO_DOCUMENTS))
        return files


def question_files(folder: Path, splits: Splits) -> list[InputFile]:
    """Return the files of queries and judgements of a BEIR folder for ``splits``; no files when no split is used."""
    named = splits.named()
    if not named:
        return []
    files = [InputFile("queries", folder / "queries.jsonl", "; if you have no queries, set all data.splits.* to null")]
    for split, stem in named.items():
        hint = f"; to leave this split out, set data.splits.{split}=null"
        files.append(InputFile(f"qrels of {split}", folder / "qrels" / f"{stem}.tsv", hint))
    return files


def read_questions(files: list[InputFile], writer: CollectionWriter, form: Form = None) -> None:
    """Read first the judgements and then the queries, from the files of ``question_files``.

    ``form``: the Unicode form to which the ids of passages are normalised; None = the ids stay unchanged.
    """
    for file in files:
        if file.role.startswith("qrels of "):
            read_qrels(file.open_path(), file.role.removeprefix("qrels of "), writer, form)
    for file in files:
        if file.role == "queries":
            for place, record in file.entries(read_objects, f"holds no queries{file.hint}"):
                writer.add_query(Query(field(record, "_id", place, str), field(record, "text", place, str)), place)


def read_qrels(path: Path, split: str, writer: CollectionWriter, form: Form = None, trec: bool = False) -> None:
    """Read a file of judgements: query id, passage id and grade, separated by tabs, with or without the header line.

    A file whose first line has four columns is read in TREC's format: query id, 0, passage id and grade, separated by tabs
    or spaces. With ``trec``, every file is read in this format.

    ``form``: the Unicode form to which the ids of passages are normalised; None = the ids stay unchanged. Raises
    ``UserError`` for a malformed line and for a file without judgements.
    """
    first = next((line.split() for _, line in read_lines(path, show=False) if line), [])
    names, separator = (TREC, None) if trec or len(first) == len(TREC) else (HEADER, "\t")
    rows = (row for number, row in enumerate(read_columns(path, names, separator)) if number or row[1] != HEADER)
    none = f"no judgements; to leave this split out, set data.splits.{split}=null"
    for place, (query, *_, passage, grade) in at_least_one(rows, path, none):
        if grade.isalpha():  # a header with other names
            raise UserError(f'{place}: the {names[-1]} must be a whole number, not "{shown(grade)}"; {HEADED}')
        passage = normalize(form, passage) if form else passage
        writer.add_judgement(split, query, passage, integer(grade, names[-1], place), place)


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
