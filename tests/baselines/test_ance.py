"""ANCE: the loss, the batches of a refresh, what a refresh mines, kills, processes, and the recipe."""

import copy
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import textbook
import torch
from forked import run_processes
from slow import slow_except
from small_runs import MODEL, check_refused, metrics_of, run_command, some_text, write_beir, write_marco
from torch import Tensor, distributed

from condensery import check_gradients
from condensery.baselines.ance.batches import RefreshedBatches
from condensery.baselines.ance.refresh import Refresh
from condensery.baselines.ance.training import AnceModule, pairwise_loss
from condensery.errors import UserError
from condensery.losses.gradient_cache import backpropagate
from condensery.models.biencoder import PASSAGE, QUERY, BiEncoder
from condensery.models.encoder import Encoder
from condensery.retrieval.negative_pool import NegativePool
from condensery.retrieval.negatives import Negatives
from condensery.sharing import ProcessGroup
from condensery.stages.base import DistributedProcess, Runtime, Wandb
from condensery.stages.sharing import process_group
from condensery.tokens.batches import chunks
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.steps import Share
from condensery.training.data.training_queries import TrainingQueries
from condensery.training.loop import fit
from condensery.training.resumption import last_checkpoint

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
import trainings

TEMPERATURE, EVERY, DEPTH, STEPS = 1.5, 4, 6, 12


def queries_without_pool() -> TrainingQueries:
    known = trainings.training_queries()
    return TrainingQueries(known.rows, known.positives, known.starts, NegativePool([], known.rows))


def refreshed(folder: Path, every: int = EVERY, negatives: int = 2, name: str = "refreshed") -> RefreshedBatches:
    triples = trainings.triple_batches(folder, queries_without_pool(), negatives=negatives)
    return RefreshedBatches(triples, every, folder / name)


def module(dropout: float = 0.0, **changes: Any) -> AnceModule:
    torch.manual_seed(1)
    model = BiEncoder(Encoder(textbook.language_model(dropout=dropout).float().base_model))
    return AnceModule(model, temperature=TEMPERATURE, **trainings.optimiser(learning_rate=5e-3), **changes)


def group() -> ProcessGroup:
    member = DistributedProcess(distributed.get_rank(), 2, 0, 2) if distributed.is_initialized() else None
    runtime = Runtime("cpu", 1, 1, 0, Wandb(project="x", entity=None, enabled=False), "x", Path(), distributed=member)
    return process_group(runtime)


def train(
    folder: Path, name: str, *, made: AnceModule | None = None, further: Any = (), workers: int = 0, **changes: Any
) -> tuple[AnceModule, RefreshedBatches]:
    """12 steps, of which every fourth begins with a refresh; a checkpoint is written behind every fifth."""
    made, batches = made or module(dropout=0.1), refreshed(folder, name=f"{name} refreshed")
    refresh = Refresh(batches, DEPTH, folder / name, name, group, device="cpu")
    settings = trainings.loop(steps=STEPS, validate_every=0, **changes)
    fit(made, StepDataModule(batches, workers), settings, folder / name, name, callbacks=[*further, refresh])
    return made, batches


def test_the_loss_is_the_papers_and_so_is_its_gradient() -> None:
    draw = torch.Generator().manual_seed(3)
    scores = torch.randn(5, 4, generator=draw, dtype=torch.float64) * 3
    found, expected = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    ours = pairwise_loss(found[:, 0], found[:, 1:])
    rows = [[-(s[0].exp() / (s[0].exp() + other.exp())).log() for other in s[1:]] for s in expected]
    theirs = torch.stack([torch.stack(row) for row in rows])
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    for losses in (ours, theirs):
        losses.mean().backward()
    assert found.grad is not None
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-9, atol=1e-12)


def test_through_the_cache_the_gradient_is_that_of_every_pair_by_itself(tmp_path: Path) -> None:
    batches, cached = refreshed(tmp_path), module().double().eval()
    plain, triples = copy.deepcopy(cached), batches.triples
    epoch, chosen = triples.order(0)
    positive, hard = triples.draw(epoch, chosen)

    def vector(tower: int, row: int) -> Tensor:
        flat, _ = triples.readers[tower].read(np.array([row]))
        (chunk,) = chunks(flat, [0, len(flat)], 1000, textbook.PAD, tower=tower)
        return plain.model.vectors(chunk)[0]

    pairs = []
    for query, own, others in zip(triples.training.rows[chosen], positive, hard, strict=True):
        q, better = vector(QUERY, query), vector(PASSAGE, own)
        for other in others:
            margin = (q @ better - q @ vector(PASSAGE, other)) / TEMPERATURE
            pairs.append(-(1 / (1 + (-margin).exp())).log())
    expected = torch.stack(pairs).mean()
    expected.backward()
    batch = batches.batch(0)
    encoder, contrast = cached.objective(batch)
    found = backpropagate(encoder, batch.chunks, contrast)
    torch.testing.assert_close(found["contrast"], expected.detach(), rtol=1e-9, atol=1e-12)
    for (name, one), other in zip(cached.named_parameters(), plain.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("in_batch", slow_except([False, True], True))
def test_chunks_and_processes_give_the_gradient_of_the_whole_batch(in_batch: bool, tmp_path: Path) -> None:
    report = check_gradients(module(0.1, in_batch=in_batch), refreshed(tmp_path), processes=2, frozen=False)
    assert report, report
    assert any("2 processes" in outcome.setting for outcome in report.outcomes)


class Weights(pl.Callback):
    """Keeps the weights with which each refresh is made."""

    def __init__(self) -> None:
        self.kept: dict[int, AnceModule] = {}

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.kept[0] = copy.deepcopy(pl_module.model).eval()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        if trainer.global_step % EVERY == 0:
            self.kept[trainer.global_step // EVERY] = copy.deepcopy(pl_module.model).eval()


def best(model: Any, batches: RefreshedBatches, query: int) -> list[int]:
    """The passages that a model ranks best for a training query, without the relevant ones: each read by itself."""
    triples, training = batches.triples, batches.triples.training

    def vector(tower: int, row: int) -> Tensor:
        flat, _ = triples.readers[tower].read(np.array([row]))
        (chunk,) = chunks(flat, [0, len(flat)], 1000, textbook.PAD, tower=tower)
        with torch.no_grad():
            found: Tensor = model.vectors(chunk)[0]
        return found

    q = vector(QUERY, training.rows[query])
    scores = [float(q @ vector(PASSAGE, row)) for row in range(len(triples.readers[PASSAGE].texts))]
    own = training.positives[training.starts[query] : training.starts[query + 1]].tolist()
    return [row for row in np.argsort(scores)[::-1].tolist() if row not in own][:DEPTH]


def test_a_refresh_mines_with_the_weights_of_its_step_for_the_queries_that_come_next(tmp_path: Path) -> None:
    weights = Weights()
    _, batches = train(tmp_path, "run", further=[weights], checkpoint_every=0)
    assert sorted(weights.kept) == [0, 1, 2, 3]
    before: dict[int, list[int]] = {}
    changed = 0
    for refresh in range(3):
        found = Negatives.mapped(batches.place(refresh))
        asked = sorted({query for step in range(4) for query in batches.triples.order(4 * refresh + step)[1].tolist()})
        assert found.query_rows.tolist() == batches.triples.training.rows[asked].tolist()
        for query, passages in zip(asked, found.passage_rows.tolist(), strict=True):
            assert passages == best(weights.kept[refresh], batches, query)
            changed += query in before and before[query] != passages
            before[query] = passages
    assert changed > 5, "training moves the ranking"
    assert not batches.there(3), "nothing is mined behind the last step"
    assert not list(batches.folder.glob("*/index")), "the vectors are gone"


def test_a_batch_draws_from_the_refresh_of_its_step_wherever_it_is_made(tmp_path: Path) -> None:
    _, batches = train(tmp_path, "run", checkpoint_every=0)
    again = pickle.loads(pickle.dumps(batches))  # as to a process that makes batches
    for step in (11, 0, 5, 4):
        made, training = again.batch(step), batches.triples.training
        _, chosen = batches.triples.order(step)
        lists = Negatives.mapped(batches.place(step // EVERY))
        rows = made.passages.numpy()
        for query, own, hard in zip(chosen, made.positive.tolist(), made.hard.tolist(), strict=True):
            pool = lists.passage_rows[np.flatnonzero(lists.query_rows == training.rows[query])[0]].tolist()
            assert len({*rows[hard].tolist()}) == 2
            assert set(rows[hard].tolist()) <= set(pool)
            assert rows[own] in training.positives[training.starts[query] : training.starts[query + 1]]
        parts = [again.batch(step, Share(rank, 2)) for rank in range(2)]
        names = [part.passages[part.hard].tolist() for part in parts]
        assert [*names[0], *names[1]] == made.passages[made.hard].tolist()


def test_other_sources_are_pooled_with_the_mined_negatives(tmp_path: Path) -> None:
    batches = refreshed(tmp_path, negatives=8)
    training = batches.triples.training
    given = Negatives(training.rows, np.tile(np.array([28, 29], np.int32), (13, 1)))
    pool = NegativePool([given], training.rows)
    batches.triples.training = TrainingQueries(training.rows, training.positives, training.starts, pool)
    batches.waits = True
    mined = Negatives(training.rows, np.tile(np.arange(6, dtype=np.int32), (13, 1)))
    mined.save_arrays(batches.place(0))
    made, (_, chosen) = batches.batch(0), batches.triples.order(0)
    for query, hard in zip(chosen, made.passages[made.hard].tolist(), strict=True):
        own = training.positives[training.starts[query] : training.starts[query + 1]].tolist()
        pooled = {*range(6), 28, 29} - {*own}
        assert pooled <= set(hard), (
            "eight are drawn, so all that are pooled are, and random ones in place of relevant ones"
        )


class Stop(pl.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise InterruptedError


@pytest.mark.parametrize(
    ("step", "workers"),
    slow_except([(3, 0), (4, 0), (7, 0), (8, 0), (11, 0), pytest.param(8, 1, marks=pytest.mark.slow)], 4),
)
def test_a_run_stopped_anywhere_ends_bit_identical(step: int, workers: int, tmp_path: Path) -> None:
    whole, _ = train(tmp_path, "whole")
    with pytest.raises(InterruptedError):
        train(tmp_path, "stopped", further=[Stop(step)])
    assert (last_checkpoint(tmp_path / "stopped") is not None) == (step > 5)
    resumed, batches = train(tmp_path, "stopped", workers=workers)
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not batches.there(0), "no checkpoint can ask for it"
    assert batches.there(2)


def test_a_refresh_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InterruptedError):
        train(tmp_path, "stopped", further=[Stop(7)])
    for path in (tmp_path / "stopped refreshed").glob("*/queries.npy"):
        path.unlink()
    with pytest.raises(UserError, match=r"00001: missing, and its step is past; delete the checkpoints"):
        train(tmp_path, "stopped")


def in_processes(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    made = module()
    if rank:  # as if it had started from other weights
        with torch.no_grad():
            next(made.parameters()).add_(1.0)
    train(Path(folder), "two", made=made, checkpoint_every=0)
    torch.save(made.state_dict(), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_to_the_weights_of_one(tmp_path: Path) -> None:
    one, _ = train(tmp_path, "one", made=module(), checkpoint_every=0)
    begin = {name: weight.detach() for name, weight in module().named_parameters()}
    run_processes(2, in_processes, str(tmp_path))
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    names = [name for name in begin if not name.endswith("key.bias")]
    off = torch.cat([(first[name] - one.state_dict()[name]).flatten() for name in names])
    moved = torch.cat([(one.state_dict()[name] - begin[name]).flatten() for name in names])
    assert float(off.norm() / moved.norm()) < 3e-4
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    for refresh in range(3):
        mine, its = (Negatives.mapped(tmp_path / f"{name} refreshed" / f"{refresh:05d}") for name in ("one", "two"))
        assert mine.query_rows.tolist() == its.query_rows.tolist()
        assert (np.asarray(mine.passage_rows) == np.asarray(its.passage_rows)).mean() > 0.95  # rounding may swap two


@pytest.mark.slow
def test_the_recipe_runs_to_its_table_and_a_second_run_reuses_it(tmp_path: Path) -> None:
    root = write_beir(tmp_path / "beir", some_text(documents=24, seed=5))
    kinds = ("pretrain_cocondenser", "finetune", "finetune_ance")
    few = [f"++stage.{kind}.{key}" for kind in kinds for key in ("steps=4", "epochs=null", "batch_size=6")]
    given = ["experiment=ance", "data=squad", f"data.root={root}", f"output_root={tmp_path / 'out'}", "logger=csv"]
    given += [*MODEL, *few, "stage.finetune_ance.refresh_every=2"]
    done = run_command(*given).sound()
    assert list(metrics_of(done.folder)) == ROWS
    assert done.out.count("mined again") == 1 + 2 + 1 + 2
    for stage in (done.folder / "stages").iterdir():
        assert not (stage / "refreshed").exists()
    assert not run_command(*given).sound().computed
    costs = run_command(*given, "dry_run=plan", "seed=2").sound()
    assert "ance" in costs.out


@pytest.mark.slow
def test_on_msmarco_it_runs_to_its_table(tmp_path: Path) -> None:
    root = write_marco(tmp_path / "marco", some_text(documents=24, seed=5))
    few = [f"++stage.{kind}.{key}" for kind in ("finetune", "finetune_ance") for key in ("steps=4", "epochs=null")]
    given = [f"data.root={root}", f"output_root={tmp_path / 'out'}", "logger=csv", *MODEL, *few, "backbone.family=bert"]
    sizes = ["++stage.finetune_ance.batch_size=6", "++stage.finetune_ance.refresh_every=3"]
    lengths = ["stage.finetune.passage_length=64", "++stage.finetune_ance.passage_length=64"]
    done = run_command("experiment=ance_msmarco", *given, *sizes, *lengths).sound()
    assert list(metrics_of(done.folder)) == ["BM25", "warm-up on BM25's negatives", "ANCE"]
    assert done.out.count("mined again") == 2


ROWS = [
    "BM25",
    "warm-up on BM25's negatives",
    "+ BM25's negatives again",
    "mined once",
    "ANCE: mined every 20 steps",
    "mined once, whole batch",
    "ANCE, whole batch",
]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("++stages.ance.refresh_every=0", "refresh_every"),
        ("++stages.ance.batching=adaptive", "batching"),
        ("++stages.ance.init=bm25", "init"),
        (
            "++stages.ance={stage: finetune_ance, negatives: [bm25_negatives], negative_weights: [1.0]}",
            "negative_weights: the negatives that training mines have no weight; set this to null",
        ),
    ],
)
def test_what_cannot_be_is_one_line_before_any_work(given: str, said: str, tmp_path: Path) -> None:
    check_refused(tmp_path, said, "experiment=ance", given)
