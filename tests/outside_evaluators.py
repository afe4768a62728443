"""Evaluate a run file with two other libraries: pytrec_eval, which contains trec_eval, and ir_measures.

They get only the lines of the run file and the judgements.
"""

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from condensery.evaluation.metrics import Evaluation
from condensery.evaluation.names import HIT, split_metric
from condensery.system.files import read_json
from condensery.text.collection import Collection

PER_QUERY = {"RR": "recip_rank", "nDCG": "ndcg", "R": "recall", "AP": "map", "P": "P", "Success": "success"}
CUT = {"ndcg": "ndcg_cut", "map": "map_cut"}  # trec_eval's names of metrics with a cutoff, where they differ

Lines = dict[str, dict[str, float]]  # query -> passage -> score, in the order of the file


def read_lines(path: Path) -> Lines:
    """Read a run file as other programs do. The column of ranks is ignored."""
    run: Lines = {}
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            query, _, passage, _, score, _ = line.split()
            run.setdefault(query, {})[passage] = float(score)
    return run


def judgements(collection: Collection, split: str) -> dict[str, dict[str, int]]:
    """Return query -> passage -> grade."""
    qrels, judged = collection.qrels(split), dict[str, dict[str, int]]()
    queries, passages = collection.queries.column("id"), collection.passages.column("id")
    for query, passage, grade in zip(qrels.query_rows, qrels.passage_rows, qrels.grades, strict=True):
        judged.setdefault(queries[int(query)], {})[passages[int(passage)]] = int(grade)
    return judged


def sorted_as_trec_eval(scores: dict[str, float]) -> list[str]:
    """Sort passages as trec_eval does: by score in single precision, then by id, both descending."""
    return sorted(scores, key=lambda passage: (np.float32(scores[passage]), passage.encode()), reverse=True)


def measured(run: Lines, judged: dict[str, dict[str, int]], metric: str, relevant_from: int = 1) -> dict[str, float]:
    """Return the value of a metric for every judged query, by trec_eval; 0 for a query without results."""
    import pytrec_eval

    measure, cutoff = split_metric(metric)
    name = PER_QUERY[measure]
    level = 1 if measure == "nDCG" else relevant_from
    asked = name if cutoff is None or measure == "RR" else f"{CUT.get(name, name)}.{cutoff}"
    found = pytrec_eval.RelevanceEvaluator(judged, {asked}, relevance_level=level).evaluate(run)
    values = {query: found.get(query, {}).get(asked.replace(".", "_"), 0.0) for query in judged}
    if measure == "RR" and cutoff:  # trec_eval has no cutoff for it
        values = {query: value if value >= 1 / cutoff - 1e-9 else 0.0 for query, value in values.items()}
    return values


def measured_by_ir_measures(
    run: Lines, judged: dict[str, dict[str, int]], metric: str, relevant_from: int = 1
) -> dict[str, float]:
    """Return the same as ``measured``, by ir_measures with the provider that it prefers."""
    import ir_measures

    measure, cutoff = split_metric(metric)
    asked = getattr(ir_measures, measure)
    asked = asked if measure == "nDCG" else asked(rel=relevant_from)
    asked = asked @ cutoff if cutoff else asked
    found = {one.query_id: one.value for one in ir_measures.iter_calc([asked], judged, run)}
    return {query: found.get(query, 0.0) for query in judged}


def check(run: Lines, evaluation: Evaluation, collection: Collection, split: str) -> None:
    """Check that trec_eval sorts the lines in the same order, and that both libraries agree with ``evaluation``."""
    for query, scores in run.items():
        assert sorted_as_trec_eval(scores) == list(scores), f"the passages of {query} tie"
    judged = judgements(collection, split) if split in collection.splits else {}
    for metric, values in evaluation.per_query.items():
        if split_metric(metric)[0] != HIT:
            ours: NDArray[np.float64] = values
            for outside in (measured, measured_by_ir_measures):
                theirs = outside(run, judged, metric, collection.qrels(split).relevant_from)
                given = [theirs[query] for query in evaluation.query_ids]
                np.testing.assert_allclose(ours, given, atol=1e-6, rtol=0, err_msg=f"{metric} by {outside.__name__}")


def agree(folder: Path) -> None:
    """Call ``check`` for an artifact of the stage ``evaluate``, with only its files and its manifest."""
    manifest = read_json(folder / "manifest.json")
    (corpus,) = manifest["inputs"]["corpus"]
    collection = Collection(folder.resolve().parents[1] / corpus)
    check(
        read_lines(folder / "run.trec.gz"),
        Evaluation.load(folder / "evaluation.npz"),
        collection,
        manifest["config"]["split"],
    )
