"""Batches of spans are a function of the step."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import textbook
import torch
import trainings

from condensery.tokens.spans import RandomWindows
from condensery.tokens.store import TokenStore
from condensery.training.data.sources import SpanPairs
from condensery.training.data.span_batches import SpanBatch
from condensery.training.data.steps import StepSampler, steps_of_epochs, steps_of_tokens


def _same(one: SpanBatch, other: SpanBatch) -> bool:
    fields = ("input_ids", "lengths", "rows", "masked", "targets")
    pairs = zip(one.chunks, other.chunks, strict=True)
    return (one.masked, one.tokens) == (other.masked, other.tokens) and all(
        torch.equal(getattr(a, name), getattr(b, name)) for a, b in pairs for name in fields
    )


def _original(batch: SpanBatch) -> dict[int, list[int]]:
    """The unmasked ids of each row of the batch."""
    found = {}
    for chunk in batch.chunks:
        assert chunk.masked is not None
        assert chunk.targets is not None
        ids = chunk.input_ids.flatten().clone()
        ids[chunk.masked] = chunk.targets
        for row, line, length in zip(chunk.rows.tolist(), ids.view_as(chunk.input_ids), chunk.lengths, strict=True):
            found[row] = line[:length].tolist()
    return found


@pytest.mark.parametrize("pairs", [True, False])
def test_a_batch_is_the_same_in_any_order_of_asking(pairs: bool, tmp_path: Path) -> None:
    forwards, backwards = (trainings.span_batches(tmp_path, pairs) for _ in range(2))
    steps = 2 * forwards.steps_an_epoch() + 1
    one = [forwards.batch(step) for step in range(steps)]
    other = [backwards.batch(step) for step in reversed(range(steps))][::-1]
    assert all(map(_same, one, other))
    assert not _same(one[0], one[forwards.steps_an_epoch()]), "the epochs are alike"
    assert not _same(one[0], trainings.span_batches(tmp_path, pairs, seed=4).batch(0)), "the seed does nothing"


@pytest.mark.parametrize("workers", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_loader_gives_the_same_batches_with_any_number_of_workers(workers: int, tmp_path: Path) -> None:
    _, data, _ = trainings.run("cocondenser", tmp_path, workers=workers)
    data.epoch = 7
    loaded = list(data.train_dataloader())
    expected = trainings.span_batches(tmp_path)
    assert len(loaded) == 7
    assert all(_same(batch, expected.batch(step)) for step, batch in enumerate(loaded))


def test_a_resumed_sampler_goes_on_where_it_stopped() -> None:
    assert list(StepSampler(lambda: 0, 9)) == list(range(9))
    assert list(StepSampler(lambda: 6, 9)) == [6, 7, 8]
    assert list(StepSampler(lambda: 9, 9)) == list(range(9, 18)), "the next epoch"
    assert list(StepSampler(lambda: 16, 9)) == [16, 17]
    limited = StepSampler(lambda: 4, 4, length=9)
    assert (list(limited), len(limited)) == ([4, 5, 6, 7], 9), "of limit_train_batches"


def test_every_document_gives_one_pair_an_epoch_and_the_last_batch_is_short(tmp_path: Path) -> None:
    batches = trainings.span_batches(tmp_path)
    store = batches.source.spans.store
    texts = {bytes(store.text(n).astype(np.uint8)): n for n in range(len(store))}
    seen: list[int] = []
    for step in range(batches.steps_an_epoch()):
        batch = batches.batch(step)
        rows = _original(batch)
        assert sorted(rows) == list(range(2 * (4 if step < 5 else 2)))
        assert batch.tokens == sum(map(len, rows.values()))
        assert batch.masked == sum(len(chunk.masked) for chunk in batch.chunks if chunk.masked is not None)
        for row, ids in rows.items():
            assert (ids[0], ids[-1]) == (textbook.CLS, textbook.SEP)
            span = bytes(np.array(ids[1:-1], dtype=np.uint8))
            (document,) = [number for text, number in texts.items() if span in text]
            if row % 2:
                assert document == seen[-1], "rows 2i and 2i + 1 are of one document"
                assert ids != rows[row - 1]
            else:
                seen.append(document)
    assert sorted(seen) == list(range(22))


def test_every_span_comes_once_an_epoch(tmp_path: Path) -> None:
    batches = trainings.span_batches(tmp_path, pairs=False)
    found = [tuple(ids) for step in range(batches.steps_an_epoch()) for ids in _original(batches.batch(step)).values()]
    store = batches.source.spans.store
    spans = batches.source.spans.spans(0).tolist()
    wanted = [(textbook.CLS, *store.tokens[a : a + n].tolist(), textbook.SEP) for a, n in spans]
    assert sorted(found) == sorted(wanted)


def test_no_chunk_holds_more_than_the_budget(tmp_path: Path) -> None:
    for step in range(6):
        assert all(chunk.tokens <= 40 for chunk in trainings.span_batches(tmp_path).batch(step).chunks)


def test_what_a_worker_process_is_sent_gives_the_same_batches(tmp_path: Path) -> None:
    batches = trainings.span_batches(tmp_path)
    assert _same(pickle.loads(pickle.dumps(batches)).batch(3), batches.batch(3))


@pytest.mark.parametrize("single_texts", [False, True])
def test_a_worker_process_draws_pairs_within_the_same_texts(single_texts: bool, tmp_path: Path) -> None:
    trainings.store(tmp_path / "grouped", [20 + 3 * (n % 7) for n in range(22)], documents=[0, 4, 5, 12, 22])
    store = TokenStore(tmp_path / "grouped", single_texts)
    spans = RandomWindows(store, length=16, seed=3, min_length=4)
    batches = trainings.batches(SpanPairs(spans, textbook.vocabulary()))
    assert batches.source.items == (22 if single_texts else 4)
    sent = pickle.loads(pickle.dumps(batches))
    assert sent.steps_an_epoch() == batches.steps_an_epoch()
    assert all(_same(sent.batch(step), batches.batch(step)) for step in range(8))


def test_steps_follow_from_epochs_and_from_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("condensery.training.data.steps._COUNTED", 20_000)
    batches = trainings.span_batches(tmp_path, batch_size=4)
    assert steps_of_epochs(batches, 2.5) == round(2.5 * batches.steps_an_epoch())
    assert steps_of_epochs(batches, 1e-6) == steps_of_tokens(batches, 1) == 1
    for steps in (1, 2, 7, 31):
        tokens = sum(batches.batch(step).tokens for step in range(steps))
        assert steps_of_tokens(batches, tokens) == steps
    beyond = 100_000
    mean = beyond / steps_of_tokens(batches, beyond)
    epoch = range(batches.steps_an_epoch())
    assert mean == pytest.approx(np.mean([batches.batch(step).tokens for step in epoch]), rel=0.01)
