"""Stage ``read_run``: makes an index of the rankings in a TREC run file, so that another system is a row of the table."""

from typing import Any

import numpy as np

from condensery.errors import UserError, number_of, shown
from condensery.retrieval.indexes.reranked import write_reranked
from condensery.retrieval.negative_pool import places_of
from condensery.retrieval.ranking import strictly_falling
from condensery.retrieval.runs import read_run as read_rankings
from condensery.stages.base import Context
from condensery.stages.rankings.config import ReadRunConfig
from condensery.text.collection import Collection


def read_run(config: ReadRunConfig, context: Context) -> dict[str, Any]:
    """Write queries.npy, candidates.npy, scores.npy and index.json.

    Passages with equal scores keep the order of the file's rank column (``retrieval.runs.read_run``).

    Raises:
        UserError: the file is faulty, or it lacks queries of the split.
    """
    collection = Collection(context.input("corpus"))
    run, queries = read_rankings(config.file, collection), collection.questions(config.split)
    places = places_of(run.query_rows, queries)  # (q,), -1 for a query that the file lacks
    without = np.flatnonzero(places < 0)
    if len(without) == len(queries) or (len(without) and config.missing == "error"):
        first = shown(collection.queries.column("id")[int(queries[without[0]])])
        lacking = f"of {len(queries):,} queries of the split {config.split!r} have no line, the first is {first!r}"
        raise UserError(
            f"{config.file}: {number_of(len(without), lacking)}; name a run of this split, or if some"
            f" queries may have no line, set {context.place('missing')}=empty"
        )
    found = (places >= 0)[:, None]
    np.save(context.folder / "candidates.npy", np.where(found, run.passage_rows[places], -1).astype(np.int32))
    np.save(context.folder / "scores.npy", np.where(found, strictly_falling(run.scores[places]), np.float32(-np.inf)))
    about = write_reranked(context.folder, collection, queries, run.passage_rows.shape[1], config.split, "run")
    text = number_of(len(without), f"of {len(queries):,} queries have no line in the run file, so their metrics are 0")
    return {**{key: about[key] for key in ("queries", "depth")}, **({"warnings": [text]} if len(without) else {})}
