"""Which passages are held out of a training on the collection's own sentences, to choose by afterwards."""

import numpy as np
from numpy.typing import NDArray

from condensery.models.biencoder import PASSAGE, QUERY
from condensery.randomness import generator, nested_subset, uniforms
from condensery.tokens.artifacts import Passages, Queries
from condensery.tokens.batches import chunks, text_rows
from condensery.tokens.prefixes import Prefixes
from condensery.training.validation import ValidationSample

WANTED = 500  # passages to be held out
SHARES = 0.1, 0.3  # of all passages, at least and at most

Ids = NDArray[np.int64]


def held_out(number: int) -> NDArray[np.bool_]:
    """Which of ``number`` passages are held out (number,): every stage that asks gets the same answer."""
    least, most = SHARES
    share = min(max(WANTED / max(number, 1), least), most)
    mask: NDArray[np.bool_] = uniforms("held out", index=np.arange(number)) < share
    return mask


def chosen_queries(queries: Queries, number: int, seed: int) -> Ids:
    """The rows of ``number`` queries at most, drawn by ``seed`` from those of passages that are not held out, ascending."""
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
    """Queries of passages that are held out: which passage is it from? None where no such passage has a query.

    A query that is a sentence of its passage is cut out of it: the passage stands in the sample once for each of its queries,
    without that one, and a query ranks its own of these alone. A passage of which nothing would be left is not asked for,
    nor is a title, which would find its own passage. The sample is the same for every training and seed.

    Args:
        queries, texts: what was made of the passages, and these.
        lengths: longest query and passage in tokens, [CLS] and [SEP] included.
        number: of queries, at most.
        others: passages besides their own, at most.
        budget: padded tokens a chunk may hold.
        prefixes: what stands before queries and passages.
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
