"""Read MS MARCO from its native files (Bajaj et al. 2016): the passage collection and the document collection.

Every file is accepted plain or gzip.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from condensery.errors import MissingDataError, UserError, number_of
from condensery.keys import Keys
from condensery.system.inputs import anything
from condensery.text.formats import CollectionWriter
from condensery.text.formats.beir import NO_DOCUMENTS
from condensery.text.formats.qrels import read_qrels
from condensery.text.input_file import InputFile
from condensery.text.lines import read_columns
from condensery.text.records import Document, Passage, Query
from condensery.text.sizes import CollectionSizes, counted
from condensery.text.source import FolderSource, missing_files

PAGE = "https://microsoft.github.io/msmarco/"
BY_NAME = "data=ir_datasets data.name="
ARCHIVE = "collectionandqueries.tar.gz"
ARCHIVED = {"collection.tsv", "queries.train.tsv", "queries.dev.tsv", "queries.dev.small.tsv", "queries.eval.tsv"}
# numbers: Bajaj et al. 2016 and the page above; tokens: estimated from the file sizes
PUBLISHED = CollectionSizes(
    *(8_841_823, 76, None, None, {"train": 502_939, "test": 6_980}, {"train": 532_761}), reading=370, published=True
)
PUBLISHED_DOCUMENTS = CollectionSizes(
    3_213_835, 1_550, None, None, {"train": 367_013, "test": 5_193}, reading=2_700, published=True
)
PUBLISHED_WITH_DOCUMENTS = replace(PUBLISHED, documents=3_213_835, document_tokens=1_550, reading=370 + 2_700)
NO_TITLE = "-"  # the title of a passage without a title, in the published files of titles


class Questions(Keys):
    """The files of one split: queries and judgements."""

    queries: str
    qrels: str


class GradedQuestions(Questions):
    """The files of a split with graded judgements, which may be missing, and the lowest grade that counts as relevant."""

    relevant_from: int


class MarcoSplits(Keys):
    """The files of each split, or ``None`` when the split is not used.

    ``dl19`` and ``dl20`` are the graded judgements of TREC's Deep Learning Tracks. They are read if their qrels files exist.
    """

    train: Questions | None
    dev: Questions | None
    test: Questions | None
    dl19: GradedQuestions | None
    dl20: GradedQuestions | None

    def named(self) -> dict[str, Questions]:
        """Return the splits that are used."""
        return {split: questions for split, questions in self if questions}

    def here(self, folder: Path) -> dict[str, Questions]:
        """Return the splits that are used, except graded splits of TREC whose qrels are missing from ``folder``."""
        named = self.named().items()
        return {
            name: one for name, one in named if not isinstance(one, GradedQuestions) or anything(folder / one.qrels)
        }


class _Marco(FolderSource):
    """The base class of both collections: queries and judgements in native files."""

    splits: MarcoSplits

    def official(self) -> tuple[str, CollectionSizes]:
        """Return the overrides with which ir_datasets downloads the official files, and the published sizes of the files."""
        raise NotImplementedError

    def sizes(self) -> CollectionSizes:
        """Estimate the size of the collection; return the published size if a file is missing."""
        files = self.input_files()
        return self.official()[1] if any(not file.existing_path() for file in files) else counted(files)

    def judged_splits(self) -> set[str]:
        """Return the splits that will have judgements. The splits of TREC are included only if their files exist."""
        return set(self.splits.here(self.folder))

    def _digest(self, content: Any) -> str:
        here = self.splits.here(self.folder).items()
        graded = {split: one.relevant_from for split, one in here if isinstance(one, GradedQuestions)}
        return super()._digest([content, graded] if graded else content)

    def needed(self) -> list[InputFile]:
        """Return the files that must exist."""
        return self.input_files()

    def check(self) -> None:
        """Raise one ``MissingDataError`` that names every missing file and how to get it."""
        if missing := missing_files(self.needed()):
            count = f"{len(missing)} file{'s are' if len(missing) > 1 else ' is'} missing"
            raise MissingDataError(
                f"data.root={self.root}: {count}: {', '.join(dict.fromkeys(missing))}. Get them from {PAGE}"
                " and put them into that folder, plain or .gz",
                self.official()[0],
            )


class MarcoSource(_Marco):
    """The passage collection: ``collection.tsv`` (pid, passage), queries (qid, query) and qrels (qid, 0, pid, grade).

    Attributes:
        collection: the file of passages.
        titles: a file with the columns pid and title, or ``None``.
        documents: ``msmarco-docs.tsv`` as the text for pre-training, or ``None``.
        triples: the official file of id triples, or ``None`` if it is not used. The file must exist. A stage
            ``read_negatives`` reads it.
    """

    format: Literal["msmarco"] = "msmarco"
    collection: str
    titles: str | None
    documents: str | None
    triples: str | None

    outside_identity: ClassVar[set[str]] = {"root", "collection", "titles", "documents", "triples", "splits"}

    def input_files(self) -> list[InputFile]:
        """Return the files of the collection, titles, documents, queries and qrels."""
        files = [marco_file("passages", self.folder, self.collection)]
        if self.titles:
            hint = "; this file is not an official one but from RocketQA's corpus; or set data.titles=null"
            files.append(InputFile("titles", self.folder / self.titles, hint))
        if self.documents:
            files.append(marco_file("documents", self.folder, self.documents, "; or set data.documents=null"))
        return files + question_files(self.folder, self.splits)

    def official(self) -> tuple[str, CollectionSizes]:
        """Return overrides and published sizes of the passages and, if ``documents`` is set, of the documents."""
        passages = f"{BY_NAME}msmarco-passage"
        if self.documents:
            return f"{passages} data.documents=msmarco-document", PUBLISHED_WITH_DOCUMENTS
        return passages, PUBLISHED

    def needed(self) -> list[InputFile]:
        """Return the files that must exist, the triples included."""
        hint = "; or set data.triples=null"
        return self.input_files() + ([marco_file("triples", self.folder, self.triples, hint)] if self.triples else [])


class MarcoDocumentsSource(_Marco):
    """The document collection, whose unit of search is the document: ``msmarco-docs.tsv`` (docid, url, title, body)."""

    format: Literal["msmarco_documents"] = "msmarco_documents"
    documents: str

    outside_identity: ClassVar[set[str]] = {"root", "documents", "splits"}

    def input_files(self) -> list[InputFile]:
        """Return the files of the documents, queries and qrels."""
        return [marco_file("documents", self.folder, self.documents), *question_files(self.folder, self.splits)]

    def official(self) -> tuple[str, CollectionSizes]:
        """Return overrides and published sizes of the documents."""
        return f"{BY_NAME}msmarco-document", PUBLISHED_DOCUMENTS


def marco_file(role: str, folder: Path, name: str, otherwise: str = "") -> InputFile:
    """Return a file of MS MARCO, with a hint on how to get it; ``otherwise`` is appended to the hint."""
    plain = Path(name).name.removesuffix(".gz")
    return InputFile(role, folder / name, (f": in {ARCHIVE}" if plain in ARCHIVED else "") + otherwise)


def question_files(folder: Path, splits: MarcoSplits) -> list[InputFile]:
    """Return the files of queries and judgements of the requested splits. TREC's files may be missing; they are left out."""
    files = []
    for split, questions in splits.here(folder).items():
        files += [marco_file(f"{role} of {split}", folder, getattr(questions, role)) for role in ("queries", "qrels")]
    return files


def read_questions(splits: MarcoSplits, files: list[InputFile], writer: CollectionWriter) -> None:
    """Read the judgements, then the queries. A query in two files, such as dev and dev.small, is read once."""
    graded = {split: one for split, one in splits.named().items() if isinstance(one, GradedQuestions)}
    for file in files:
        if file.role.startswith("qrels of "):
            split = file.role.removeprefix("qrels of ")
            read_qrels(file.open_path(), split, writer, trec=True)
            if split in graded:
                writer.relevant_from[split] = graded[split].relevant_from
    paths = list(dict.fromkeys(file.open_path() for file in files if file.role.startswith("queries of ")))
    seen: dict[str, tuple[str, int]] = {}
    for path in paths:
        for place, (identifier, text) in read_columns(path, ["query id", "query"]):
            known = seen.get(identifier)
            if known is None or known[0].startswith(f"{path}:"):  # the writer reports repeated ids of one file
                writer.add_query(Query(identifier, text), place)
            elif known[1] != hash(text):
                raise UserError(f"{place}: the query id {identifier} has another text at {known[0]}")
            if len(paths) > 1:
                seen[identifier] = (place, hash(text))


class Titles:
    """Titles by passage id, read from a file that should be in the order of the collection.

    In another order, a title that is read before its passage stays in memory until the passage is read.
    """

    def __init__(self, path: Path) -> None:
        self._lines = read_columns(path, ["passage id", "title"])
        self._ahead: dict[str, str] = {}
        self.matched = self.missing = 0

    def of(self, identifier: str) -> str:
        """Return the title of a passage; empty if the file has no title for the passage."""
        if identifier in self._ahead:
            self.matched += 1
            return self._ahead.pop(identifier)
        for _, (other, title) in self._lines:
            title = "" if title == NO_TITLE else title
            if other == identifier:
                self.matched += 1
                return title
            self._ahead[other] = title
        self.missing += 1
        return ""


def read_documents(file: InputFile, what: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield (place, id, title, body) for each line of ``msmarco-docs.tsv``.

    ``what``: what the file must contain, for the error message about an empty file.
    """
    read_rows = partial(read_columns, names=["document id", "url", "title", "body"])
    for place, (identifier, _, title, body) in file.entries(read_rows, f"holds no {what}"):
        yield place, identifier, title, body


def read(config: MarcoSource, writer: CollectionWriter) -> None:
    """Read the passage collection into ``writer``."""
    by_role = {file.role: file for file in config.input_files()}
    read_questions(config.splits, list(by_role.values()), writer)
    titles = Titles(by_role["titles"].open_path()) if "titles" in by_role else None
    read_rows = partial(read_columns, names=["passage id", "passage"])
    for place, (identifier, text) in by_role["passages"].entries(read_rows, "holds no passages"):
        writer.add_passage(Passage(identifier, titles.of(identifier) if titles else "", text), place)
    if titles and titles.missing and not titles.matched:
        raise UserError(f"{by_role['titles'].open_path()}: has no passage of {config.collection}; correct data.titles")
    if titles and titles.missing:
        writer.warnings.append(f"{number_of(titles.missing, 'passages have')} no line in {config.titles}")
    if "documents" in by_role:
        for place, identifier, title, body in read_documents(by_role["documents"], f"documents{NO_DOCUMENTS}"):
            writer.add_document(Document(identifier, title, [body]), place)


def read_as_corpus(config: MarcoDocumentsSource, writer: CollectionWriter) -> None:
    """Read the document collection into ``writer``: each document is one passage."""
    files = config.input_files()
    read_questions(config.splits, files[1:], writer)
    for place, identifier, title, body in read_documents(files[0], "passages"):
        writer.add_passage(Passage(identifier, title, body), place)
