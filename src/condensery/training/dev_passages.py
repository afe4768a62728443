"""Finds the training queries that share a relevant passage with a dev query.

A retriever learns much about the passages that are relevant to training queries. So a dev query whose relevant passage is
also relevant to a training query scores higher than a query about another passage. If such training queries are left out of
training, no relevant passage of a dev query is a positive in training. The queries that are left out can serve as further
dev queries.
"""

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.text.collection import Collection

Relevant = dict[int, NDArray[np.integer]]


def parted_by_dev(relevant: Relevant, collection: Collection) -> tuple[Relevant, Relevant]:
    """Split queries into those that share a relevant passage with a query of the split ``dev``, and the other queries.

    Args:
        relevant: query row -> its relevant passages.
        collection: collection with the judgements of the split ``dev``; without this split no query shares a passage.

    Returns:
        the entries of ``relevant`` whose queries share a passage, and the other entries.
    """
    if "dev" not in collection.splits:
        return {}, relevant
    dev = np.concatenate(list(collection.qrels("dev").positives().values()))
    shared = {query: passages for query, passages in relevant.items() if np.isin(passages, dev).any()}
    return shared, {query: passages for query, passages in relevant.items() if query not in shared}


def apart_from_dev(relevant: Relevant, collection: Collection, key: str) -> Relevant:
    """Return the queries that share no relevant passage with a dev query, with their relevant passages.

    Raises:
        UserError: there is no such query; the message begins with ``key``, the name of the setting.
    """
    _, others = parted_by_dev(relevant, collection)
    if not others:
        raise UserError(
            f"{key}: true, but each training query shares a relevant passage with a dev query; set it to false"
        )
    return others
