"""Metrics per query, by trec_eval's definitions (through ir_measures and its provider pytrec_eval).

Every query of the split counts. A query without results, or without a relevant passage among its results, has the value
0. ``Hit@k`` uses answers instead of judgements, and is computed by this module instead of trec_eval.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
from ir_measures.measures import Measure
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.evaluation.names import HIT, split_metric
from condensery.retrieval.runs import Run
from condensery.system.files import RECOMPUTE, atomic, load_arrays
from condensery.text.answers import AnswerMatcher
from condensery.text.collection import Collection, Qrels

QUERIES = 1000  # number of queries that trec_eval gets at a time, because its dictionaries of strings are large


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one run.

    Attributes:
        query_ids: ids of the judged queries, sorted as strings.
        per_query: name of a metric, as the user wrote it -> float64 (queries,), in the order of ``query_ids``.
    """

    query_ids: list[str]
    per_query: dict[str, NDArray[np.float64]]

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each metric over the queries."""
        return {name: float(values.mean()) for name, values in self.per_query.items()}

    def save(self, path: Path) -> None:
        """Write an .npz file with ``query_ids`` and an array for each metric."""
        with atomic(path) as temporary, open(temporary, "wb") as stream:
            arrays: dict[str, Any] = {"query_ids": np.array(self.query_ids), **self.per_query}
            np.savez(stream, **arrays)

    @classmethod
    def load(cls, path: Path) -> "Evaluation":
        """Read a file that ``save`` wrote. Raises ``UserError`` for any other file."""
        values = load_arrays(path)
        if "query_ids" not in values:
            raise UserError(f"{path}: has no query_ids, so it is not an evaluation; {RECOMPUTE}")
        return cls(values.pop("query_ids").tolist(), values)


def evaluate(run: Run, collection: Collection, split: str, metrics: list[str]) -> Evaluation:
    """Evaluate a run on a split: Hit@k by the answers of the queries, all other metrics by judgements.

    Raises ``UserError`` for an unknown metric and for a split that lacks queries, judgements or answers.
    """
    query_rows = collection.questions(split)
    if not len(query_rows):
        raise UserError(f"split '{split}' of collection '{collection.name}' has no judged query; choose another split")
    by_answers = [name for name in metrics if split_metric(name)[0] == HIT]
    by_judgements = [name for name in metrics if name not in by_answers]
    values = score(run.query_rows, run.passage_rows, collection.qrels(split), by_judgements) if by_judgements else {}
    if by_answers:
        values |= score_answers(run, collection, query_rows, by_answers)
    ids = collection.queries.column("id").take(query_rows)
    order = sorted(range(len(ids)), key=ids.__getitem__)
    return Evaluation([ids[i] for i in order], {name: values[name][order] for name in metrics})


def score_answers(
    run: Run, collection: Collection, query_rows: NDArray[np.integer], metrics: list[str]
) -> dict[str, NDArray[np.float64]]:
    """Compute Hit@k: 1 if one of a query's first k passages contains an answer (top-k accuracy, Karpukhin et al. 2020).

    Passages are checked in order, without titles, up to the first passage that contains an answer. A query without
    answers has the value 0.

    Returns:
        Name of a metric -> float64 (queries,), in the order of ``query_rows``.

    Raises:
        UserError: the collection has no answers.
    """
    if collection.answers is None:
        raise UserError(f"collection '{collection.name}' has no answers; {', '.join(metrics)} cannot be measured")
    cutoffs = {name: split_metric(name)[1] or 0 for name in metrics}
    texts, regex = collection.passages.column("text"), collection.description["answers"] == "regex"
    place = {row: i for i, row in enumerate(run.query_rows.tolist())}
    ranks = np.full(len(query_rows), np.inf)
    for i, row in enumerate(query_rows.tolist()):
        if row in place:
            holds = AnswerMatcher(collection.answers[row], regex)
            passages = run.passage_rows[place[row], : max(cutoffs.values())].tolist()
            hits = (rank for rank, passage in enumerate(passages, 1) if passage >= 0 and holds(texts[passage]))
            ranks[i] = next(hits, np.inf)
    return {name: (ranks <= cutoff).astype(np.float64) for name, cutoff in cutoffs.items()}


def score(
    query_rows: NDArray[np.integer], passage_rows: NDArray[np.integer], qrels: Qrels, metrics: list[str]
) -> dict[str, NDArray[np.float64]]:
    """Compute metrics of rankings in memory.

    Args:
        query_rows: (n,) rows of the queries; queries without a judgement are ignored.
        passage_rows: (n, k) rows of the passages retrieved for each query, best first, padded with -1.
        qrels: judgements.
        metrics: names of metrics, in the form that ``split_metric`` reads, except ``Hit``, which uses answers.

    Returns:
        Name of a metric -> float64 (queries,), in the order of ``qrels.query_set``.
    """
    parsed = {name: split_metric(name) for name in metrics}
    place = {row: i for i, row in enumerate(np.asarray(qrels.query_set).tolist())}
    results = {name: np.zeros(len(place)) for name in metrics}
    judged = _judged(qrels)
    measures = {name: _measure(*what, qrels.relevant_from) for name, what in parsed.items()}
    cutoffs = [cutoff for _, cutoff in parsed.values()]
    looked_at = None if None in cutoffs else max(filter(None, cutoffs))  # deeper passages change no metric
    known = [i for i, row in enumerate(query_rows.tolist()) if row in place]
    for first in range(0, len(known), QUERIES):
        block = known[first : first + QUERIES]
        names = [str(int(query_rows[i])) for i in block]
        run = {name: _ranks(passage_rows[i, :looked_at]) for name, i in zip(names, block, strict=True)}
        evaluator = ir_measures.pytrec_eval.evaluator(set(measures.values()), {name: judged[name] for name in names})
        values: dict[Measure, dict[str, float]] = {measure: {} for measure in measures.values()}
        for result in evaluator.iter_calc(run):
            values[result.measure][result.query_id] = result.value
        places = [place[int(name)] for name in names]
        for metric, measure in measures.items():
            results[metric][places] = [values[measure].get(name, 0.0) for name in names]
    for metric, (what, cutoff) in parsed.items():
        if what == "RR" and cutoff:
            # trec_eval computes 1/rank without a cutoff. So the value of a first hit beyond the cutoff is set to 0.
            results[metric][results[metric] < 1.0 / cutoff] = 0.0
    return results


def _measure(name: str, cutoff: int | None, relevant_from: int) -> Measure:
    measure: Measure = getattr(ir_measures, name)
    graded = measure if name == "nDCG" else measure(rel=relevant_from)  # NDCG's gain is the grade itself
    return graded if cutoff is None or name == "RR" else graded @ cutoff


def _judged(qrels: Qrels) -> dict[str, dict[str, int]]:
    """Return judgements in trec_eval's form: query -> passage -> grade. trec_eval treats a negative grade as irrelevant."""
    judged: dict[str, dict[str, int]] = {}
    columns = (column.tolist() for column in (qrels.query_rows, qrels.passage_rows, qrels.grades))
    for query, passage, grade in zip(*columns, strict=True):
        judged.setdefault(str(query), {})[str(passage)] = grade
    return judged


def _ranks(passages: NDArray[np.integer]) -> dict[str, float]:
    """Return one ranking in trec_eval's form: passage -> score, where the score is -rank.

    The real scores could change the order, because trec_eval reads scores as float32, sorts by score, and puts equal
    scores in descending order of the passage id. With strictly decreasing numbers, trec_eval keeps the given order.
    """
    retrieved = passages[passages >= 0].tolist()
    return dict(zip(map(str, retrieved), map(float, range(0, -len(retrieved), -1)), strict=True))
