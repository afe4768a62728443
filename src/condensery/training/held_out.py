"""Which passages are held out of a training on the collection's own sentences, to choose by afterwards."""

import numpy as np
from numpy.typing import NDArray

from condensery.models.biencoder import PASSAGE, QUERY
from condensery.randomness import generator, nested_subset, uniforms
from condensery.tokens.artifacts import Passages, Queries
from condensery.tokens.batches import chunks, text_rows
from condensery.tokens.prefixes import Prefixes
from condensery.training.validation import ValidationSample

SHARE = 0.1  # of the passages

Ids = NDArray[np.int64]


def held_out(passages: Ids) -> NDArray[np.bool_]:
    """Whether each of the rows (n,) is held out: a function of the row alone, so that every stage says the same."""
    mask: NDArray[np.bool_] = uniforms("held out", index=passages) < SHARE
    return mask


def chosen_queries(queries: Queries, number: int, seed: int) -> Ids:
    """The rows of ``number`` queries at most, drawn by ``seed`` from those of passages that are not held out, ascending."""
    owners = np.repeat(np.arange(len(queries.counts)), queries.counts)
    free = np.flatnonzero(~held_out(owners))
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
    """Queries of passages that are held out, one each: which passage is it from? None where no such passage has a query.

    A query that is a sentence of its passage is cut out of it, and a passage of which nothing would be left is not asked for.
    The sample is the same for every training and seed.

    Args:
        queries, texts: what was made of the passages, and these.
        lengths: longest query and passage in tokens, [CLS] and [SEP] included.
        number: of queries, at most.
        others: passages besides their own, at most.
        budget: padded tokens a chunk may hold.
        prefixes: what stands before queries and passages.
    """
    random = generator("held out sample")
    every = random.permutation(len(queries.counts))
    kept = held_out(every)
    own = every[kept & (queries.counts[every] > 0)]
    asked = np.array([_cut_out(queries, row) for row in own.tolist()], np.int64)
    places, left = np.full((len(own), 2), -1), np.ones(len(own), bool)
    if queries.places is not None:  # a title, which is not cut out, would find its own passage
        places = queries.places[asked]
        left = (places[:, 0] >= 0) & (places[:, 1] < texts.store.lengths[own])
    own, asked, places = own[left][:number], asked[left][:number], places[left][:number]
    if not len(own):
        return None
    passages = np.concatenate([own, np.setdiff1d(every, own, assume_unique=True)[:others]])
    hidden = np.full((len(passages), 2), -1, np.int64)
    hidden[: len(own)] = places
    vocabulary = texts.vocabulary
    rows = {
        QUERY: text_rows(queries.store, asked, vocabulary, lengths[0], prefix=prefixes.query),
        PASSAGE: text_rows(
            texts.store, passages, vocabulary, lengths[1], texts.titles, hidden=hidden, prefix=prefixes.passage
        ),
    }
    parts = {tower: chunks(*flat, budget, vocabulary.pad, tower=tower) for tower, flat in rows.items()}
    relevant = np.arange(len(own))[:, None] == np.arange(len(passages))
    return ValidationSample(parts[QUERY], parts[PASSAGE], relevant)


def _cut_out(queries: Queries, passage: int) -> int:
    """The first query of a passage that is a sentence of it; the first at all where none is."""
    first, stop = queries.first[passage], queries.first[passage + 1]
    if queries.places is None:
        return int(first)
    sentences = np.flatnonzero(queries.places[first:stop, 0] >= 0)
    return int(first + (sentences[0] if len(sentences) else 0))
