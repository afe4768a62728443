"""Shared parts of the benchmarks: their arguments, the sizes of models and batches, and the counting of CPU time."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from arguments import given as given
from transformers import BertConfig, BertForMaskedLM

VOCABULARY = 30_522


@dataclass(frozen=True)
class Shape:
    """One size of model and batch; ``chunk`` is in spans of 128 tokens."""

    layers: int
    hidden: int
    heads: int
    spans: int
    chunk: int


SHAPES = {"A": Shape(12, 768, 12, 16, 8), "B": Shape(4, 256, 4, 64, 16), "C": Shape(12, 768, 12, 1024, 128)}
SHAPES["S"] = Shape(2, 64, 2, 16, 8)  # small, to test a benchmark
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def language_model(shape: Shape, dropout: float, attention: str, words: int = VOCABULARY) -> BertForMaskedLM:
    """Return a BERT of this shape. Each call returns the same weights."""
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=words,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.hidden,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return BertForMaskedLM._from_config(config, attn_implementation=attention)


def mixed(precision: str, device: str = "cpu") -> torch.autocast:
    """Return a context manager that sets the precision of the matrix products in a step."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")


def matmul_rate(precision: str, device: str = "cpu") -> float:
    """Return the operations per CPU-second of a large matrix product in this precision; on a GPU, per second."""
    size = 2048 if device == "cpu" else 8192
    left, right = torch.randn(2, size, size, device=device).to(PRECISIONS[precision])
    return 2 * float(size) ** 3 / statistics.median(seconds(lambda: left @ right, device) for _ in range(7))


def seconds(work: Callable[[], object], device: str) -> float:
    """Return the CPU-seconds of ``work``; on a GPU, the seconds until its work is done."""
    if device == "cpu":
        return cpu_seconds(work)
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_of(work: Callable[[], object]) -> float:
    """Return the peak of a GPU's memory in MiB while ``work`` runs, including what was allocated before."""
    torch.cuda.reset_peak_memory_stats()
    work()
    return torch.cuda.max_memory_allocated() / 2**20


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU-seconds of all threads of this process while ``work`` runs."""
    start = time.process_time()
    work()
    return time.process_time() - start


def in_turn(rounds: int, *ways: Callable[[], object], device: str = "cpu") -> list[float]:
    """Return the median ``seconds`` of each way, after a warm-up. The ways alternate, so other work slows all equally."""
    for way in ways:
        way()
    times = [[seconds(way, device) for way in ways] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times, strict=True)]
