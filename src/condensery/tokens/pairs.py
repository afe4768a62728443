"""Build the inputs of a cross-encoder: each row contains a query and a passage."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike

from condensery.errors import UserError
from condensery.ranges import no_room
from condensery.tokens.batches import Chunk, chunks, text_rows
from condensery.tokens.ranges import Ids, ranges
from condensery.tokens.store import TokenStore
from condensery.tokens.vocabulary import Vocabulary


@dataclass(frozen=True)
class PairReader:
    """Builds rows of the form [CLS] query [SEP] passage [SEP]. With titles, a passage has the form title [SEP] text.

    Attributes:
        queries, passages: token stores of the queries and of the passages.
        titles: token store of the passages' titles; None = rows without titles.
        vocabulary: supplies the ids of [CLS] and [SEP], and of the padding token.
        query_length: maximum number of tokens per query, [CLS] and [SEP] included.
        length: maximum number of tokens per row; the passage is cut to the length that the query leaves.
        separators: number of [SEP] tokens between query and passage: 1, or 2 for tokenizers such as RoBERTa's.

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
        """Build one row for each of n pairs. ``queries``, ``passages``: (n,) indices of the texts in the token stores.

        Returns:
            The flat ids, the row starts (n + 1,), and the position of the second text's first token in each row (n,).
        """
        query_tokens, query_starts = text_rows(self.queries, queries, self.vocabulary, self.query_length)
        before, shared = np.diff(query_starts), 2 - self.separators  # (n,) tokens of [CLS] query [SEP]
        room = self.length - before + shared  # (n,)
        passage_tokens, passage_starts = text_rows(self.passages, passages, self.vocabulary, room, self.titles)
        passage_tokens[passage_starts[:-1]] = self.vocabulary.sep  # in place of [CLS]
        behind = np.diff(passage_starts) - shared  # (n,)
        # each pair consists of two stretches of an array that contains all queries, followed by all passages
        counts = np.column_stack([before, behind])  # (n, 2)
        first = np.column_stack([query_starts[:-1], len(query_tokens) + passage_starts[1:] - behind])
        flat = np.concatenate([query_tokens, passage_tokens])[ranges(first.reshape(-1), counts.reshape(-1))]
        starts = np.concatenate([[0], np.cumsum(counts.sum(axis=1))]).astype(np.int64)
        return flat, starts, before + self.separators - 1

    def chunks(self, queries: ArrayLike, passages: ArrayLike, budget: int, together: int = 1) -> list[Chunk]:
        """Build n rows, and cut them into chunks of at most ``budget`` padded tokens. ``Chunk.rows`` are 0 .. n - 1.

        Each group of ``together`` consecutive pairs stays in one chunk, as in ``condensery.tokens.batches.chunks``.
        """
        flat, starts, second = self.rows(queries, passages)
        pieces = chunks(flat, starts, budget, self.vocabulary.pad, together=together)
        return [replace(chunk, second=torch.from_numpy(second[chunk.rows.numpy()])) for chunk in pieces]
