"""Read DPR's files (Karpukhin et al. 2020): Wikipedia in passages of 100 words, questions, answers and BM25 negatives.

- ``psgs_w100.tsv``: id, text, title, with a header line; fields may be quoted. Consecutive passages with the same title
  are one document.
- ``biencoder-*.json``: an array of questions with ``answers``, ``positive_ctxs`` and ``hard_negative_ctxs``. An entry of the
  last two lists names a passage by ``passage_id``, or in TriviaQA's files by ``psg_id``. Questions without a positive passage
  are left out. But if ``unlabelled_queries`` is ``unjudged``, such training questions are kept.
- ``*.qa.csv``: question, tab, a list of answers. A split that is read from a CSV file has answers and no judgements.

Every file is accepted plain or gzip. The id of a question is its split and its position in the file, such as ``test-0``.
"""

import ast
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from condensery.errors import UserError
from condensery.text.answers import is_pattern
from condensery.text.arrays import read_array
from condensery.text.formats import CollectionWriter
from condensery.text.input_file import InputFile
from condensery.text.lines import field, read_columns
from condensery.text.records import Passage, Query
from condensery.text.sizes import CollectionSizes, counted
from condensery.text.source import UNJUDGED, FolderSource, Splits
from condensery.text.words import is_blank

HEADER = ["id", "text", "title"]
IDS = ("passage_id", "psg_id")
PLACES = {
    "passages": ": psgs_w100.tsv.gz of https://github.com/facebookresearch/DPR (data.wikipedia_split.psgs_w100)",
    ".json": ": of https://github.com/facebookresearch/DPR (data.retriever); to leave it out, set data.splits.{}=null",
    ".csv": ": of https://github.com/facebookresearch/DPR (data.retriever.qas); to leave it out, set data.splits.{}=null",
}
# numbers of passages and questions: Karpukhin et al. 2020, table 1; tokens and seconds: estimated from the file sizes
PUBLISHED = {
    name: CollectionSizes(21_015_324, 140, None, None, queries, reading=1_600, published=True)
    for name, queries in {
        "nq": {"train": 58_880, "dev": 8_757, "test": 3_610},
        "triviaqa": {"train": 60_413, "dev": 8_837, "test": 11_313},
    }.items()
}


class DprSource(FolderSource):
    """A folder of DPR's files. A split is a .json file with judgements and answers, or a .csv file with answers only.

    Attributes:
        passages: the file of passages.
        positives: ``first`` uses the first positive passage of a question, as DPR's training does. ``all`` uses all
            positive passages.
        answers: ``string`` for answers that are strings, ``regex`` for regular expressions (as in CuratedTREC).
    """

    format: Literal["dpr"] = "dpr"
    passages: str
    splits: Splits
    positives: Literal["first", "all"]
    answers: Literal["string", "regex"]

    outside_identity: ClassVar[set[str]] = {"root", "passages", "splits"}

    def input_files(self) -> list[InputFile]:
        """Return the questions of each split, and the passages."""
        files = [
            InputFile(f"questions of {split}", self.folder / name, PLACES[_kind(name)].format(split))
            for split, name in self.splits.named().items()
        ]
        return [*files, InputFile("passages", self.folder / self.passages, PLACES["passages"])]

    def sizes(self) -> CollectionSizes:
        """Estimate the size of the collection; return the published size if the file of passages is missing."""
        sizes = counted(self.input_files())
        return sizes if sizes.passages is not None else PUBLISHED.get(self.name, sizes)

    def _digest(self, content: Any) -> str:
        # earlier versions ignored the value ``unjudged``, so the fingerprint must differ from the earlier fingerprint
        return super()._digest([content, UNJUDGED] if self.unlabelled_queries == UNJUDGED else content)

    def judged_splits(self) -> set[str]:
        """Return the splits from .json files, which have judgements."""
        return {split for split, name in self.splits.named().items() if _kind(name) == ".json"}

    def answered_splits(self) -> set[str]:
        """Return all requested splits, because every file has answers."""
        return set(self.splits.named())

    def gives_negatives(self) -> bool:
        """Return whether the input names hard negatives, as .json files do."""
        return bool(self.judged_splits())


def _kind(name: str) -> str:
    return ".csv" if name.removesuffix(".gz").endswith(".csv") else ".json"


def read(config: DprSource, writer: CollectionWriter) -> None:
    """Read DPR's files into ``writer``."""
    writer.regex_answers = config.answers == "regex"
    *questions, passages = config.input_files()
    for file in questions:
        split = file.role.removeprefix("questions of ")
        none = f"no questions; to leave this split out, set data.splits.{split}=null"
        if _kind(file.path.name) == ".csv":
            read_rows = partial(read_columns, names=["question", "answers"], quoted=True)
            _read_csv(file.entries(read_rows, none), split, writer)
        else:
            _read_json(file.entries(read_array, none), config, split, writer)
    add_passages(passages.entries(read_passages, f"holds no passages{passages.hint}"), writer)


def add_passages(passages: Iterable[tuple[str, Sequence[str]]], writer: CollectionWriter) -> None:
    """Add passages (place, (id, text, title)). Consecutive passages with the same title are one document."""
    document, before = "", ""
    for place, (identifier, text, title) in passages:
        if not document or not title or title != before:
            document, before = identifier, title
        writer.add_passage(Passage(identifier, title, text, document), place)


def read_passages(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, [id, text, title]) for every passage. Raises ``UserError`` for a wrong header."""
    for number, (place, fields) in enumerate(read_columns(path, HEADER, quoted=True)):
        if number or fields[0] != HEADER[0]:
            yield place, fields
        elif fields != HEADER:
            raise UserError(f"{place}: the columns must be {', '.join(HEADER)}, in this order")


def _read_json(
    records: Iterator[tuple[str, dict[str, Any]]], config: DprSource, split: str, writer: CollectionWriter
) -> None:
    """Add the judged questions of a .json file to ``writer``."""
    for number, (place, record) in enumerate(records):
        field(record, "positive_ctxs", place, list)  # the list may be empty; a missing list is an error
        positives, identifier = _passages(record, "positive_ctxs", place), f"{split}-{number}"
        if not positives and not (split == "train" and config.unlabelled_queries == UNJUDGED):
            writer.dropped["questions_without_positive"] += 1
            continue
        for passage in dict.fromkeys(positives[:1] if config.positives == "first" else positives):
            writer.add_judgement(split, identifier, passage, 1, place)
        answers = answers_in(record, place, writer)
        writer.add_query(Query(identifier, field(record, "question", place, str).strip(), answers), place)
        negatives = [one for one in _passages(record, "hard_negative_ctxs", place) if one not in positives]
        writer.add_negatives(identifier, list(dict.fromkeys(negatives)), place)


def _passages(record: dict[str, Any], name: str, place: str) -> list[str]:
    """Return the ids of the passages that a question lists under ``name``."""
    ids = []
    for at, entry in enumerate(field(record, name, place, list, [])):
        value = next((entry[key] for key in IDS if key in entry), None) if isinstance(entry, dict) else None
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise UserError(f'{place}: entry {at} of "{name}" must name a passage by {" or ".join(IDS)}')
        ids.append(str(value))
    return ids


def answers_in(record: dict[str, Any], place: str, writer: CollectionWriter) -> tuple[str, ...]:
    """Return the field ``answers`` of a question; empty if the field is missing.

    Raises ``UserError`` if the field is not a list of strings. Invalid regular expressions are added to the
    ``broken_answers`` of the writer.
    """
    return _checked(field(record, "answers", place, list, []), place, writer)


def _checked(answers: Any, place: str, writer: CollectionWriter) -> tuple[str, ...]:
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise UserError(f"{place}: the answers must be a list of strings")
    for answer in answers if writer.regex_answers else ():
        if not is_pattern(answer):
            writer.broken_answers.append((place, answer))
    return tuple(answers)


def _read_csv(rows: Iterator[tuple[str, list[str]]], split: str, writer: CollectionWriter) -> None:
    """Add the questions of a .csv file, which have only answers, to ``writer``."""
    for number, (place, (question, written)) in enumerate(rows):
        answers = _checked(_list(written, place), place, writer)
        if all(map(is_blank, answers)):
            raise UserError(f"{place}: the question has no answer; add one, or remove the line")
        writer.add_query(Query(f"{split}-{number}", question.strip(), answers), place, split)


def _list(written: str, place: str) -> Any:
    """Parse a list that is written as JSON or as a Python literal. DPR's files use Python literals."""
    for parse in (json.loads, ast.literal_eval):
        with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return parse(written)
    raise UserError(f'{place}: the answers must be a list such as ["one", "another"], not {written[:60]!r}')
