"""Cut batches of token rows into padded chunks. A chunk is limited by a token budget, not by a number of rows.

Shapes: n rows in a batch, b rows in a chunk, t width of a chunk in tokens, m masked positions in a chunk, N tokens in all
rows of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from condensery.tokens.prefixes import NONE
from condensery.tokens.ranges import Ids, around, first_of, ranges
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary

_MULTIPLE = 8  # the width of a chunk is rounded up to a multiple of this number


@dataclass(frozen=True)
class Chunk:
    """Rows that go through the encoder together.

    Attributes:
        input_ids: int64 (b, t), right-padded.
        lengths: int64 (b,), number of tokens in each row, special tokens included; longest first, unless rows have a
            ``context`` or stay ``together`` (see ``chunks``).
        rows: int64 (b,), the index of each row in the batch, or another number by which the caller identifies the row.
        masked: int64 (m,), ascending positions in the flattened ``input_ids`` (b * t); None if no token is predicted.
        targets: int64 (m,), the original ids at ``masked``; None if no token is predicted.
        tower: the encoder that reads the chunk: 0 = the passage encoder or the only encoder, 1 = the query encoder.
        context: b rows for a decoder. To predict the masked tokens of row i of ``context``, the decoder also reads the
            encoder's vector of row i of this chunk. None without a decoder. Context rows are not sorted by their lengths.
        second: int64 (b,), the position of the first token of each row's second text; the tokens of this text have token
            type 1. None if each row is a single text.
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
        """The attention mask, bool (b, t): True for a token, False for padding."""
        return torch.arange(self.input_ids.shape[1], device=self.lengths.device) < self.lengths[:, None]  # (b, t)

    @property
    def tokens(self) -> int:
        """The number of tokens including padding, b * t, without the context."""
        return self.input_ids.numel()

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """Return the same chunk on ``device``."""
        parts: dict[str, Any] = {
            name: value.to(device, non_blocking=non_blocking)
            for name, value in vars(self).items()
            if isinstance(value, torch.Tensor | Chunk)
        }
        return replace(self, **parts)


class TokenRows:
    """Concatenated rows of token ids, such as the rows whose masked tokens a decoder predicts.

    Args:
        flat_ids: (N,) the concatenated rows.
        starts: (n + 1,) the start of each row in ``flat_ids``; the last entry is N.
        masked: positions in ``flat_ids`` that are predicted; None = no position.
        targets: the original ids at ``masked``.

    Raises:
        ValueError: only one of ``masked`` and ``targets`` is given.
    """

    def __init__(
        self, flat_ids: ArrayLike, starts: ArrayLike, masked: ArrayLike | None = None, targets: ArrayLike | None = None
    ) -> None:
        if (masked is None) != (targets is None):
            raise ValueError("masked and targets belong together")
        self.flat, self.edges = np.asarray(flat_ids), np.asarray(starts, dtype=np.int64)
        self.lengths = np.diff(self.edges)  # (n,)
        self.masked = None if masked is None else np.asarray(masked, dtype=np.int64)
        self.targets = np.asarray(targets)

    def chunks(self, order: Ids, cuts: Ids, names: Ids, pad_id: int, tower: int, multiple: int) -> list[Chunk]:
        """Return the chunks of these rows, each as wide as its longest row, rounded up.

        Args:
            order: (n,) the rows, longest first.
            cuts: (chunks + 1,) the first row of each chunk in ``order``; the last entry is n.
            names: (n,) the identity of each row, sorted as ``order``.
            pad_id: id of the padding token.
            tower: value of ``Chunk.tower`` in each chunk.
            multiple: each width is rounded up to a multiple of this number.
        """
        lengths = self.lengths[order]  # (n,)
        ids = self.flat[ranges(self.edges[:-1][order], lengths)].astype(np.int64)  # (N,)
        widths = np.maximum.reduceat(_rounded(lengths, multiple), cuts[:-1])  # (chunks,)
        predicted: Sequence[tuple[torch.Tensor | None, torch.Tensor | None]] = [(None, None)] * len(widths)
        if self.masked is not None:
            predicted = _place(self.masked, self.targets, self.edges, order, cuts, widths)
        ends = np.concatenate([[0], np.cumsum(lengths)])  # (n + 1,)
        result = []
        for number, (first, last) in enumerate(pairwise(cuts.tolist())):
            padded = np.full((last - first, widths[number]), pad_id, dtype=np.int64)  # (b, t)
            padded[np.arange(widths[number]) < lengths[first:last, None]] = ids[ends[first] : ends[last]]
            masked, targets = predicted[number]
            result.append(
                Chunk(
                    input_ids=torch.from_numpy(padded),
                    lengths=torch.from_numpy(lengths[first:last].copy()),
                    rows=torch.from_numpy(names[first:last].copy()),
                    masked=masked,
                    targets=targets,
                    tower=tower,
                )
            )
        return result


def chunks(
    flat_ids: ArrayLike,
    starts: ArrayLike,
    budget: int,
    pad_id: int,
    masked: ArrayLike | None = None,
    targets: ArrayLike | None = None,
    tower: int = 0,
    rows: ArrayLike | None = None,
    context: TokenRows | None = None,
    together: int = 1,
    level: bool = False,
) -> list[Chunk]:
    """Cut a batch into chunks of at most ``budget`` padded tokens, longest rows first. A chunk has at least one row.

    With a ``context``, the length of a row is the larger of the lengths of the row and of its context row. The budget
    applies separately to the rows and to the context rows of a chunk. Rows of equal length keep their order, so the result
    depends only on the batch. The width of a chunk is the length of its longest row, rounded up to a multiple of 8. It never
    exceeds the longest row of the batch. The rounding leaves few different shapes, so chunks can share matrix kernels and
    memory.

    Args:
        flat_ids: (N,) the concatenated rows.
        starts: (n + 1,) the start of each row in ``flat_ids``; the last entry is N.
        budget: largest number of tokens in a chunk, padding included. A longer row becomes a chunk by itself.
        pad_id: id of the padding token.
        masked: positions in ``flat_ids`` that are predicted; given together with ``targets``.
        targets: the original ids at ``masked``, as many as ``masked`` has positions.
        tower: value of ``Chunk.tower`` in each chunk.
        rows: (n,) identity of each row; by default 0 .. n - 1.
        context: n rows for a decoder; its row i belongs to row i of the batch.
        together: number of consecutive rows that stay in one chunk, in their order; n must be a multiple of this number.
            Each row of such a group counts as long as the group's longest row.
        level: whether rows of equal length get chunks of their own, without padding, if they fill a quarter of the budget.
            Widths are then not rounded. This is faster for many rows on a CPU, where attention also computes padding.

    Returns:
        The chunks, longest rows first.

    Raises:
        ValueError: ``budget`` is not positive, only one of ``masked`` and ``targets`` is given, or the context has a
            different number of rows.
    """
    if budget < 1:
        raise ValueError(f"budget must be positive, not {budget}")
    own, multiple = TokenRows(flat_ids, starts, masked, targets), 1 if level else _MULTIPLE
    lengths = own.lengths  # (n,)
    if context is not None:
        if len(context.lengths) != len(lengths):
            raise ValueError(f"a context of {len(context.lengths)} rows for {len(lengths)}")
        lengths = np.maximum(lengths, context.lengths)  # (n,)
    lengths = np.repeat(lengths.reshape(-1, together).max(axis=1, initial=0), together)  # (n,)
    order = np.argsort(-lengths, kind="stable")  # (n,)
    cuts = together * _cuts(_rounded(lengths, multiple)[order][::together], budget // together, level)
    names = order if rows is None else np.asarray(rows, dtype=np.int64)[order]  # (n,)
    made = own.chunks(order, cuts, names, pad_id, tower, multiple)
    if context is None:
        return made
    contexts = context.chunks(order, cuts, names, pad_id, tower, _MULTIPLE)
    return [replace(chunk, context=its) for chunk, its in zip(made, contexts, strict=True)]


def _rounded(lengths: Ids, multiple: int) -> Ids:
    """Round the lengths (n,) up to a ``multiple``, but not above the largest length: (n,)."""
    return np.minimum(-(-np.maximum(lengths, 1) // multiple) * multiple, max(1, int(lengths.max(initial=1))))


def _cuts(widths: Ids, budget: int, level: bool) -> Ids:
    """Return the first row of each chunk and the end of the last chunk, (chunks + 1,), for rows sorted widest first."""
    cuts, rising = [0], -widths  # (n,)
    while cuts[-1] < len(widths):
        first, width = cuts[-1], int(widths[cuts[-1]])
        count = max(1, budget // width)
        if level:
            equal = int(np.searchsorted(rising, -width, side="right")) - first
            count = min(count, equal) if 4 * equal * width >= budget else count
        cuts.append(min(len(widths), first + count))
    return np.asarray(cuts, dtype=np.int64)


def _place(
    masked: Ids, targets: NDArray, edges: Ids, order: Ids, cuts: Ids, widths: Ids
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return for each chunk the ascending masked positions in the flattened chunk (b * t), and their targets."""
    row = np.searchsorted(edges, masked, side="right") - 1  # row of each masked position
    rank = np.empty_like(order)  # (n,) index of each row in ``order``
    rank[order] = np.arange(len(order))
    rank_of = rank[row]
    chunk_of = np.searchsorted(cuts, rank_of, side="right") - 1
    position = (rank_of - cuts[chunk_of]) * widths[chunk_of] + masked - edges[row]
    sorting = np.lexsort((position, chunk_of))
    position, originals = position[sorting], targets[sorting].astype(np.int64)
    borders = np.searchsorted(chunk_of[sorting], np.arange(len(cuts)))  # (chunks + 1,)
    pieces = pairwise(borders.tolist())
    return [(torch.from_numpy(position[a:b]), torch.from_numpy(originals[a:b])) for a, b in pieces]


def span_rows(store: TokenStore, spans: ArrayLike, vocabulary: Vocabulary) -> tuple[Ids, Ids]:
    """Build rows [CLS] span [SEP] from the spans (n, 2), each (start, tokens) in a store.

    Returns:
        The flat ids and the row starts (n + 1,).
    """
    pairs = np.asarray(spans, dtype=np.int64).reshape(-1, 2)  # (n, 2)
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
    """Build rows [CLS] text [SEP], or with titles [CLS] title [SEP] text [SEP].

    A row with an empty title has the form [CLS] text [SEP].

    Args:
        store: token store of the texts.
        rows: (n,) indices of texts in ``store``.
        vocabulary: supplies the ids of [CLS] and [SEP].
        length: maximum number of tokens per row, special tokens included: one number, or (n,). Longer rows are cut.
        titles: token store of the titles of the texts.
        hidden: (n, 2) a stretch of each text that is removed before the text is cut to ``length``. Column 0 is the index of
            the stretch's first token in the store, column 1 its number of tokens. Negative index = nothing is removed.
        prefix: (p,) ids that follow each [CLS].

    Returns:
        The flat ids and the row starts (n + 1,).
    """
    chosen = np.asarray(rows, dtype=np.int64)  # (n,)
    room = np.broadcast_to(np.asarray(length, dtype=np.int64) - 2 - len(prefix), chosen.shape)  # (n,)
    first, counts = store.starts[chosen][:, None], store.lengths[chosen][:, None]  # (n, pieces of the text)
    if hidden is not None:
        part = np.where(hidden[:, :1] < 0, np.concatenate([first, np.zeros_like(first)], axis=1), hidden)
        first, counts = around(first[:, 0], counts[:, 0], part[:, 0], part[:, 1])
    if titles is None:
        counts = first_of(counts, room)
        return framed(store.tokens[ranges(first, counts)], counts.sum(axis=1), vocabulary, prefix)
    title_counts = np.minimum(titles.lengths[chosen], room)  # (n,)
    separators = np.minimum((title_counts > 0).astype(np.int64), room - title_counts)  # (n,) 0 or 1
    counts = first_of(counts, room - title_counts - separators)  # (n, pieces of the text)
    of_text = counts.sum(axis=1)  # (n,)
    total = title_counts + separators + of_text  # (n,)
    body = np.full(int(total.sum()), vocabulary.sep, dtype=np.int64)
    begin = np.cumsum(total) - total  # (n,)
    body[ranges(begin, title_counts)] = titles.tokens[ranges(titles.starts[chosen], title_counts)]
    body[ranges(begin + title_counts + separators, of_text)] = store.tokens[ranges(first, counts)]
    return framed(body, total, vocabulary, prefix)


def flatten(rows: Sequence[ArrayLike]) -> tuple[Ids, Ids]:
    """Concatenate n arrays of ids. Returns the flat ids and the start of each array (n + 1,)."""
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    starts = np.concatenate([[0], np.cumsum([len(array) for array in arrays], dtype=np.int64)]).astype(np.int64)
    return (np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)), starts


def framed(body: NDArray, counts: Ids, vocabulary: Vocabulary, prefix: Ids = NONE) -> tuple[Ids, Ids]:
    """Put [CLS] and a prefix before each row, and [SEP] after each row.

    Args:
        body: the concatenated ids of all rows.
        counts: (n,) number of ids in each row.
        vocabulary: supplies the ids of [CLS] and [SEP].
        prefix: (p,) ids that follow each [CLS].

    Returns:
        The flat ids and the row starts (n + 1,).
    """
    lead = np.concatenate([[vocabulary.cls], prefix]).astype(np.int64)  # (1 + p,)
    starts = np.concatenate([[0], np.cumsum(counts + len(lead) + 1)]).astype(np.int64)  # (n + 1,)
    flat = np.empty(int(starts[-1]), dtype=np.int64)  # (N,)
    flat[starts[:-1, None] + np.arange(len(lead))] = lead
    flat[starts[1:] - 1] = vocabulary.sep
    flat[ranges(starts[:-1] + len(lead), counts)] = body
    return flat, starts
