"""The speed of this machine, measured by a few steps on random weights and tokens; for ``dry_run``."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForMaskedLM

from condensery.losses.contrast import span_contrast
from condensery.losses.gradient_cache import backpropagate
from condensery.losses.mlm import MaskedPrediction
from condensery.models.biencoder import BiEncoder
from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.encoder import Encoder
from condensery.models.flops import EncoderSize, Step
from condensery.tokens.batches import Chunk, chunks

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SPREAD = 0.3  # largest relative deviation of text lengths from their mean
ENOUGH = 0.3  # seconds of measurement; shorter work is repeated, since the first repetitions are slow
MOST = 12  # repetitions, at most
SQUARE = {"cpu": 768, "cuda": 8192}  # rows and columns of the multiplied matrices


@dataclass(frozen=True)
class Rate:
    """The measured speed of a kind of step.

    Attributes:
        flops: useful operations per second; on a CPU per second of one core.
        parameters: weights that the optimiser updates in that time; infinite where nothing is trained.
    """

    flops: float
    parameters: float = float("inf")

    def seconds(self, step: Step) -> float:
        """Return the seconds of a step: its operations, and the update of the weights."""
        further = step.head_layers * step.encoder.hidden * (4 * step.encoder.hidden + 2 * step.encoder.intermediate)
        return step.flops / self.flops + (step.encoder.parameters + further) / self.parameters


def rate_of(small: Step, device: torch.device) -> Rate:
    """Measure the speed of a kind of step.

    Args:
        small: a step of this kind that takes seconds (``Step.sample``).
        device: the device that computes.
    """
    torch.manual_seed(1)
    model = _model(small).to(device).train(small.trained)
    parts = [part.to(device) for part in _chunks(small)]

    def read() -> None:
        with torch.autocast(device.type, PRECISIONS[small.precision], enabled=small.precision != "fp32"):
            _read(model, parts, small)

    rate = Rate(small.flops / _seconds(read, device))
    if not small.trained:
        return rate
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    weights = sum(weight.numel() for weight in model.parameters())
    return replace(rate, parameters=weights / _seconds(optimiser.step, device))


def product_rate(device: torch.device) -> float:
    """Measure the operations per second of large products in fp32; on a CPU per second of one core."""
    size = SQUARE[device.type]
    left, right = torch.randn(2, size, size, device=device)
    return 2 * float(size) ** 3 / _seconds(lambda: left @ right, device)


def _model(step: Step) -> Condenser | BiEncoder:
    size: EncoderSize = step.encoder
    config: Any = BertConfig(  # type: ignore[call-arg]
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.intermediate,
        max_position_embeddings=max(512, int(2 * step.length)),
        attn_implementation="eager",
        hidden_dropout_prob=size.dropout,
        attention_probs_dropout_prob=size.dropout,
    )
    language_model: Any = BertForMaskedLM(config)
    if not step.predicted:
        return BiEncoder(Encoder(language_model.base_model))
    late = step.losses > 1 or not step.head_layers
    return Condenser(language_model, CondenserShape(step.head_layers, size.layers // 2, late))


def _chunks(step: Step) -> list[Chunk]:
    """Return random texts of about the mean length, with masked tokens where the step predicts some."""
    random = np.random.default_rng(1)
    rows = max(2, 2 * round(step.rows / 2))  # pairs, where there is a contrast
    near = (step.length * (1 - SPREAD), step.length * (1 + SPREAD))
    lengths = np.maximum(3, random.uniform(*near, rows)).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = random.integers(5, step.encoder.vocabulary, int(starts[-1]))
    masked = targets = None
    if step.predicted:
        masked = np.sort(random.choice(len(ids), max(1, round(step.predicted * len(ids))), replace=False))
        targets = ids[masked]
    return chunks(ids, starts, step.chunk_tokens, 0, masked=masked, targets=targets)


def _read(model: Condenser | BiEncoder, parts: list[Chunk], step: Step) -> None:
    if not step.trained:
        with torch.inference_mode():
            for part in parts:
                model.vectors(part)
        return
    model.zero_grad()
    predicted = sum(len(part.masked) for part in parts if part.masked is not None)
    encoder = MaskedPrediction(model, predicted) if isinstance(model, Condenser) else model
    backpropagate(encoder, parts, None if isinstance(model, Condenser) else span_contrast)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the shortest of several measured times, at least two."""
    times = [_once(work, device), _once(work, device)]
    while sum(times) < ENOUGH and len(times) < MOST:
        times.append(_once(work, device))
    return min(times)


def _once(work: Callable[[], object], device: torch.device) -> float:
    """Return the CPU seconds of the work, over all threads; on a GPU the seconds until the GPU has finished it."""
    if device.type == "cpu":
        begin = time.process_time()
        work()
        return time.process_time() - begin
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin
