"""What a pre-training step reads: single spans, or pairs of texts that belong together.

A source gives the rows of any items as a function of (seed, epoch, item), so nothing is remembered between steps.
Sources of pairs put the two texts of an item into neighbouring rows, 2i and 2i + 1: two spans of a document
(coCondenser), a passage and one of its queries (query-as-context), a passage and one of its sentences (ICT).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.randomness import uniforms
from condensery.tokens.batches import framed, span_rows, text_rows
from condensery.tokens.prefixes import Prefixes
from condensery.tokens.ranges import around, ranges
from condensery.tokens.spans import SPECIAL_TOKENS, SpanSet
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Texts one behind the other, each with [CLS] and [SEP].

    Shape:
        flat: (N,) ids.
        starts: (n + 1,) where each row begins; the last entry is N.
        names: (n,) what each row is in the corpus, whatever batch it is in: masks are drawn by it.
    """

    flat: Ids
    starts: Ids
    names: Ids

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: Ids) -> "Rows":
        """These rows, in this order."""
        lengths = np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Rows(self.flat[ranges(self.starts[:-1][rows], lengths)], starts, self.names[rows])


class RowSource(Protocol):
    """Where the rows of a batch come from.

    Attributes:
        items: how many there are in an epoch.
        left_out: documents, spans or passages that cannot be used.
    """

    items: int
    left_out: int

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """The rows of the items ``chosen`` (b,), each in 0 .. items - 1: b rows, or 2 b where the source gives pairs."""


class SingleSpans:
    """Every span of a corpus once an epoch (Condenser, MLM)."""

    def __init__(self, spans: SpanSet, vocabulary: Vocabulary) -> None:
        self.spans, self.vocabulary = spans, vocabulary
        # random windows differ in number by epoch; all epochs are as long as the first
        self.items, self.left_out = len(spans.spans(0)), spans.dropped

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """See ``RowSource``."""
        every = self._every(epoch)
        spans = every[chosen % len(every)]
        return Rows(*span_rows(self.spans.store, spans, self.vocabulary), spans[:, 0])

    @lru_cache(maxsize=2)  # noqa: B019  (one object a training run)
    def _every(self, epoch: int) -> Ids:
        return self.spans.spans(epoch)


class SpanPairs:
    """Two spans of every document once an epoch (coCondenser, Gao and Callan 2021b, §3.2; CoT-MAE on passages)."""

    def __init__(self, spans: SpanSet, vocabulary: Vocabulary) -> None:
        self.spans, self.vocabulary = spans, vocabulary
        self.items, self.left_out = spans.documents, spans.dropped

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """See ``RowSource``."""
        spans = self.spans.pairs(epoch, chosen).reshape(-1, 2)
        return Rows(*span_rows(self.spans.store, spans, self.vocabulary), spans[:, 0])


class SentencePairs:
    """A passage without one of its sentences, and that sentence: ICT (Lee et al. 2019; Gao and Callan 2021a, §4.4).

    Args:
        spans: spans of a store with sentences; a span of one sentence gives no pair and is left out.
        keep: probability that the sentence stays in its passage (0 in the papers here, 0.1 in Lee et al.).
        length: tokens of the longest sentence, with [CLS] and [SEP].

    Raises:
        UserError: no span has two sentences.
    """

    def __init__(self, spans: SpanSet, vocabulary: Vocabulary, length: int, keep: float, seed: int) -> None:
        if spans.store.sentences is None:
            raise UserError(f"{spans.store.folder}: has no sentences; the inverse cloze task needs them")
        self.spans, self.vocabulary, self.length, self.keep, self.seed = spans, vocabulary, length, keep, seed
        self.items = len(self._every(0)[0])
        self.left_out = len(spans.spans(0)) - self.items
        if not self.items:
            raise UserError(f"{spans.store.folder}: no span has two sentences; raise length, or use longer texts")

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """See ``RowSource``."""
        store, sentences = self.spans.store, self.spans.store.sentences
        assert sentences is not None
        spans, first, number = (values[chosen % len(values)] for values in self._every(epoch))
        begin, size = spans[:, 0], spans[:, 1]
        drawn = (uniforms(self.seed, "sentence", epoch, index=begin) * number).astype(np.int64)
        # the pieces of a span: from its begin, or a sentence inside of it, to the next sentence or its end
        start = np.where(drawn == 0, begin, sentences[np.minimum(first + drawn - 1, len(sentences) - 1)])
        following = sentences[np.minimum(first + drawn, len(sentences) - 1)]
        end = np.where(drawn + 1 == number, begin + size, following)
        kept = uniforms(self.seed, "keep", epoch, index=begin) < self.keep
        left, left_counts = around(begin, size, start, np.where(kept, 0, end - start))
        sentence_counts = np.minimum(end - start, self.length - SPECIAL_TOKENS)
        # three stretches a pair: what stands before the sentence, what stands behind it, the sentence
        places = np.column_stack([left, start])
        counts = np.column_stack([left_counts, sentence_counts])
        totals = np.column_stack([left_counts.sum(axis=1), sentence_counts]).reshape(-1)
        flat, starts = framed(store.tokens[ranges(places, counts)], totals, self.vocabulary)
        return Rows(flat, starts, np.stack([begin, store.token_count + start], axis=1).reshape(-1))

    @lru_cache(maxsize=2)  # noqa: B019  (one object a training run)
    def _every(self, epoch: int) -> tuple[Ids, Ids, Ids]:
        """The spans of two sentences or more (s, 2), the first sentence that begins inside of each, their numbers."""
        spans, sentences = self.spans.spans(epoch), self.spans.store.sentences
        assert sentences is not None
        first = np.searchsorted(sentences, spans[:, 0], side="right")
        number = 1 + np.searchsorted(sentences, spans.sum(axis=1)) - first
        several = number > 1
        return spans[several], first[several], number[several]


@dataclass(frozen=True)
class PassagesAndQueries:
    """Passages and the queries that were made for them.

    Attributes:
        passages, titles: the passages by row; titles None = read without.
        queries: all queries one behind the other.
        first: (passages + 1,) where the queries of each passage begin.
        hidden: (queries, 2) first token in ``passages`` and number of tokens of the stretch that is cut out of the
            passage where this query is drawn, -1 = nothing is; None = never.
    """

    passages: TokenStore
    titles: TokenStore | None
    queries: TokenStore
    first: Ids
    hidden: Ids | None = None


class PassageQueries:
    """A passage and one of its queries, drawn anew each epoch (query-as-context, Wu et al. 2023, §3.1).

    Passages without query are left out.

    Args:
        stores: passages and queries in tokens.
        length, query_length: longest rows in tokens, with [CLS] and [SEP].
        candidates: how many of a passage's queries are drawn from, the first ones (C of the paper).
    """

    def __init__(
        self,
        stores: PassagesAndQueries,
        vocabulary: Vocabulary,
        length: int,
        query_length: int,
        candidates: int,
        seed: int,
    ) -> None:
        self.stores, self.vocabulary, self.length, self.query_length = stores, vocabulary, length, query_length
        self.candidates, self.seed = candidates, seed
        number = np.diff(stores.first)
        self._passages: Ids = np.flatnonzero(number)
        self._number: Ids = np.minimum(number[self._passages], candidates)
        self.items = len(self._passages)
        self.left_out = len(number) - self.items

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """See ``RowSource``."""
        stores, passages = self.stores, self._passages[chosen]
        drawn = (uniforms(self.seed, "candidate", epoch, index=passages) * self._number[chosen]).astype(np.int64)
        queries = stores.first[passages] + drawn
        texts = self.texts(passages, None if stores.hidden is None else stores.hidden[queries])
        # named behind the passages, so that no query gets a passage's mask
        names = len(stores.passages) + queries
        return interleaved(texts, Rows(*text_rows(stores.queries, queries, self.vocabulary, self.query_length), names))

    def texts(self, passages: Ids, hidden: Ids | None = None) -> Rows:
        """Rows of these passages (n,), each without its stretch ``hidden`` (n, 2)."""
        how = (self.vocabulary, self.length, self.stores.titles, hidden)
        return Rows(*text_rows(self.stores.passages, passages, *how), passages)


class MixedPairs:
    """Mixed context (Wu et al. 2023, §5.2): each step a passage with one of its queries, or another of its document.

    A passage that is alone in its document keeps its query. Where a passage meets another one, nothing is hidden of it.

    Args:
        pairs: passages and queries.
        passages: probability that a step takes passages as context; 0.5 in the paper.
    """

    def __init__(self, pairs: PassageQueries, passages: float, seed: int) -> None:
        self.pairs, self.share, self.seed = pairs, passages, seed
        self.items, self.left_out = pairs.items, pairs.left_out

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """See ``RowSource``."""
        rows = self.pairs.rows(step, epoch, chosen)
        if uniforms(self.seed, "context", index=[step])[0] >= self.share:
            return rows
        store, passages = self.pairs.stores.passages, rows.names[::2]
        document = np.searchsorted(store.documents, passages, side="right") - 1
        begin, end = store.documents[document], store.documents[document + 1]
        others = end - begin - 1
        partner = begin + (uniforms(self.seed, "partner", epoch, index=passages) * others).astype(np.int64)
        partner += partner >= passages
        several = others > 0
        texts = self.pairs.texts(np.column_stack([passages, partner])[several].reshape(-1))
        order = np.arange(len(rows))
        order[np.repeat(several, 2)] = len(rows) + np.arange(len(texts))
        return joined(rows, texts).take(order)


class Prefixed:
    """The rows of a source with the prefixes of a retriever behind their [CLS], as it reads texts when it is searched.

    Args:
        source: of pairs; it leaves the prefixes their room.
        prefixes: the first text of a pair gets that of passages.
        queries: the second text is a query; otherwise it is a passage, too.
    """

    def __init__(self, source: RowSource, prefixes: Prefixes, queries: bool) -> None:
        self.source, self.items, self.left_out = source, source.items, source.left_out
        self.prefixes = prefixes.passage, prefixes.query if queries else prefixes.passage

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """See ``RowSource``."""
        rows = self.source.rows(step, epoch, chosen)
        added = np.resize([len(prefix) for prefix in self.prefixes], len(rows))
        where = np.repeat(rows.starts[:-1] + 1, added)
        flat = np.insert(rows.flat, where, np.resize(np.concatenate(self.prefixes), int(added.sum())))
        starts = rows.starts + np.concatenate([[0], np.cumsum(added)])
        return Rows(flat, starts.astype(np.int64), rows.names)


def prefixed(source: RowSource, prefixes: Prefixes, queries: bool) -> RowSource:
    """The source with prefixes, or as it is where there are none."""
    there = len(prefixes.query) or len(prefixes.passage)
    return Prefixed(source, prefixes, queries) if there else source


def joined(first: Rows, second: Rows) -> Rows:
    """The rows of one behind those of the other."""
    return Rows(
        np.concatenate([first.flat, second.flat]),
        np.concatenate([first.starts, first.starts[-1] + second.starts[1:]]),
        np.concatenate([first.names, second.names]),
    )


def interleaved(first: Rows, second: Rows) -> Rows:
    """Row i of the first becomes row 2i, row i of the second 2i + 1."""
    number = len(first)
    return joined(first, second).take(np.stack([np.arange(number), number + np.arange(number)], axis=1).reshape(-1))
