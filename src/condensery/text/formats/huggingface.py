"""Collections by their name on the Hugging Face hub, in three layouts.

- ``huggingface``: corpus, queries and judgements as BEIR (``BeIR/scifact``, ``BeIR/scifact-qrels``) and MTEB
  (``mteb/scifact``) have them.
- ``huggingface_triples``: rows of query, positive and negative texts, as sentence-transformers' data sets have them. Texts
  have no ids there: they get those of their content, and the same text is the same passage.
- ``huggingface_documents``: rows of text (Wikipedia, BookCorpus) as documents, their paragraphs as passages.

``hub.py`` says where the files come from. The identity of a collection is made of the digests of the files that are read,
which the hub knows before they are fetched.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from condensery.errors import UserError
from condensery.system.files import expanded
from condensery.text.blank import is_blank
from condensery.text.formats.hub import Repository
from condensery.text.formats.plain_text import joined
from condensery.text.input_file import InputFile
from condensery.text.lines import fields_of
from condensery.text.records import Passage, Query
from condensery.text.source import DataConfig, Splits, WantedFile

if TYPE_CHECKING:
    from condensery.text.writer import CollectionWriter

AUTO = "auto"
IDS = ("_id", "id", "doc_id", "docid", "query_id", "qid")
QUERY_IDS, PASSAGE_IDS = ("query-id", "query_id", "qid"), ("corpus-id", "corpus_id", "doc_id", "docid", "pid")
GRADES = ("score", "relevance", "grade")
COLUMNS = {  # what the columns of triples are called, the most telling first
    "query": ("query", "anchor", "question", "title"),
    "positive": ("positive", "answer", "passage", "document", "text"),
    "negative": ("negative", "negatives"),
}


class _OnTheHub(DataConfig):
    """What the three have in common. ``revision``: commit, tag or branch; None: the commit in the cache, or the newest."""

    revision: str | None

    outside_identity: ClassVar[set[str]] = {"revision"}

    @property
    def called(self) -> str:
        """The name without its owner; of a folder its name."""
        return expanded(self.name).name

    @cached_property
    def repository(self) -> Repository:
        """The data set."""
        return Repository(self.name, self.revision, "data.name")

    @cached_property
    def chosen(self) -> dict[str, tuple[Repository, list[str]]]:
        """What is read, by role: the data set and the files in it. Raises ``UserError`` where something is not there."""
        raise NotImplementedError

    def input_files(self) -> list[InputFile]:
        """None: what is read lies in the cache of the hub; see ``chosen``."""
        return []

    def check(self) -> None:
        """Raise ``UserError`` where a part of the data set is not there. Asks the hub where the cache does not know it."""
        _ = self.chosen

    def fingerprint(self) -> str:
        """Of each role the digests of its files, and the keys that matter."""
        return self._digest([[role, data.digests(paths)] for role, (data, paths) in self.chosen.items()])

    def wanted(self) -> list[WantedFile]:
        """See ``DataConfig``."""
        return list(dict.fromkeys(one for data, paths in self.chosen.values() for one in data.wanted(paths)))

    def fetch(self) -> None:
        """See ``DataConfig``. What is there already is read for its digest."""
        for data, paths in self.chosen.values():
            data.fetch(paths)

    def rows(self, role: str, total: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """(place, row) of what is read for a role."""
        data, paths = self.chosen[role]
        return data.rows(paths, total)


class Configs(BaseModel):
    """The configurations (subsets) of a retrieval data set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    corpus: str
    queries: str
    qrels: str


class HuggingfaceSource(_OnTheHub):
    """Corpus, queries and judgements. ``judgements``: the data set with the judgements, where they are in one of their own.

    ``configs.qrels``: ``auto`` is ``qrels`` or ``default``; ``judgements``: ``auto`` is NAME-qrels where there is neither.
    """

    format: Literal["huggingface"] = "huggingface"
    configs: Configs
    judgements: str | None
    splits: Splits

    outside_identity: ClassVar[set[str]] = {"revision", "configs", "judgements", "splits"}

    @cached_property
    def chosen(self) -> dict[str, tuple[Repository, list[str]]]:
        """Judgements of each split, queries, corpus."""
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
        """See ``DataConfig``: as the README of the data set has it."""
        return {"passages": self.repository.count(self.configs.corpus)}


class Columns(BaseModel):
    """The columns of triples; ``auto`` is the first of ``COLUMNS`` that is there. ``negative``: None = there are none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    query: str
    positive: str
    negative: str | None


class HuggingfaceTriplesSource(_OnTheHub):
    """Rows of texts: a query, a passage that answers it, hard negatives (``negative``, ``negative_1``, ..., or a list)."""

    format: Literal["huggingface_triples"] = "huggingface_triples"
    config: str | None
    splits: Splits
    columns: Columns

    outside_identity: ClassVar[set[str]] = {"revision", "config", "splits"}

    @cached_property
    def chosen(self) -> dict[str, tuple[Repository, list[str]]]:
        """The rows of each split."""
        named = self.splits.named().items()
        return {
            f"rows of {split}": (self.repository, self.repository.select(self.config, name)) for split, name in named
        }

    def gives_negatives(self) -> bool:
        """Whether a column of them is named; only reading tells whether it is there."""
        return self.columns.negative is not None


class HuggingfaceDocumentsSource(_OnTheHub):
    """Rows of text. ``rows``: so many of them make a document, where a row is a sentence (BookCorpus).

    A paragraph ends at a blank line; one of fewer than ``minimum_words`` words is joined to the next.
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
        """The rows."""
        return {"documents": (self.repository, self.repository.select(self.config, self.split))}

    def judged_splits(self) -> set[str]:
        """None: there are no queries."""
        return set()


def read(config: HuggingfaceSource, writer: "CollectionWriter") -> None:
    """Fetch the files of a retrieval data set, and read them into ``writer``."""
    from condensery.text.ids import id_hash  # imports NumPy, which a dry run does without

    config.fetch()
    has_queries = "queries" in config.chosen
    known = {id_hash(identifier) for _, identifier, _, _ in _texts(config, "queries")} if has_queries else set()
    for split in config.splits.named():
        _read_qrels(config, split, known, writer)
    for place, identifier, _, text in _texts(config, "queries") if has_queries else ():
        if id_hash(identifier) in known:  # one may stand in the files of several splits
            known.remove(id_hash(identifier))
            writer.add_query(Query(identifier, text), place)
    for place, identifier, title, text in _texts(config, "passages", config.repository.count(config.configs.corpus)):
        writer.add_passage(Passage(identifier, title, text), place)


def _read_qrels(config: HuggingfaceSource, split: str, known: set[int], writer: "CollectionWriter") -> None:
    """Add the judgements of a split; those of unknown queries, and of queries without any positive, are left out."""
    positive = {query for query, _, _, grade, _ in _judgements(config, split) if grade > 0}
    for query, name, passage, grade, place in _judgements(config, split):
        if query in known and query in positive:
            writer.add_judgement(split, name, passage, grade, place)
        else:
            writer.dropped["judgements_without_positive" if query in known else "judgements_of_unknown_queries"] += 1


def _judgements(config: HuggingfaceSource, split: str) -> Iterator[tuple[int, str, str, int, str]]:
    """(hash of the query's id, query, passage, grade, place) of each judgement."""
    from condensery.text.ids import id_hash

    for place, row in config.rows(f"qrels of {split}"):
        query, passage = str(_field(row, QUERY_IDS, place)), str(_field(row, PASSAGE_IDS, place))
        yield id_hash(query), query, passage, _grade(row, place), place


def _texts(config: HuggingfaceSource, role: str, total: int = 0) -> Iterator[tuple[str, str, str, str]]:
    """(place, id, title, text) of each passage or query.

    Raises ``UserError`` where a number and a text are the same id.
    """
    from condensery.text.ids import OneKind

    kinds = OneKind()
    for place, row in config.rows(role, total):
        title, text = row.get("title") or "", row.get("text")
        if not isinstance(text, str | None) or not isinstance(title, str):
            raise UserError(f"{place}: title and text must be texts")
        yield place, kinds.taken(_field(row, IDS, place), place), title, text or ""


def read_triples(config: HuggingfaceTriplesSource, writer: "CollectionWriter") -> None:
    """Fetch and read rows of texts into ``writer``: of each text one passage, of each query one, by their content."""
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
            negatives = [
                passage(text, place) for text in _negatives(row, config.columns.negative) if not is_blank(text)
            ]
            if negatives:
                writer.add_negatives(name, negatives, place)


def _negatives(row: dict[str, Any], column: str | None) -> Iterable[str]:
    """The texts of the columns ``negative``, ``negative_1``, ..., or of lists in them."""
    names = [] if column is None else _column("negative", column)
    for name, value in row.items():
        if re.sub(r"_\d+$", "", name) in names:
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str))


def read_documents(config: HuggingfaceDocumentsSource, writer: "CollectionWriter") -> None:
    """Fetch and read rows of text into ``writer``: passages ``<document>#<number>``, numbered from 0."""
    config.fetch()
    for place, name, title, text in _documents(config):
        blocks = ((place, "\n".join(lines)) for lines in _blocks(text))
        number = -1
        for number, (_, paragraph) in enumerate(joined(blocks, config.minimum_words)):
            writer.add_passage(Passage(f"{name}#{number}", title, paragraph, name), place)
        if number < 0:
            writer.dropped["empty_documents"] += 1


def _documents(config: HuggingfaceDocumentsSource) -> Iterator[tuple[str, str, str, str]]:
    """(place, id, title, text) of each document. Their ids are their numbers: those of a data set need not differ."""
    first, texts = "", list[str]()
    number = 0
    for place, row in config.rows("documents", config.repository.count(config.config)):
        first = first if texts else place
        texts.append(_words(_field(row, (config.text,), place), place))
        if len(texts) == config.rows_per_document:
            title = "" if config.title is None else _words(row.get(config.title) or "", place)
            yield first, str(number), title, "\n".join(texts)
            number, texts = number + 1, []
    if texts:
        yield first, str(number), "", "\n".join(texts)


def _blocks(text: str) -> Iterator[list[str]]:
    """The lines of each run without a blank one between them."""
    lines = list[str]()
    for line in [*text.splitlines(), ""]:
        if not is_blank(line):
            lines.append(line.strip())
        elif lines:
            yield lines
            lines = []


def _column(role: str, given: str) -> tuple[str, ...]:
    return COLUMNS[role] if given == AUTO else (given,)


def _field(row: dict[str, Any], names: tuple[str, ...], place: str) -> Any:
    """The first of these columns that is there; ``UserError`` where none is."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise UserError(f"{place}: no column {' or '.join(names)} ({fields_of(row)})")


def _grade(row: dict[str, Any], place: str) -> int:
    value = _field(row, GRADES, place)
    try:
        grade = int(float(value))
    except (TypeError, ValueError):
        grade = None
    if grade is None or grade != float(value):
        raise UserError(f"{place}: the grade must be a whole number, not {value!r}")
    return grade


def _words(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{place}: a text is expected, not {value!r:.60}")
    return value


def _of_content(text: Any, place: str) -> str:
    """The id of a text: 16 hexadecimal digits of the hash of its words."""
    from condensery.text.ids import id_hash

    return f"{id_hash(' '.join(_words(text, place).split())):016x}"
