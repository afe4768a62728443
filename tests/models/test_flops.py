"""Counts of operations, against those that torch counts while it computes."""

from dataclasses import replace

import numpy as np
import pytest
import textbook
from torch.utils.flop_counter import FlopCounterMode

from condensery.losses.contrast import span_contrast
from condensery.losses.gradient_cache import backpropagate
from condensery.losses.mlm import MaskedPrediction
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.flops import EncoderSize, Step

ROWS, LENGTH = 8, 24


@pytest.mark.parametrize("head", [0, 2])
@pytest.mark.parametrize("chunks", [1, 4])
def test_the_operations_of_a_step_are_those_that_torch_counts(head: int, chunks: int) -> None:
    model = Condenser(textbook.language_model(hidden=64, layers=4), CondenserShape(head, 2, late_mlm=True)).float()
    config = model.language_model.config
    rows = textbook.rows([LENGTH] * ROWS)
    parts = rows.chunks(ROWS * LENGTH // chunks)
    predicted = sum(len(part.masked) for part in parts if part.masked is not None)
    step = Step(
        EncoderSize(4, 64, config.intermediate_size, config.num_attention_heads, config.vocab_size),
        ROWS,
        LENGTH,
        ROWS * LENGTH // chunks,
        head_layers=head,
        predicted=predicted / (ROWS * LENGTH),
        losses=1 + (head > 0),
        contrast=True,
    )
    with FlopCounterMode(display=False) as counter:
        backpropagate(MaskedPrediction(model, predicted), parts, span_contrast)
    assert step.flops == pytest.approx(counter.get_total_flops(), rel=0.1)


def test_a_sample_is_small_and_of_the_same_kind() -> None:
    large = Step(EncoderSize(12, 768, 3072, 12, 30522), 4000, 120, 32_768, 2, 0.15, 2, contrast=True)
    small = large.sample(1e10)
    assert small.flops < 0.01 * large.flops
    assert (small.encoder.hidden, small.predicted, small.head_layers) == (768, 0.15, 2)
    assert small.tokens <= small.chunk_tokens
    assert replace(large, length=125, contrast=False).sample(1e10) == small, "measured once for both"
    assert np.isclose(replace(large, rows=8000).flops, 2 * large.flops, rtol=0.02)


def test_encoding_takes_no_gradient() -> None:
    step = Step(EncoderSize(4, 64, 256, 4, 1000), 10, 30, 4096, trained=False)
    assert 3 * step.flops < replace(step, trained=True).flops * 1.5
