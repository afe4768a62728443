"""Adaptive batches while training runs: made of BM25 and of the encoder as it is, and the same after a kill."""

import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
import textbook
import torch
import trainings
from forked import run_process
from random_similarities import RandomSimilarities
from slow import slow_except

from condensery.errors import UserError
from condensery.models.biencoder import PASSAGE, QUERY, BiEncoder
from condensery.models.encoder import Encoder
from condensery.retrieval.neighbours import dense_neighbours
from condensery.tokens.batches import chunks, text_rows
from condensery.training.adaptive.callback import AdaptiveBatches
from condensery.training.adaptive.order import AdaptiveOrder
from condensery.training.adaptive.search import Scheduler
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.training_queries import drawn_positives
from condensery.training.data.triple_batches import TripleBatches
from condensery.training.loop import fit
from condensery.training.modules.biencoder import BiEncoderModule

STEPS, EPOCH = 11, 3  # 13 queries, 5 a batch; the last epoch is cut short
SETTINGS = trainings.loop(steps=STEPS, checkpoint_every=4)


def order(folder: Path, similarity: Any = "bm25_then_encoder", broken: str = "") -> AdaptiveOrder:
    known = trainings.training_queries()
    words, dense = RandomSimilarities(len(np.unique(known.positives)), broken), partial(dense_neighbours, k=4)
    return AdaptiveOrder(folder, known.positives, known.starts, 5, 1, 5, similarity, words, dense)


def run(
    root: Path, name: str, loggers: Any = None, workers: int = 0, **changes: Any
) -> tuple[AdaptiveOrder, BiEncoderModule]:
    """Train from what lies in the run's folder."""
    made = order(root / name / "schedule", **changes)
    batches = trainings.triple_batches(root, order=made)
    model = BiEncoder(Encoder(textbook.language_model(dropout=0.1).float().base_model))
    module = BiEncoderModule(model, **trainings.optimiser())
    data = StepDataModule(batches, workers)
    fit(module, data, SETTINGS, root / name, name, loggers=loggers, callbacks=[AdaptiveBatches(made, batches)])
    return made, module


def same(one: BiEncoderModule, other: BiEncoderModule) -> bool:
    mine, its = one.state_dict(), other.state_dict()
    return mine.keys() == its.keys() and all(torch.equal(value, its[name]) for name, value in mine.items())


def files(made: AdaptiveOrder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in made.folder.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, AdaptiveOrder, BiEncoderModule]:
    """A run that nothing interrupts."""
    root = tmp_path_factory.mktemp("whole")
    return root, *run(root, "whole")


def test_every_epoch_has_every_query_once_and_the_vectors_are_gone(
    whole: tuple[Path, AdaptiveOrder, BiEncoderModule],
) -> None:
    _, made, _ = whole
    assert sorted(files(made)) == [f"0000{epoch}.batches" for epoch in range(4)]
    for epoch in range(4):
        chosen = [made(EPOCH * epoch + step) for step in range(EPOCH)]
        assert [(number, len(found)) for number, found in chosen] == [(epoch, 5), (epoch, 5), (epoch, 3)]
        assert sorted(np.concatenate([found for _, found in chosen])) == list(range(13))


def encoded(module: BiEncoderModule, batches: TripleBatches, rows: np.ndarray, tower: int) -> np.ndarray:
    store, length = batches.readers[tower].texts, (7 if tower == QUERY else 12)
    flat, starts = text_rows(store, rows, textbook.vocabulary(), length)
    vectors = np.empty((len(rows), 16), np.float32)
    for chunk in chunks(flat, starts, 60, textbook.PAD, tower=tower):
        vectors[chunk.rows.numpy()] = module.vectors(chunk).detach().float().numpy()
    return vectors


def test_batches_are_those_of_bm25_and_then_of_the_encoder_at_the_begin_of_each_epoch(
    whole: tuple[Path, AdaptiveOrder, BiEncoderModule], tmp_path: Path
) -> None:
    root, made, _ = whole
    known, batches = trainings.training_queries(), trainings.triple_batches(root)
    relevant = [known.positives[known.starts[query] : known.starts[query + 1]] for query in range(13)]
    for epoch in (0, 1, 2):
        if epoch == 0:
            similarity = made.lexical().toarray()
        else:  # train by the same batches up to here
            model = BiEncoder(Encoder(textbook.language_model(dropout=0.1).float().base_model))
            module = BiEncoderModule(model, **trainings.optimiser())
            data = StepDataModule(trainings.triple_batches(root, order=made))
            with pytest.raises(InterruptedError):
                fit(
                    module,
                    data,
                    replace(SETTINGS, checkpoint_every=0),
                    tmp_path / str(epoch),
                    "x",
                    callbacks=[_StopAt(EPOCH * epoch)],
                )
            module.eval()
            vectors = [encoded(module, batches, *which) for which in ((known.rows, QUERY), (made.passages, PASSAGE))]
            similarity = dense_neighbours(*vectors, k=4).toarray()
        for query in range(13):
            similarity[query, np.searchsorted(made.passages, relevant[query])] = 0.0
        drawn = drawn_positives(known.positives, known.starts, np.arange(13), 5, epoch)
        passage = np.searchsorted(made.passages, drawn)
        scheduler = Scheduler(sparse.csr_matrix(similarity), passage, 5, 1, 5, epoch)
        wanted = [batch.tolist() for batch in scheduler.batches(np.empty(0, np.int64))]
        assert [made(EPOCH * epoch + step)[1].tolist() for step in range(EPOCH)] == wanted


class _StopAt(AdaptiveBatches):
    """Breaks the training off behind so many steps and their checkpoint."""

    def __init__(self, step: int) -> None:
        self.step, self.process = step, None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None: ...

    def on_train_batch_end(self, *_: Any) -> None: ...

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise InterruptedError


def _run_until(root: Path, at: int) -> None:
    run(root, "parts", loggers=[trainings.Stop(root, at, kill=True)])


@pytest.mark.parametrize("at", [9, *(pytest.param(at, marks=pytest.mark.slow) for at in (2, 6))])
def test_a_killed_run_ends_bit_identical(
    at: int, whole: tuple[Path, AdaptiveOrder, BiEncoderModule], tmp_path: Path
) -> None:
    assert run_process(_run_until, tmp_path, at) == -signal.SIGKILL
    path = tmp_path / "parts" / "schedule" / f"0000{at // EPOCH}.batches"
    assert path.exists(), "the batches of the epoch in which it was killed"
    with open(path, "r+b") as stream:  # as if it had been killed while it made them
        stream.truncate(4 * 5 + 4 * 2)
    made, module = run(tmp_path, "parts")
    assert same(module, whole[2])
    assert files(made) == files(whole[1])


@pytest.mark.slow
def test_processes_that_prepare_batches_change_nothing(
    whole: tuple[Path, AdaptiveOrder, BiEncoderModule], tmp_path: Path
) -> None:
    made, module = run(tmp_path, "workers", workers=2)
    assert same(module, whole[2])
    assert files(made) == files(whole[1])


def test_the_encoder_alone_begins_with_the_weights_that_it_has(tmp_path: Path) -> None:
    made, _ = run(tmp_path, "encoder", similarity="encoder", broken="crash")  # BM25 is not asked
    assert len(files(made)) == 4


def test_known_texts_make_no_batch_harder(tmp_path: Path) -> None:
    starts, everything = np.array([0, 1, 2, 3]), sparse.csr_matrix(np.ones((3, 3), np.float32))
    made = AdaptiveOrder(tmp_path, np.array([4, 7, 9]), starts, 2, 1, 5, "bm25", lambda: everything, None)  # type: ignore[arg-type]
    assert made._lexical.toarray().tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    known = replace(made, known=(np.array([2, 4, 9, 7, 8, 9]), np.array([3, 1, 2])))
    assert known._lexical.toarray().tolist() == [[0, 1, 0], [1, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize(
    ("broken", "why"),
    slow_except(
        [
            ("user", "corpus.jsonl:3: no words"),
            ("crash", "ZeroDivisionError: by zero"),
            ("kill", r"died \(exit code -9\)"),
        ],
        "crash",
    ),
)
def test_a_process_that_makes_no_batches_is_one_line(broken: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^adaptive batches: .*{why}") as raised:
        run(tmp_path, "broken", similarity="bm25", broken=broken)
    assert "\n" not in str(raised.value)


def test_vectors_that_were_removed_are_not_made_of_other_weights(tmp_path: Path) -> None:
    made = order(tmp_path / "run" / "schedule")
    batches = trainings.triple_batches(tmp_path, order=made)
    model = BiEncoder(Encoder(textbook.language_model(dropout=0.1).float().base_model))
    module = BiEncoderModule(model, **trainings.optimiser())
    callbacks = [AdaptiveBatches(made, batches), _StopAt(4)]
    with pytest.raises(InterruptedError):
        fit(module, StepDataModule(batches), SETTINGS, tmp_path / "run", "x", callbacks=callbacks)
    (tmp_path / "run" / "schedule" / "00001.batches").unlink()
    with pytest.raises(UserError, match=r"00001\.vectors\.npz: no such file, .*; to restart, delete the checkpoints"):
        run(tmp_path, "run")
