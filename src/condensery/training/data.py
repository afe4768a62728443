"""The LightningDataModules: for pre-training on spans, on passages with queries, and for fine-tuning on queries.

Each makes the batch of a step as a function of the step, so nothing is remembered: a run that goes on from any step sees
what one that was never interrupted sees, with any number of processes and of workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from condensery.cache import cached
from condensery.children import Parent
from condensery.errors import UserError
from condensery.losses.cross_batch import processes, rank
from condensery.models.cross_encoder import pair_separators
from condensery.retrieval.negatives import Negatives, open_negatives, read_negatives
from condensery.retrieval.pool import NegativePool
from condensery.retrieval.searchers import BM25, Searcher, mined
from condensery.signals import deaf_to_ctrl_c
from condensery.text.collection import Collection
from condensery.text.given import Given, collection_of
from condensery.tokens.artifacts import Tokens, pair_reader, tokenise_collection
from condensery.tokens.spans import RandomWindows, SentencePacked, SpanSet
from condensery.tokens.store import TokenStore
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.batches import Batch, Batches, Order, Share, StepDataset, StepSampler, begin_worker
from condensery.training.list_batches import ListBatches
from condensery.training.sources import Asked, MixedPairs, PassageQueries, SentencePairs, SingleSpans, Source, SpanPairs
from condensery.training.span_batches import ContextMasking, SpanBatches
from condensery.training.triple_batches import TrainingQueries, TripleBatches, judged_queries
from condensery.training.validation import ValidationSample, sample_of

Mined = Searcher | type[BM25] | str | Path | Negatives


class StepDataModule(pl.LightningDataModule):
    """Hands the batch of each step to the trainer, from the step at which the trainer stands.

    Args:
        batches: makes them; None where a subclass does in ``setup``.
        workers: processes that make them beside the training; 0 = none.

    Attributes:
        epoch: batches that Lightning is to take for an epoch; None = those of one pass over the data.
    """

    def __init__(self, batches: Batches | None = None, workers: int = 0) -> None:
        super().__init__()
        self._batches, self.workers = batches, workers
        self.epoch: int | None = None

    @property
    def batches(self) -> Batches:
        """What makes the batches. Raises ``UserError`` before ``setup``."""
        if self._batches is None:
            raise UserError(f"{type(self).__name__}: call prepare_data() and setup() first, or give it to a Trainer")
        return self._batches

    def batches_an_epoch(self) -> int:
        """What Lightning takes for an epoch."""
        return self.epoch or self.batches.steps_an_epoch()

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches of this process's share, in the order of the steps."""
        return _Loader(
            StepDataset(self.batches, Share(rank(), processes())),
            batch_size=None,
            sampler=StepSampler(lambda: self.trainer.global_step if self.trainer else 0, self.batches_an_epoch()),
            num_workers=self.workers,
            multiprocessing_context="spawn" if self.workers else None,
            worker_init_fn=partial(begin_worker, Parent.here()),
            persistent_workers=False,
        )

    def val_dataloader(self) -> Any:
        """A sample of dev queries and passages, where there are any."""
        sample = self.validation_sample()
        return [] if sample is None else DataLoader([sample], batch_size=None)  # type: ignore[arg-type]

    def validation_sample(self) -> ValidationSample | None:
        """What ``val_dataloader`` gives; None = nothing is validated."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the data, so that another run of training is not taken for the same one."""
        return {"steps_an_epoch": self.batches.steps_an_epoch()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raise ``UserError`` where the checkpoint is of other data or another batch size."""
        if state_dict != (here := self.state_dict()):
            raise UserError(f"the checkpoint was written with other data ({state_dict}, here {here}); delete it")

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """See Lightning."""
        return batch.to(device)


class _Loader(DataLoader[Batch]):
    """Its worker processes pass over Ctrl-C."""

    def __iter__(self) -> Any:
        with deaf_to_ctrl_c():
            return super().__iter__()


class TokenDataModule(StepDataModule):
    """Batches from a collection in tokens.

    Args:
        data: ``Tokens``; or a folder in the BEIR layout, of documents or of plain text, a list of texts, or a
            ``Collection``, which ``prepare_data`` reads and tokenises once (see ``condensery.cache``).
        tokenizer: folder or hub name; where ``data`` is ``Tokens`` the folder that they were made with, if at all.
        titles: passages are read as title [SEP] text.
        workers: see ``StepDataModule``; as many processes tokenise.

    Raises:
        UserError: there is no tokenizer, or, from ``prepare_data``, the texts cannot be read.
    """

    def __init__(self, data: Given | Tokens, tokenizer: str | Path | None, titles: bool, workers: int) -> None:
        super().__init__(workers=workers)
        if tokenizer is None and not isinstance(data, Tokens):
            raise UserError(f"{type(self).__name__}: give `tokenizer`, a folder or a hub name")
        self.data, self.tokenizer, self.titles = data, tokenizer, titles
        self.tokenizer_folder = Path(tokenizer) if tokenizer is not None and isinstance(data, Tokens) else None
        self._tokens = data if isinstance(data, Tokens) else None
        self._collection: Collection | None = None

    @property
    def tokens(self) -> Tokens:
        """The texts in tokens. Raises ``UserError`` before ``setup``."""
        if self._tokens is None:
            raise UserError(f"{type(self).__name__}: call prepare_data() and setup() first, or give it to a Trainer")
        return self._tokens

    @property
    def vocabulary(self) -> Vocabulary:
        """Of the tokens."""
        return self.tokens.vocabulary

    @property
    def lengths(self) -> tuple[int, int]:
        """Longest query and passage in tokens, [CLS] and [SEP] included."""
        raise NotImplementedError

    def prepare_data(self) -> None:
        """Read and tokenise what was not read before; in one process of a machine."""
        self._open()

    def setup(self, stage: str | None = None) -> None:
        """Open the tokens and make ``batches``; in every process."""
        if self._batches is None:
            self._open()
            self._batches = self.make_batches()

    def make_batches(self) -> Batches:
        """What makes the batches, once the tokens are there."""
        raise NotImplementedError

    def validation_sample(self) -> ValidationSample | None:
        """A few dev queries of the collection; None where it has none."""
        if self._collection is None:
            return None
        return sample_of(self._collection, self.tokens, self.lengths)

    def _open(self) -> None:
        if isinstance(self.data, Tokens):
            return
        self._collection, self.tokenizer_folder = collection_of(self.data), _saved(str(self.tokenizer))
        collection, tokenizer = self._collection, self.tokenizer_folder
        content = f"{collection.content_hash} {tokenizer.name} {self.titles}"
        make = partial(tokenise_collection, collection, tokenizer, titles=self.titles, workers=max(1, self.workers))
        self._tokens = Tokens(cached("tokens", content, lambda folder: make(folder=folder)))


def _saved(name: str) -> Path:
    """The folder of a tokenizer, known by what it does."""
    tokenizer = load_tokenizer(name)
    content = f"{tokenizer.backend_tokenizer.to_str()} {sorted(tokenizer.special_tokens_map.items())}"
    return cached("tokenizer", content, lambda folder: tokenizer.save_pretrained(folder))


@dataclass(frozen=True)
class Masking:
    """What is masked and predicted in a text for pre-training.

    Attributes:
        rate: share of the tokens; None = nothing is masked.
        whole_word: mask whole words, or single tokens.
        decoder: what the decoder of an auto-encoder reads; None = there is no decoder.
    """

    rate: float | None = 0.15
    whole_word: bool = True
    decoder: ContextMasking | None = None


class SpanPairDataModule(TokenDataModule):
    """Masked spans for Condenser and MLM, pairs of spans for coCondenser and CoT-MAE, sentences and passages for ICT.

    Args:
        data, tokenizer, workers: see ``TokenDataModule``.
        length: longest span in tokens, [CLS] and [SEP] included.
        batch_size: documents (spans, where ``pairs`` is None) a step.
        pairs: ``document`` or ``passage``: two spans of each (Gao and Callan 2021b, §3.2); ``sentence``: a span and a
            sentence taken out of it (ICT); None: single spans.
        spans: ``sentences`` packed to the length, as the papers' scripts do; or ``windows``: cut anywhere.
        short_probability: share of spans that aim at a shorter length (of ``sentences``).
        min_length: tokens of the shortest span; a document needs twice that.
        mask_rate: share of the tokens that is predicted; nothing is masked for ICT.
        whole_word: mask whole words, or single tokens.
        decoder: what the decoder of an auto-encoder reads; None = there is none.
        query_length, keep_sentence: of ``pairs="sentence"``: longest sentence in tokens; how often it stays in its span.
        chunk_tokens: padded tokens that are in memory together; a larger batch is accumulated.
        seed: of order, spans and masks.
    """

    def __init__(
        self,
        data: Given | Tokens,
        tokenizer: str | Path | None = None,
        *,
        length: int = 128,
        batch_size: int = 256,
        pairs: Literal["document", "passage", "sentence"] | None = "document",
        spans: Literal["sentences", "windows"] = "sentences",
        short_probability: float = 0.1,
        min_length: int = 16,
        mask_rate: float = 0.15,
        whole_word: bool = True,
        decoder: ContextMasking | None = None,
        query_length: int = 64,
        keep_sentence: float = 0.0,
        chunk_tokens: int = 8192,
        seed: int = 42,
        workers: int = 0,
    ) -> None:
        super().__init__(data, tokenizer, titles=False, workers=workers)
        self.length, self.batch_size, self.pairs, self.spans = length, batch_size, pairs, spans
        self.short_probability, self.min_length = short_probability, min_length
        self.masking = Masking(None if pairs == "sentence" else mask_rate, whole_word, decoder)
        self.query_length, self.keep_sentence = query_length, keep_sentence
        self.chunk_tokens, self.seed = chunk_tokens, seed

    @property
    def lengths(self) -> tuple[int, int]:
        """See ``TokenDataModule``."""
        return (self.query_length if self.pairs == "sentence" else self.length), self.length

    def make_batches(self) -> SpanBatches:
        """See ``TokenDataModule``."""
        return _masked(self.source(), self.vocabulary, self.masking, self)

    def source(self) -> Source:
        """Where the rows of a batch come from."""
        if self.pairs is None:
            return SingleSpans(self._spans(), self.vocabulary)
        if self.pairs == "sentence":
            return SentencePairs(self._spans(), self.vocabulary, self.query_length, self.keep_sentence, self.seed)
        return SpanPairs(self._spans(), self.vocabulary)

    def _spans(self) -> SpanSet:
        store = self.tokens.documents
        if self.pairs == "passage":
            store = TokenStore(store.folder, single_texts=True)
        if self.spans == "windows":
            return RandomWindows(store, self.length, self.seed, self.min_length)
        return SentencePacked(store, self.length, self.short_probability, self.seed, self.min_length)


class PassageQueryDataModule(TokenDataModule):
    """Passages with one of their queries each, for query-as-context pre-training (Wu et al. 2023, §3.1).

    Args:
        data: passages with the queries that were made for them: mappings with ``text`` and ``queries`` (a list of
            strings); or ``Asked`` beside its ``Tokens``.
        tokenizer, workers: see ``TokenDataModule``.
        asked: passages and queries in tokens; None = those of ``data``.
        length, query_length: longest passage and query in tokens, [CLS] and [SEP] included.
        candidates: how many of a passage's queries are drawn from, one a step.
        mixed_context: probability that a step pairs passages of a document instead (Wu et al. 2023, §5.2).
        batch_size: passages a step.
        mask_rate, whole_word, decoder, chunk_tokens, seed: see ``SpanPairDataModule``.
    """

    def __init__(
        self,
        data: Sequence[Mapping[str, Any]] | Tokens,
        tokenizer: str | Path | None = None,
        *,
        asked: Asked | None = None,
        length: int = 128,
        query_length: int = 64,
        candidates: int = 5,
        mixed_context: float = 0.0,
        batch_size: int = 256,
        mask_rate: float = 0.15,
        whole_word: bool = True,
        decoder: ContextMasking | None = None,
        chunk_tokens: int = 8192,
        seed: int = 42,
        workers: int = 0,
    ) -> None:
        texts, self._queries = (data, []) if isinstance(data, Tokens) else _with_queries(data)
        super().__init__(texts, tokenizer, titles=False, workers=workers)
        self.asked, self.length, self.query_length = asked, length, query_length
        self.candidates, self.mixed_context, self.batch_size = candidates, mixed_context, batch_size
        self.masking = Masking(mask_rate, whole_word, decoder)
        self.chunk_tokens, self.seed = chunk_tokens, seed

    @property
    def lengths(self) -> tuple[int, int]:
        """See ``TokenDataModule``."""
        return self.query_length, self.length

    def make_batches(self) -> SpanBatches:
        """See ``TokenDataModule``."""
        return _masked(self.source(), self.vocabulary, self.masking, self)

    def source(self) -> Source:
        """Where the rows of a batch come from."""
        asked = self.asked or self._asked()
        lengths = (self.length, self.query_length)
        pairs = PassageQueries(asked, self.vocabulary, *lengths, self.candidates, self.seed)
        return MixedPairs(pairs, self.mixed_context, self.seed) if self.mixed_context else pairs

    def _asked(self) -> Asked:
        """The queries of ``data``, tokenised as a collection of their own."""
        assert self.tokenizer_folder is not None
        flat = [query for queries in self._queries for query in queries]
        own = TokenDataModule(flat, self.tokenizer_folder, titles=False, workers=self.workers)
        own.prepare_data()
        first = np.concatenate([[0], np.cumsum([len(queries) for queries in self._queries])]).astype(np.int64)
        return Asked(self.tokens.passages, None, own.tokens.passages, first)


class TripleDataModule(TokenDataModule):
    """Queries with a positive and hard negatives each, for the bi-encoder and, pair by pair, for the cross-encoder.

    Args:
        data, tokenizer, workers: see ``TokenDataModule``.
        split: whose judged queries are trained on; those of ``dev``, where there are any, are validated on.
        negatives: where hard negatives come from: ``BM25`` or a ``Retriever``, which mines them in ``prepare_data``; a file
            or folder of negatives; or several of these. None = the passages of the other queries alone.
        negatives_per_query: hard negatives drawn each time that a query is seen.
        mining_depth: negatives mined for a query, of which these are drawn.
        train_queries: so many of the queries, drawn by the seed; None = all.
        batch_size: queries a step.
        query_length, passage_length: longest inputs in tokens, [CLS] and [SEP] included.
        titles: passages are read as title [SEP] text.
        pairs: each row is a query and a passage, ``passage_length`` tokens together, as ``CrossEncoderModule`` reads them.
        chunk_tokens: padded tokens that are in memory together; a larger batch is accumulated.
        seed: of order, positives and negatives.
        training: the queries, their positives and their negatives, in place of ``split`` and ``negatives``.
        order: which queries a step is of; None = all in random order, anew each epoch.
    """

    def __init__(
        self,
        data: Given | Tokens,
        tokenizer: str | Path | None = None,
        *,
        split: str = "train",
        negatives: Mined | Sequence[Mined] | None = None,
        negatives_per_query: int = 7,
        mining_depth: int = 200,
        train_queries: int | None = None,
        batch_size: int = 32,
        query_length: int = 64,
        passage_length: int = 256,
        titles: bool = True,
        pairs: bool = False,
        chunk_tokens: int = 8192,
        seed: int = 42,
        workers: int = 0,
        training: TrainingQueries | None = None,
        order: Order | None = None,
    ) -> None:
        super().__init__(data, tokenizer, titles, workers)
        one = isinstance(negatives, str | Path | Searcher | type | Negatives)
        self.negatives: list[Any] = [negatives] if one else list(negatives or [])  # type: ignore[arg-type]
        self.split, self.mining_depth, self.train_queries = split, mining_depth, train_queries
        self.negatives_per_query = negatives_per_query if self.negatives or training else 0
        self.batch_size, self.query_length, self.passage_length = batch_size, query_length, passage_length
        self.pairs, self.chunk_tokens, self.seed = pairs, chunk_tokens, seed
        self.training, self.order = training, order

    @property
    def lengths(self) -> tuple[int, int]:
        """See ``TokenDataModule``."""
        return self.query_length, self.passage_length

    def prepare_data(self) -> None:
        """Read, tokenise and mine what was not there before; in one process of a machine."""
        super().prepare_data()
        self._sources()

    def make_batches(self) -> TripleBatches | ListBatches:
        """See ``TokenDataModule``."""
        if self.training is None:
            self.training = self._judged()
        triples = TripleBatches(
            self.tokens.queries,
            self.tokens.passages,
            self.tokens.titles,
            self.vocabulary,
            self.training,
            batch_size=self.batch_size,
            negatives=self.negatives_per_query,
            query_length=self.query_length,
            passage_length=self.passage_length,
            budget=self.chunk_tokens,
            seed=self.seed,
            order=self.order,
        )
        if not self.pairs:
            return triples
        assert self.tokenizer_folder is not None
        separators = pair_separators(self.tokenizer_folder)
        return ListBatches(triples, pair_reader(self.tokens, self.query_length, self.passage_length, separators))

    def validation_sample(self) -> ValidationSample | None:
        """See ``TokenDataModule``; a cross-encoder makes no vectors."""
        return None if self.pairs else super().validation_sample()

    def _judged(self) -> TrainingQueries:
        if self._collection is None:
            raise UserError("TripleDataModule: of tokens alone nobody knows the judgements; give `training`")
        positives = judged_queries(self._collection, self.split, self.train_queries, self.seed)
        rows = np.fromiter(positives, np.int64)
        return TrainingQueries.of(positives, NegativePool(self._sources(), rows))

    def _sources(self) -> list[Negatives]:
        found = []
        for source in self.negatives if self._collection is not None else []:
            assert self._collection is not None
            if isinstance(source, Negatives):
                found.append(source)
            elif isinstance(source, str | Path):
                path = Path(source)
                read = open_negatives if path.is_dir() else read_negatives
                found.append(read(path, self._collection))
            else:
                searcher = source() if isinstance(source, type) else source
                found.append(mined(searcher, self._collection, self.split, self.mining_depth))
        return found


def _masked(source: Source, vocabulary: Vocabulary, masking: Masking, of: Any) -> SpanBatches:
    return SpanBatches(
        source,
        vocabulary,
        batch_size=of.batch_size,
        mask_rate=masking.rate,
        whole_word=masking.whole_word,
        budget=of.chunk_tokens,
        seed=of.seed,
        context=masking.decoder,
    )


def _with_queries(data: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The texts and the queries of each. Raises ``UserError`` where one has none of the two."""
    texts, queries = [], []
    for number, one in enumerate(data):
        text, own = (one.get("text"), one.get("queries")) if isinstance(one, Mapping) else (None, None)
        if not isinstance(text, str) or not isinstance(own, Sequence) or not all(isinstance(q, str) for q in own):
            raise UserError(
                f"data[{number}]: a mapping with `text` (a string) and `queries` (a list of strings) is expected"
            )
        texts.append(text)
        queries.append(list(own))
    return texts, queries
