"""Measure the peak memory of a coCondenser step with the gradient cache, for two batch sizes, each in a process of its own.

    python experiments/benchmarks/memory.py [shape=B] [precision=fp32] [spans=64] [times=16] [threads=1]

One batch has ``spans`` spans of 40 to 128 tokens, and the other ``times`` as many. The size of a chunk is the same in both.
The program prints one JSON line:

    peak_mb, large_peak_mb    peak memory of a process that makes two steps, including model and optimiser state
    ratio                     the second divided by the first
    per_span_kb               additional memory per additional span
"""

import json
import multiprocessing
import resource
from dataclasses import replace

import torch
from pretraining_step import make_batch, make_model, our_gradients
from sizes import SHAPES, given

from condensery.system import memory_growth


def peak(shape: str, precision: str, spans: int, threads: int) -> float:
    """Return the peak memory of this process in MiB, after two steps on ``spans`` spans."""
    torch.set_num_threads(threads)
    size = replace(SHAPES[shape], spans=spans)
    model, batch = make_model(size, 0.1, "eager"), make_batch(size)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    for _ in range(2):
        our_gradients(model, batch, size, precision)
        optimiser.step()
        optimiser.zero_grad()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(shape: str, precision: str, spans: str, times: str, threads: str) -> None:
    """Run the benchmark and print its line."""
    small, large = int(spans), int(spans) * int(times)
    peaks = []
    for number in (small, large):
        with multiprocessing.get_context("spawn").Pool(1) as alone:
            peaks.append(alone.apply(peak, (shape, precision, number, int(threads))))
    result = {
        "shape": shape,
        "precision": precision,
        "spans": small,
        "large_spans": large,
        "peak_mb": round(peaks[0]),
        "large_peak_mb": round(peaks[1]),
        "ratio": round(peaks[1] / peaks[0], 3),
        "per_span_kb": round(1024 * (peaks[1] - peaks[0]) / (large - small), 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    memory_growth.restart_flat()  # as run.py does
    memory_growth.keep_flat()  # as the stages that train do
    main(**given(__doc__, shape="B", precision="fp32", spans="64", times="16", threads="1"))
