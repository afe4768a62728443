"""The data module of document spans: single spans, pairs of spans, or a span and one of its sentences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from condensery.ranges import Count, CountOrZero, Length, PositiveShare, Share, check_values
from condensery.text.to_collection import Given
from condensery.tokens.artifacts import Tokens
from condensery.tokens.spans import SPECIAL_TOKENS, RandomWindows, SentencePacked, SpanSet
from condensery.tokens.store import TokenStore
from condensery.training.data.data_module import TokenDataModule
from condensery.training.data.sources import RowSource, SentencePairs, SingleSpans, SpanPairs, prefixed
from condensery.training.data.span_batches import ContextMasking, SpanBatches

Masked = TypeVar("Masked", bound=SpanBatches)


@dataclass(frozen=True)
class Masking:
    """The settings of masking: which tokens of a text are masked and predicted in pre-training.

    Attributes:
        rate: share of the tokens that are masked; None = no token is masked.
        whole_word: True = whole words are masked; False = single tokens.
        decoder: the input of a masked auto-encoder's decoder; None = there is no decoder.
    """

    rate: float | None = 0.15
    whole_word: bool = True
    decoder: ContextMasking | None = None


class MaskedDataModule(TokenDataModule):
    """Base class of the data modules of masked texts for pre-training.

    Attributes:
        masking: settings of masking.
        batch_size: number of items of the source per step.
        chunk_tokens: maximum number of tokens in a chunk, padding included.
        seed: seed of the order and of the masks.
    """

    masking: Masking
    batch_size: int
    chunk_tokens: int
    seed: int

    def source(self) -> RowSource:
        """Return the source that gives the rows of a batch."""
        raise NotImplementedError

    def make_batches(self) -> SpanBatches:
        """Return the object that makes the batches of masked texts."""
        return self.masked_batches(SpanBatches)

    def masked_batches(self, kind: type[Masked], **own: Any) -> Masked:
        """Return batches of the class ``kind`` with the settings of this data module and the further arguments ``own``."""
        return kind(
            self.source(),
            self.vocabulary,
            batch_size=self.batch_size,
            mask_rate=self.masking.rate,
            whole_word=self.masking.whole_word,
            budget=self.chunk_tokens,
            seed=self.seed,
            context=self.masking.decoder,
            **own,
        )


class SpanPairDataModule(MaskedDataModule):
    """The data of pre-training on documents: spans, pairs of spans, or pairs of a span and one of its sentences.

    Condenser and MLM read single spans. coCondenser and CoT-MAE read pairs of spans. ICT reads pairs with sentences.

    Args:
        data: a folder (in the BEIR layout, of documents, or of plain text), a list of texts, a ``Collection``, or ``Tokens``.
        tokenizer: folder or hub name of the tokenizer; not needed if ``data`` is ``Tokens``.
        length: maximum span length in tokens, [CLS] and [SEP] included.
        batch_size: number of documents per step; if ``pairs`` is None, number of spans per step.
        pairs: the kind of pairs. ``document`` or ``passage``: two spans of each document or passage (Gao and Callan 2021b,
            §3.2); ``sentence``: a span and a sentence taken out of it (ICT); None: single spans.
        spans: ``sentences``: whole sentences are packed up to the length, as in the papers' scripts; ``windows``: texts are
            cut at any token.
        short_probability: share of the spans that get a shorter target length (for ``spans="sentences"``).
        min_length: minimum span length in tokens; a document needs twice this number. None = 16, but at most half of the
            maximum number of tokens in a span.
        mask_rate: share of the tokens that are masked and predicted; None = no token is masked (``ContrastiveModule``). For
            ``pairs="sentence"`` (ICT) no token is masked either.
        whole_word: True = whole words are masked; False = single tokens.
        decoder: the input of a masked auto-encoder's decoder; None = there is no decoder.
        query_length: maximum sentence length in tokens, [CLS] and [SEP] included (for ``pairs="sentence"``).
        keep_sentence: probability that the sentence stays in its span (for ``pairs="sentence"``).
        chunk_tokens: maximum number of tokens in a chunk, padding included; gradients are accumulated over chunks.
        seed: seed of the order, the spans and the masks.
        workers: number of processes that make batches, and that tokenise; 0 = the training process does both. With 1 or
            more, the program must be guarded by ``if __name__ == "__main__":``.
        query_prefix: string put before each sentence (for ``pairs="sentence"``); the encoder must have the same prefix, see
            ``TowersModule``.
        passage_prefix: string put before each span.
        sentence_language: code of the language. A full stop after an abbreviation or ordinal of this language does not end a
            sentence.

    Raises:
        UserError: a number is out of its range; see also ``TokenDataModule``.
    """

    def __init__(
        self,
        data: Given | Tokens,
        tokenizer: str | Path | None = None,
        *,
        length: Length = 128,
        batch_size: Count = 2000,
        pairs: Literal["document", "passage", "sentence"] | None = "document",
        spans: Literal["sentences", "windows"] = "sentences",
        short_probability: Share = 0.1,
        min_length: Count | None = None,
        mask_rate: PositiveShare | None = 0.15,
        whole_word: bool = True,
        decoder: ContextMasking | None = None,
        query_length: Length = 64,
        keep_sentence: Share = 0.0,
        chunk_tokens: Count = 2048,
        seed: CountOrZero = 42,
        workers: CountOrZero = 0,
        query_prefix: str = "",
        passage_prefix: str = "",
        sentence_language: str = "en",
    ) -> None:
        check_values(SpanPairDataModule, locals())
        super().__init__(data, tokenizer, titles=False, workers=workers)
        self.length, self.batch_size, self.pairs, self.spans = length, batch_size, pairs, spans
        self.short_probability = short_probability
        self.min_length = min(16, max(1, (length - SPECIAL_TOKENS) // 2)) if min_length is None else min_length
        self.masking = Masking(None if pairs == "sentence" else mask_rate, whole_word, decoder)
        self.query_length, self.keep_sentence = query_length, keep_sentence
        self.chunk_tokens, self.seed = chunk_tokens, seed
        self.query_prefix, self.passage_prefix, self.language = query_prefix, passage_prefix, sentence_language

    @property
    def lengths(self) -> tuple[int, int]:
        """Maximum query length and span length in tokens, [CLS] and [SEP] included.

        The query length is the length of a sentence with ``pairs="sentence"``, otherwise the length of a span.
        """
        return (self.query_length if self.pairs == "sentence" else self.length), self.length

    def source(self) -> RowSource:
        """Return the source that gives the rows of a batch."""
        if self.pairs is None:
            return SingleSpans(self._spans(), self.vocabulary)
        prefixes = self.prefixes
        spans = self._spans(len(prefixes.passage))
        if self.pairs == "sentence":
            longest = self.query_length - len(prefixes.query)
            pairs = SentencePairs(spans, self.vocabulary, longest, self.keep_sentence, self.seed)
            return prefixed(pairs, prefixes, queries=True)
        return prefixed(SpanPairs(spans, self.vocabulary), prefixes, queries=False)

    def _spans(self, room: int = 0) -> SpanSet:
        """Return spans that are short enough for a prefix of ``room`` tokens."""
        store, length = self.tokens.documents, self.length - room
        if self.pairs == "passage":
            store = TokenStore(store.folder, single_texts=True)
        if self.spans == "windows":
            return RandomWindows(store, length, self.seed, self.min_length)
        return SentencePacked(store, length, self.short_probability, self.seed, self.min_length)
