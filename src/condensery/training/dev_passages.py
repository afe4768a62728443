"""Finds the training queries that share a relevant passage with a dev query.

A retriever learns much about the passages that training queries ask for. Dev queries that ask for the same passages therefore
give a higher score than queries about other passages. If these training queries are left out of training, dev queries ask for
passages that are new to the retriever. The queries that are left out can serve as further dev queries.
"""

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.text.collection import Collection

Relevant = dict[int, NDArray[np.integer]]


def parted_by_dev(relevant: Relevant, collection: Collection) -> tuple[Relevant, Relevant]:
    """Part queries into those that share a relevant passage with a query of the split ``dev``, and the others.

    Args:
        relevant: query row -> its relevant passages.
        collection: with the judgements of the split ``dev``; without that split no query shares a passage.

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
