"""Holds passages out of a training on the collection's own sentences; models are later chosen by their queries."""

import numpy as np
from numpy.typing import NDArray

from condensery.models.biencoder import PASSAGE, QUERY
from condensery.randomness import generator, nested_subset, uniforms
from condensery.tokens.artifacts import Passages, Queries
from condensery.tokens.batches import chunks, text_rows
from condensery.tokens.prefixes import Prefixes
from condensery.training.validation import ValidationSample

WANTED = 500  # passages to be held out
SHARES = 0.1, 0.3  # the least and the largest share of all passages that are held out

Ids = NDArray[np.int64]


def held_out(number: int) -> NDArray[np.bool_]:
    """Return which of ``number`` passages are held out: (number,) bool. The result is the same for every stage."""
    least, most = SHARES
    share = min(max(WANTED / max(number, 1), least), most)
    mask: NDArray[np.bool_] = uniforms("held out", index=np.arange(number)) < share
    return mask


def chosen_queries(queries: Queries, number: int, seed: int) -> Ids:
    """Draw ``number`` queries at most, by ``seed``, from the queries of passages that are not held out.

    Returns:
        the rows of the queries, ascending.
    """
    owners = np.repeat(np.arange(len(queries.counts)), queries.counts)
    free = np.flatnonzero(~held_out(len(queries.counts))[owners])
    return free[np.sort(nested_subset(seed, len(free), min(number, len(free))))]


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
    """Make a validation sample of held-out passages: each query has to find the passage that it was made of.

    A query that is a sentence of its passage is cut out of the passage. So the sample has one copy of the passage for each of
    its queries, without that query's sentence; a query ranks its own copy, and not the others. A query is left out where
    nothing would be left of its passage, and so is a title, which would find its own passage. The sample is the same for
    every training and seed.

    Args:
        queries: the queries that were made of the passages.
        texts: the passages.
        lengths: longest query and passage in tokens, [CLS] and [SEP] included.
        number: of queries, at most.
        others: number of passages besides those of the queries, at most.
        budget: largest number of tokens in a chunk, padding included.
        prefixes: the ids put before queries and passages.

    Returns:
        the sample; None where no held-out passage has a query.
    """
    random = generator("held out sample")
    owners = np.repeat(np.arange(len(queries.counts)), queries.counts)
    asked = random.permutation(np.flatnonzero(held_out(len(queries.counts))[owners]))
    hidden = np.full((len(owners), 2), -1, np.int64)
    if queries.places is not None:
        hidden = np.asarray(queries.places)
        asked = asked[(hidden[asked, 0] >= 0) & (hidden[asked, 1] < texts.store.lengths[owners[asked]])]
    asked = asked[:number]
    if not len(asked):
        return None
    own = owners[asked]
    rest = random.permutation(np.setdiff1d(np.arange(len(queries.counts)), own))[:others]
    passages = np.concatenate([own, rest])
    hidden = np.concatenate([hidden[asked], np.full((len(rest), 2), -1, np.int64)])
    vocabulary = texts.vocabulary
    rows = {
        QUERY: text_rows(queries.store, asked, vocabulary, lengths[0], prefix=prefixes.query),
        PASSAGE: text_rows(
            texts.store, passages, vocabulary, lengths[1], texts.titles, hidden=hidden, prefix=prefixes.passage
        ),
    }
    parts = {tower: chunks(*flat, budget, vocabulary.pad, tower=tower) for tower, flat in rows.items()}
    relevant = np.arange(len(own))[:, None] == np.arange(len(passages))
    same = own[:, None] == passages
    return ValidationSample(parts[QUERY], parts[PASSAGE], relevant, same & ~relevant)
