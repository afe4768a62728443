"""A query and a passage in one row, as a cross-encoder reads them."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from condensery.arguments import no_room
from condensery.errors import UserError
from condensery.tokens.batches import Chunk, chunks, text_rows
from condensery.tokens.ranges import ranges
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class PairReader:
    """Rows [CLS] query [SEP] passage [SEP]; with titles the passage is title [SEP] text.

    Attributes:
        queries, passages: token stores; ``titles`` of the passages or None.
        vocabulary: of the tokens.
        query_length: tokens of the longest query, counted with [CLS] and [SEP].
        length: tokens of the longest row; the passage is cut to what the query leaves.
        separators: [SEP] between the two: 1, or 2 where the tokenizer writes pairs so (RoBERTa's).

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
        """The pairs of queries (n,) and passages (n,): flat ids, starts (n + 1,), where the second texts begin (n,)."""
        query_tokens, query_starts = text_rows(self.queries, queries, self.vocabulary, self.query_length)
        before, shared = np.diff(query_starts), 2 - self.separators
        room = self.length - before + shared
        passage_tokens, passage_starts = text_rows(self.passages, passages, self.vocabulary, room, self.titles)
        passage_tokens[passage_starts[:-1]] = self.vocabulary.sep  # in place of [CLS]
        behind = np.diff(passage_starts) - shared
        # two stretches a pair, out of all queries and then all passages
        counts = np.column_stack([before, behind])
        first = np.column_stack([query_starts[:-1], len(query_tokens) + passage_starts[1:] - behind])
        flat = np.concatenate([query_tokens, passage_tokens])[ranges(first.reshape(-1), counts.reshape(-1))]
        starts = np.concatenate([[0], np.cumsum(counts.sum(axis=1))]).astype(np.int64)
        return flat, starts, before + self.separators - 1

    def chunks(self, queries: ArrayLike, passages: ArrayLike, budget: int, together: int = 1) -> list[Chunk]:
        """The pairs in chunks, see ``condensery.tokens.batches.chunks``; ``Chunk.rows`` are 0 .. n - 1."""
        flat, starts, second = self.rows(queries, passages)
        pieces = chunks(flat, starts, budget, self.vocabulary.pad, together=together)
        return [replace(chunk, second=torch.from_numpy(second[chunk.rows.numpy()])) for chunk in pieces]
