"""Recommend a row of a table, and explain in words the gain and the cost of training.

The recommended row is the simplest row that is nearly as good as the best row: not significantly worse, and at most
``CLOSE`` lower.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from condensery.errors import number_of
from condensery.evaluation.significance import CHANCE, FEW, interval, queries_needed
from condensery.reporting.choice import HELD_OUT, Kept, choice
from condensery.reporting.conclusion import BM25, Lines
from condensery.reporting.table import of_each_seed

CLOSE = 0.01  # a simpler row that is further below the best row is never recommended, even if there are few queries
SURE = 0.05  # with a lower p-value, the trained weights that were kept are better than the initial weights
UNREADABLE = 0.1  # a retriever is not recommended if its tokenizer does not know a larger share of the tokens


@dataclass(frozen=True)
class Made:
    """How a row was produced.

    Attributes:
        parts: the BM25 index and the encoders with which the row searches, as kind/id. If the stage ``keep_best`` kept only
            the initial checkpoint of a training run, the encoder is this checkpoint.
        trained: whether any of the parts was trained.
        seconds: seconds that it took to make the row. Artifacts that an untrained row also uses are not counted.
        kept: content of ``kept.json`` if the stage ``keep_best`` chose the encoder; None otherwise.
        unknown: share of the texts' tokens that the encoder's tokenizer does not know.
    """

    parts: frozenset[str]
    trained: bool = False
    seconds: float = 0.0
    kept: Kept | None = None
    unknown: float = 0.0


@dataclass(frozen=True)
class Recommendation:
    """The recommended row, and the reasons in a few sentences (``text``)."""

    row: str
    text: str


def recommendation(lines: Lines, made: Mapping[str, Made]) -> Recommendation | None:
    """Recommend the simplest row that is at most ``CLOSE`` below the highest mean, and not significantly below it.

    No simpler row may have a higher mean than the recommended row. The first criterion in which two rows differ decides which
    row is simpler: no training; fewer parts; BM25; an encoder that was chosen on other queries than the evaluated ones
    (``Made.kept``); less time.

    With fewer than ``FEW`` queries, chance decides which row is the highest. The row that ``unmeasured`` would choose is then
    recommended if ``_expected`` gives a reason for this row, and the row is not significantly worse than the highest row.

    The text begins with the gain of training: each encoder that ``keep_best`` chose is compared with its baseline in the
    table. Intervals are 95 % confidence intervals, as in the table (``significance.interval``).

    Args:
        lines: the lines of the table.
        made: artifact of a row -> how the row was produced.

    Returns:
        The recommendation; None if the rows cannot be compared (see ``conclusion``).
    """
    if len(lines.systems) < 2:
        return None
    words = _Words(lines, made)
    order = sorted(range(len(lines.systems)), key=words.simplicity)
    highest = max(order, key=words.mean)  # ties go to the simplest row
    p_of = lines.p_values(highest)
    near = [at for at in order if at == highest or p_of[at] >= words.level]
    close = [at for at in near if words.mean(highest) - words.mean(at) <= CLOSE]
    use = next(at for at in close if not any(words.mean(other) > words.mean(at) for other in order[: order.index(at)]))
    why = worse = ""
    if words.queries < FEW:
        expected, reason = _expected({words.name(at): one for at, one in enumerate(words.made)})
        at_expected = next(at for at in order if words.name(at) == expected)
        if ": " in reason and at_expected in near:
            use, why = at_expected, reason
        elif ": " in reason:
            worse = expected
    sentences = [
        *(words.on_training(at) for at in sorted(order)),
        words.on_use(use, [at for at in (order[0], near[0]) if at != highest], why),
        words.on_highest(highest, use, p_of, order),
        words.on_bias(use, why, worse),
    ]
    return Recommendation(lines.systems[use].name, " ".join(filter(None, (*sentences, lines.left_out.strip()))))


class _Words:
    """Writes the sentences about the lines of a table (``conclusion.Lines``). The argument ``at`` is a line's index."""

    def __init__(self, lines: Lines, made: Mapping[str, Made]) -> None:
        self.lines, self.level = lines, lines.how.level
        self.queries = len(lines.systems[0].evaluation.query_ids)
        # the first seed that kept trained weights; if none did, the first seed
        seeds = ([made[row.artifact] for row in of[0]] for of in lines.measured.seeds)
        self.made = [next((one for one in of if one.trained), of[0]) for of in seeds]

    def name(self, at: int) -> str:
        return self.lines.systems[at].name

    def mean(self, at: int) -> float:
        return self.lines.systems[at].mean

    def simplicity(self, at: int) -> tuple[bool, int, bool, bool, float, int]:
        made = self.made[at]
        lexical = self.lines.systems[at].kind == BM25
        of_test_alone = made.trained and made.kept is None
        return made.trained, len(made.parts), not lexical, of_test_alone, made.seconds, at

    def on_training(self, at: int) -> str:
        """Return a sentence that compares a line's trained encoder with the line's baseline.

        The sentence is empty if ``keep_best`` did not choose the encoder, if the encoder is fused with other parts, or if
        there is no baseline.
        """
        made = self.made[at]
        against = self.lines.measured.baseline_of(at, self.lines.how.baseline)
        if made.kept is None or len(made.parts) > 1 or against is None:
            return ""
        if not made.trained:
            same = made.parts == self.made[against].parts
            what = f"has the weights of {self.name(against)}" if same else "has the initial weights"
            return f"{self.name(at)} {what}, because no trained weights are kept. {choice(made.kept)}."
        p = self.lines.p_value(at, against)
        for_what = f"for {_duration(made.seconds)} of training"
        direction = "is ahead of" if self.mean(at) > self.mean(against) else "is behind"
        relation = direction if p < self.level else "does not differ significantly from"
        means = f"{self.lines.metric} {100 * self.mean(at):.1f} against {100 * self.mean(against):.1f}"
        return f"{self.name(at)} {relation} {self.name(against)}: {means}, {self._lead(at, against, p)}, {for_what}."

    def on_use(self, use: int, simpler: Sequence[int], why: str) -> str:
        """Return a sentence that recommends the row ``use`` and compares it with the ``simpler`` rows.

        ``why``: the cost and the reason if the row is not chosen by its metric value; otherwise empty.
        """
        cost = f", after {_duration(self.made[use].seconds)} of training" if self.made[use].trained and not why else ""
        figure = f"{self.lines.metric} {100 * self.mean(use):.1f}{cost}"
        parts = [f"Use {self.name(use)}{why}", figure] if why else [f"Use {self.name(use)}: {figure}"]
        for other in dict.fromkeys(simpler):
            if other != use:
                lead = self._told(use, other, self.lines.p_values(other)[use])
                parts.append(f"{self.name(other)} has {100 * self.mean(other):.1f}, {lead}")
        return "; ".join(parts) + "."

    def on_highest(self, highest: int, use: int, p_of: Mapping[int, float], order: Sequence[int]) -> str:
        """Return a sentence that says why the row with the highest mean is not recommended.

        The sentence is empty if the recommended row has the same mean. ``order``: all rows, the simplest first.
        """
        if self.mean(highest) == self.mean(use):
            return ""
        made = self.made[highest]
        cost = f", after {_duration(made.seconds)} of training," if made.trained and not self.made[use].trained else ""
        lead = self._told(highest, use, p_of[use])
        simpler = f", and {self.name(use)} is simpler" if order.index(use) < order.index(highest) else ""
        return f"{self.name(highest)}{cost} has the highest score, {100 * self.mean(highest):.1f}, {lead}{simpler}."

    def on_bias(self, use: int, why: str, worse: str) -> str:
        """Return a warning that the row ``use`` was chosen on the same queries on which it is evaluated.

        With ``why``, the row was not chosen on these queries, and the sentence says so. ``worse`` is the name of the row that
        would be recommended without judgements, if this row is significantly worse; otherwise empty.

        If ``keep_best`` did not choose the row's trained weights, but kept the initial weights for another row, the warning
        also names the queries of that choice.
        """
        split = self.lines.measured.seeds[0][0][0].split
        if why:
            few = f"So few queries ({self.queries} of {split})"
            return f"{few} cannot choose a row: this row is the one that is recommended without judgements."
        bias = CHANCE if self.queries < FEW else "so its score is slightly too optimistic"
        if worse:
            bias = f"on which {worse}, the row that is recommended without judgements, is significantly worse"
        starts = [one.kept for one in self.made if one.kept and one.kept["by"] and not one.trained]
        if starts and self.made[use].trained and not self.made[use].kept:
            kept = max(starts, key=lambda one: len(one["values"]))
            bias += f"; the {number_of(kept['queries'], kept['by'])} chose the initial weights instead"
        return f"The row is chosen on the same {number_of(self.queries, 'queries')} of {split}, {bias}."

    def _sides(self, at: int, against: int) -> list[list[NDArray[np.float64]]]:
        """Return, for each of two lines, the values (queries,) of each seed. Both lines have the same order of queries."""
        ids = self.lines.systems[against].evaluation.query_ids
        return [of_each_seed(self.lines.measured.seeds[one][0], self.lines.metric, ids) for one in (at, against)]

    def _told(self, at: int, against: int, p: float) -> str:
        """Return the text of ``_lead``. Without significance, it also says how many queries would show the difference."""
        if p < self.level:
            return self._lead(at, against, p)
        one, other = (np.mean(side, axis=0) for side in self._sides(at, against))  # (queries,) each
        needed = queries_needed(one - other, self.level / (len(self.made) - 1))
        more = "" if needed is None else f" (about {max(needed, self.queries + 1):,} would be needed)"
        return (
            f"{self._lead(at, against, p)}: they cannot be told apart with {number_of(self.queries, 'queries')}{more}"
        )

    def _lead(self, at: int, against: int, p: float) -> str:
        """Return the difference of two lines with its interval and p-value: ``+2.6 (0.9 to 4.2, p < 0.01)``."""
        reach = interval(*self._sides(at, against))
        shown = f"p < {self.level:g}" if p < self.level else f"p = {p:.2g} after Holm's correction"
        low, high, difference = (
            round(100 * value, 1) + 0.0  # no -0.0
            for value in (reach.low, reach.high, self.mean(at) - self.mean(against))
        )
        known = f"{low:.1f} to {high:.1f}, " if low < high or not difference else ""  # one query has no interval
        return f"{difference:+.1f} ({known}{shown})"


def unmeasured(made: Mapping[str, Made], split: str) -> Recommendation:
    """Recommend a row if no query is judged.

    If any row fuses several parts, only such rows are considered. The highest by ``_best_founded`` is chosen. If several are
    equal, the last of them is chosen. If an earlier row has the same parts as this row, the first such row is recommended
    instead. BM25 is recommended if the retriever cannot read the text (``UNREADABLE``), or if the fusion is not better than
    BM25 alone on the queries on which the weights were chosen. The text also names these queries.

    Args:
        made: row -> how it was produced, in the order of the table.
        split: the split that the table would measure.
    """
    choices: dict[str, str] = {}  # each choice -> the first row that has it
    for row, one in made.items():
        if one.kept is not None:
            choices.setdefault(choice(one.kept), row)
    sentences = [f"No query is judged for the split {split} (data.splits.{split}), so no row is measured."]
    if any(one.kept is not None and one.kept["by"] == HELD_OUT for one in made.values()):
        sentences.append("Weights are chosen by a proxy: to find the passage from which a sentence was cut.")
    sentences += [f"{row}: {words}." for words, row in choices.items()]
    use, why = _expected(made)
    return Recommendation(use, " ".join([*sentences, f"Use {use}{why}."]))


def _expected(made: Mapping[str, Made]) -> tuple[str, str]:
    """Return the row that ``unmeasured`` recommends, and a text with its cost and, after a colon, the reason."""
    joined = [row for row, one in made.items() if len(one.parts) > 1]
    last = max(reversed(joined or list(made)), key=lambda row: _best_founded(made[row]))
    use = next(row for row, one in made.items() if one.parts == made[last].parts)
    cost = f", after {_duration(made[use].seconds)} of training" if made[use].trained else ""
    lexical = next((row for row, one in made.items() if all(part.startswith(f"{BM25}/") for part in one.parts)), None)
    unknown = made[use].unknown
    if lexical and unknown > UNREADABLE:
        return lexical, f": {unknown:.0%} of the tokens of the text are unknown to the retriever's tokenizer"
    alone = {one.kept["by"]: one.kept.get("MRR@10", 0) for one in made.values() if one.kept and len(one.parts) == 1}
    doubt = ""
    for kept in (one.kept for one in made.values() if one.kept and one.parts == made[use].parts and "BM25" in one.kept):
        if lexical and kept["BM25"] >= kept["MRR@10"]:
            return lexical, f": on {kept['by']}, its fusion with a retriever does not rank better"
        if alone.get(kept["by"], 0) > kept["MRR@10"]:
            proxy = ", but sentences are only a proxy" if kept["by"] == HELD_OUT else ""
            doubt = f"; on these {number_of(kept['queries'], kept['by'])} the retriever alone scores higher{proxy}"
    if len(made[use].parts) > 1:
        cost += ": the fusion of BM25 and a retriever mostly ranks better than either"
    return use, cost + doubt


def _best_founded(made: Made) -> tuple[bool, int]:
    """Return whether trained weights were kept for a significant gain, and among how many candidates they were chosen."""
    kept = made.kept or {}
    return bool(kept.get("share")) and kept["p"] < SURE, len(kept.get("values", ()))


def _duration(seconds: float) -> str:
    """Format a duration in words: ``40 seconds``, ``4 minutes``, ``1.5 hours``."""
    for unit, size in (("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 1.5 * size:
            number = f"{seconds / size:.1f}".removesuffix(".0") if unit == "hour" else f"{seconds / size:.0f}"
            return f"{number} {unit}s"
    return number_of(round(max(1.0, seconds)), "seconds")
