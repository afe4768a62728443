"""Two processes that share each batch train to the losses and weights of one process."""

import csv
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import test_adaptive
import test_cross_encoder_training
import test_generator_training
import test_sentence_training
import torch
import trainings
from forked import run_processes
from pytorch_lightning.callbacks import EarlyStopping, EMAWeightAveraging
from slow import slow_except
from torch import Tensor, distributed

from condensery.errors import UserError
from condensery.tokens.tokenizer import train_wordpiece
from condensery.training.adaptive.callback import AdaptiveBatches
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.steps import Share
from condensery.training.loop import fit
from condensery.training.modules.biencoder import BiEncoderModule
from condensery.training.modules.generator import GeneratorModule
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.settings import LoopSettings

PROCESSES, STEPS = 2, 20
SETTINGS = {"steps": STEPS, "checkpoint_every": 0, "validate_every": 8, "dropout": 0.0}
SHORT = {**SETTINGS, "steps": 8}
Run = tuple[TrainingModule, StepDataModule, LoopSettings, list[pl.Callback]]


def of_kind(kind: str) -> Callable[[Path], Run]:
    longer = kind in ("cocondenser", "query_as_context", "cotmae", "biencoder")
    return lambda folder: (*trainings.run(kind, folder, **(SETTINGS if longer else SHORT)), [])


def of_one_query_at_times(folder: Path) -> Run:
    """13 queries in steps of 4: the last of an epoch has one, which cannot be shared."""
    module, _, settings = trainings.run("biencoder", folder, **SHORT)
    return module, StepDataModule(trainings.triple_batches(folder, batch_size=4)), settings, []


def of_learned_scores(folder: Path) -> Run:
    """Weights of a loss beside those of the model."""
    module, data, settings = trainings.run("biencoder", folder, **SHORT)
    return BiEncoderModule(module.model, loss="learning_to_rank", **trainings.optimiser()), data, settings, []  # type: ignore[arg-type]


def of_sentences(folder: Path) -> Run:
    module = test_sentence_training.module_of()
    data = StepDataModule(test_sentence_training.batches_of("pairs", folder))
    return module, data, LoopSettings(8, validate_every=8), []


def of_lists(folder: Path) -> Run:
    """Pairs for the cross-encoder."""
    module, data, settings = test_cross_encoder_training.run(folder, steps=8, checkpoint_every=0)
    for layer in module.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    return module, data, settings, []


def of_queries(folder: Path) -> Run:
    """A query generator; each process writes its tables anew."""
    words, own = folder / "words", Path(tempfile.mkdtemp(dir=folder))
    if not words.exists():
        texts = [*test_generator_training.PASSAGES, *test_generator_training.QUERIES, "query: a title"]
        train_wordpiece(texts * 5, 130, words)
    generator = test_generator_training._generator(words, dropout=0.0)
    module = GeneratorModule(generator.model.train(), **trainings.optimiser())
    return module, StepDataModule(test_generator_training._batches(own, generator)), LoopSettings(8), []


def adaptive(folder: Path) -> Run:
    """Batches that a process of their own makes, of vectors that the first process encodes."""
    module, _, settings = trainings.run("biencoder", folder, **{**SETTINGS, "steps": test_adaptive.STEPS})
    number = distributed.get_world_size() if distributed.is_initialized() else 1
    order = test_adaptive.order(folder / f"schedule-{number}")
    batches = trainings.triple_batches(folder, order=order)
    callbacks: list[pl.Callback] = [AdaptiveBatches(order, batches)]
    return module, StepDataModule(batches), settings, callbacks


QUICK = ("cocondenser", "biencoder", "adaptive")
RUNS: dict[str, Callable[[Path], Run]] = {
    **{kind: of_kind(kind) for kind in trainings.KINDS if kind != "retromae"},
    "head_first": of_kind("head_first"),
    "one query at times": of_one_query_at_times,
    "learned scores": of_learned_scores,
    "sentences": of_sentences,
    "lists": of_lists,
    "queries": of_queries,
    "adaptive": adaptive,
}


def made(name: str, folder: Path) -> Run:
    """The run with chunks so small that the share of a process has several."""
    module, data, settings, callbacks = RUNS[name](folder)
    batches: Any = data.batches
    if name in ("condenser", "queries"):
        batches.budget //= 2
    return module, data, settings, callbacks


class Seeds(pl.Callback):
    """What dropout was drawn with in each step; stops the run behind step ``last``."""

    def __init__(self, last: int | None = None) -> None:
        self.seeds: list[int] = []
        self.last = last

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.seeds.append(torch.initial_seed())
        if trainer.global_step == self.last:
            raise InterruptedError


def with_dropout(folder: Path, name: str, last: int | None = None) -> tuple[dict[str, Tensor], list[int]]:
    """The weights and seeds of a run with dropout and checkpoints, from what lies in its folder."""
    module, data, settings = trainings.run("cocondenser", folder)
    seeds = Seeds(last)
    fit(module, data, settings, folder / name, name, sample=trainings.sample(folder), callbacks=[seeds])
    return module.state_dict(), seeds.seeds


def early_stopping() -> EarlyStopping:
    """Ends the training at step 16: the rate is highest at the second of the validations, which are 4 steps apart."""
    return EarlyStopping("train/lr", mode="max", patience=2, check_on_train_epoch_end=False)


def average() -> EMAWeightAveraging:
    return EMAWeightAveraging(decay=0.5)


def child(rank: int, folder: str, names: Sequence[str]) -> None:
    """One of the processes: the runs ``names``, then runs with dropout, whole and interrupted, and one that fails."""
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=PROCESSES)
    exchanged: list[int] = []
    all_reduce = distributed.all_reduce

    def counting(tensor: Tensor, *args: Any) -> None:
        if tensor.is_floating_point():
            exchanged.append(tensor.numel())
        all_reduce(tensor, *args)

    distributed.all_reduce = counting  # type: ignore[assignment]
    found: dict[str, Any] = {}
    for name in names:
        module, data, settings, callbacks = made(name, Path(folder))
        if rank:  # as if it had started from other weights
            with torch.no_grad():
                next(module.parameters()).add_(1.0)
        exchanged.clear()
        sample = trainings.sample(Path(folder)) if name in trainings.KINDS else None
        values = fit(module, data, settings, Path(folder) / f"two {name}", name, sample=sample, callbacks=callbacks)
        found[name] = module.state_dict(), values, list(exchanged), sum(map(torch.numel, module.parameters()))
    # as in a stage: the first alone validates and asks whether to end, the average is made in every process
    module, data, settings = trainings.run("biencoder", Path(folder), **{**SETTINGS, "validate_every": 4})
    ending = [] if rank else [early_stopping()]
    sample = trainings.sample(Path(folder))
    fit(module, data, settings, Path(folder) / "ended", "x", sample=sample, callbacks=[*ending, average()])
    found["ended"] = module.global_step, module.state_dict()
    found["dropout"] = [with_dropout(Path(folder), "whole")]
    try:
        with_dropout(Path(folder), "parts", last=8)  # the checkpoint is of step 5
    except InterruptedError:
        found["dropout"].append(with_dropout(Path(folder), "parts"))
    module, data, settings, _ = of_kind("cocondenser")(Path(folder))
    with torch.no_grad():
        next(module.parameters()).fill_(float("inf") if rank == 0 else 0.0)
    try:
        fit(module, data, settings, Path(folder) / "infinite", "x")
    except UserError as error:
        found["infinite"] = str(error)
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def saved(folder: Path, names: Sequence[str]) -> tuple[Path, list[dict[str, Any]]]:
    """What each process saved of the runs ``names``."""
    for name in names:
        RUNS[name](folder)  # the stores are written once
    trainings.sample(folder)
    run_processes(PROCESSES, child, str(folder), names)
    return folder, [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """What each process saved of the runs ``QUICK``."""
    return saved(tmp_path_factory.mktemp("processes"), QUICK)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """What each process saved of the other runs."""
    return saved(tmp_path_factory.mktemp("others"), [name for name in RUNS if name not in QUICK])


def curves(folder: Path) -> list[dict[str, float]]:
    with open(folder / "logs" / "metrics.csv", newline="", encoding="utf-8") as stream:
        return [
            {name: float(value) for name, value in row.items() if value and name not in ("train/tokens_per_s", "epoch")}
            for row in csv.DictReader(stream)
        ]


@pytest.mark.parametrize("name", slow_except(RUNS, *QUICK))
def test_the_losses_and_weights_are_those_of_one_process(name: str, request: pytest.FixtureRequest) -> None:
    folder, ranks = request.getfixturevalue("found" if name in QUICK else "others")
    module, data, settings, callbacks = made(name, folder)
    begin = {key: weight.detach().clone() for key, weight in module.named_parameters()}
    if name != "adaptive":  # whose batches are made while it trains
        chunks = [len(data.batches.batch(step, Share(0, 2)).chunks) for step in range(2)]
        assert max(chunks) > 1, "nothing passes through the cache"
    sample = trainings.sample(folder) if name in trainings.KINDS else None
    fit(module, data, settings, folder / f"one {name}", name, sample=sample, callbacks=callbacks)
    one, two = curves(folder / f"one {name}"), curves(folder / f"two {name}")
    assert len(one) == len(two) == settings.steps
    for mine, its in zip(one, two, strict=True):
        assert mine.keys() == its.keys()
        for key, value in mine.items():
            if key == "train/tokens":  # a passage of both shares is read twice
                assert value <= its[key] < 1.2 * value
            else:
                assert its[key] == pytest.approx(value, rel=1e-5, abs=1e-7), (key, mine["step"])
    first, second = (rank[name][0] for rank in ranks)
    # softmax does not see the biases of keys: rounding alone moves them
    pairs = [(first[key] - w, w - begin[key]) for key, w in module.state_dict().items() if _trained(key, begin)]
    off, moved = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
    assert float(off.norm() / moved.norm()) < 3e-4
    assert all(torch.equal(value, second[key]) for key, value in first.items())


def _trained(key: str, weights: dict[str, Tensor]) -> bool:
    return key in weights and not key.endswith("key.bias")


@pytest.mark.parametrize("runs", slow_except(["found", "others"], "found"))
def test_gradients_are_exchanged_once_a_step(runs: str, request: pytest.FixtureRequest) -> None:
    folder, ranks = request.getfixturevalue(runs)
    for name in [name for name in RUNS if (name in QUICK) == (runs == "found")]:
        for rank in ranks:
            _, _, exchanged, weights = rank[name]
            steps = test_adaptive.STEPS if name == "adaptive" else len(curves(folder / f"two {name}"))
            assert len(exchanged) == steps, name
            assert max(exchanged) <= weights + 4, "more than the gradients and a few losses"
            assert max(exchanged) > weights / 2, name
            assert min(exchanged) > (0 if name == "head_first" else weights / 2), name  # the head alone, at first


def test_the_first_process_alone_returns_values(found: tuple[Path, list[dict[str, Any]]]) -> None:
    for name in QUICK:
        assert "train/loss" in found[1][0][name][1]
        assert found[1][1][name][1] == {}


def test_dropout_differs_between_processes_and_an_interrupted_run_draws_the_same(
    found: tuple[Path, list[dict[str, Any]]],
) -> None:
    first, second = (rank["dropout"] for rank in found[1])
    assert set(first[0][1]).isdisjoint(second[0][1])
    for (whole, seeds), (resumed, later) in (first, second):
        assert len(seeds) == 12
        assert later == seeds[5:], "it went on from the checkpoint"
        assert all(torch.equal(value, resumed[name]) for name, value in whole.items())
    assert curves(found[0] / "parts") == curves(found[0] / "whole")
    assert all(torch.equal(value, second[0][0][name]) for name, value in first[0][0].items())


def test_all_processes_end_where_a_callback_of_the_first_ends_the_training(
    found: tuple[Path, list[dict[str, Any]]],
) -> None:
    module, data, settings = trainings.run("biencoder", found[0], **{**SETTINGS, "validate_every": 4})
    begin = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    callbacks = [early_stopping(), average()]
    fit(
        module,
        data,
        settings,
        found[0] / "ended alone",
        "x",
        sample=trainings.sample(found[0]),
        callbacks=callbacks,
    )
    (steps, weights), (other_steps, others) = (rank["ended"] for rank in found[1])
    assert steps == other_steps == module.global_step == 16
    assert all(torch.equal(weight, others[name]) for name, weight in weights.items())
    pairs = [(weights[name] - w, w - begin[name]) for name, w in module.state_dict().items() if _trained(name, begin)]
    off, moved = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
    assert float(off.norm() / moved.norm()) < 3e-4


def test_every_process_says_what_is_wrong_with_the_weights_that_all_have(
    found: tuple[Path, list[dict[str, Any]]],
) -> None:
    texts = {rank["infinite"] for rank in found[1]}
    assert len(texts) == 1
    assert "not finite at step 0" in texts.pop()


def test_the_shares_of_a_batch_are_all_of_it() -> None:
    for number in (3, 4, 10):
        items = torch.arange(number).numpy()
        parts = [Share(rank, 3).of(items) for rank in range(3)]
        assert torch.cat([torch.from_numpy(part) for part, _ in parts]).tolist() == items.tolist()
        assert {alone for _, alone in parts} == {False}
        assert max(len(part) for part, _ in parts) - min(len(part) for part, _ in parts) <= 1
    assert [(part.tolist(), alone) for part, alone in (Share(rank, 3).of(items[:2]) for rank in range(3))] == [
        ([0, 1], True)
    ] * 3
