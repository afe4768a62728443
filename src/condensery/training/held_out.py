"""Holds out passages if training uses a collection's own sentences as queries.

The queries of held-out passages are used to choose between models.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from condensery.models.biencoder import PASSAGE, QUERY
from condensery.randomness import generator, nested_subset, uniforms
from condensery.text.words import words
from condensery.tokens.artifacts import Passages, Queries
from condensery.tokens.prefixes import Prefixes
from condensery.tokens.text_reader import TextReader
from condensery.training.validation import ValidationSample

WANTED = 500  # number of passages to hold out
SHARES = 0.1, 0.3  # smallest and largest share of all passages that is held out

Ids = NDArray[np.int64]


def held_out(number: int) -> NDArray[np.bool_]:
    """Return a mask (number,), True for a passage that is held out. The result is the same in every stage."""
    least, most = SHARES
    return np.asarray(uniforms("held out", index=np.arange(number)) < min(max(WANTED / max(number, 1), least), most))


def chosen_queries(queries: Queries, number: int, seed: int) -> Ids:
    """Draw at most ``number`` queries, by ``seed``, from the queries of passages that are not held out.

    Returns:
        the rows of the queries, ascending.
    """
    free = np.flatnonzero(~held_out(len(queries.counts))[queries.owners])
    return free[np.sort(nested_subset(seed, len(free), min(number, len(free))))]


def held_out_queries(queries: Queries, texts: Passages, random: np.random.Generator) -> Ids:
    """Return the rows of the held-out passages' queries that can serve for validation, in an order drawn by ``random``.

    A query is left out if its passage has no other sentence. A title is left out as well, because it would retrieve its own
    passage.
    """
    asked = random.permutation(np.flatnonzero(held_out(len(queries.counts))[queries.owners]))
    if queries.places is not None:
        first, length = np.asarray(queries.places)[asked].T
        asked = asked[(first >= 0) & (length < texts.store.lengths[queries.owners[asked]])]
    return asked


def held_out_sample(
    queries: Queries,
    texts: Passages,
    lengths: tuple[int, int],
    number: int,
    others: int,
    *,
    budget: int,
    prefixes: Prefixes,
) -> ValidationSample | None:
    """Build a validation sample from held-out passages: each query should retrieve the passage that it was built from.

    If a query is a sentence of its passage, this sentence is removed. So for each query, the sample has a copy of its passage
    without the sentence. A query ranks its own copy, but no other copy of the same passage. Other passages that may answer
    the query are not ranked for it either. These are passages that contain the query's words, and passages with the same
    token ids as the query's own copy. The queries are drawn from ``held_out_queries``. The sample is the same in every run
    and for every seed.

    Args:
        queries: the queries that were built from the passages.
        texts: the passages.
        lengths: maximum query length and passage length in tokens, [CLS] and [SEP] included.
        number: largest number of queries.
        others: largest number of further passages.
        budget: maximum number of tokens in a chunk, padding included.
        prefixes: token ids put before queries and passages.

    Returns:
        the sample; None if no held-out passage has a query.
    """
    random = generator("held out sample")
    asked = held_out_queries(queries, texts, random)[:number]
    hidden = np.full((len(queries.owners), 2), -1, np.int64) if queries.places is None else np.asarray(queries.places)
    if not len(asked):
        return None
    own = queries.owners[asked]  # (q,)
    rest = random.permutation(np.setdiff1d(np.arange(len(queries.counts)), own))[:others]
    passages = np.concatenate([own, rest])  # (p,)
    hidden = np.concatenate([hidden[asked], np.full((len(rest), 2), -1, np.int64)])  # (p, 2)
    asking = TextReader(queries.store, texts.vocabulary, lengths[0], prefix=prefixes.query)
    reading = TextReader(texts.store, texts.vocabulary, lengths[1], texts.titles, prefixes.passage)
    parts = asking.chunks(asked, budget, QUERY), reading.chunks(passages, budget, PASSAGE, hidden)
    relevant = np.arange(len(own))[:, None] == np.arange(len(passages))  # (q, p)
    asked_texts, passage_texts = queries.texts_at(asked), texts.table.column("text").take(passages)
    inputs: dict[bytes, int] = {}
    ids, starts = reading.read(passages, hidden)
    kinds = np.array([inputs.setdefault(ids[a:b].tobytes(), len(inputs)) for a, b in pairwise(starts)])  # (p,)
    equal = (own[:, None] == passages) | (kinds[: len(own), None] == kinds)  # (q, p)
    same = equal | _containing(asked_texts, passage_texts)  # (q, p)
    return ValidationSample(*parts, relevant, same & ~relevant)


def _containing(queries: Sequence[str], passages: Sequence[str]) -> NDArray[np.bool_]:
    """Return (q, p) bool, True where a passage contains the words of the query, in order and without a gap."""
    found, holding = np.zeros((len(queries), len(passages)), bool), defaultdict(list)
    spaced = [f" {' '.join(words(text))} " for text in passages]
    for row, text in enumerate(spaced):
        for word in set(text.split()):
            holding[word].append(row)
    for query, text in enumerate(queries):
        asked = words(text)
        rows = min((holding[word] for word in asked), key=len, default=[])
        found[query, [row for row in rows if f" {' '.join(asked)} " in spaced[row]]] = True
    return found
