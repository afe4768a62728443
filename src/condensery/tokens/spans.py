"""Draw the spans of a corpus for pre-training: every span of the corpus once per epoch, or two spans of a document.

A span is (start, tokens): a stretch of a store's ``tokens`` inside one document, without special tokens. A document
consists of consecutive texts, so a span may cross the border between two passages.
"""

from abc import ABC, abstractmethod
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from condensery.errors import UserError
from condensery.randomness import uniforms
from condensery.tokens.ranges import ranges
from condensery.tokens.store import TokenStore

Ids = NDArray[np.int64]
SPECIAL_TOKENS = 2  # [CLS] and [SEP]
BLOCK = 1 << 22  # number of sentences packed at a time
Span = tuple[int, int]


class SpanSet(ABC):
    """Base class of the ways to draw spans from a token store. The spans depend only on (seed, epoch, document).

    A document with fewer than ``2 * min_length`` tokens cannot give two spans. It is left out, and counted in ``dropped``.

    Args:
        store: token store, with sentences if the kind of span needs them.
        length: maximum input length in tokens, with [CLS] and [SEP]; a span has at most ``length - 2`` tokens.
        seed: seed of all random numbers.
        min_length: minimum number of tokens per span.

    Attributes:
        limit: maximum number of tokens per span, ``length - 2``.
        usable: (documents,) index of each usable document in the store.
        documents: number of usable documents.
        dropped: number of documents that are too short, empty documents included.
        dropped_tokens: number of tokens in documents that are too short. ``SentencePacked`` also counts the tokens of spans
            that are too short.

    Raises:
        UserError: ``min_length`` is below 1 or above half of ``limit``, or no document is long enough.
    """

    def __init__(self, store: TokenStore, length: int, seed: int, min_length: int) -> None:
        self.length, self.limit = length, length - SPECIAL_TOKENS
        if not 1 <= min_length <= self.limit // 2:
            raise UserError(
                f"min_length={min_length} does not fit length={length}: a span has at most length - {SPECIAL_TOKENS} tokens, "
                "and `min_length` must be at least 1 and at most half of that"
            )
        self.store, self.seed, self.min_length = store, seed, min_length
        lengths = store.document_lengths
        self.usable: Ids = np.flatnonzero(lengths >= 2 * min_length)
        self.documents = len(self.usable)
        self.dropped = len(lengths) - self.documents
        self.dropped_tokens = int(lengths.sum() - lengths[self.usable].sum())
        if not self.documents:
            raise UserError(
                f"{Path(store.folder)}: no document has {2 * min_length} tokens, so none gives two spans of {min_length}; "
                "lower `min_length` or use longer documents"
            )
        self._first: Ids = store.document_starts[self.usable]
        self._size: Ids = lengths[self.usable]

    def pair(self, epoch: int, document: int) -> tuple[Span, Span]:
        """Return two non-overlapping spans of one usable document, ((start, tokens), (start, tokens))."""
        (a, m), (b, n) = self.pairs(epoch, [document])[0].tolist()
        return (a, m), (b, n)

    @abstractmethod
    def pairs(self, epoch: int, documents: ArrayLike) -> Ids:
        """Return the result of ``pair`` for many usable documents (n,) at once: int64 (n, 2, 2).

        The axes are the document, the first or second span, and (start, tokens).
        """

    @abstractmethod
    def spans(self, epoch: int) -> Ids:
        """Return every span of the corpus, disjoint and in the order of the corpus: int64 (S, 2), (start, tokens)."""

    def _draw(self, what: str, epoch: int, documents: Ids) -> NDArray[np.float64]:
        return uniforms(self.seed, "spans", what, epoch, index=self.usable[documents])


class RandomWindows(SpanSet):
    """Windows that begin anywhere in a document, at a different place in each epoch."""

    def pairs(self, epoch: int, documents: ArrayLike) -> Ids:
        """Return two windows of full width if the document has room for both, else the two halves of the document."""
        chosen = np.asarray(documents, dtype=np.int64)
        width = np.minimum(self.limit, self._size[chosen] // 2)
        room = self._size[chosen] - 2 * width + 1
        places = np.stack([self._draw(what, epoch, chosen) for what in ("first", "second")])
        offsets = np.sort((places * room).astype(np.int64), axis=0)
        offsets[1] += width
        starts = self._first[chosen] + offsets
        starts = np.where(self._draw("order", epoch, chosen) < 0.5, starts, starts[::-1])
        return np.stack([starts.T, np.broadcast_to(width[:, None], (len(chosen), 2))], axis=-1)

    def spans(self, epoch: int) -> Ids:
        """Cut each document into consecutive windows, the first of random length and all others of ``limit`` tokens.

        A document of at most ``limit`` tokens is one window. Windows of fewer than ``min_length`` tokens are left out.
        """
        every = np.arange(self.documents)
        phase = (self._draw("phase", epoch, every) * self.limit).astype(np.int64)
        phase = np.where(self._size <= self.limit, self.limit, np.maximum(phase, 1))
        number = 1 + -(-np.maximum(self._size - phase, 0) // self.limit)
        document = np.repeat(every, number)
        step = np.arange(len(document)) - np.repeat(np.cumsum(number) - number, number)
        begin = np.maximum(0, phase[document] + (step - 1) * self.limit)
        end = np.minimum(self._size[document], phase[document] + step * self.limit)
        windows = np.stack([self._first[document] + begin, end - begin], axis=-1)
        return windows[windows[:, 1] >= self.min_length]


class SentencePacked(SpanSet):
    """Sentences packed greedily into spans of at most ``length - 2`` tokens. The spans are the same in every epoch.

    A sentence that is longer than a span is cut. With probability ``short_probability``, a span gets a shorter target
    length, drawn uniformly between ``min_length`` and the limit, so that the encoder also sees short inputs. The data
    scripts of Condenser and coCondenser do this with probability 0.1. Spans shorter than ``min_length``, mostly at the
    ends of documents, are left out and counted in ``dropped_tokens``.

    A document that was packed into fewer than two spans is split near its middle to give a pair. The split lies at the
    sentence beginning nearest to the middle, if this is in the middle half and both spans get permitted lengths. Otherwise
    the split lies at the middle.

    Raises:
        UserError: in the cases of the base class, or if the store has no sentences.
    """

    def __init__(self, store: TokenStore, length: int, short_probability: float, seed: int, min_length: int) -> None:
        super().__init__(store, length, seed, min_length)
        if store.sentences is None:
            raise UserError(f"{Path(store.folder)}: has no sentences; sentence-packed spans need a store of passages")
        self.short_probability = short_probability
        packed = np.concatenate([self._pack(store.sentences, *block) for block in self._blocks(store.sentences)])
        document = np.searchsorted(self._first, packed[:, 0], side="right") - 1
        usable = (document >= 0) & (packed[:, 0] < self._first[document] + self._size[document])
        kept = usable & (packed[:, 1] >= min_length)
        self.dropped_tokens += int(packed[usable & ~kept, 1].sum())
        self._spans: Ids = packed[kept]
        self._number: Ids = np.bincount(document[kept], minlength=self.documents)
        self._begin: Ids = np.cumsum(self._number) - self._number
        self._single: Ids = np.flatnonzero(self._number < 2)
        self._halves: Ids = self._split(store.sentences, self._single)

    def spans(self, epoch: int) -> Ids:
        """Return the packed spans of the corpus, the same for every epoch."""
        return self._spans

    def pairs(self, epoch: int, documents: ArrayLike) -> Ids:
        """Return two spans of each document, drawn uniformly without replacement, in random order."""
        chosen = np.asarray(documents, dtype=np.int64)
        number = self._number[chosen]
        choices = np.maximum(number, 2)
        first = (self._draw("first", epoch, chosen) * choices).astype(np.int64)
        second = (self._draw("second", epoch, chosen) * (choices - 1)).astype(np.int64)
        second += second >= first
        packed = number >= 2
        half = np.searchsorted(self._single, chosen[~packed])
        pairs = np.empty((len(chosen), 2, 2), dtype=np.int64)
        for place, index in enumerate((first, second)):
            pairs[packed, place] = self._spans[self._begin[chosen[packed]] + index[packed]]
            pairs[~packed, place] = self._halves[half, index[~packed]]
        return pairs

    def _blocks(self, sentences: Ids) -> list[tuple[int, int]]:
        """Split the store's documents into runs of about ``BLOCK`` sentences: (first, last + 1) document of each run."""
        before = np.searchsorted(sentences, self.store.document_starts)  # sentences before each document
        cuts = np.searchsorted(before, np.arange(0, len(sentences), BLOCK))
        cuts = np.unique(np.concatenate([[0], cuts, [len(before) - 1]]))
        return list(pairwise(cuts.tolist()))

    def _pack(self, sentences: Ids, first: int, last: int) -> Ids:
        """Pack the documents first .. last - 1 of the store into spans (S, 2) that cover each of their tokens once."""
        edges = self.store.document_starts
        a, b = np.searchsorted(sentences, [edges[first], edges[last]])
        starts = np.asarray(sentences[a:b])
        pieces = -(-np.diff(starts, append=edges[last]) // self.limit)  # a longer sentence is cut into several pieces
        begin = ranges(np.zeros_like(starts), pieces) * self.limit + np.repeat(starts, pieces)
        document_end = edges[np.searchsorted(edges, begin, side="right")]
        border = np.append(begin, edges[last])
        reach = np.minimum(begin + self._targets(begin), document_end)
        # for a span that starts at each piece, the index of the piece that starts the next span
        following = np.searchsorted(border, reach, side="right") - 1
        following = np.maximum(following, np.arange(1, len(begin) + 1))
        chosen = border[_walk(following)]
        return np.stack([chosen[:-1], np.diff(chosen)], axis=-1)

    def _targets(self, begin: Ids) -> Ids:
        """Return for each position in ``begin`` the maximum number of tokens of a span that begins there."""
        draws = [uniforms(self.seed, "spans", what, index=begin) for what in ("short", "target")]
        shorter = self.min_length + (draws[1] * (self.limit - self.min_length + 1)).astype(np.int64)
        return np.where(draws[0] < self.short_probability, shorter, self.limit)

    def _split(self, sentences: Ids, documents: Ids) -> Ids:
        """Cut each of the usable documents (n,) near the middle into two adjacent spans: (n, 2, 2)."""
        first, size = self._first[documents], np.minimum(self._size[documents], 2 * self.limit)
        middle = first + size // 2
        slack = np.minimum(size // 4, size // 2 - np.maximum(self.min_length, size - self.limit))
        after = np.searchsorted(sentences, middle)
        near = np.stack([sentences[np.clip(after + step, 0, len(sentences) - 1)] for step in (-1, 0)])
        distance = np.abs(near - middle)
        best = np.take_along_axis(near, np.argmin(distance, axis=0)[None], axis=0)[0]
        cut = np.where(distance.min(axis=0) <= slack, best, middle) if len(documents) else middle
        return np.stack([np.stack([first, cut - first], -1), np.stack([cut, first + size - cut], -1)], axis=1)


def _walk(following: Ids) -> Ids:
    """Return the positions 0, following[0], following[following[0]], ..., len(following)."""
    jump = memoryview(following)  # type: ignore[arg-type]  # gives plain integers, faster than indexing the array
    places, place = [0], 0
    while place < len(jump):
        place = jump[place]
        places.append(place)
    return np.asarray(places, dtype=np.int64)
