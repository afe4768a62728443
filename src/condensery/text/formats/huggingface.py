"""Read collections from the Hugging Face hub by name, in three layouts.

- ``huggingface``: corpus, queries and judgements in the layout of BEIR (``BeIR/scifact``, ``BeIR/scifact-qrels``) and MTEB
  (``mteb/scifact``).
- ``huggingface_triples``: rows of query, positive and negative texts, the layout of sentence-transformers' data sets. The
  texts have no ids in the files. Here the id of a text is the hash of its content, so equal texts are one passage.
- ``huggingface_documents``: rows of text (Wikipedia, BookCorpus). Texts are documents, and paragraphs are passages.

``hub.py`` fetches and reads the files. The identity of a collection is a hash of the digests of its files, which the hub
lists before the files are fetched.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field

from condensery.errors import UserError, shown
from condensery.keys import Keys
from condensery.system.files import expanded
from condensery.text.formats import CollectionWriter
from condensery.text.formats.hub import Repository
from condensery.text.formats.plain_text import add_paragraphs
from condensery.text.hashes import id_hash
from condensery.text.lines import decimal, fields_of
from condensery.text.records import Passage, Query
from condensery.text.source import AUTO, DataConfig, Splits, WantedFile
from condensery.text.words import is_blank

IDS = ("_id", "id", "doc_id", "docid", "query_id", "qid")
QUERY_IDS, PASSAGE_IDS = ("query-id", "query_id", "qid"), ("corpus-id", "corpus_id", "doc_id", "docid", "pid")
GRADES = ("score", "relevance", "grade")
COLUMNS = {  # role of a text in a triple -> possible names of its column, the most specific first
    "query": ("query", "anchor", "question", "title"),
    "positive": ("positive", "answer", "passage", "document", "text"),
    "negative": ("negative", "negatives"),
}


class _OnTheHub(DataConfig):
    """The base class of the three layouts.

    ``revision``: commit, tag or branch; None = the commit in the cache, or else the newest commit.
    """

    revision: str | None

    outside_identity: ClassVar[set[str]] = {"revision"}

    @property
    def called(self) -> str:
        """The name of the collection in tables: the name of the data set without the owner, or the name of the folder."""
        return expanded(self.name).name

    @cached_property
    def repository(self) -> Repository:
        """The data set on the hub, or a local folder."""
        return Repository(self.name, self.revision, "data.name")

    @cached_property
    def chosen(self) -> dict[str, tuple[Repository, list[str]]]:
        """Role -> (data set, its files that are read). Raises ``UserError`` for a part that does not exist."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise ``UserError`` if a part of the data set does not exist.

        The hub is queried only if the cache does not have the list of files.
        """
        _ = self.chosen

    def fingerprint(self) -> str:
        """Return the identity of the input: a hash of the files' digests by role, and of config keys that change the data."""
        anywhere = self.model_copy(update={"name": self.called}) if self.repository.local else self
        return anywhere._digest([[role, data.digests(paths)] for role, (data, paths) in self.chosen.items()])

    def wanted(self) -> list[WantedFile]:
        """Return every file that is read, with its size and digest. Raises ``UserError`` as ``check`` does."""
        return list(dict.fromkeys(one for data, paths in self.chosen.values() for one in data.wanted(paths)))

    def fetch(self) -> None:
        """Fetch missing files, and check all files by their digests. Raises ``UserError`` on failure."""
        for data, paths in self.chosen.values():
            data.fetch(paths)

    def rows(self, role: str, total: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (place, row) for every row of the files of ``role``. ``total``: number of rows, for progress; 0 = unknown.

        A data set without queries has no files of the role ``queries``.
        """
        data, paths = self.chosen.get(role, (self.repository, []))
        return data.rows(paths, total)


class Configs(Keys):
    """The configurations (subsets) of a retrieval data set."""

    corpus: str
    queries: str
    qrels: str


class HuggingfaceSource(_OnTheHub):
    """Corpus, queries and judgements.

    Attributes:
        configs: the configurations of the data set. The value ``auto`` of ``configs.qrels`` stands for the configuration
            ``qrels``, or else ``default``.
        judgements: the data set of the judgements, if they are in a separate one. ``auto`` stands for NAME-qrels if the data
            set has neither a configuration ``qrels`` nor ``default``.
        splits: for each split, the name that the data set has for it.
    """

    format: Literal["huggingface"] = "huggingface"
    configs: Configs
    judgements: str | None
    splits: Splits

    outside_identity: ClassVar[set[str]] = {"revision", "configs", "judgements", "splits"}

    @cached_property
    def chosen(self) -> dict[str, tuple[Repository, list[str]]]:
        """Role -> files, for the judgements of each split, the queries and the corpus."""
        data, parts = self.repository, dict[str, tuple[Repository, list[str]]]()
        own = next((name for name in ("qrels", "default") if data.has(name)), None)
        judging, config = data, self.configs.qrels if self.configs.qrels != AUTO else own
        if self.judgements not in (None, AUTO) or (self.judgements == AUTO and config is None):
            name = f"{self.name}-qrels" if self.judgements == AUTO else str(self.judgements)
            judging, config = Repository(name, None, "data.judgements"), None
        for split, name in self.splits.named().items():
            parts[f"qrels of {split}"] = judging, judging.select(config, name)
        if parts:
            parts["queries"] = data, data.select(self.configs.queries, None)
        return parts | {"passages": (data, data.select(self.configs.corpus, None))}

    def expected(self) -> dict[str, int]:
        """Return {"passages": number of passages} as stated in the README of the data set; 0 = unknown."""
        return {"passages": self.repository.count(self.configs.corpus)}


class Columns(Keys):
    """The columns of triples. ``auto`` stands for the first column of ``COLUMNS`` that exists.

    ``negative``: None = no negatives.
    """

    query: str
    positive: str
    negative: str | None


class HuggingfaceTriplesSource(_OnTheHub):
    """Rows of texts: a query, a positive passage, and hard negatives (``negative``, ``negative_1``, ..., or a list)."""

    format: Literal["huggingface_triples"] = "huggingface_triples"
    config: str | None
    splits: Splits
    columns: Columns

    outside_identity: ClassVar[set[str]] = {"revision", "config", "splits"}

    @cached_property
    def chosen(self) -> dict[str, tuple[Repository, list[str]]]:
        """Role -> files, for the rows of each split."""
        data, named = self.repository, self.splits.named().items()
        return {f"rows of {split}": (data, data.select(self.config, name)) for split, name in named}

    def gives_negatives(self) -> bool:
        """Return whether the config names a column of negatives. The column may turn out not to exist."""
        return self.columns.negative is not None


class HuggingfaceDocumentsSource(_OnTheHub):
    """Rows of text. A document consists of ``rows_per_document`` rows: more than one if a row is a sentence (BookCorpus).

    A paragraph ends at a blank line. A paragraph of fewer than ``minimum_words`` words is joined to the next paragraph.
    """

    format: Literal["huggingface_documents"] = "huggingface_documents"
    config: str | None
    split: str
    text: str
    title: str | None
    rows_per_document: int = Field(ge=1)
    minimum_words: int = Field(ge=1)

    outside_identity: ClassVar[set[str]] = {"revision", "config", "split"}

    @cached_property
    def chosen(self) -> dict[str, tuple[Repository, list[str]]]:
        """The files of the rows, under the role ``documents``."""
        return {"documents": (self.repository, self.repository.select(self.config, self.split))}

    def judged_splits(self) -> set[str]:
        """Return no splits, because there are no queries."""
        return set()


def read(config: HuggingfaceSource, writer: CollectionWriter) -> None:
    """Fetch the files of a retrieval data set, and read them into ``writer``."""
    config.fetch()
    known = {id_hash(identifier) for _, identifier, _, _ in _texts(config, "queries")}
    for split in config.splits.named():
        _read_qrels(config, split, known, writer)
    for place, identifier, _, text in _texts(config, "queries"):
        if id_hash(identifier) in known:  # a query may occur in the files of several splits
            known.remove(id_hash(identifier))
            writer.add_query(Query(identifier, text), place)
    for place, identifier, title, text in _texts(config, "passages", config.repository.count(config.configs.corpus)):
        writer.add_passage(Passage(identifier, title, text), place)


def _read_qrels(config: HuggingfaceSource, split: str, known: set[int], writer: CollectionWriter) -> None:
    """Add the judgements of a split. Judgements of unknown queries, and of queries without a positive, are left out."""
    positive = {query for query, _, _, grade, _ in _judgements(config, split) if grade > 0}
    for query, name, passage, grade, place in _judgements(config, split):
        if query in known and query in positive:
            writer.add_judgement(split, name, passage, grade, place)
        else:
            writer.leave_out_judgement(split, name, place, query in known)


def _judgements(config: HuggingfaceSource, split: str) -> Iterator[tuple[int, str, str, int, str]]:
    """Yield (hash of the query id, query id, passage id, grade, place) for each judgement."""
    for place, row in config.rows(f"qrels of {split}"):
        query, passage = (str(_identifier(row, columns, place)) for columns in (QUERY_IDS, PASSAGE_IDS))
        yield id_hash(query), query, passage, _grade(row, place), place


def _texts(config: HuggingfaceSource, role: str, total: int = 0) -> Iterator[tuple[str, str, str, str]]:
    """Yield (place, id, title, text) for each passage or query.

    A query may occur in several files, so a repeated query id is not an error. But a query id that is a number in one row
    and the same string in another raises ``UserError``. The writer reports two passages with the same id.
    """
    kinds: dict[int, type] = {}
    for place, row in config.rows(role, total):
        if "text" not in row:
            raise UserError(f"{place}: no column text ({fields_of(row)})")
        title, text = row.get("title") or "", row["text"]
        if not isinstance(text, str | None) or not isinstance(title, str):
            raise UserError(f"{place}: title and text must be strings")
        identifier = _identifier(row, IDS, place)
        name, kind = str(identifier), type(identifier)
        if role == "queries" and kinds.setdefault(id_hash(name), kind) is not kind:
            raise UserError(f"{place}: the number {name} and the text {name!r} are the same id; change one of them")
        yield place, name, title, text or ""


def read_triples(config: HuggingfaceTriplesSource, writer: CollectionWriter) -> None:
    """Fetch rows of texts and read them into ``writer``. Equal texts become one passage; equal queries become one query."""
    config.fetch()
    passages, queries = set[int](), set[int]()

    def passage(text: Any, place: str) -> str:
        name = _of_content(text, place)
        if int(name, 16) not in passages:
            passages.add(int(name, 16))
            writer.add_passage(Passage(name, "", text), place)
        return name

    for split in config.splits.named():
        for place, row in config.rows(f"rows of {split}"):
            query = _field(row, _column("query", config.columns.query), place)
            positive = _field(row, _column("positive", config.columns.positive), place)
            if is_blank(str(query)) or is_blank(str(positive)):
                writer.dropped["empty_rows"] += 1
                continue
            name = _of_content(query, place)
            writer.add_judgement(split, name, passage(positive, place), 1, place)
            if int(name, 16) not in queries:
                queries.add(int(name, 16))
                writer.add_query(Query(name, query), place)
            hard = [passage(text, place) for text in _negatives(row, config.columns.negative) if not is_blank(text)]
            if hard:
                writer.add_negatives(name, hard, place)


def _negatives(row: dict[str, Any], column: str | None) -> Iterable[str]:
    """Yield the texts of the columns ``negative``, ``negative_1``, ...; a column may hold a list of texts."""
    names = [] if column is None else _column("negative", column)
    for name, value in row.items():
        if re.sub(r"_\d+$", "", name) in names:
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str))


def read_documents(config: HuggingfaceDocumentsSource, writer: CollectionWriter) -> None:
    """Fetch rows of text and read them into ``writer``. The ids of passages are ``<document>#<number>``, from 0."""
    config.fetch()
    for place, name, title, text in _documents(config):
        add_paragraphs(name, title, ((place, line) for line in text.splitlines()), config.minimum_words, writer)


def _documents(config: HuggingfaceDocumentsSource) -> Iterator[tuple[str, str, str, str]]:
    """Yield (place, id, title, text) for each document. The id is a running number; the data set's ids may repeat."""
    first, texts, number = "", list[str](), 0
    for place, row in config.rows("documents", config.repository.count(config.config)):
        first = first if texts else place
        empty = config.text in row and row[config.text] is None
        texts.append("" if empty else _words(_field(row, (config.text,), place), place))
        if len(texts) == config.rows_per_document:
            title = "" if config.title is None else _words(row.get(config.title) or "", place)
            yield first, str(number), title, "\n".join(texts)
            number, texts = number + 1, []
    if texts:
        yield first, str(number), "", "\n".join(texts)


def _column(role: str, given: str) -> tuple[str, ...]:
    return COLUMNS[role] if given == AUTO else (given,)


def _field(row: dict[str, Any], names: tuple[str, ...], place: str) -> Any:
    """Return the first non-null value among the columns ``names``. Raises ``UserError`` if all are null or missing."""
    here = [name for name in names if name in row]
    for name in here:
        if row[name] is not None:
            return row[name]
    if here:
        raise UserError(f"{place}: the column {here[0]} is empty here; fill it, or remove the row")
    raise UserError(f"{place}: no column {' or '.join(names)} ({fields_of(row)})")


def _identifier(row: dict[str, Any], columns: tuple[str, ...], place: str) -> int | str:
    identifier = _field(row, columns, place)
    if isinstance(identifier, bool) or not isinstance(identifier, int | str):
        raise UserError(f"{place}: an id must be a text or a whole number, not {shown(repr(identifier))}")
    return identifier


def _grade(row: dict[str, Any], place: str) -> int:
    value = _field(row, GRADES, place)
    if not decimal(str(value)).is_integer():
        raise UserError(f"{place}: the grade must be a whole number, not {value!r}")
    return int(float(value))


def _words(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{place}: a text is expected, not {value!r:.60}")
    return value


def _of_content(text: Any, place: str) -> str:
    """Return the id of a text: the hash of its words, as 16 hexadecimal digits."""
    return f"{id_hash(' '.join(_words(text, place).split())):016x}"
