"""A training that is stopped goes on with another number of processes: the same batches, and the weights to rounding."""

import time
from pathlib import Path
from typing import Any

import pytest
import test_adaptive
import test_cross_encoder_training
import test_generator_training
import test_sentence_training
import torch
import trainings
from other_processes import Run, Runs, check

from condensery.tokens.tokenizer import train_wordpiece
from condensery.training.adaptive.callback import AdaptiveBatches
from condensery.training.data.data_module import StepDataModule
from condensery.training.modules.generator import GeneratorModule


def of_kind(kind: str) -> Any:
    return lambda folder, name: (*trainings.run(kind, folder, dropout=0.0)[:2], [])


def small_batches(folder: Path, name: str) -> Run:
    """13 queries in steps of 5: the last of an epoch has three, fewer than processes."""
    module, _, _ = trainings.run("biencoder", folder, dropout=0.0)
    return module, StepDataModule(trainings.triple_batches(folder, batch_size=5)), []


def adaptive(folder: Path, name: str) -> Run:
    """Batches that a process of their own makes, of vectors that the first process encodes."""
    module, _, _ = trainings.run("biencoder", folder, dropout=0.0)
    order = test_adaptive.order(folder / f"schedule {name}")
    batches = trainings.triple_batches(folder, order=order)
    return module, StepDataModule(batches), [AdaptiveBatches(order, batches)]


def sentences(folder: Path, name: str) -> Run:
    return test_sentence_training.module_of(), StepDataModule(test_sentence_training.batches_of("pairs", folder)), []


def lists(folder: Path, name: str) -> Run:
    """Pairs for the cross-encoder."""
    module, data, _ = test_cross_encoder_training.run(folder)
    for layer in module.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    return module, data, []


def queries(folder: Path, name: str) -> Run:
    """A query generator; each process writes its tables anew."""
    words, own = folder / "words", folder / f"tables {name} {time.monotonic_ns()}"
    if not words.exists():
        texts = [*test_generator_training.PASSAGES, *test_generator_training.QUERIES, "query: a title"]
        train_wordpiece(texts * 5, 130, words)
    own.mkdir()
    generator = test_generator_training._generator(words, dropout=0.0)
    module = GeneratorModule(generator.model.train(), **trainings.optimiser())
    return module, StepDataModule(test_generator_training._batches(own, generator)), []


FAMILIES: Runs = {"small batches": small_batches}
FURTHER = ("head_first", "frozen_passages", "contrast_and_mlm")  # kinds besides those of most tests
OTHERS: Runs = {kind: of_kind(kind) for kind in (*trainings.KINDS, *FURTHER) if kind not in FAMILIES}
OTHERS |= {"adaptive": adaptive, "sentences": sentences, "lists": lists, "queries": queries}


def test_stopped_trainings_go_on_with_another_number_of_processes(tmp_path: Path) -> None:
    check(FAMILIES, tmp_path)


@pytest.mark.slow
def test_so_do_those_with_other_objectives(tmp_path: Path) -> None:
    check(OTHERS, tmp_path, drawn={"retromae"})
