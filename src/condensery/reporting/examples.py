"""Show the results of each row of a table for ten example questions, so that a reader sees what the numbers mean.

``choose`` selects the questions by the per-question values of the metric. ``examples`` reads only the texts and rankings of
the selected questions into memory.
"""

from collections.abc import Callable, Sequence
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
NUMBER = 10  # number of questions shown, or all if there are fewer
WON, LOST, EVERY, NONE, CLOSE = "won", "lost", "every", "none", "close"  # kinds: the reason why a question is shown
SHARES = {WON: 4, LOST: 4, EVERY: 1, NONE: 1}  # maximum number of questions per kind; close ones fill up to NUMBER
PASSAGE, QUESTION = 200, 400  # maximum number of characters shown of a passage and of a question
RELEVANT, ANSWERS = 3, 5  # maximum number of relevant passages and of answers shown


@dataclass(frozen=True)
class EvaluatedRow:
    """A row of the table.

    Attributes:
        name: name of the row.
        folder: folder of its evaluation.
        depth: depth of its ranking.
        bm25: whether it is a BM25 row.
    """

    name: str
    folder: Path
    depth: int
    bm25: bool = False


@dataclass(frozen=True)
class Shown:
    """A passage for display: its id, and the beginnings of its title and text."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Finding:
    """The result of one row for one question.

    Attributes:
        row: name of the row.
        value: value of the metric, between 0 and 1.
        rank: rank of the first relevant passage; None if no passage among the first ``depth`` is relevant.
        depth: depth of the row's ranking.
        first: the passage at rank 1; None if the row found nothing.
        relevant: whether the passage at rank 1 is relevant.
    """

    row: str
    value: float
    rank: int | None
    depth: int
    first: Shown | None
    relevant: bool


@dataclass(frozen=True)
class Example:
    """An example question.

    Attributes:
        kind: reason why it is shown: won, lost, every, none or close (``Examples.headings``).
        answers: its first answers, if passages are relevant because they contain an answer.
        relevant: the first passages judged relevant, in the order of the collection.
        judged: number of passages judged relevant.
        findings: the result of each row.
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
    """The example questions, in the order of their kinds, and the rule by which they were chosen.

    Attributes:
        best, other: names of the compared rows; ``other`` is None if there is only one row.
        by_answers: True = a passage is relevant if it contains an answer, False = a passage is relevant if it is judged so.
        job: the sweep job to which the rows belong; empty if there is only one job.
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
        """Heading of the questions of each kind, by kind."""
        if self.other is None:
            ahead, behind = f"Highest {self.metric} of {self.best}", f"Lowest {self.metric} of {self.best}"
        else:
            ahead, behind = f"{self.best} ahead of {self.other}", f"{self.best} behind {self.other}"
        every, none = f"{self.metric} above 0 in every row", f"{self.metric} of 0 in every row"
        return {WON: ahead, LOST: behind, EVERY: every, NONE: none, CLOSE: "Smallest difference"}

    @property
    def rule(self) -> str:
        """Description of the rule by which the questions were chosen, in a few sentences."""
        compared = f"{self.best}, the best row by {self.metric} apart from {self.other}, is compared with {self.other}"
        if self.other is None:
            compared = f"{self.best} is compared with its own mean of {self.metric}"
        return (
            f"A rule chooses these questions. {compared} question by question. The questions are at most {SHARES[WON]}"
            f" where it is ahead and {SHARES[LOST]} where it is behind, those with the largest differences; one whose"
            f" {self.metric} is above 0 in every row and one where it is 0 in every row; and, while these are fewer than"
            f" {NUMBER}, those with the smallest differences. A hash of the question's id breaks ties."
        )

    def data(self) -> dict[str, Any]:
        """Return the examples and the rule as plain lists and dictionaries."""
        return {"rule": self.rule, **asdict(self)}


def compared(evaluations: Sequence[Evaluation], bm25: Sequence[bool]) -> tuple[str, int, int | None]:
    """Return the metric by which the questions are chosen, and the indices of the best row except BM25 and of the BM25 row.

    The second index is None if there is only one row. Of several rows with the highest mean, the last is the best. If there
    is no BM25 row, the best row is compared with the first row, or with the second row if the first is the best. The metric
    is the first metric of the evaluations.

    Args:
        evaluations: evaluation of each row.
        bm25: for each row, whether it is a BM25 row.
    """
    metric = next(iter(evaluations[0].per_query))
    means = [float(one.per_query[metric].mean()) for one in evaluations]
    rows = range(len(evaluations))
    best = max([i for i in rows if not bm25[i]] or rows, key=lambda i: (means[i], i))
    others = sorted((i for i in rows if i != best), key=lambda i: not bm25[i])  # BM25 first, else as in the table
    return metric, best, others[0] if others else None


def choose(
    query_ids: Sequence[str], values: NDArray[np.float64], best: int, other: int | None
) -> list[tuple[int, str]]:
    """Choose the questions that are shown.

    Args:
        query_ids: ids of the questions, (queries,).
        values: values of the metric, float64 (rows, queries).
        best: index of the row whose wins and losses are shown.
        other: index of the row with which ``best`` is compared on each question; None = ``best`` is compared with its own
            mean over all questions.

    Returns:
        (index, kind) of each chosen question.
    """
    gaps = values[best] - (values[best].mean() if other is None else values[other])
    by_hash = sorted(range(len(query_ids)), key=lambda i: (hash64(query_ids[i]), query_ids[i]))
    # sorted() is stable, so questions with equal gaps stay in the order of their hashes
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
    """Truncate a text to at most ``limit`` characters in one line, at a word boundary, with an ellipsis at the end.

    A shorter text gets no ellipsis. Control characters and direction marks are removed. A text without spaces is cut between
    letters, but never between a letter and its combining marks.
    """
    line = one_line(text)
    if len(line) <= limit:
        return line
    words = line[: limit + 1].rpartition(" ")[0]
    if len(words) < limit // 2:
        words = line[: between_letters(line, limit)]
    return f"{words.rstrip()} …"


def examples(systems: Sequence[EvaluatedRow], collection: Collection, split: str) -> Examples:
    """Return the example questions of ``split``, with the results of each system.

    The systems must belong to one table and be evaluated on the same questions. Raises ``UserError`` if their files are
    damaged or do not belong together.
    """
    evaluations = [Evaluation.load(system.folder / EVALUATION) for system in systems]
    metric, best, other = compared(evaluations, [system.bm25 for system in systems])
    for system, one in zip(systems, evaluations, strict=True):
        if one.query_ids != evaluations[0].query_ids or metric not in one.per_query:
            raise UserError(f"{system.folder / EVALUATION}: has other questions than the table; {RECOMPUTE}")
    ids, values = evaluations[0].query_ids, np.stack([one.per_query[metric] for one in evaluations])
    chosen = choose(ids, values, best, other)
    rankings = [rankings_of(system.folder / RUN, [ids[place] for place, _ in chosen]) for system in systems]
    questions = _Questions(collection, split, split_metric(metric)[0] == HIT)
    items = [
        questions.example(kind, ids[place], [
            (system, float(values[i, place]), rankings[i][ids[place]]) for i, system in enumerate(systems)
        ])
        for place, kind in chosen
    ]  # fmt: skip
    names = [system.name for system in systems]
    against = None if other is None else names[other]
    return Examples(collection.name, split, metric, names[best], against, items, questions.by_answers)


class _Questions:
    """Reader of a collection's questions, passages and relevant passages, row by row."""

    def __init__(self, collection: Collection, split: str, by_answers: bool) -> None:
        self.collection, self.by_answers = collection, by_answers
        self.positives = collection.qrels(split).positives() if split in collection.splits else {}
        self.ids, self.titles, self.texts = (collection.passages.column(name) for name in ("id", "title", "text"))

    def example(self, kind: str, query_id: str, rankings: Sequence[tuple[EvaluatedRow, float, list[str]]]) -> Example:
        """Build the example of one question.

        Args:
            kind: reason why the question is shown.
            query_id: id of the question.
            rankings: for each system, the system, its value of the metric, and the ids of its ranked passages, best first.
        """
        row = int(self.collection.queries.rows_of([query_id])[0])
        if row < 0:
            raise UserError(f"{rankings[0][0].folder / EVALUATION}: no query of the collection is called {query_id!r}")
        relevant = self.positives.get(row, np.empty(0, np.int32)).tolist()
        known = self.collection.answers if self.by_answers else None
        answers = known[row] if known is not None else []
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

    def _finding(self, system: EvaluatedRow, value: float, ids: list[str], judge: Callable[[int], bool]) -> Finding:
        rows = self.collection.passages.rows_of(ids).tolist()
        if -1 in rows:
            raise UserError(f"{system.folder / RUN}: no passage is called {ids[rows.index(-1)]!r}; {RECOMPUTE}")
        rank = next((rank for rank, row in enumerate(rows, 1) if judge(row)), None)
        return Finding(system.name, value, rank, system.depth, self._passage(rows[0]) if rows else None, rank == 1)

    def _passage(self, row: int) -> Shown:
        return Shown(self.ids[row], beginning(self.titles[row]), beginning(self.texts[row]))
