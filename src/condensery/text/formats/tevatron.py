"""Read Tevatron's JSON lines (Gao et al. 2022): each query with the texts of its positive and negative passages.

A line has the form ``{"query_id", "query", "positive_passages": [{"docid", "title", "text"}], "negative_passages": [...]}``,
and may also have ``answers``. A split whose queries have answers and no positive passages is for evaluation only. The
corpus file has one passage per line: ``{"docid", "title", "text"}``. Every file is accepted plain or gzip. Passages with
the same id must have the same text. If there is a corpus, the texts of negative passages are not checked.
"""

from array import array
from functools import cached_property
from typing import Any, ClassVar, Literal

from condensery.errors import UserError, shown
from condensery.text.formats import CollectionWriter
from condensery.text.formats.dpr import answers_in
from condensery.text.hashes import id_hash
from condensery.text.input_file import InputFile
from condensery.text.lines import Places, field, read_objects
from condensery.text.records import Passage, Query
from condensery.text.source import UNJUDGED, FolderSource, Splits

POSITIVES, NEGATIVES = "positive_passages", "negative_passages"


class TevatronSource(FolderSource):
    """A folder of Tevatron's files: the corpus, and a file for each split.

    ``corpus``: the file of passages; ``None`` = only the passages in the files of queries are searched.
    """

    format: Literal["tevatron"] = "tevatron"
    corpus: str | None
    splits: Splits
    answers: Literal["string", "regex"]

    outside_identity: ClassVar[set[str]] = {"root", "corpus", "splits"}

    def input_files(self) -> list[InputFile]:
        """Return the file of queries of each split, and the corpus."""
        files = [
            InputFile(f"queries of {split}", self.folder / name, f"; to leave it out, set data.splits.{split}=null")
            for split, name in self.splits.named().items()
        ]
        hint = "; to search only the passages of the queries, set data.corpus=null"
        return files + ([InputFile("corpus", self.folder / self.corpus, hint)] if self.corpus else [])

    @cached_property
    def _first(self) -> dict[str, dict[str, Any]]:
        """The first query of each split. The other queries of the split have the same fields."""
        files = {file.role.removeprefix("queries of "): file for file in self.input_files() if file.role != "corpus"}
        return {split: next((one for _, one in read_objects(file.open_path())), {}) for split, file in files.items()}

    def judged_splits(self) -> set[str]:
        """Return the splits whose first query has positive passages."""
        return {split for split, record in self._first.items() if record.get(POSITIVES)}

    def answered_splits(self) -> set[str]:
        """Return the splits whose first query has answers."""
        return {split for split, record in self._first.items() if record.get("answers")}

    def gives_negatives(self) -> bool:
        """Return whether the first query of any split has negative passages."""
        return any(record.get(NEGATIVES) for record in self._first.values())


class KnownTexts:
    """Stores the hash and the place of each passage in the files of queries, in about 150 bytes per passage.

    Args:
        with_titles: whether passages with different titles count as different texts. False if there is a corpus, because
            the corpus may have titles that the files of queries lack.
    """

    def __init__(self, with_titles: bool) -> None:
        self.with_titles, self.rows, self.hashes, self.places = with_titles, dict[int, int](), array("Q"), Places()

    def take(self, passage: Passage, place: str) -> bool:
        """Store the passage if its id is new, and return whether it is new. Raises ``UserError`` as ``check`` does."""
        if self.check(passage, place):
            return False
        self.rows[id_hash(passage.id)] = len(self.hashes)
        self.hashes.append(self._hash(passage))
        self.places.add(place)
        return True

    def check(self, passage: Passage, place: str) -> bool:
        """Return whether an earlier passage has the same id.

        Raises:
            UserError: the texts of the two passages differ in more than white space.
        """
        row = self.rows.get(id_hash(passage.id))
        if row is not None and self.hashes[row] != self._hash(passage):
            raise UserError(f"{place}: passage {shown(passage.id)!r} has another text at {self.places[row]}; keep one")
        return row is not None

    def _hash(self, passage: Passage) -> int:
        title = passage.title if self.with_titles else ""
        return id_hash(" ".join(title.split()) + "\n" + " ".join(passage.text.split()))


def read(config: TevatronSource, writer: CollectionWriter) -> None:
    """Read Tevatron's files into ``writer``."""
    writer.regex_answers = config.answers == "regex"
    judged, texts = config.judged_splits(), KnownTexts(with_titles=not config.corpus)
    for file in config.input_files():
        if file.role == "corpus":
            for place, record in file.entries(read_objects, "holds no passages"):
                passage = _passage(record, place)
                texts.check(passage, place)
                writer.add_passage(passage, place)
            continue
        split = file.role.removeprefix("queries of ")
        for place, record in file.entries(read_objects, f"holds no queries{file.hint}"):
            positives, negatives = _read_query(record, place, split, split in judged, writer)
            for passage in positives if config.corpus else positives + negatives:
                if texts.take(passage, place) and not config.corpus:
                    writer.add_passage(passage, place)


def _read_query(
    record: dict[str, Any], place: str, split: str, judged: bool, writer: CollectionWriter
) -> tuple[list[Passage], list[Passage]]:
    """Add a query with judgements, negatives and answers. Returns the query's positive and negative passages."""
    identifier, text = _identifier(record, "query_id", place), field(record, "query", place, str)
    positives, negatives = (_passages(record, name, place) for name in (POSITIVES, NEGATIVES))
    query = Query(identifier, text, answers_in(record, place, writer))
    unjudged = judged and split == "train" and writer.unlabelled_queries == UNJUDGED  # may have no positive
    if judged != bool(positives) and not unjudged:
        has = "no positive passages" if judged else "positive passages"
        raise UserError(f"{place}: the query has {has}, unlike the first query of this file; make them alike")
    if not judged and not query.answers:
        raise UserError(f"{place}: the query has neither positive passages nor answers; add some, or remove the query")
    relevant = dict.fromkeys(passage.id for passage in positives)
    for passage in relevant:
        writer.add_judgement(split, identifier, passage, 1, place)
    writer.add_query(query, place, None if judged else split)
    hard = dict.fromkeys(passage.id for passage in negatives if passage.id not in relevant)
    writer.add_negatives(identifier, list(hard), place)
    return positives, negatives


def _passages(record: dict[str, Any], name: str, place: str) -> list[Passage]:
    entries = field(record, name, place, list, [])
    if wrong := [at for at, entry in enumerate(entries) if not isinstance(entry, dict)]:
        raise UserError(f'{place}: "{name}" must be a list of objects; its entry {wrong[0]} is not an object')
    return [_passage(entry, f"{place}: {name}[{at}]") for at, entry in enumerate(entries)]


def _passage(record: dict[str, Any], place: str) -> Passage:
    title = field(record, "title", place, str, "")
    return Passage(_identifier(record, "docid", place), title, field(record, "text", place, str))


def _identifier(record: dict[str, Any], name: str, place: str) -> str:
    """Return the id in the field ``name`` as a string. Some files write ids as numbers."""
    value = record.get(name)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else field(record, name, place, str)
