"""What a decoder reads beside the vectors: the right text, masked by itself, counted, within the budget."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import textbook
import torch
import trainings

from condensery.tokens.batches import Chunk
from condensery.training.data.span_batches import ContextMasking, SpanBatch, SpanBatches

Make = Callable[..., SpanBatches]
SPECIAL = range(5)


@dataclass(frozen=True)
class Line:
    """A row as it is read, as it was, and which of its places are predicted."""

    ids: list[int]
    text: list[int]
    predicted: set[int]


def lines(parts: list[Chunk]) -> dict[int, Line]:
    """The rows of chunks by their number in the batch."""
    found = {}
    for part in parts:
        text = part.input_ids.clone()
        masked = torch.zeros_like(text, dtype=torch.bool)
        if part.masked is not None:
            assert part.targets is not None
            text.view(-1)[part.masked] = part.targets
            masked.view(-1)[part.masked] = True
        for at, (row, length) in enumerate(zip(part.rows.tolist(), part.lengths.tolist(), strict=True)):
            predicted = set(masked[at].nonzero().flatten().tolist())
            assert max(predicted, default=0) < length
            found[row] = Line(part.input_ids[at, :length].tolist(), text[at, :length].tolist(), predicted)
    return found


def sides(batch: SpanBatch) -> tuple[dict[int, Line], dict[int, Line]]:
    """What the encoder reads, and what the decoder does."""
    contexts = [part.context for part in batch.chunks if part.context is not None]
    assert len(contexts) == len(batch.chunks)
    return lines(batch.chunks), lines(contexts)


def pairs(folder: Path, **options: object) -> SpanBatches:
    return trainings.span_batches(folder, **options)


def singles(folder: Path, **options: object) -> SpanBatches:
    return trainings.span_batches(folder, pairs=False, **options)


SOURCES: dict[str, Make] = {"spans": pairs, "queries": trainings.mixed_batches}


def masking(context: str = "partner", both: bool = True, rate: float | None = 0.45) -> ContextMasking:
    return ContextMasking(context, both, rate)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", SOURCES.values(), ids=list(SOURCES))
def test_the_context_of_a_row_is_the_other_text_of_its_pair(make: Make, tmp_path: Path) -> None:
    for step in range(5):
        plain = lines(make(tmp_path).batch(step).chunks)
        read, contexts = sides(make(tmp_path, context=masking()).batch(step))
        assert sorted(read) == sorted(contexts) == sorted(plain) == list(range(len(plain)))
        assert read == plain, "the encoder's side does not know of the decoder's"
        for row, line in contexts.items():
            assert line.text == plain[row ^ 1].text


@pytest.mark.parametrize("make", SOURCES.values(), ids=list(SOURCES))
def test_in_one_direction_only_the_first_texts_are_encoded(make: Make, tmp_path: Path) -> None:
    read, contexts = sides(make(tmp_path, context=masking()).batch(2))
    batch = make(tmp_path, context=masking(both=False)).batch(2)
    one, others = sides(batch)
    assert one == {row // 2: line for row, line in read.items() if row % 2 == 0}
    assert others == {row // 2: line for row, line in contexts.items() if row % 2 == 0}
    assert batch.tokens == sum(len(line.ids) for line in one.values())


def test_a_text_is_its_own_context_where_it_shall_be(tmp_path: Path) -> None:
    for make in (singles, pairs):
        plain = lines(make(tmp_path).batch(1).chunks)
        read, contexts = sides(make(tmp_path, context=masking("same")).batch(1))
        assert read == plain
        assert {row: line.text for row, line in contexts.items()} == {row: line.text for row, line in plain.items()}


def test_the_decoders_mask_is_drawn_apart_from_the_encoders(tmp_path: Path) -> None:
    """At equal rates a token is in both masks with the product of the rates."""
    rate, both, total = 0.4, 0, 0
    batches = singles(tmp_path, mask_rate=rate, whole_word=False, context=masking("same", rate=rate))
    for step in range(40):
        read, contexts = sides(batches.batch(step))
        for row, line in read.items():
            both += len(line.predicted & contexts[row].predicted)
            total += len(line.ids) - 2
    assert total > 1500
    assert both / total == pytest.approx(rate * rate, abs=0.04)


def test_each_epoch_has_masks_of_its_own_and_a_text_has_one_in_it_whatever_batch_it_is_in(tmp_path: Path) -> None:
    few, many = (trainings.mixed_batches(tmp_path, 0.0, context=masking(), batch_size=size) for size in (3, 14))
    epochs = []
    for epoch in range(2):
        steps = range(epoch * few.steps_an_epoch(), (epoch + 1) * few.steps_an_epoch())
        apart = {str(line) for step in steps for line in sides(few.batch(step))[1].values()}
        together = {str(line) for line in sides(many.batch(epoch))[1].values()}
        assert apart == together
        epochs.append(together)
    assert len(epochs[0] & epochs[1]) < len(epochs[0]) / 2


@pytest.mark.parametrize("make", [*SOURCES.values(), singles], ids=[*SOURCES, "itself"])
@pytest.mark.parametrize("rate", [0.2, 0.45, 1.0])
def test_the_rates_are_those_of_each_side_and_the_counts_those_of_the_chunks(
    make: Make, rate: float, tmp_path: Path
) -> None:
    context = masking("same" if make is singles else "partner", rate=rate)
    batches = make(tmp_path, mask_rate=0.3, whole_word=False, context=context)
    for step in range(6):
        batch = batches.batch(step)
        for found, wanted, counted in zip(sides(batch), (0.3, rate), (batch.masked, batch.context_masked), strict=True):
            for line in found.values():
                ordinary = sum(token not in SPECIAL for token in line.text)
                assert len(line.predicted) == max(1, np.rint(wanted * ordinary))
            assert counted == sum(len(line.predicted) for line in found.values())
        assert batch.tokens == sum(part.lengths.sum() for part in batch.chunks)


@pytest.mark.parametrize("make", [*SOURCES.values(), singles], ids=[*SOURCES, "itself"])
def test_where_tokens_hide_each_other_all_ordinary_ones_are_predicted_and_none_is_masked(
    make: Make, tmp_path: Path
) -> None:
    batches = make(tmp_path, context=masking("same" if make is singles else "partner", rate=None))
    separators = 0
    for step in range(8):
        batch = batches.batch(step)
        _, contexts = sides(batch)
        for line in contexts.values():
            assert line.ids == line.text
            assert line.predicted == {place for place, token in enumerate(line.ids) if token not in SPECIAL}
            assert 0 not in line.predicted
            separators += line.ids.count(textbook.SEP) - 1
        assert batch.context_masked == sum(len(line.predicted) for line in contexts.values())
    assert (separators > 0) == (make is trainings.mixed_batches), "titles end with a separator, which is not predicted"


@pytest.mark.parametrize("make", [*SOURCES.values(), singles], ids=[*SOURCES, "itself"])
def test_both_sides_of_every_chunk_stay_in_the_budget(make: Make, tmp_path: Path) -> None:
    batches = make(tmp_path, context=masking("same" if make is singles else "partner"))
    for step in range(6):
        for part in batches.batch(step).chunks:
            assert part.context is not None
            assert max(part.tokens, part.context.tokens) <= 40
            assert part.context.rows.tolist() == part.rows.tolist()


def test_a_batch_without_masks_predicts_nothing(tmp_path: Path) -> None:
    batch = trainings.sentence_batches(tmp_path).batch(0)
    assert (batch.masked, batch.context_masked) == (0, 0)
    assert all(part.masked is None and part.targets is None and part.context is None for part in batch.chunks)
    assert batch.tokens == sum(int(part.lengths.sum()) for part in batch.chunks)


def test_a_worker_process_makes_the_same_contexts_in_any_order(tmp_path: Path) -> None:
    batches = trainings.mixed_batches(tmp_path, context=masking())
    sent = pickle.loads(pickle.dumps(batches))
    found = [sides(batches.batch(step)) for step in range(6)]
    assert [sides(sent.batch(step)) for step in reversed(range(6))] == found[::-1]
