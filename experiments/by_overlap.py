"""Compare two rows of a study by the share of a query's words that occur in its relevant passage.

    python experiments/by_overlap.py RESULTS ARTIFACTS METRIC "ROW :: BASELINE" ... [by=words]
    python experiments/by_overlap.py RESULTS ARTIFACTS METRIC "ROW :: BASELINE" ... by=training

RESULTS is the results.json of a run or a sweep, ARTIFACTS its folder outputs/artifacts. Terms are stemmed words without stop
words. The overlap of a query is the share of its terms that occur in its relevant passage. If it has several relevant
passages, the highest share counts. The program prints a line for each pair and each fifth of the overlap: both means in
percent, and the difference as in differences.py. A fifth with fewer than two queries is left out. The last line has the mean
overlap.

With by=training, the queries form two groups: those that share a relevant passage with a training query, and the others.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from differences import cells, measured_rows
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.evaluation.metrics import Evaluation
from condensery.reporting.results import read_results
from condensery.retrieval.indexes.terms import Analyser
from condensery.system.files import read_json
from condensery.text.collection import Collection
from condensery.text.languages import guess

PARTS = 5


def by_overlap(results: Path, artifacts: Path, metric: str, pairs: Sequence[str], by: str = "words") -> list[str]:
    """Return the lines of a Markdown table. Raises ``UserError`` if a row does not exist."""
    rows = {name: list(seeds.values()) for name, seeds in measured_rows(results, artifacts).items()}
    if not rows:
        raise UserError(f"{results}: no row was measured")
    query_ids = next(iter(rows.values()))[0].query_ids
    where = *collection_and_split(results, artifacts), query_ids
    if by == "training":
        named, inside = "passage", trained_on(*where)
        parts = [("is relevant to a training query", inside), ("is not", ~inside)]
        last = f"Of {100 * inside.mean():.0f} of 100 queries a relevant passage is relevant to a training query too."
    else:
        named, shares = "terms in the passage", overlaps(*where)
        fifths = np.minimum((shares * PARTS).astype(int), PARTS - 1)
        parts = [(f"{100 * part // PARTS} to {100 * (part + 1) // PARTS} %", fifths == part) for part in range(PARTS)]
        last = f"A passage has {100 * shares.mean():.0f} of 100 terms of its query in the mean."
    lines = [
        f"| {named} | queries | | | {metric} | | difference | 95 % | p |",
        "|---|--:|---|---|--:|--:|--:|--:|--:|",
    ]
    for pair in pairs:
        names = [name.strip() for name in pair.split("::")]
        if len(names) != 2 or not set(names) <= set(rows):
            raise UserError(f"{pair!r}: two rows with :: between them; there are {sorted(rows)}")
        for share, inside in parts:
            if inside.sum() < 2:
                continue
            sides = [[restricted(evaluation, query_ids, inside) for evaluation in rows[name]] for name in names]
            difference = cells(*sides, metric=metric)
            means = [f"{100 * np.mean([one.per_query[metric] for one in side]):.1f}" for side in sides]
            lines.append(
                f"| {share} | {inside.sum():,} | {names[0]} | {names[1]} | {' | '.join(means)} | {difference} |"
            )
    return [*lines, "", last]


def collection_and_split(results: Path, artifacts: Path) -> tuple[Collection, str]:
    """Return the collection and the split of the rows, according to the manifest of an evaluation."""
    artifact = next(row.artifact for row in read_results(results) if row.artifact)
    manifest = read_json(artifacts / artifact / "manifest.json")
    if "corpus" not in manifest["inputs"]:
        raise UserError(f"{results}: {artifact} is no evaluation of retrieval, so its queries have no passages")
    return Collection(artifacts / manifest["inputs"]["corpus"][0]), manifest["config"]["split"]


def overlaps(collection: Collection, split: str, query_ids: Sequence[str]) -> NDArray[np.float64]:
    """Return for each query the share of its terms that occur in its relevant passage, (n,), between 0 and 1."""
    rows_of = {query: row for row, query in enumerate(collection.queries.column("id"))}
    relevant = collection.qrels(split).positives()
    queries, titles, texts = (
        collection.queries.column("text"),
        collection.passages.column("title"),
        collection.passages.column("text"),
    )
    analyser = Analyser(stemmer="porter", language=guess(texts))
    shares = np.zeros(len(query_ids))
    for at, query in enumerate(query_ids):
        asked = set(analyser.terms(queries[rows_of[query]]))
        for passage in relevant.get(rows_of[query], ()):
            held = asked & set(analyser.terms(f"{titles[int(passage)]} {texts[int(passage)]}"))
            shares[at] = max(shares[at], len(held) / max(1, len(asked)))
    return shares


def trained_on(collection: Collection, split: str, query_ids: Sequence[str]) -> NDArray[np.bool_]:
    """Return for each query whether a passage is relevant both to it and to a query of the split train, (n,)."""
    rows_of = {query: row for row, query in enumerate(collection.queries.column("id"))}
    relevant, trained = collection.qrels(split).positives(), collection.qrels("train").positives()
    seen = np.unique(np.concatenate([*trained.values(), np.empty(0, np.int64)]))
    return np.array([bool(np.isin(relevant.get(rows_of[query], []), seen).any()) for query in query_ids])


def restricted(evaluation: Evaluation, query_ids: Sequence[str], inside: NDArray[np.bool_]) -> Evaluation:
    """Return the queries where ``inside`` (n,) is true. Raises ``UserError`` if others were measured."""
    if list(evaluation.query_ids) != list(query_ids):
        raise UserError("the rows were measured on different queries")
    ids = [query for query, kept in zip(query_ids, inside, strict=True) if kept]
    return Evaluation(ids, {metric: values[inside] for metric, values in evaluation.per_query.items()})


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    try:
        results, artifacts, metric, *pairs = sys.argv[1:]
        by = [pair.removeprefix("by=") for pair in pairs if pair.startswith("by=")] or ["words"]
        if by[-1] not in ("words", "training"):
            raise UserError(f"by={by[-1]}: words or training is expected")
        pairs = [pair for pair in pairs if not pair.startswith("by=")]
        print(*by_overlap(Path(results), Path(artifacts), metric, pairs, by[-1]), sep="\n")
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")
