"""Time one coCondenser optimisation step against a plain implementation of the same mathematics, in the same run.

    python experiments/benchmarks/pretraining_step.py shape=A|B|C|S precision=fp32|bf16 [threads=1] [steps=5] \
        [device=cpu|cuda] [together=false] [compile=true] [chunk=]

Shape A: BERT-base, 16 spans, chunks of 8 x 128 tokens. Shape B: 4 layers, hidden size 256, 64 spans, chunks of 16 x 128
tokens. Shape C, for a GPU: BERT-base, 1,024 spans, chunks of 128 x 128 tokens. Shape S, to test the command: 2 layers, hidden
size 64, 16 spans. ``chunk`` sets another number of spans of 128 tokens in a chunk. The vocabulary has 30,522 tokens. Spans
have 40 to 128 tokens, of which 15 % are masked. The dropout is 0.1, the head has two layers, and the optimiser is AdamW.

The plain implementation computes in fp32, with rows padded to 128, vocabulary logits at all positions, and transformers' own
layers. It computes exactly what the papers' released code computes. In the cached pass, that code runs the language model
with logits that are not used, and does not run the Condenser head. Each implementation has a process of its own. This
project's process is started as run.py starts one, and the other as Python does, because memory allocation is a large part of
the difference. The two make their steps alternately. The program prints one JSON line:

    cpu_s, baseline_cpu_s   CPU-seconds per step, median
    speedup                 baseline_cpu_s / cpu_s
    gflop                   useful floating-point operations of this project's step: matrix products over real tokens, at
                            the positions that are read, in both passes of the cache, without padding
    matmul_share            gflop / cpu_s, divided by this machine's rate of large matrix products in that precision
    peak_rss_mb             peak memory of this project's process after its first step
    gradient_error          largest difference of a parameter's two gradients, over the plain one's largest entry; no dropout

On a GPU, and with together=true, both run in one process and in the requested precision. The line then has
``seconds`` and ``baseline_seconds`` instead of the CPU-seconds. On a GPU, these are wall-clock seconds until the GPU has
finished the step. matmul_share is relative to the GPU's own rate. The line then also has:

    tokens_per_s                   tokens without padding
    peak_mb, baseline_peak_mb      peak of the GPU's memory in a step, with both models and their optimisers
    padded_seconds                 this project's step with attention over padded rows, which is the only way on a CPU
    compiled_seconds               this project's step with layers compiled by torch; null if impossible or compile=false
"""

import json
import multiprocessing
import os
import resource
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sizes import (
    PRECISIONS,
    SHAPES,
    VOCABULARY,
    Shape,
    cpu_seconds,
    in_turn,
    language_model,
    matmul_rate,
    mixed,
    peak_of,
)
from torch import Tensor, nn

from condensery.errors import UserError
from condensery.losses.contrast import span_contrast
from condensery.losses.mlm import MaskedPrediction
from condensery.models import encoder
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.encoder import compiled
from condensery.models.flops import EncoderSize
from condensery.system import memory_growth
from condensery.tokens.batches import chunks

LENGTH, MASK_RATE, MASK = 128, 0.15, 103


@dataclass
class Batch:
    """Masked spans, flat: ids (N,), starts (n + 1,), masked (k,) positions into ids, targets (k,)."""

    ids: np.ndarray
    starts: np.ndarray
    masked: np.ndarray
    targets: np.ndarray


def make_batch(shape: Shape, seed: int = 0, lengths: tuple[int, int] = (40, LENGTH), words: int = VOCABULARY) -> Batch:
    """Return random spans of 40 to 128 tokens (``lengths``) with ids below ``words``. [MASK] replaces 15 % of the tokens."""
    random = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(random.integers(lengths[0], lengths[1] + 1, shape.spans))])
    ids = random.integers(1_000, words, starts[-1])
    inner = np.setdiff1d(np.arange(starts[-1]), np.concatenate([starts[:-1], starts[1:] - 1]))
    masked = np.sort(random.choice(inner, round(MASK_RATE * len(inner)), replace=False))
    targets = ids[masked].copy()
    ids[masked] = MASK
    return Batch(ids, starts, masked, targets)


def make_model(shape: Shape, dropout: float, attention: str, words: int = VOCABULARY) -> Condenser:
    """Return the model of this shape. Each call returns the same weights."""
    return Condenser(
        language_model(shape, dropout, attention, words), CondenserShape(2, shape.layers // 2, True)
    ).train()


def our_gradients(model: Condenser, batch: Batch, shape: Shape, precision: str, device: str = "cpu") -> float:
    """Back-propagate one batch with the package's gradient cache. Return the total loss."""
    from condensery.losses.gradient_cache import backpropagate  # changes the process, so not imported above

    parts = chunks(batch.ids, batch.starts, shape.chunk * LENGTH, pad_id=0, masked=batch.masked, targets=batch.targets)
    parts = [part.to(device) for part in parts]
    with mixed(precision, device):
        losses = backpropagate(MaskedPrediction(model, len(batch.targets)), parts, span_contrast)
    return float(sum(losses.values()))


class Plain:
    """The textbook implementation: transformers' layers on rows padded to 128, and logits at every token."""

    def __init__(self, model: Condenser, batch: Batch, shape: Shape, device: str = "cpu") -> None:
        self.model, self.shape, self.random = model, shape, torch if device == "cpu" else torch.cuda
        rows = chunks(batch.ids, batch.starts, 10**9, 0, masked=batch.masked, targets=batch.targets)[0]
        back = torch.argsort(rows.rows)
        ids, labels = torch.zeros(2, shape.spans, LENGTH, dtype=torch.int64)
        ids[:, : rows.input_ids.shape[1]] = rows.input_ids[back]
        flat = torch.full((rows.input_ids.numel(),), -100)
        assert rows.targets is not None
        flat[rows.masked] = rows.targets
        labels.fill_(-100)[:, : rows.input_ids.shape[1]] = flat.view(rows.input_ids.shape)[back]
        mask = torch.arange(LENGTH) < rows.lengths[back][:, None]
        self.ids, self.labels, self.mask = ids.to(device), labels.to(device), mask.to(device)
        self.count = len(batch.targets)

    def forward(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return the CLS vectors and the MLM losses of some rows, with logits at all positions."""
        output = self.model.language_model(
            input_ids=self.ids[rows], attention_mask=self.mask[rows].long(), output_hidden_states=True
        )
        states = output.hidden_states
        hidden = torch.cat([states[-1][:, :1], states[self.model.shape.skip_from][:, 1:]], dim=1)
        padding = (~self.mask[rows])[:, None, None, :].to(hidden.dtype) * torch.finfo(hidden.dtype).min
        for layer in self.model.head:
            hidden = layer(hidden, padding)
        logits = self.model.language_model.cls(hidden)
        labels = self.labels[rows].flatten()
        losses = [
            nn.functional.cross_entropy(part.flatten(0, 1), labels, ignore_index=-100, reduction="sum") / self.count
            for part in (output.logits, logits)
        ]
        return states[-1][:, 0], losses[0] + losses[1]

    def vectors(self, rows: slice) -> Tensor:
        """Return the CLS vectors of some rows. Like the released code, this also computes the logits."""
        output = self.model.language_model(
            input_ids=self.ids[rows], attention_mask=self.mask[rows].long(), output_hidden_states=True
        )
        return output.hidden_states[-1][:, 0]

    def gradients(self) -> float:
        """Back-propagate the batch through a gradient cache that runs the language model twice."""
        rows = [slice(i, i + self.shape.chunk) for i in range(0, self.shape.spans, self.shape.chunk)]
        replays, vectors = [], []
        with torch.no_grad():
            for part in rows:
                replays.append(self.random.get_rng_state())
                vectors.append(self.vectors(part))
        cached = torch.cat(vectors).float().requires_grad_()
        contrast = span_contrast(cached)
        (gradient,) = torch.autograd.grad(contrast, cached)
        total = float(contrast.detach())
        for part, state in zip(rows, replays, strict=True):
            self.random.set_rng_state(state)
            cls, loss = self.forward(part)
            (loss + (cls * gradient[part]).sum()).backward()
            total += float(loss.detach())
        return total


def size_of(shape: str, chunk: str) -> Shape:
    """Return the shape of that name. Its chunks have another size if ``chunk`` is not empty."""
    return replace(SHAPES[shape], chunk=int(chunk)) if chunk else SHAPES[shape]


def useful_flops(shape: Shape, batch: Batch) -> float:
    """Return the operations of the matrix products that one of our steps needs, for real tokens only."""
    lengths = np.diff(batch.starts).astype(float)
    row = np.searchsorted(batch.starts, batch.masked, side="right") - 1
    masked = np.bincount(row, minlength=shape.spans).astype(float)
    size = EncoderSize(shape.layers, shape.hidden, 4 * shape.hidden, shape.heads, VOCABULARY)

    def layer(read: np.ndarray, rows: np.ndarray | slice = slice(None)) -> float:
        return float(sum(size.layer(lengths[rows], read[rows])))

    whole = layer(lengths)
    once = chunks(batch.ids, batch.starts, shape.chunk * LENGTH, pad_id=0)[0].rows  # the chunk that is encoded once
    later = np.setdiff1d(np.arange(shape.spans), once)
    cached = (shape.layers - 1) * layer(lengths, later) + layer(np.ones(shape.spans), later)
    heads = whole + layer(masked)
    projection = size.projection(2 * masked.sum())
    trained = (shape.layers - 1) * whole + layer(masked + 1) + heads + projection
    return cached + 3 * trained


def gradient_error(shape: Shape, batch: Batch, precision: str) -> float:
    """Return the largest difference from the plain gradient over its largest entry, for the worst tensor, without dropout."""
    ours, plain = make_model(shape, 0.0, "eager"), make_model(shape, 0.0, "sdpa")
    our_gradients(ours, batch, shape, precision)
    Plain(plain, batch, shape).gradients()
    models = (ours, plain)
    pairs: list[tuple[Any, Any]] = list(
        zip(*([one.grad for one in model.parameters()] for model in models), strict=True)
    )
    floor = 1e-4 * max(float(b.abs().max()) for _, b in pairs)  # key biases have only rounding errors
    return max(float((a - b).abs().max()) / max(float(b.abs().max()), floor) for a, b in pairs)


def plain_steps(connection: Connection, shape: Shape, threads: int) -> None:
    """In a separate process: make a plain step for each message received, and send its CPU-seconds."""
    torch.set_num_threads(threads)
    model, batch = make_model(shape, 0.1, "sdpa"), make_batch(shape)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5)
    way = Plain(model, batch, shape)

    def step() -> None:
        way.gradients()
        optimiser.step()
        optimiser.zero_grad()

    with suppress(EOFError):  # raised when our process has ended
        while True:
            connection.recv()
            connection.send(cpu_seconds(step))


@contextmanager
def padded() -> Iterator[None]:
    """Let the encoder attend over padded rows, as it does without a kernel for rows of different lengths."""
    with patch.object(encoder, "kernel_of", return_value=None):
        yield


def in_one_process(shape: str, precision: str, steps: int, device: str, compile_layers: bool, chunk: str) -> None:
    """Run the benchmark on a GPU, or on a CPU in the same way, and print its line."""
    size = size_of(shape, chunk)
    batch = make_batch(size)
    ours, plain = (make_model(size, 0.1, attention).to(device) for attention in ("eager", "sdpa"))
    baseline = Plain(plain, batch, size, device)

    def step(model: Condenser, gradients: Callable[[], object]) -> Callable[[], None]:
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=model is ours)

        def one() -> None:
            gradients()
            optimiser.step()
            optimiser.zero_grad()

        return one

    def plain_gradients() -> None:
        with mixed(precision, device):
            baseline.gradients()

    our_step = step(ours, lambda: our_gradients(ours, batch, size, precision, device))
    plain_step = step(plain, plain_gradients)
    quick, slow = in_turn(steps, our_step, plain_step, device=device)
    rate, flops = matmul_rate(precision, device), useful_flops(size, batch)
    peaks = (peak_of(our_step), peak_of(plain_step)) if device != "cpu" else (0.0, 0.0)
    with padded():
        (padded_seconds,) = in_turn(steps, our_step, device=device)
    third = None
    with suppress(UserError), compiled() if compile_layers else nullcontext():
        third = in_turn(steps, our_step, device=device)[0] if compile_layers else None
    result = {
        "shape": shape,
        "precision": precision,
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "seconds": round(quick, 4),
        "baseline_seconds": round(slow, 4),
        "speedup": round(slow / quick, 2),
        "padded_seconds": round(padded_seconds, 4),
        "compiled_seconds": None if third is None else round(third, 4),
        "tokens_per_s": round(len(batch.ids) / quick),
        "gflop": round(flops / 1e9, 1),
        "matmul_gflops": round(rate / 1e9, 1),
        "matmul_share": round(flops / rate / quick, 3),
        "peak_mb": round(peaks[0]),
        "baseline_peak_mb": round(peaks[1]),
    }
    print(json.dumps(result))


def main(
    shape: str = "B",
    precision: str = "fp32",
    threads: str = "1",
    steps: str = "5",
    device: str = "cpu",
    together: str = "false",
    compile: str = "true",
    chunk: str = "",
) -> None:
    """Run the benchmark and print its line."""
    if device != "cpu" or together == "true":
        torch.set_num_threads(int(threads))
        in_one_process(shape, precision, int(steps), device, compile == "true", chunk)
        return
    size = size_of(shape, chunk)
    plain, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    environment = {name: os.environ.pop(name, "") for name in memory_growth.PROCESS}
    context.Process(target=plain_steps, args=(theirs, size, int(threads)), daemon=True).start()
    os.environ.update(environment)

    def plain_seconds() -> float:
        plain.send(None)
        return float(plain.recv())

    torch.set_num_threads(int(threads))
    batch = make_batch(size)
    ours = make_model(size, 0.1, "eager")
    optimiser = torch.optim.AdamW(ours.parameters(), lr=1e-5, fused=True)

    def our_step() -> None:
        our_gradients(ours, batch, size, precision)
        optimiser.step()
        optimiser.zero_grad()

    plain_seconds()
    our_step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    times: list[tuple[float, float, float]] = []
    for _ in range(int(steps)):  # alternately, so that a busy machine slows both
        times.append((cpu_seconds(our_step), plain_seconds(), matmul_rate(precision)))
    cpu, baseline, rate = (statistics.median(column) for column in zip(*times, strict=True))
    flops = useful_flops(size, batch)
    error = gradient_error(size, batch, precision)
    result = {
        "shape": shape,
        "precision": precision,
        "cpu_s": round(cpu, 3),
        "baseline_cpu_s": round(baseline, 3),
        "speedup": round(baseline / cpu, 2),
        "gflop": round(flops / 1e9, 1),
        "matmul_gflops": round(rate / 1e9, 1),
        "matmul_share": round(flops / rate / cpu, 3),
        "peak_rss_mb": round(peak),
        "gradient_error": float(f"{error:.2e}"),
    }
    print(json.dumps(result))
    if precision == "fp32" and not error < 1e-3:
        sys.exit(f"error: the two gradients differ by {error:.1e}")


if __name__ == "__main__":
    memory_growth.restart_flat()  # as run.py does
    memory_growth.keep_flat()  # as the stages that train do
    try:
        options = dict(argument.split("=", 1) for argument in sys.argv[1:])
        if options.get("shape", "B") not in SHAPES or options.get("precision", "fp32") not in PRECISIONS:
            raise ValueError
        call = lambda: main(**options)  # noqa: E731
    except ValueError:
        sys.exit("usage: pretraining_step.py shape=A|B|C|S precision=fp32|bf16 [threads=1] [steps=5] [device=cpu|cuda]")
    call()
