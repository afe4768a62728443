"""Token stores, batches and modules so small that a training takes a second."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook
import torch
from pytorch_lightning.loggers import CSVLogger

from condensery import check_gradients
from condensery.models.biencoder import PASSAGE, QUERY, BiEncoder
from condensery.models.checkpoints.retrievers import load_biencoder
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.encoder import Encoder
from condensery.models.masked_autoencoder import MaskedAutoEncoder, decoder_shape
from condensery.models.pretraining import PooledLanguageModel
from condensery.models.vectors import VectorSettings
from condensery.retrieval.negative_pool import NegativePool
from condensery.retrieval.negatives import Negatives
from condensery.system.files import write_json
from condensery.tokens.batches import chunks, text_rows
from condensery.tokens.spans import RandomWindows
from condensery.tokens.store import TokenStore
from condensery.tokens.text_reader import Readers, TextReader
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.ranking_batches import RankingBatches
from condensery.training.data.sources import (
    MixedPairs,
    PassageQueries,
    PassagesAndQueries,
    RowSource,
    SentencePairs,
    SingleSpans,
    SpanPairs,
)
from condensery.training.data.span_batches import ContextMasking, SpanBatches
from condensery.training.data.training_queries import TextQueries, TrainingQueries
from condensery.training.data.triple_batches import TripleBatches
from condensery.training.loop import fit
from condensery.training.modules.biencoder import BiEncoderModule
from condensery.training.modules.contrastive import ContrastiveModule
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.modules.pretraining import (
    CoCondenserModule,
    CondenserModule,
    InverseClozeModule,
    MaskedAutoEncoderModule,
    QueryAsContextModule,
)
from condensery.training.modules.query_tower import QueryTowerModule
from condensery.training.resumption import last_checkpoint
from condensery.training.settings import LoopSettings
from condensery.training.validation import ValidationSample

KINDS = ("condenser", "cocondenser", "query_as_context", "cotmae", "retromae", "ict", "contrastive", "biencoder")
PARTNER = ContextMasking("partner", both=True, rate=0.45)
ITSELF = ContextMasking("same", both=True, rate=None)
# how many passages the documents have, and how many queries the passages
SIZES, QUERIES = [1, 2, 3, 4, 1, 5], [3, 1, 0, 2, 2, 1, 3, 0, 4, 1, 2, 3, 1, 1, 2, 5]


def store(
    folder: Path,
    lengths: Sequence[int],
    seed: int = 0,
    sentences: Sequence[int] | None = None,
    documents: Sequence[int] | None = None,
) -> TokenStore:
    """A store of texts of these lengths; without ``documents`` (the first text of each) every text is one."""
    if not TokenStore.exists(folder):
        folder.mkdir(parents=True)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ids = np.random.default_rng(seed).integers(textbook.UNK + 1, textbook.SIZE, starts[-1])
        ids.astype(np.uint16).tofile(folder / "tokens.bin")
        np.save(folder / "starts.npy", starts)
        about = {"dtype": "uint16", "texts": len(lengths), "tokens": int(starts[-1]), "sentences": -1, "documents": -1}
        for name, places, ends in (("sentences", sentences, 0), ("documents", documents, 1)):
            if places is not None:
                np.save(folder / f"{name}.npy", np.asarray(places, dtype=np.int64))
                about[name] = len(places) - ends
        write_json(folder / "store.json", about)
    return TokenStore(folder)


def sentences(folder: Path) -> TokenStore:
    """18 documents of one to five sentences of 3 to 12 tokens each."""
    sizes = [[3 + (5 * document + 7 * number) % 10 for number in range(1 + document % 5)] for document in range(18)]
    flat = [size for document in sizes for size in document]
    begins = np.cumsum(flat) - flat
    return store(folder / "sentences", [sum(document) for document in sizes], sentences=begins.tolist())


def passages_and_queries(folder: Path, titles: bool = True, hidden: bool = True) -> PassagesAndQueries:
    """16 passages in documents of 1 to 5, with none to five queries each; every other query hides a part of its passage.

    Every fourth title is empty.
    """
    documents = [0, *np.cumsum(SIZES).tolist()]
    passages = store(folder / "asked", [8 + (n * 5) % 9 for n in range(16)], seed=4, documents=documents)
    headings = store(folder / "titles", [n % 4 for n in range(16)], seed=5)
    queries = store(folder / "asking", [2 + n % 7 for n in range(sum(QUERIES))], seed=6)
    first = np.concatenate([[0], np.cumsum(QUERIES)]).astype(np.int64)
    places = np.full((len(queries), 2), -1, dtype=np.int64)
    of_query = np.repeat(np.arange(16), QUERIES)
    for query in range(0, len(queries), 2):  # at the begin, in the middle or at the end of the passage
        size = 3 + query % 4
        room = int(passages.lengths[of_query[query]]) - size
        places[query] = passages.starts[of_query[query]] + room * (query // 2 % 3) // 2, size
    return PassagesAndQueries(passages, headings if titles else None, queries, first, places if hidden else None)


def documents(folder: Path) -> TokenStore:
    """22 documents, so that a batch of 4 does not divide them."""
    return store(folder / "documents", [20 + 3 * (n % 7) for n in range(22)])


def span_batches(folder: Path, pairs: bool = True, seed: int = 3, **changes: Any) -> SpanBatches:
    """4 documents (or spans) a batch, in chunks of at most 40 padded tokens."""
    spans = RandomWindows(documents(folder), length=16, seed=seed, min_length=4)
    source = SpanPairs(spans, textbook.vocabulary()) if pairs else SingleSpans(spans, textbook.vocabulary())
    return batches(source, seed=seed, **changes)


def batches(source: RowSource, **changes: Any) -> SpanBatches:
    """4 items a batch, in chunks of at most 40 padded tokens."""
    options = {"batch_size": 4, "mask_rate": 0.2, "whole_word": True, "budget": 40, "seed": 3}
    return SpanBatches(source, textbook.vocabulary(), **{**options, **changes})


def mixed_batches(folder: Path, share: float = 0.5, **changes: Any) -> SpanBatches:
    """Passages with one of their first three queries, or with a sibling."""
    pairs = PassageQueries(passages_and_queries(folder), textbook.vocabulary(), 16, 8, candidates=3, seed=3)
    return batches(MixedPairs(pairs, share, seed=3), **changes)


def sentence_batches(folder: Path, **changes: Any) -> SpanBatches:
    """Windows without one of their sentences, and the sentence."""
    spans = RandomWindows(sentences(folder), length=20, seed=3, min_length=4)
    source = SentencePairs(spans, textbook.vocabulary(), length=10, keep=0.1, seed=3)
    return batches(source, mask_rate=None, **changes)


def training_queries(pool: int = 6) -> TrainingQueries:
    """13 queries of 30 passages; query i has 1 + i % 3 positives, and pools that hold from 0 to ``pool`` passages."""
    draw = np.random.default_rng(8)
    positives, pools = [], np.full((13, pool), -1, np.int32)
    for query in range(13):
        shuffled = draw.permutation(30)
        positives.append(np.sort(shuffled[: 1 + query % 3]))
        size = query % (pool + 1)
        pools[query, :size] = shuffled[3 : 3 + size]
        if size > 1:  # a judged passage among the negatives, as a careless file may have it
            pools[query, 0] = positives[-1][0]
    starts = np.concatenate([[0], np.cumsum([len(found) for found in positives])])
    return TrainingQueries(np.arange(13) * 2, np.concatenate(positives), starts, pools)


def triple_batches(
    folder: Path, training: TrainingQueries | None = None, lengths: tuple[int, int] = (7, 12), **changes: Any
) -> TripleBatches:
    """5 queries a batch with 3 hard negatives each."""
    queries = store(folder / "queries", [3 + n % 5 for n in range(26)], seed=1)
    passages = store(folder / "passages", [6 + n % 9 for n in range(30)], seed=2)
    vocabulary = textbook.vocabulary()
    readers = Readers(TextReader(passages, vocabulary, lengths[1]), TextReader(queries, vocabulary, lengths[0]))
    options = {"batch_size": 5, "negatives": 3, "budget": 60, "seed": 5}
    known = training_queries() if training is None else training
    return TripleBatches(readers, known, **{**options, **changes})


def ranking_batches(folder: Path, **changes: Any) -> RankingBatches:
    """5 of 20 queries a batch, for each of which a teacher has ranked up to 4 of 15 passages."""
    random = np.random.default_rng(8)
    queries = store(folder / "queries", [3 + n % 5 for n in range(26)], seed=1)
    passages = np.argsort(random.random((20, 15)), axis=1)[:, :4]
    passages[::3, 3] = -1
    scores = -np.sort(-random.random((20, 4)).astype(np.float32), axis=1)
    vectors = random.normal(size=(15, 16)).astype(np.float32)
    ranking = (np.where(passages >= 0, scores, -np.inf).astype(np.float32), passages)
    options = {"batch_size": 5, "budget": 20, "seed": 5}
    known = (TextReader(queries, textbook.vocabulary(), 7), np.arange(20) + 3, ranking, vectors.__getitem__)
    return RankingBatches(*known, **{**options, **changes})


OPTIMISER = {"learning_rate": 1e-3, "warmup_ratio": 0.25, "weight_decay": 0.01, "max_grad_norm": 1.0, "seed": 2}
LOOP = {"steps": 12, "precision": "fp32", "checkpoint_every": 5, "log_every": 1, "validate_every": 4}


def optimiser(**changes: Any) -> Any:
    """The keywords of a module; of ``changes`` those that are none are not looked at."""
    return {name: changes.get(name, value) for name, value in OPTIMISER.items()}


def loop(**changes: Any) -> LoopSettings:
    """12 steps; every step is logged, every fifth one is a checkpoint. Of ``changes`` keywords of modules do not count."""
    own = {name: value for name, value in changes.items() if name not in OPTIMISER}
    return LoopSettings(**{**LOOP, **own})


def run(
    kind: str, folder: Path, workers: int = 0, dropout: float = 0.1, layers: int = 3, **changes: Any
) -> tuple[TrainingModule, StepDataModule, LoopSettings]:
    """A module, its batches, and how long it is trained."""
    chosen, settings = optimiser(**changes), loop(**changes)
    language_model = textbook.language_model(layers=layers, dropout=dropout).float()
    module: TrainingModule
    batches: SpanBatches | TripleBatches | RankingBatches
    torch.manual_seed(1)
    if kind == "biencoder":
        module = BiEncoderModule(BiEncoder(Encoder(language_model.base_model)), **chosen)
        batches = triple_batches(folder)
    elif kind == "ict":
        module = InverseClozeModule(BiEncoder(Encoder(language_model.base_model)), temperature=2.0, **chosen)
        batches = sentence_batches(folder)
    elif kind in ("contrastive", "contrast_and_mlm"):
        encoder = Encoder(language_model.base_model, VectorSettings("mean", normalise=True))
        own: Any = {"temperature": 0.2, "learn_temperature": True, "layer_decay": 0.8}
        module = ContrastiveModule(BiEncoder(encoder), **own, **chosen)
        if kind == "contrast_and_mlm":
            module.mlm, module.mlm_weight = PooledLanguageModel(language_model, encoder), 0.5
        batches = span_batches(folder, **({} if module.mlm else {"mask_rate": None}))
    elif kind == "frozen_passages":
        towers = BiEncoder.from_encoder(Encoder(language_model.base_model), separate=True)
        module = BiEncoderModule(towers, train_passages=False, **chosen)
        vectors = np.random.default_rng(9).normal(size=(30, 16)).astype("f")
        titles = store(folder / "titles", [3 + n % 4 for n in range(12)], seed=4)
        made = TextQueries(titles, np.arange(12), np.arange(12) * 2, 4)
        batches = triple_batches(folder, vectors=vectors.__getitem__, text_queries=made)
    elif kind == "query_tower":
        encoder = Encoder(language_model.base_model, VectorSettings("mean", normalise=True))
        module = QueryTowerModule(BiEncoder.from_encoder(encoder, separate=True), **chosen)
        batches = ranking_batches(folder)
    elif kind in ("cotmae", "retromae"):
        pairs = kind == "cotmae"
        auto_encoder = MaskedAutoEncoder(language_model, decoder_shape("masked" if pairs else "enhanced"))
        module = MaskedAutoEncoderModule(auto_encoder, **chosen)
        batches = span_batches(folder, pairs, context=PARTNER if pairs else ITSELF)
    else:
        condenser = Condenser(language_model, CondenserShape(1, 1, True))
        if kind == "query_as_context":
            module = QueryAsContextModule(condenser, temperature=2.0, contrast_weight=0.5, **chosen)
            batches = mixed_batches(folder)
        else:
            pairs, first = kind != "condenser", 7 if kind == "head_first" else 0
            module = (CoCondenserModule if pairs else CondenserModule)(condenser, head_steps=first, **chosen)
            batches = span_batches(folder, pairs)
    return module, StepDataModule(batches, workers), settings


def loaded(
    folder: Path, dropout: float | None = None, **changes: Any
) -> tuple[BiEncoderModule, StepDataModule, LoopSettings]:
    """Two towers that start from a checkpoint in ``folder``, and batches with negatives from two sources."""
    known = training_queries()
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        textbook.language_model(dropout=0.1).float().save_pretrained(checkpoint)
    pools = np.asarray(known.negatives[np.arange(len(known.rows))])
    sources = [Negatives(known.rows, pools[:, :4]), Negatives(known.rows[::-1], pools[::-1, 2:])]
    known = replace(known, negatives=NegativePool(sources, known.rows))
    model = load_biencoder(checkpoint, separate=True, dropout=dropout)
    data = StepDataModule(triple_batches(folder, known))
    return BiEncoderModule(model, **optimiser(**changes)), data, loop(**changes)


def sample(folder: Path) -> ValidationSample:
    """6 queries and 15 passages."""
    batches, vocabulary = triple_batches(folder), textbook.vocabulary()
    asked = chunks(*text_rows(batches.readers[QUERY].texts, range(6), vocabulary, 7), 40, textbook.PAD, tower=QUERY)
    passages = batches.readers[PASSAGE].texts
    read = chunks(*text_rows(passages, range(15), vocabulary, 12), 40, textbook.PAD, tower=PASSAGE)
    relevant = np.zeros((6, 15), dtype=bool)
    relevant[np.arange(6), np.arange(6) * 2] = True
    return ValidationSample(asked, read, relevant)


class InterruptionError(Exception):
    """What a test stops a run with."""


class Stop(CSVLogger):
    """Stops the run once step ``at`` is logged; ``kill``: by SIGKILL, with no chance to write anything."""

    def __init__(self, folder: Path, at: int, kill: bool = False) -> None:
        super().__init__(folder / "stop")
        self.at, self.kill = at, kill

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        if step == self.at:
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise InterruptionError


def check_gradients_of_two_processes(module: TrainingModule, data: SpanBatches, **changes: Any) -> None:
    """Check that chunks, with dropout and of two processes, give the gradient of the whole batch."""
    report = check_gradients(module.train(), data, processes=2, **changes)
    assert report, report
    for way in ("2 processes", "with dropout"):
        assert any(way in outcome.setting for outcome in report.outcomes), way


def check_stopped_run(made: Callable[[], tuple[TrainingModule, StepDataModule]], folder: Path) -> TrainingModule:
    """Check that a run that is stopped and resumed ends bit by bit as a whole run does; return the module of the latter."""

    def train(name: str, stops: bool = False) -> TrainingModule:
        module, data = made()
        loggers = [Stop(folder, 8)] if stops else []
        fit(module, data, loop(validate_every=0), folder / name, "x", loggers=loggers)
        return module

    whole = train("whole")
    with pytest.raises(InterruptionError):
        train("stopped", stops=True)
    assert last_checkpoint(folder / "stopped") is not None
    for one, other in zip(whole.parameters(), train("stopped").parameters(), strict=True):
        assert torch.equal(one, other)
    return whole
