"""A cached step needs the memory of a chunk, however many spans the batch has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from condensery.system import memory_growth
from condensery.system.processor import quick_precision

BF16 = pytest.param(
    "bf16", marks=pytest.mark.skipif(quick_precision("cpu") != "bf16", reason="this CPU takes hours in bf16")
)
STEP = """
import sys
import numpy as np
import torch
from textbook import rows
from transformers import BertConfig, BertForMaskedLM
from condensery.system import memory_growth
memory_growth.keep_flat()  # as the stages that train do
from condensery.models.condenser import Condenser, CondenserShape
from condensery.losses.contrast import span_contrast
from condensery.losses.gradient_cache import backpropagate
from condensery.losses.mlm import MaskedPrediction

def megabytes(field):  # not ru_maxrss, which begins with what the parent process had
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))

precision = sys.argv.pop()
steps, spans, hidden, layers, words, length, budget = map(int, sys.argv[1:])
config = BertConfig(vocab_size=words, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 32,
                    intermediate_size=4 * hidden, attn_implementation="eager")
model = Condenser(BertForMaskedLM(config), CondenserShape(2, layers // 2, True)).train()
for parameter in model.parameters():
    parameter.grad = torch.zeros_like(parameter)

def step(spans, seed):
    batch = rows(np.random.default_rng(seed).integers(length // 2, length + 1, spans).tolist())
    parts = batch.chunks(budget)
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        backpropagate(MaskedPrediction(model, len(batch.masked)), parts, span_contrast)
    return parts

before = megabytes("VmRSS")
chunks = [len(step(spans, seed)) for seed in range(steps)]
print(min(chunks), sum(chunks), before, megabytes("VmHWM"))
"""


def _peak(steps: int, spans: int, precision: str, *sizes: int, **variables: str) -> tuple[int, int, float, float]:
    """Of a fresh process, with these environment variables, that makes ``steps`` steps of ``spans`` spans each.

    The chunks of its smallest step and of all, and its memory before the first and at its peak, in MiB.
    """
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # set in this process by the package itself
        environment.pop(name, None)
    environment.update(memory_growth.PROCESS, **variables)  # as run.py starts itself
    command = [sys.executable, "-c", STEP, *map(str, (steps, spans, *sizes)), precision]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    fewest, chunks, before, peak = done.stdout.split()
    return int(fewest), int(chunks), float(before), float(peak)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("precision", "sizes"),
    [
        pytest.param("fp32", (64, 2, 3000, 48, 1024), marks=pytest.mark.slow),
        pytest.param("fp32", (256, 4, 30_522, 128, 2048), marks=pytest.mark.slow),
        pytest.param("bf16", (256, 4, 30_522, 128, 2048), marks=[pytest.mark.slow, *BF16.marks]),
    ],
)
def test_1024_spans_need_no_more_memory_in_one_step_than_in_16_steps(precision: str, sizes: tuple[int, ...]) -> None:
    """The same number of chunks either way: what kernels and allocator keep from chunk to chunk is on both sides."""
    few, chunks, _, small = _peak(16, 64, precision, *sizes)
    many, _, before, large = _peak(1, 1024, precision, *sizes)
    assert few >= 3
    assert many > 10 * few
    assert chunks < 1.5 * many
    assert large < 1.05 * small, f"{small:.0f} -> {large:.0f} MiB, of which {before:.0f} are there before the step"
    assert small - before > 40, "the step needs too little memory for this to say anything"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("precision", ["fp32", BF16])
def test_in_a_fresh_process_the_peak_of_one_step_does_not_grow_from_64_to_1024_spans(precision: str) -> None:
    """With few compiled kernels: the larger batch has chunks of more sizes, and would keep more kernels up to the limit."""
    (few, _, before, small), (many, _, _, large) = (
        _peak(1, spans, precision, 256, 4, 30_522, 128, 2048, ONEDNN_PRIMITIVE_CACHE_CAPACITY="16")
        for spans in (64, 1024)
    )
    assert few >= 3
    assert many > 10 * few
    assert large < 1.05 * small, f"{small:.0f} -> {large:.0f} MiB, of which {before:.0f} are there before the step"
