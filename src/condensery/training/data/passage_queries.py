"""The data module of passages with the queries that were generated for them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from condensery.errors import UserError
from condensery.ranges import Count, CountOrZero, Length, PositiveShare, Share, check_values
from condensery.text.words import is_blank
from condensery.tokens.artifacts import Tokens
from condensery.training.data.data_module import TokenDataModule
from condensery.training.data.sources import MixedPairs, PassageQueries, PassagesAndQueries, RowSource, prefixed
from condensery.training.data.span_batches import ContextMasking
from condensery.training.data.spans import MaskedDataModule, Masking


class PassageQueryDataModule(MaskedDataModule):
    """The data of query-as-context pre-training: pairs of a passage and one of its queries (Wu et al. 2023, §3.1).

    Args:
        data: passages with their queries, as mappings with ``text`` and ``queries`` (a list of strings), or as ``Tokens``,
            with the passages and queries in ``stores``.
        tokenizer: folder or hub name of the tokenizer; not needed if ``data`` is ``Tokens``.
        stores: passages and queries as token ids; None = the passages and queries of ``data``.
        length: maximum passage length in tokens, [CLS] and [SEP] included.
        query_length: maximum query length in tokens, [CLS] and [SEP] included.
        candidates: in each epoch, the query of a passage is drawn from this number of the passage's first queries.
        mixed_context: probability that a step pairs passages with other passages of their documents instead of queries (Wu
            et al. 2023, §5.2).
        batch_size: number of passages per step.
        mask_rate: share of the tokens that are masked and predicted; None = no token is masked (``ContrastiveModule``).
        whole_word: True = whole words are masked; False = single tokens.
        decoder: the input of a masked auto-encoder's decoder; None = there is no decoder.
        chunk_tokens: maximum number of tokens in a chunk, padding included; gradients are accumulated over chunks.
        seed: seed of the order, the drawn queries and the masks.
        workers: number of processes that make batches, and that tokenise; 0 = the training process does both. With 1 or
            more, the program must be guarded by ``if __name__ == "__main__":``.
        query_prefix: string put before each query, such as E5's "query: "; the encoder must have the same prefix, see
            ``TowersModule``.
        passage_prefix: string put before each passage, and before the passage's title.

    Raises:
        UserError: a number is out of its range; or the text or the queries of an item of ``data`` are missing or blank;
            see also ``TokenDataModule``.

    Attributes:
        pairs: kind of the pairs, as the argument ``pairs`` of ``SpanPairDataModule``; here always ``query``.
    """

    pairs = "query"

    def __init__(
        self,
        data: Sequence[Mapping[str, Any]] | Tokens,
        tokenizer: str | Path | None = None,
        *,
        stores: PassagesAndQueries | None = None,
        length: Length = 128,
        query_length: Length = 64,
        candidates: Count = 5,
        mixed_context: Share = 0.0,
        batch_size: Count = 2000,
        mask_rate: PositiveShare | None = 0.15,
        whole_word: bool = True,
        decoder: ContextMasking | None = None,
        chunk_tokens: Count = 2048,
        seed: CountOrZero = 42,
        workers: CountOrZero = 0,
        query_prefix: str = "",
        passage_prefix: str = "",
    ) -> None:
        check_values(PassageQueryDataModule, locals())
        if mixed_context and query_prefix != passage_prefix:
            raise UserError(
                "PassageQueryDataModule: mixed_context uses passages as queries, but query_prefix and passage_prefix differ"
                f" ({query_prefix!r}, {passage_prefix!r}); set mixed_context=0"
            )
        texts, self._queries = (data, []) if isinstance(data, Tokens) else _with_queries(data)
        super().__init__(texts, tokenizer, titles=False, workers=workers)
        self.stores, self.length, self.query_length = stores, length, query_length
        self.candidates, self.mixed_context, self.batch_size = candidates, mixed_context, batch_size
        self.masking = Masking(mask_rate, whole_word, decoder)
        self.chunk_tokens, self.seed = chunk_tokens, seed
        self.query_prefix, self.passage_prefix = query_prefix, passage_prefix

    @property
    def lengths(self) -> tuple[int, int]:
        """Maximum query length and passage length in tokens, [CLS] and [SEP] included."""
        return self.query_length, self.length

    def source(self) -> RowSource:
        """Return the source that gives the rows of a batch."""
        stores, prefixes = self.stores or self._tokenised(), self.prefixes
        lengths = (self.length - len(prefixes.passage), self.query_length - len(prefixes.query))
        pairs = PassageQueries(stores, self.vocabulary, *lengths, self.candidates, self.seed)
        mixed = MixedPairs(pairs, self.mixed_context, self.seed) if self.mixed_context else pairs
        return prefixed(mixed, prefixes, queries=True)

    def _tokenised(self) -> PassagesAndQueries:
        """Tokenise the queries of ``data`` as a separate collection; return them with the passages."""
        flat = [query for queries in self._queries for query in queries]
        own = TokenDataModule(flat, self.tokenizer_folder, titles=False, workers=self.workers)
        own.prepare_data()
        first = np.concatenate([[0], np.cumsum([len(queries) for queries in self._queries])]).astype(np.int64)
        return PassagesAndQueries(self.tokens.passages, None, own.tokens.passages, first)


def _with_queries(data: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the texts, and the queries of each text. Raises ``UserError`` if text or queries are missing or blank."""
    texts, queries = [], []
    for number, one in enumerate(data if isinstance(data, Iterable) else [data]):
        text, own = (one.get("text"), one.get("queries")) if isinstance(one, Mapping) else (None, None)
        listed = isinstance(own, Sequence) and not isinstance(own, str) and all(isinstance(q, str) for q in own)
        if not isinstance(text, str) or own is None or not listed:
            raise UserError(
                f"data[{number}]: a mapping with `text` (a string) and `queries` (a list of strings) is expected"
            )
        if is_blank(text) or any(map(is_blank, own)):
            raise UserError(f"data[{number}]: the text or a query is blank; leave it out")
        texts.append(text)
        queries.append(list(own))
    return texts, queries
