"""Sources of the texts that a pre-training step reads: single spans, or pairs of texts that belong together.

A source computes the rows of any item from (seed, epoch, item), so it keeps no state between steps.
A source of pairs puts the two texts of an item into neighbouring rows, 2i and 2i + 1. The two texts are two spans of a
document (coCondenser), a passage and one of its queries (query-as-context), or a passage and one of its sentences (ICT).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from condensery.errors import UserError
from condensery.randomness import uniforms
from condensery.tokens.batches import framed, span_rows, text_rows
from condensery.tokens.prefixes import Prefixes
from condensery.tokens.ranges import Ids, around, ranges
from condensery.tokens.spans import SPECIAL_TOKENS, SpanSet
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary


@dataclass(frozen=True)
class Rows:
    """The token ids of n texts, concatenated; each text is one row, with its [CLS] and [SEP].

    Shape:
        flat: (N,) token ids of all rows.
        starts: (n + 1,) index in ``flat`` at which each row begins; the last entry is N.
        names: (n,) number that identifies each row's text in the corpus, the same in every batch. The masked tokens of the
            row depend on this number.
    """

    flat: Ids
    starts: Ids
    names: Ids

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: Ids) -> "Rows":
        """Return the rows with the indices ``rows`` (k,), in the order of ``rows``."""
        lengths = np.diff(self.starts)[rows]  # (k,)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)  # (k + 1,)
        return Rows(self.flat[ranges(self.starts[:-1][rows], lengths)], starts, self.names[rows])


class RowSource(Protocol):
    """Gives the rows of a batch.

    Attributes:
        items: number of items in an epoch.
        left_out: number of documents, spans or passages that cannot be used.
    """

    items: int
    left_out: int

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """Return the rows of the items ``chosen`` (b,), each in 0 .. items - 1.

        Returns:
            b rows, or 2 b rows if the source gives pairs.
        """


class SingleSpans:
    """Gives every span of a corpus once per epoch (Condenser, MLM)."""

    def __init__(self, spans: SpanSet, vocabulary: Vocabulary) -> None:
        self.spans, self.vocabulary = spans, vocabulary
        # The number of random windows varies between epochs. Every epoch is given the first epoch's number of items.
        self.items, self.left_out = len(spans.spans(0)), spans.dropped

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """Return one row for each span ``chosen`` (b,): b rows."""
        every = self._every(epoch)  # (s, 2)
        spans = every[chosen % len(every)]  # (b, 2)
        return Rows(*span_rows(self.spans.store, spans, self.vocabulary), spans[:, 0])

    @lru_cache(maxsize=2)  # noqa: B019  (one object per training run)
    def _every(self, epoch: int) -> Ids:
        return self.spans.spans(epoch)


class SpanPairs:
    """Gives two spans of every document once per epoch (coCondenser, Gao and Callan 2021b, §3.2; CoT-MAE on passages)."""

    def __init__(self, spans: SpanSet, vocabulary: Vocabulary) -> None:
        self.spans, self.vocabulary = spans, vocabulary
        self.items, self.left_out = spans.documents, spans.dropped

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """Return 2 b rows: the two spans of each document ``chosen`` (b,), in rows 2i and 2i + 1."""
        spans = self.spans.pairs(epoch, chosen).reshape(-1, 2)  # (2 b, 2)
        return Rows(*span_rows(self.spans.store, spans, self.vocabulary), spans[:, 0])


class SentencePairs:
    """Gives pairs for ICT (Lee et al. 2019; Gao and Callan 2021a, §4.4): a passage without one sentence, and this sentence.

    Args:
        spans: spans of a token store with sentence boundaries; a span of one sentence is left out.
        vocabulary: vocabulary of the tokens.
        length: maximum sentence length in tokens, [CLS] and [SEP] included.
        keep: probability that the sentence stays in its passage (0.1 in Lee et al., 0 in this project's papers).
        seed: seed with which the sentences are drawn.

    Raises:
        UserError: the store has no sentences, or no span has two sentences.
    """

    def __init__(self, spans: SpanSet, vocabulary: Vocabulary, length: int, keep: float, seed: int) -> None:
        if spans.store.sentences is None:
            raise UserError(f"{spans.store.folder}: has no sentence boundaries, which the inverse cloze task needs")
        self.spans, self.vocabulary, self.length, self.keep, self.seed = spans, vocabulary, length, keep, seed
        self.items = len(self._every(0)[0])
        self.left_out = len(spans.spans(0)) - self.items
        if not self.items:
            raise UserError(f"{spans.store.folder}: no span has two sentences; raise length, or use longer texts")

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """Return 2 b rows: for each span ``chosen`` (b,) the remaining span in row 2i, and its sentence in row 2i + 1."""
        store, sentences = self.spans.store, self.spans.store.sentences
        assert sentences is not None
        spans, first, number = (values[chosen % len(values)] for values in self._every(epoch))
        begin, size = spans[:, 0], spans[:, 1]  # (b,) each
        drawn = (uniforms(self.seed, "sentence", epoch, index=begin) * number).astype(np.int64)  # (b,)
        # A sentence begins where the span begins, or inside the span. It ends at the next sentence or at the span's end.
        start = np.where(drawn == 0, begin, sentences[np.minimum(first + drawn - 1, len(sentences) - 1)])
        following = sentences[np.minimum(first + drawn, len(sentences) - 1)]  # (b,)
        end = np.where(drawn + 1 == number, begin + size, following)  # (b,)
        kept = uniforms(self.seed, "keep", epoch, index=begin) < self.keep  # (b,)
        left, left_counts = around(begin, size, start, np.where(kept, 0, end - start))  # (b, 2) each
        sentence_counts = np.minimum(end - start, self.length - SPECIAL_TOKENS)  # (b,)
        # A pair consists of three token ranges: before the sentence, after the sentence, and the sentence itself.
        places = np.column_stack([left, start])  # (b, 3)
        counts = np.column_stack([left_counts, sentence_counts])  # (b, 3)
        totals = np.column_stack([left_counts.sum(axis=1), sentence_counts]).reshape(-1)  # (2 b,)
        flat, starts = framed(store.tokens[ranges(places, counts)], totals, self.vocabulary)
        return Rows(flat, starts, np.stack([begin, store.token_count + start], axis=1).reshape(-1))

    @lru_cache(maxsize=2)  # noqa: B019  (one object per training run)
    def _every(self, epoch: int) -> tuple[Ids, Ids, Ids]:
        """Return the s spans of an epoch with two sentences or more.

        Returns:
            the spans (s, 2), the index of the first sentence that begins inside each span (s,), and the number of sentences
            in each span (s,).
        """
        spans, sentences = self.spans.spans(epoch), self.spans.store.sentences
        assert sentences is not None
        first = np.searchsorted(sentences, spans[:, 0], side="right")  # (spans,)
        number = 1 + np.searchsorted(sentences, spans.sum(axis=1)) - first  # (spans,)
        several = number > 1  # (spans,)
        return spans[several], first[several], number[several]


@dataclass(frozen=True)
class PassagesAndQueries:
    """Passages and the queries that were generated for them.

    Attributes:
        passages, titles: the passages by row, and their titles; titles None = passages are read without titles.
        queries: the queries of passage 0, then the queries of passage 1, ...
        first: (passages + 1,) index of the first query of each passage.
        hidden: (queries, 2) for each query, the range of tokens that is removed from its passage when the query is drawn.
            Column 0 is the position of the range's first token in ``passages``, column 1 the number of tokens. -1 = the
            query has no range; None = no query has a range.
    """

    passages: TokenStore
    titles: TokenStore | None
    queries: TokenStore
    first: Ids
    hidden: Ids | None = None


@dataclass(eq=False)
class PassageQueries:
    """Gives each passage with one of its queries, redrawn each epoch (query-as-context, Wu et al. 2023, §3.1).

    Passages without a query are left out.

    Attributes:
        stores: tokenised passages and queries.
        vocabulary: vocabulary of the tokens.
        length, query_length: maximum passage length and query length in tokens, [CLS] and [SEP] included.
        candidates: a query is drawn from the first ``candidates`` queries of its passage (C of the paper).
        seed: seed with which the queries are drawn.
    """

    stores: PassagesAndQueries
    vocabulary: Vocabulary
    length: int
    query_length: int
    candidates: int
    seed: int

    def __post_init__(self) -> None:
        number = np.diff(self.stores.first)  # (passages,)
        self._passages: Ids = np.flatnonzero(number)
        self._number: Ids = np.minimum(number[self._passages], self.candidates)
        self.items = len(self._passages)
        self.left_out = len(number) - self.items

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """Return 2 b rows: each passage ``chosen`` (b,) in row 2i, and its drawn query in row 2i + 1."""
        stores, passages = self.stores, self._passages[chosen]
        drawn = (uniforms(self.seed, "candidate", epoch, index=passages) * self._number[chosen]).astype(np.int64)
        queries = stores.first[passages] + drawn  # (b,)
        texts = self.texts(passages, None if stores.hidden is None else stores.hidden[queries])
        # The names of queries follow the names of passages, so that no query gets the mask of a passage.
        names = len(stores.passages) + queries  # (b,)
        return interleaved(texts, Rows(*text_rows(stores.queries, queries, self.vocabulary, self.query_length), names))

    def texts(self, passages: Ids, hidden: Ids | None = None) -> Rows:
        """Return the rows of the passages ``passages`` (n,), each without its token range ``hidden`` (n, 2)."""
        how = (self.vocabulary, self.length, self.stores.titles, hidden)
        return Rows(*text_rows(self.stores.passages, passages, *how), passages)


class MixedPairs:
    """Gives pairs with mixed context (Wu et al. 2023, §5.2).

    In some steps, each passage is paired with one of its queries. In the other steps, each passage is paired with another
    passage of its document. A passage that is alone in its document is always paired with a query. No token is removed from
    a passage that is paired with a passage.

    Args:
        pairs: source of pairs of a passage and a query.
        passages: probability that a step pairs passages with passages; 0.5 in the paper.
        seed: seed with which each step chooses queries or passages, and draws the passages.
    """

    def __init__(self, pairs: PassageQueries, passages: float, seed: int) -> None:
        self.pairs, self.share, self.seed = pairs, passages, seed
        self.items, self.left_out = pairs.items, pairs.left_out

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """Return 2 b rows: each passage ``chosen`` (b,) in row 2i, and its context in row 2i + 1."""
        rows = self.pairs.rows(step, epoch, chosen)
        if uniforms(self.seed, "context", index=[step])[0] >= self.share:
            return rows
        store, passages = self.pairs.stores.passages, rows.names[::2]
        document = np.searchsorted(store.documents, passages, side="right") - 1  # (b,)
        begin, end = store.documents[document], store.documents[document + 1]  # (b,) each
        others = end - begin - 1  # (b,)
        partner = begin + (uniforms(self.seed, "partner", epoch, index=passages) * others).astype(np.int64)  # (b,)
        partner += partner >= passages
        several = others > 0  # (b,)
        texts = self.pairs.texts(np.column_stack([passages, partner])[several].reshape(-1))
        order = np.arange(len(rows))  # (2 b,)
        order[np.repeat(several, 2)] = len(rows) + np.arange(len(texts))
        return joined(rows, texts).take(order)


class Prefixed:
    """Inserts a retriever's prefixes after the [CLS] of each row of a source, as the retriever does in search.

    Args:
        source: source of pairs, whose rows leave room for the prefixes.
        prefixes: prefixes as token ids; the first text of a pair gets the passage prefix.
        queries: True = the second text gets the query prefix; False = the second text gets the passage prefix, too.
    """

    def __init__(self, source: RowSource, prefixes: Prefixes, queries: bool) -> None:
        self.source, self.items, self.left_out = source, source.items, source.left_out
        self.prefixes = prefixes.passage, prefixes.query if queries else prefixes.passage

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """Return the rows of ``source`` for the items ``chosen`` (b,), with their prefixes: 2 b rows."""
        rows = self.source.rows(step, epoch, chosen)
        added = np.resize([len(prefix) for prefix in self.prefixes], len(rows))  # (2 b,)
        where = np.repeat(rows.starts[:-1] + 1, added)  # (sum of added,)
        flat = np.insert(rows.flat, where, np.resize(np.concatenate(self.prefixes), int(added.sum())))
        starts = rows.starts + np.concatenate([[0], np.cumsum(added)])  # (2 b + 1,)
        return Rows(flat, starts.astype(np.int64), rows.names)


def prefixed(source: RowSource, prefixes: Prefixes, queries: bool) -> RowSource:
    """Return ``source`` with prefixes, or ``source`` itself if both prefixes are empty."""
    return Prefixed(source, prefixes, queries) if len(prefixes.query) or len(prefixes.passage) else source


def joined(first: Rows, second: Rows) -> Rows:
    """Return the rows of ``first``, followed by the rows of ``second``."""
    return Rows(
        np.concatenate([first.flat, second.flat]),
        np.concatenate([first.starts, first.starts[-1] + second.starts[1:]]),
        np.concatenate([first.names, second.names]),
    )


def interleaved(first: Rows, second: Rows) -> Rows:
    """Return rows in which row i of ``first`` is row 2i, and row i of ``second`` is row 2i + 1."""
    number = len(first)
    return joined(first, second).take(np.stack([np.arange(number), number + np.arange(number)], axis=1).reshape(-1))
