"""Rows of token ids become padded chunks that each hold a budget of tokens, not a count of rows.

Letters: n rows of a batch, b rows of a chunk, t its width in tokens, m masked positions of a chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from condensery.tokens.prefixes import NONE
from condensery.tokens.ranges import around, first_of, ranges
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary

Ids = NDArray[np.int64]

_MULTIPLE = 8  # what the width of a chunk is a multiple of


@dataclass(frozen=True)
class Chunk:
    """The rows that go through the encoder together.

    Shape:
        input_ids: (b, t) int64, padded behind each row.
        lengths: (b,) int64, tokens of each row with its special tokens; longest first where there is no context.
        rows: (b,) int64, where each row stands in the batch (or the identity that the caller gave it).
        masked: (m,) int64, ascending positions into the flattened (b * t), or None where nothing is to be predicted.
        targets: (m,) int64, the ids that stood at ``masked``, or None.
        tower: which encoder reads it: 0 the first (passages, or both), 1 the second.
        second: (b,) int64, where the second text of each row begins (its tokens are of type 1), or None where a row is
            one text.
        context: b rows that a decoder fills in with the help of the encoder's vectors, row i with that of row i here;
            or None. Not sorted by their own lengths.
    """

    input_ids: torch.Tensor
    lengths: torch.Tensor
    rows: torch.Tensor
    masked: torch.Tensor | None = None
    targets: torch.Tensor | None = None
    tower: int = 0
    context: "Chunk | None" = None
    second: torch.Tensor | None = None

    @property
    def attention_mask(self) -> torch.Tensor:
        """(b, t) bool: True where a token stands, False on padding."""
        return torch.arange(self.input_ids.shape[1], device=self.lengths.device) < self.lengths[:, None]

    @property
    def tokens(self) -> int:
        """The number of padded tokens, b * t, the context's not counted."""
        return self.input_ids.numel()

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "Chunk":
        """The same chunk on ``device``."""

        def move(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=non_blocking)

        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=non_blocking),
            lengths=self.lengths.to(device, non_blocking=non_blocking),
            rows=self.rows.to(device, non_blocking=non_blocking),
            masked=move(self.masked),
            targets=move(self.targets),
            context=None if self.context is None else self.context.to(device, non_blocking),
            second=move(self.second),
        )


@dataclass(frozen=True)
class DecoderInput:
    """What decoders fill in, a row for each row of a batch: the same arguments as those of ``chunks``."""

    flat_ids: ArrayLike
    starts: ArrayLike
    masked: ArrayLike | None = None
    targets: ArrayLike | None = None


def chunks(
    flat_ids: ArrayLike,
    starts: ArrayLike,
    budget: int,
    pad_id: int,
    masked: ArrayLike | None = None,
    targets: ArrayLike | None = None,
    tower: int = 0,
    rows: ArrayLike | None = None,
    context: DecoderInput | None = None,
    together: int = 1,
) -> list[Chunk]:
    """Cut a batch into chunks of at most ``budget`` padded tokens (one row at least), longest rows first.

    With a ``context`` the length of a row is that of the longer side, and each side of a chunk stays in the budget.
    Rows of equal length keep their order, so the result is a function of the batch alone. A chunk is as wide as its
    longest row, rounded up to a multiple of 8 but never past the longest row of the batch: with few different shapes
    matrix kernels and memory are used again from chunk to chunk.

    Args:
        flat_ids: (N,) the rows one behind the other.
        starts: (n + 1,) where each row starts in ``flat_ids``; the last entry is N.
        budget: padded tokens a chunk may hold; a longer row gets a chunk of its own.
        pad_id: the id that fills the rows up.
        masked: positions into ``flat_ids`` that are predicted; with ``targets`` (the original ids), of equal length.
        tower: copied into each chunk.
        rows: (n,) identity of each row; by default 0 .. n - 1.
        context: n rows that become the context of theirs.
        together: rows that stay in one chunk, each ``together`` of them in their order (n is a multiple of it); they are
            as long as the longest of them.

    Raises:
        ValueError: when ``budget`` is not positive, only one of ``masked`` and ``targets`` is given, or the context has
            another number of rows.
    """
    if budget < 1:
        raise ValueError(f"budget must be positive, not {budget}")
    own = _Side(flat_ids, starts, masked, targets, tower)
    sides = [own]
    if context is not None:
        sides.append(_Side(context.flat_ids, context.starts, context.masked, context.targets, tower))
        if len(sides[1].lengths) != len(own.lengths):
            raise ValueError(f"a context of {len(sides[1].lengths)} rows for {len(own.lengths)}")
    lengths = np.max([side.lengths for side in sides], axis=0)
    lengths = np.repeat(lengths.reshape(-1, together).max(axis=1, initial=0), together)
    order = np.argsort(-lengths, kind="stable")
    cuts = together * _cuts(_rounded(lengths)[order][::together], budget // together)
    names = order if rows is None else np.asarray(rows, dtype=np.int64)[order]
    side_chunks = [side.chunks(order, cuts, names, pad_id) for side in sides]
    return side_chunks[0] if context is None else [replace(a, context=b) for a, b in zip(*side_chunks, strict=True)]


class _Side:
    """Rows that become the chunks of a batch, or the contexts of these."""

    def __init__(
        self, flat_ids: ArrayLike, starts: ArrayLike, masked: ArrayLike | None, targets: ArrayLike | None, tower: int
    ) -> None:
        if (masked is None) != (targets is None):
            raise ValueError("masked and targets belong together")
        self.flat, self.edges = np.asarray(flat_ids), np.asarray(starts, dtype=np.int64)
        self.lengths = np.diff(self.edges)
        self.masked = None if masked is None else np.asarray(masked, dtype=np.int64)
        self.targets = np.asarray(targets)
        self.tower = tower

    def chunks(self, order: Ids, cuts: Ids, names: Ids, pad_id: int) -> list[Chunk]:
        """The rows in this order, cut there, each chunk as wide as its longest row."""
        lengths = self.lengths[order]
        ids = self.flat[ranges(self.edges[:-1][order], lengths)].astype(np.int64)
        widths = np.maximum.reduceat(_rounded(lengths), cuts[:-1])
        predicted = None
        if self.masked is not None:
            predicted = _place(self.masked, self.targets, self.edges, order, cuts, widths)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        result = []
        for number, (first, last) in enumerate(pairwise(cuts.tolist())):
            padded = np.full((last - first, widths[number]), pad_id, dtype=np.int64)
            padded[np.arange(widths[number]) < lengths[first:last, None]] = ids[ends[first] : ends[last]]
            positions, originals = predicted[number] if predicted is not None else (None, None)
            result.append(
                Chunk(
                    input_ids=torch.from_numpy(padded),
                    lengths=torch.from_numpy(lengths[first:last].copy()),
                    rows=torch.from_numpy(names[first:last].copy()),
                    masked=None if positions is None else torch.from_numpy(positions),
                    targets=None if originals is None else torch.from_numpy(originals),
                    tower=self.tower,
                )
            )
        return result


def _rounded(lengths: Ids) -> Ids:
    """Rows of these lengths rounded up to a common multiple, but not past the longest: (n,)."""
    return np.minimum(-(-np.maximum(lengths, 1) // _MULTIPLE) * _MULTIPLE, max(1, int(lengths.max(initial=1))))


def _cuts(widths: Ids, budget: int) -> Ids:
    """Where each chunk begins in rows sorted widest first, and the end of the last: (chunks + 1,)."""
    cuts = [0]
    while cuts[-1] < len(widths):
        cuts.append(min(len(widths), cuts[-1] + max(1, budget // int(widths[cuts[-1]]))))
    return np.asarray(cuts, dtype=np.int64)


def _place(masked: Ids, targets: NDArray, edges: Ids, order: Ids, cuts: Ids, widths: Ids) -> list[tuple[Ids, Ids]]:
    """For each chunk, the masked positions in its flattened (b * t) and their targets, both ascending by position."""
    row = np.searchsorted(edges, masked, side="right") - 1
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    rank_of = rank[row]
    chunk_of = np.searchsorted(cuts, rank_of, side="right") - 1
    position = (rank_of - cuts[chunk_of]) * widths[chunk_of] + masked - edges[row]
    sorting = np.lexsort((position, chunk_of))
    position, originals = position[sorting], targets[sorting].astype(np.int64)
    borders = np.searchsorted(chunk_of[sorting], np.arange(len(cuts)))
    return [(position[a:b], originals[a:b]) for a, b in pairwise(borders.tolist())]


def span_rows(store: TokenStore, spans: ArrayLike, vocabulary: Vocabulary) -> tuple[Ids, Ids]:
    """[CLS] span [SEP] for spans (n, 2) of (start, tokens) in a store: the flat ids and their starts (n + 1,)."""
    pairs = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
    return framed(store.tokens[ranges(pairs[:, 0], pairs[:, 1])], pairs[:, 1], vocabulary)


def text_rows(
    store: TokenStore,
    rows: ArrayLike,
    vocabulary: Vocabulary,
    length: int | Ids,
    titles: TokenStore | None = None,
    hidden: Ids | None = None,
    prefix: Ids = NONE,
) -> tuple[Ids, Ids]:
    """[CLS] text [SEP], or [CLS] title [SEP] text [SEP], of the texts ``rows`` (n,), each cut to ``length`` tokens (one
    number, or (n,)).

    A row whose title is empty is written as if there were no titles. ``prefix`` (p,) stands behind each [CLS].

    Args:
        hidden: (n, 2) first token in the store and number of tokens of a stretch of each text that is left out before
            the text is cut to length; a negative first token = nothing is.

    Returns:
        The flat ids and their starts (n + 1,).
    """
    chosen = np.asarray(rows, dtype=np.int64)
    room = np.broadcast_to(np.asarray(length, dtype=np.int64) - 2 - len(prefix), chosen.shape)
    first, counts = store.starts[chosen][:, None], store.lengths[chosen][:, None]  # (n, pieces of the text)
    if hidden is not None:
        part = np.where(hidden[:, :1] < 0, np.concatenate([first, np.zeros_like(first)], axis=1), hidden)
        first, counts = around(first[:, 0], counts[:, 0], part[:, 0], part[:, 1])
    if titles is None:
        counts = first_of(counts, room)
        return framed(store.tokens[ranges(first, counts)], counts.sum(axis=1), vocabulary, prefix)
    title_counts = np.minimum(titles.lengths[chosen], room)
    separators = np.minimum((title_counts > 0).astype(np.int64), room - title_counts)
    counts = first_of(counts, room - title_counts - separators)
    of_text = counts.sum(axis=1)
    total = title_counts + separators + of_text
    body = np.full(int(total.sum()), vocabulary.sep, dtype=np.int64)
    begin = np.cumsum(total) - total
    body[ranges(begin, title_counts)] = titles.tokens[ranges(titles.starts[chosen], title_counts)]
    body[ranges(begin + title_counts + separators, of_text)] = store.tokens[ranges(first, counts)]
    return framed(body, total, vocabulary, prefix)


def flatten(rows: Sequence[ArrayLike]) -> tuple[Ids, Ids]:
    """A list of id arrays as (flat ids, starts (n + 1,))."""
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    starts = np.concatenate([[0], np.cumsum([len(array) for array in arrays], dtype=np.int64)]).astype(np.int64)
    return (np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)), starts


def framed(body: NDArray, counts: Ids, vocabulary: Vocabulary, prefix: Ids = NONE) -> tuple[Ids, Ids]:
    """Put [CLS] and a prefix before and [SEP] behind each of the rows that lie one behind the other in ``body``.

    Args:
        body: the ids of all rows.
        counts: (n,) ids of each row.
        vocabulary: of the tokens.
        prefix: (p,) ids.

    Returns:
        The flat ids and their starts (n + 1,).
    """
    lead = np.concatenate([[vocabulary.cls], prefix]).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(counts + len(lead) + 1)]).astype(np.int64)
    flat = np.empty(int(starts[-1]), dtype=np.int64)
    flat[starts[:-1, None] + np.arange(len(lead))] = lead
    flat[starts[1:] - 1] = vocabulary.sep
    flat[ranges(starts[:-1] + len(lead), counts)] = body
    return flat, starts
