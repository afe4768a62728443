"""The speed of this machine for ``dry_run``, measured by a few steps of a BERT with random weights and token ids."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils.benchmark import Timer, timer
from transformers import BertConfig, BertForMaskedLM

from condensery.models.flops import Step
from condensery.models.precision import autocast
from condensery.stages.workload import Work

REACHED = 0.87  # share of a plain BERT's throughput that training and encoding reach: 0.79 to 0.98 on a CPU
ENOUGH = 0.3  # seconds of measurement; shorter work is repeated
SAMPLE = {"cpu": 1.5e10, "cuda": 4e12}  # approximate FLOPs of a measured step
SQUARE = {"cpu": 768, "cuda": 8192}  # rows and columns of the multiplied matrices


@dataclass(frozen=True)
class Here:
    """The machine on which the dry run runs.

    Attributes:
        device: device that computes, ``cpu`` or ``cuda``.
        cores: threads of a stage; 1 on a GPU. The speed of one CPU thread is measured, and multiplied by ``cores``.
            With several threads, the CPU time would include the time in which threads wait for each other.
    """

    device: str
    cores: int

    def seconds(self, work: Work) -> float | None:
        """Return the wall-clock seconds of the work on an otherwise idle machine; None if the work is unknown."""
        if not work.known:
            return None
        seconds = work.seconds or 0.0
        if work.products:
            seconds += work.products / product_rate(self.device) / self.cores
        if work.step is not None:
            seconds += work.step_flops / step_rate(work.step.sample(SAMPLE[self.device]), self.device) / self.cores
        return seconds


def this_machine(accelerator: str, threads: int) -> Here:
    """Return this machine: its GPU if ``accelerator`` allows one and there is one, otherwise ``threads`` of its cores."""
    return Here("cuda", 1) if accelerator != "cpu" and torch.cuda.is_available() else Here("cpu", threads)


@cache
def step_rate(step: Step, device: str) -> float:
    """Time a step and return its useful FLOPs per second, of one core on a CPU, or of the whole GPU.

    The result is ``REACHED`` times the throughput of the encoder alone, on texts of one length. The optimiser's update is
    left out, because it takes 1 % of a step or less.

    Args:
        step: a sample step that takes a few seconds (``Step.sample``).
        device: cpu or cuda.
    """
    rows, length = int(step.rows), int(step.length)
    predicted = round(step.predicted * length)
    model = _model(step).to(device).train(step.trained)
    ids = torch.randint(step.encoder.vocabulary, (rows, length), device=device)  # (rows, length)

    def read() -> None:
        model.zero_grad()
        with torch.set_grad_enabled(step.trained), autocast(device, step.precision):
            states = model.bert(ids).last_hidden_state  # (rows, length, hidden)
            scores = model.cls(states[:, :predicted])  # (rows, predicted, vocabulary)
            loss = states[:, 0].float().sum() + scores.float().logsumexp(-1).sum()
        if step.trained:
            loss.backward()

    of_a_row = step.encoder.layers * step.encoder.layer(length, length) + step.encoder.projection(predicted)
    return REACHED * rows * of_a_row * (3 if step.trained else 1) / _seconds(read, device)


@cache
def product_rate(device: str) -> float:
    """Measure the FLOPs per second of large matrix products in fp32, of one core on a CPU, or of the whole GPU."""
    size = SQUARE[device]
    left, right = torch.randn(2, size, size, device=device)
    return 2 * float(size) ** 3 / _seconds(lambda: left @ right, device)


def _model(step: Step) -> Any:
    size = step.encoder
    config: Any = BertConfig(  # type: ignore[call-arg]
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.intermediate,
        max_position_embeddings=max(512, int(step.length)),
        attn_implementation="eager",
        hidden_dropout_prob=size.dropout,
        attention_probs_dropout_prob=size.dropout,
    )
    return BertForMaskedLM(config)


def _seconds(work: Callable[[], object], device: str) -> float:
    """Return the shortest of several measured times, after a warm-up that is not counted.

    On a CPU, a time is the CPU seconds of one thread. On a GPU, it is the seconds until the GPU has finished.
    """
    measuring = Timer("work()", globals={"work": work}, timer=time.process_time if device == "cpu" else timer)
    return min(measuring.blocked_autorange(min_run_time=ENOUGH).times)
