"""Training queries that ask for the same passages as dev queries.

A retriever learns much of passages that training queries ask for, and dev queries that ask for the same passages promise more
than it keeps on others. Without the queries of this module in its training, dev queries ask for passages that are new to it.
The queries themselves are more dev queries to choose by.
"""

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.text.collection import Collection

Relevant = dict[int, NDArray[np.integer]]


def parted_by_dev(relevant: Relevant, collection: Collection) -> tuple[Relevant, Relevant]:
    """Queries and their relevant passages: those that share one with a query of the split dev, and the others."""
    if "dev" not in collection.splits:
        return {}, relevant
    dev = np.concatenate(list(collection.qrels("dev").positives().values()))
    shared = {query: passages for query, passages in relevant.items() if np.isin(passages, dev).any()}
    return shared, {query: passages for query, passages in relevant.items() if query not in shared}


def apart_from_dev(relevant: Relevant, collection: Collection, key: str) -> Relevant:
    """The others of ``parted_by_dev``.

    Raises:
        UserError: there are none; ``key`` is where they were asked for.
    """
    _, others = parted_by_dev(relevant, collection)
    if not others:
        raise UserError(
            f"{key}: true, but each training query shares a relevant passage with a dev query; set it to false"
        )
    return others
