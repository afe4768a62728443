"""Training on pairs and triplets of sentences: the examples, the gradient through the cache, and stopping half-way."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import textbook
import torch
import trainings

from condensery.losses.gradient_cache import backpropagate
from condensery.models.biencoder import BiEncoder
from condensery.models.encoder import Encoder
from condensery.tokens.batches import chunks, text_rows
from condensery.training.data.data_module import StepDataModule
from condensery.training.modules.sentence_encoder import SentenceBatches, SentenceModule

ROWS = {
    "pairs": np.array([[0, 1], [2, 1], [3, 4], [5, 6], [7, 0], [8, 9], [4, 2]]),
    "triplets": np.array([[0, 1, 2], [3, 4, 0], [5, 1, 6], [2, 2, 7], [8, 0, 9]]),
}


def batches_of(task: str, folder: Path, **changes: Any) -> SentenceBatches:
    store = trainings.store(folder / "sentences", [3 + (5 * n) % 7 for n in range(10)], seed=3)
    rows = ROWS[task]
    scores = np.linspace(0, 1, len(rows)).astype(np.float32) if task == "pairs" else np.zeros(len(rows), np.float32)
    options = {"batch_size": 3, "length": 9, "budget": 20, "seed": 5}
    return SentenceBatches(store, textbook.vocabulary(), rows, scores, **{**options, **changes})


def module_of(dropout: float = 0.0, **changes: Any) -> SentenceModule:
    language_model = textbook.language_model(dropout=dropout).float()
    return SentenceModule(BiEncoder(Encoder(language_model.base_model)), margin=0.5, **trainings.optimiser(**changes))


@pytest.mark.parametrize("task", ROWS)
def test_every_example_comes_once_an_epoch_with_its_sentences_and_its_score(task: str, folder: Path) -> None:
    batches = batches_of(task, folder)
    number, width = ROWS[task].shape
    assert batches.steps_an_epoch() == -(-number // 3)
    orders = []
    for epoch in range(2):
        seen = []
        for step in range(batches.steps_an_epoch()):
            batch = batches.batch(epoch * batches.steps_an_epoch() + step)
            texts: dict[int, list[int]] = {}
            for chunk in batch.chunks:
                for row, ids, length in zip(chunk.rows.tolist(), chunk.input_ids, chunk.lengths, strict=True):
                    texts[row] = ids[:length].tolist()
            size = len(batch.scores)
            assert sorted(texts) == list(range(width * size))
            assert batch.tokens == sum(map(len, texts.values()))
            for at, score in enumerate(batch.scores.tolist()):
                found = [texts[part * size + at] for part in range(width)]
                seen.append((*map(tuple, found), score))
        flat, starts = text_rows(batches.sentences, ROWS[task].reshape(-1), batches.vocabulary, 9)
        each = [tuple(flat[a:b].tolist()) for a, b in pairwise(starts)]
        wanted = [(*each[width * at : width * (at + 1)], score) for at, score in enumerate(batches.scores.tolist())]
        assert sorted(seen) == sorted(wanted)
        orders.append(seen)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("task", ROWS)
def test_the_cache_gives_the_gradient_of_the_written_out_loss(task: str, folder: Path) -> None:
    batches = batches_of(task, folder)
    module = module_of().double()
    batch = batches.batch(0)
    assert len(batch.chunks) > 1
    encoder, contrast = module.objective(batch)
    losses = backpropagate(encoder, batch.chunks, contrast)
    ours = textbook.gradients(module.model)
    module.zero_grad()
    rows = ROWS[task][_chosen(batches)]
    vectors = []
    for sentence in rows.T.reshape(-1):
        (chunk,) = chunks(*text_rows(batches.sentences, [sentence], batches.vocabulary, 9), 100, textbook.PAD)
        vectors.append(module.model.vectors(chunk)[0])
    total = torch.zeros((), dtype=torch.float64)
    for at in range(3):
        u, v = vectors[at], vectors[3 + at]
        if task == "pairs":
            total = total + (u @ v / (u @ u).sqrt() / (v @ v).sqrt() - batch.scores[at]) ** 2
        else:
            n = vectors[6 + at]
            total = total + torch.relu((u - v + 1e-6).norm() - (u - n + 1e-6).norm() + 0.5)
    (total / 3).backward()
    assert float(losses["contrast"]) == pytest.approx(float(total.detach() / 3), rel=1e-9)
    assert textbook.worst(ours, textbook.gradients(module.model)) < 1e-8


def _chosen(batches: SentenceBatches) -> np.ndarray:
    from condensery.training.data.steps import items_of_step

    return items_of_step(0, 3, len(batches.rows), 5)[1]


@pytest.mark.slow
def test_a_stopped_run_ends_bit_identical(folder: Path, tmp_path: Path) -> None:
    trainings.check_stopped_run(
        lambda: (module_of(dropout=0.1), StepDataModule(batches_of("triplets", folder))), tmp_path
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the store lies."""
    return tmp_path_factory.mktemp("sentences")
