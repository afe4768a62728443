"""Rows that hold a query and a passage, as a cross-encoder reads them."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from condensery.errors import UserError
from condensery.ranges import no_room
from condensery.tokens.batches import Chunk, chunks, text_rows
from condensery.tokens.ranges import ranges
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class PairReader:
    """Makes rows [CLS] query [SEP] passage [SEP]; with titles the passage reads title [SEP] text.

    Attributes:
        queries, passages: token stores.
        titles: token store of the passages' titles, or None.
        vocabulary: gives the ids of the special tokens.
        query_length: tokens of the longest query, [CLS] and [SEP] included.
        length: tokens of the longest row; the passage is cut to the room that the query leaves.
        separators: number of [SEP] between query and passage: 1, or 2 for tokenizers that write pairs so (RoBERTa's).

    Raises:
        UserError: the longest query leaves no room for a passage.
    """

    queries: TokenStore
    passages: TokenStore
    titles: TokenStore | None
    vocabulary: Vocabulary
    query_length: int
    length: int
    separators: int = 1

    def __post_init__(self) -> None:
        if wrong := no_room(self.query_length, self.length):
            raise UserError(wrong)

    def rows(self, queries: ArrayLike, passages: ArrayLike) -> tuple[Ids, Ids, Ids]:
        """The rows of the pairs of queries (n,) and passages (n,).

        Returns:
            The flat ids, the row starts (n + 1,), and the first token of the second text of each row (n,).
        """
        query_tokens, query_starts = text_rows(self.queries, queries, self.vocabulary, self.query_length)
        before, shared = np.diff(query_starts), 2 - self.separators  # (n,) tokens of [CLS] query [SEP]
        room = self.length - before + shared  # (n,)
        passage_tokens, passage_starts = text_rows(self.passages, passages, self.vocabulary, room, self.titles)
        passage_tokens[passage_starts[:-1]] = self.vocabulary.sep  # in place of [CLS]
        behind = np.diff(passage_starts) - shared  # (n,)
        # each pair is two stretches of an array that holds all queries and then all passages
        counts = np.column_stack([before, behind])  # (n, 2)
        first = np.column_stack([query_starts[:-1], len(query_tokens) + passage_starts[1:] - behind])
        flat = np.concatenate([query_tokens, passage_tokens])[ranges(first.reshape(-1), counts.reshape(-1))]
        starts = np.concatenate([[0], np.cumsum(counts.sum(axis=1))]).astype(np.int64)
        return flat, starts, before + self.separators - 1

    def chunks(self, queries: ArrayLike, passages: ArrayLike, budget: int, together: int = 1) -> list[Chunk]:
        """The rows of the pairs in chunks of at most ``budget`` padded tokens; ``Chunk.rows`` are 0 .. n - 1.

        ``together`` consecutive pairs stay in one chunk, as in ``condensery.tokens.batches.chunks``.
        """
        flat, starts, second = self.rows(queries, passages)
        pieces = chunks(flat, starts, budget, self.vocabulary.pad, together=together)
        return [replace(chunk, second=torch.from_numpy(second[chunk.rows.numpy()])) for chunk in pieces]
