"""A cached step needs the memory of a chunk, however many spans the batch has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

STEP = """
import sys
import numpy as np
import torch
from textbook import rows
from transformers import BertConfig, BertForMaskedLM
from condensery.models.condenser import Condenser, CondenserShape
from condensery.objectives.contrast import span_contrast
from condensery.objectives.gradient_cache import backpropagate
from condensery.objectives.mlm import MaskedPrediction

def megabytes(field):  # not ru_maxrss, which begins with what the parent process had
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))

precision, warm = sys.argv.pop(), sys.argv.pop() == "True"
spans, hidden, layers, words, length, budget = map(int, sys.argv[1:])
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
if warm:
    step(256, 1)  # fills the cache of compiled kernels, whose size is bounded
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")  # the peak starts again
parts = step(spans, 0)
print(len(parts), before, megabytes("VmHWM"))
"""


def _peak(spans: int, precision: str, warm: bool, *sizes: int) -> tuple[int, float, float]:
    """Chunks of a step, and the process's memory before it and at its peak, in MiB."""
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # set in this process by the package itself
        environment.pop(name, None)
    command = [sys.executable, "-c", STEP, *map(str, (spans, *sizes, warm)), precision]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    number, before, peak = done.stdout.split()
    return int(number), float(before), float(peak)


def _grows_by_less_than_a_twentieth(precision: str, warm: bool, *sizes: int) -> None:
    (few, _, small), (many, before, large) = (_peak(spans, precision, warm, *sizes) for spans in (64, 1024))
    assert few >= 3
    assert many > 10 * few
    assert large < 1.05 * small, f"{small:.0f} -> {large:.0f} MiB, of which {before:.0f} are there before the step"
    assert small - before > 40, "the step needs too little memory for this to say anything"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_once_kernels_are_cached_the_peak_of_a_step_does_not_grow_from_64_to_1024_spans() -> None:
    _grows_by_less_than_a_twentieth("fp32", True, 64, 2, 3000, 48, 1024)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_in_a_fresh_process_the_peak_of_a_step_does_not_grow_from_64_to_1024_spans(precision: str) -> None:
    _grows_by_less_than_a_twentieth(precision, False, 256, 4, 30_522, 128, 2048)
