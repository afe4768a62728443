"""What the benchmarks share: their arguments, sizes of models and batches, and how CPU time is counted."""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
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


SHAPES = {"A": Shape(12, 768, 12, 16, 8), "B": Shape(4, 256, 4, 64, 16)}


def language_model(shape: Shape, dropout: float, attention: str) -> BertForMaskedLM:
    """A BERT of this shape; the same weights whenever it is called."""
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.hidden,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation=attention,
    )
    return BertForMaskedLM(config)


def matmul_rate(precision: str) -> float:
    """Operations per CPU-second of a large matrix product in this precision."""
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = torch.randn(2, 2048, 2048).to(kind)
    return 2 * 2048.0**3 / statistics.median(cpu_seconds(lambda: left @ right) for _ in range(7))


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU-seconds of all threads of this process while ``work`` runs."""
    start = time.process_time()
    work()
    return time.process_time() - start


def in_turn(rounds: int, *ways: Callable[[], object]) -> list[float]:
    """Median CPU-seconds of each way, each done once before; in turn, so that a busy machine slows them alike."""
    for way in ways:
        way()
    times = [[cpu_seconds(way) for way in ways] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def given(document: str | None, **defaults: str) -> dict[str, str]:
    """The arguments ``key=value`` of the command line, over ``defaults``; any other ends the program with the usage."""
    usage = next(line.strip() for line in (document or "").splitlines() if line.startswith("    python"))
    pairs = [argument.partition("=") for argument in sys.argv[1:]]
    if any(not value or key not in defaults for key, _, value in pairs):
        sys.exit(f"usage: {usage}")
    return defaults | {key: value for key, _, value in pairs}
