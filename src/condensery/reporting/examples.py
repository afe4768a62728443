"""Ten questions of a table, with what each of its rows found: so that a person sees what the numbers mean.

``choose`` takes them by the values that each row has for each question; ``examples`` reads what is shown of them. Of run
files and of passages nothing else is kept in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.evaluation.metrics import Evaluation
from condensery.evaluation.names import HIT, split_metric
from condensery.randomness import hash64
from condensery.reporting.plain import one_line
from condensery.retrieval.runs import rankings_of
from condensery.system.files import RECOMPUTE
from condensery.text.answers import AnswerMatcher
from condensery.text.collection import Collection
from condensery.text.words import between_letters

RUN, EVALUATION = "run.trec.gz", "evaluation.npz"
NUMBER = 10  # questions that are shown, where there are so many
WON, LOST, EVERY, NONE, CLOSE = "won", "lost", "every", "none", "close"  # why a question is shown
SHARES = {WON: 4, LOST: 4, EVERY: 1, NONE: 1}  # at most so many of each; those that are close make up the number
PASSAGE, QUESTION = 200, 400  # characters that are shown
RELEVANT, ANSWERS = 3, 5  # relevant passages, and answers, that are shown


@dataclass(frozen=True)
class EvaluatedRow:
    """A row of the table: its name, the folder of its evaluation, how deep it ranked, and whether it is BM25's."""

    name: str
    folder: Path
    depth: int
    bm25: bool = False


@dataclass(frozen=True)
class Compared:
    """Which rows (by their place) the questions are chosen by, and the metric; with one row there is no other."""

    metric: str
    best: int
    other: int | None


@dataclass(frozen=True)
class Shown:
    """A passage as it is shown: its id, and the beginnings of its title and its text."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Finding:
    """What a row found for a question.

    Attributes:
        row: name of the row.
        value: of the metric, between 0 and 1.
        rank: of the first relevant passage; None where none is among the ``depth`` first.
        first: the passage that it ranked first; None where it found nothing.
        relevant: whether that one is relevant.
    """

    row: str
    value: float
    rank: int | None
    depth: int
    first: Shown | None
    relevant: bool


@dataclass(frozen=True)
class Example:
    """A question.

    Attributes:
        kind: why it is shown: won, lost, every, none or close.
        answers: the first that it has, where hits are counted by answers.
        relevant: the first of the passages that are judged relevant, in the order of the collection.
        judged: how many those are.
        findings: one for each row.
    """

    kind: str
    id: str
    text: str
    answers: Sequence[str]
    relevant: Sequence[Shown]
    judged: int
    findings: Sequence[Finding]


@dataclass(frozen=True)
class Examples:
    """The questions that are shown, in the order of their kinds, and how they were chosen.

    Attributes:
        best, other: names of the rows that were compared; no ``other`` where there is one row.
        by_answers: relevant is what holds an answer, and not what is judged so.
        job: of a sweep, the job whose rows these are; empty where that is the only one.
    """

    collection: str
    split: str
    metric: str
    best: str
    other: str | None
    items: Sequence[Example]
    by_answers: bool = False
    job: str = ""

    @property
    def headings(self) -> dict[str, str]:
        """What the questions of each kind have in common."""
        if self.other is None:
            ahead, behind = f"Highest {self.metric} of {self.best}", f"Lowest {self.metric} of {self.best}"
        else:
            ahead, behind = f"{self.best} ahead of {self.other}", f"{self.best} behind {self.other}"
        every, none = f"{self.metric} above 0 in every row", f"{self.metric} of 0 in every row"
        return {WON: ahead, LOST: behind, EVERY: every, NONE: none, CLOSE: "Smallest difference"}

    @property
    def rule(self) -> str:
        """How the questions were chosen, in a few sentences."""
        compared = f"{self.best}, the best row by {self.metric} apart from {self.other}, is compared with {self.other}"
        if self.other is None:
            compared = f"{self.best} is compared with its own mean of {self.metric}"
        return (
            f"Chosen by a rule, not by hand. {compared} question by question: shown are at most {SHARES[WON]} questions"
            f" where it is ahead and {SHARES[LOST]} where it is behind, those with the largest differences; one whose"
            f" {self.metric} is above 0 in every row and one where it is 0 in every row; and, while these are fewer than"
            f" {NUMBER}, those with the smallest differences. A hash of the question's id decides between equals."
        )

    def data(self) -> dict[str, Any]:
        """All of it as plain lists and dictionaries."""
        return {"rule": self.rule, **asdict(self)}


def compared(evaluations: Sequence[Evaluation], bm25: Sequence[bool]) -> Compared:
    """By which rows the questions are chosen: the best besides BM25 (of equal ones the later), with BM25.

    Without a row of BM25 the other is the first row, or the second where the first is the best. The metric is the first.
    """
    metric = next(iter(evaluations[0].per_query))
    means = [float(one.per_query[metric].mean()) for one in evaluations]
    rows = range(len(evaluations))
    best = max([i for i in rows if not bm25[i]] or rows, key=lambda i: (means[i], i))
    others = sorted((i for i in rows if i != best), key=lambda i: not bm25[i])  # BM25 first, else as in the table
    return Compared(metric, best, others[0] if others else None)


def choose(
    query_ids: Sequence[str], values: NDArray[np.float64], best: int, other: int | None
) -> list[tuple[int, str]]:
    """The questions that are shown: their places and kinds.

    Args:
        query_ids: (queries,).
        values: of the metric, (rows, queries).
        best: the row that wins or loses.
        other: the row that it is compared with; None = its own mean.
    """
    gaps = values[best] - (values[best].mean() if other is None else values[other])
    by_hash = sorted(range(len(query_ids)), key=lambda i: (hash64(query_ids[i]), query_ids[i]))
    # sorted() is stable, so that equal ones stay in the order of their hashes
    orders = {
        WON: [i for i in sorted(by_hash, key=lambda i: -gaps[i]) if gaps[i] > 0],
        LOST: [i for i in sorted(by_hash, key=lambda i: gaps[i]) if gaps[i] < 0],
        EVERY: [i for i in by_hash if values[:, i].min() > 0],
        NONE: [i for i in by_hash if values[:, i].max() == 0],
    }
    kind_of: dict[int, str] = {}
    for kind, order in orders.items():
        kind_of |= dict.fromkeys([i for i in order if i not in kind_of][: SHARES[kind]], kind)
    left = sorted((i for i in by_hash if i not in kind_of), key=lambda i: abs(gaps[i]))
    kind_of |= dict.fromkeys(left[: NUMBER - len(kind_of)], CLOSE)
    return list(kind_of.items())


def beginning(text: str, limit: int = PASSAGE) -> str:
    """The beginning of a text in one line: at most ``limit`` characters, up to the end of a word, and an ellipsis.

    Control characters, and those that turn the direction of writing, are left out. A text without blanks, as of
    languages that write none, is cut between letters and not between a letter and its marks.
    """
    line = one_line(text)
    if len(line) <= limit:
        return line
    words = line[: limit + 1].rpartition(" ")[0]
    if len(words) < limit // 2:
        words = line[: between_letters(line, limit)]
    return f"{words.rstrip()} …"


def examples(systems: Sequence[EvaluatedRow], collection: Collection, split: str) -> Examples:
    """The questions of ``split`` that are shown, with what each of the systems found.

    The systems are those of one table, evaluated on the same questions. Raises ``UserError`` where their files are damaged
    or do not belong together.
    """
    evaluations = [Evaluation.load(system.folder / EVALUATION) for system in systems]
    rows = compared(evaluations, [system.bm25 for system in systems])
    for system, one in zip(systems, evaluations, strict=True):
        if one.query_ids != evaluations[0].query_ids or rows.metric not in one.per_query:
            raise UserError(f"{system.folder / EVALUATION}: is of other questions than the table's; {RECOMPUTE}")
    ids, values = evaluations[0].query_ids, np.stack([one.per_query[rows.metric] for one in evaluations])
    chosen = choose(ids, values, rows.best, rows.other)
    rankings = [rankings_of(system.folder / RUN, [ids[place] for place, _ in chosen]) for system in systems]
    questions = _Questions(collection, split, split_metric(rows.metric)[0] == HIT)
    items = [
        questions.example(kind, ids[place], [
            (system, float(values[i, place]), rankings[i][ids[place]]) for i, system in enumerate(systems)
        ])
        for place, kind in chosen
    ]  # fmt: skip
    names = [system.name for system in systems]
    other = None if rows.other is None else names[rows.other]
    return Examples(collection.name, split, rows.metric, names[rows.best], other, items, questions.by_answers)


class _Questions:
    """Questions, passages and what is relevant, read from a collection row by row."""

    def __init__(self, collection: Collection, split: str, by_answers: bool) -> None:
        self.collection, self.by_answers = collection, by_answers
        self.positives = collection.qrels(split).positives() if split in collection.splits else {}
        passages = collection.passages
        self.ids, self.titles, self.texts = (passages.column(name) for name in ("id", "title", "text"))

    def example(self, kind: str, query_id: str, rankings: Sequence[tuple[EvaluatedRow, float, list[str]]]) -> Example:
        """One question; of each system the value of the metric and the ids of the passages, best first."""
        row = int(self.collection.queries.rows_of([query_id])[0])
        if row < 0:
            raise UserError(f"{rankings[0][0].folder / EVALUATION}: no query of the collection is called {query_id!r}")
        relevant = self.positives.get(row, np.empty(0, np.int32)).tolist()
        answers = self._answers(row)
        regex = self.collection.description.get("answers") == "regex"
        holds = AnswerMatcher(answers, regex) if self.by_answers else None
        judge = (lambda passage: holds(self.texts[passage])) if holds else set(relevant).__contains__
        return Example(
            kind,
            query_id,
            beginning(self.collection.queries.column("text")[row], QUESTION),
            [beginning(answer) for answer in answers[:ANSWERS]],
            [self._passage(passage) for passage in relevant[:RELEVANT]],
            len(relevant),
            [self._finding(system, value, ids, judge) for system, value, ids in rankings],
        )

    def _answers(self, row: int) -> list[str]:
        known = self.collection.answers if self.by_answers else None
        return known[row] if known is not None else []

    def _finding(self, system: EvaluatedRow, value: float, ids: list[str], judge: Callable[[int], bool]) -> Finding:
        rows = self.collection.passages.rows_of(ids).tolist()
        if -1 in rows:
            raise UserError(f"{system.folder / RUN}: no passage is called {ids[rows.index(-1)]!r}; {RECOMPUTE}")
        rank = next((rank for rank, row in enumerate(rows, 1) if judge(row)), None)
        first = self._passage(rows[0]) if rows else None
        return Finding(system.name, value, rank, system.depth, first, rank == 1)

    def _passage(self, row: int) -> Shown:
        return Shown(self.ids[row], beginning(self.titles[row]), beginning(self.texts[row]))


def by_kind(items: Sequence[Example]) -> Iterator[tuple[str, list[Example]]]:
    """The questions of each kind that occurs."""
    for kind in dict.fromkeys(item.kind for item in items):
        yield kind, [item for item in items if item.kind == kind]
