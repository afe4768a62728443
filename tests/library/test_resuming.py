"""Going on from a checkpoint with other settings, row by row of docs/howto/resuming.md: the new one rules, or one line."""

import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging
from slow import slow_except
from test_modules import (
    ASKED,
    AUTOENCODER,
    KINDS,
    PASSAGES,
    QUERIES,
    RATE,
    Kind,
    Stops,
    rankings,
    same,
    single_spans,
    spans,
    trainer,
    triples,
    weights,
)

from condensery import (
    BiEncoderModule,
    CoCondenserModule,
    ContextMasking,
    CrossEncoderModule,
    PassageQueryDataModule,
    SpanPairDataModule,
    TripleDataModule,
    UserError,
)

HALF, WHOLE = 3, 7


class Seen(pl.Callback):
    """The learning rates of the steps, what they read, and the optimiser's settings at the end."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.read: list[list[int]] = []

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, number: int) -> None:
        self.rates.append(module.optimizers().param_groups[0]["lr"])
        self.read.append(sorted(chunk.input_ids.sum().item() for chunk in batch.chunks))
        self.decay = module.optimizers().param_groups[0]["weight_decay"]


def train(kind: Kind, world: Path, tmp_path: Path, path: Path | None = None, **options: Any) -> tuple[Any, Seen]:
    """A fit, from the checkpoint in ``path`` where it is given: the module, and what was seen."""
    module, data = kind.module(world / "bert"), kind.data(world)
    seen, given = Seen(), {"max_steps": WHOLE, **options}
    run = trainer(tmp_path, callbacks=[seen, *given.pop("callbacks", [])], **given)
    run.fit(module, data, ckpt_path=None if path is None else str(path), weights_only=True)
    return module, seen


@pytest.fixture(scope="module")
def checkpoint(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint after three steps of three, of each kind once."""
    folder, made = tmp_path_factory.mktemp("checkpoints"), {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = folder / f"{name.replace(' ', '')}.ckpt"
            run = trainer(folder, max_steps=HALF)
            run.fit(KINDS[name].module(world / "bert", **RATE), KINDS[name].data(world))
            run.save_checkpoint(made[name])
        return made[name]

    return of


def biencoder(**changes: Any) -> Kind:
    return Kind(partial(BiEncoderModule, **{**RATE, **changes}), triples())


@pytest.mark.parametrize(
    "new",
    [
        {},
        {"learning_rate": 1e-5},
        {"warmup_ratio": 0.5},
        {"weight_decay": 0.3},
        {"max_grad_norm": 0.25},
        {"learning_rate": 3e-4, "warmup_ratio": 0.0, "weight_decay": 0.0},
    ],
    ids=str,
)
def test_settings_of_the_optimiser_rule_as_if_they_had_from_the_first_step(
    new: dict[str, float],
    world: Path,
    tmp_path: Path,
    checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr("condensery.training.resumption.rank_zero_info", said.append)
    _, whole = train(biencoder(**new), world, tmp_path)
    resumed, seen = train(biencoder(**new), world, tmp_path, checkpoint("bi-encoder"))
    assert seen.rates == whole.rates[HALF:]
    assert seen.rates[0] > 0, "the schedule of three steps had come to its end"
    assert seen.read == whole.read[HALF:]
    assert seen.decay == resumed.weight_decay == new.get("weight_decay", 0.01)
    (line,) = said
    assert line.startswith("training resumes at step 3 with ")
    assert f"steps {WHOLE} (the checkpoint had {HALF})" in line
    assert all(f"{name} {value} (the checkpoint had " in line for name, value in new.items())


@pytest.mark.parametrize("kind", ["cocondenser", "query as context", "inverse cloze", "cross-encoder"])
def test_more_steps_go_on_at_the_rate_of_a_longer_run(
    kind: str, world: Path, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    made = Kind(partial(KINDS[kind].module, **RATE), KINDS[kind].data)
    _, whole = train(made, world, tmp_path)
    _, seen = train(made, world, tmp_path, checkpoint(kind))
    assert seen.rates == whole.rates[HALF:]
    assert seen.read == whole.read[HALF:]


def query_as_context(**changes: Any) -> Callable[[Path], PassageQueryDataModule]:
    options = {"length": 40, "batch_size": 6, **changes}
    return lambda world: PassageQueryDataModule(options.pop("data", QUERIES), world / "bert", **options)


COTMAE: dict[str, Any] = {"mask_rate": 0.3, "decoder": AUTOENCODER}
OTHER_TEXTS = [{"text": one["text"], "queries": [*one["queries"][:1], "another query"]} for one in QUERIES]
MODULES = [  # kind, what its module is given, what the line says
    ("bi-encoder", {"seed": 7}, "other settings .seed 42, now 7"),
    ("bi-encoder", {"temperature": 2.0}, "loss.temperature 1.0, now 2.0"),
    ("bi-encoder", {"loss": "learning_to_rank"}, "loss InfoNCE, now LearningToRank"),
    ("bi-encoder", {"mask_known_positives": False}, "mask_known_positives True, now False"),
    ("bi-encoder", {"dropout": 0.3}, "dropout 0.1, now 0.3"),
    ("bi-encoder", {"towers": "separate"}, "towers shared, now separate"),
    ("bi-encoder", {"vectors": {"pooling": "mean"}}, "vectors.pooling cls, now mean"),
    ("cross-encoder", {"loss": "listwise"}, "loss pointwise, now listwise"),
    ("cross-encoder", {"seed": 7}, "seed 42, now 7"),
    ("cocondenser", {"mlm_weight": 0.5}, "mlm_weight 1.0, now 0.5"),
    ("cocondenser", {"temperature": 0.5}, "temperature 1.0, now 0.5"),
    ("cocondenser", {"contrast_weight": 0.5}, "contrast_weight 1.0, now 0.5"),
    ("cocondenser", {"late_mlm": False}, "shape.late_mlm True, now False"),
    ("cocondenser", {"dropout": 0.0}, "dropout 0.1, now 0.0"),
    ("cocondenser", {"head_layers": 1}, "shape.head_layers 2, now 1"),
    ("inverse cloze", {"temperature": 0.5}, "temperature 1.0, now 0.5"),
    ("query tower", {"teacher_temperature": 0.1}, "teacher_temperature 0.05, now 0.1"),
    ("retromae", {"decoder_mask_rate": 0.4}, "shape.mask_rate 0.5, now 0.4"),
]
DATA = [  # kind, its data, what the line says
    ("bi-encoder", triples(seed=7), "seed 42, now 7"),
    ("bi-encoder", triples(batch_size=3), "batch_size 4, now 3"),
    ("bi-encoder", triples(query_length=8), "query_length 16, now 8"),
    ("bi-encoder", triples(passage_length=30), "passage_length 40, now 30"),
    ("bi-encoder", triples(negatives_per_query=1), "negatives_per_query 2, now 1"),
    ("bi-encoder", triples(mining_depth=3), "mining_depth 6, now 3"),
    ("bi-encoder", triples(split="test"), "split train, now test"),
    ("bi-encoder", triples(train_queries=9), "train_queries None, now 9"),
    ("bi-encoder", triples(titles=False), "titles True, now False"),
    ("cross-encoder", triples(pairs=True, passage_length=30), "passage_length 40, now 30"),
    ("cross-encoder", triples(pairs=True, batch_size=5), "batch_size 4, now 5"),
    ("condenser", single_spans(spans="windows"), "spans sentences, now windows"),
    ("cocondenser", spans(length=24), "length 32, now 24"),
    ("cocondenser", spans(mask_rate=0.3), "mask_rate 0.15, now 0.3"),
    ("cocondenser", spans(whole_word=False), "whole_word True, now False"),
    ("cocondenser", spans(short_probability=0.5), "short_probability 0.1, now 0.5"),
    ("cocondenser", spans(min_length=5), "min_length 4, now 5"),
    ("cocondenser", spans(pairs="passage"), "pairs document, now passage"),
    ("inverse cloze", spans(pairs="sentence", query_length=20, keep_sentence=0.5), "keep_sentence 0.0, now 0.5"),
    ("cot-mae", spans(mask_rate=0.3, decoder=ContextMasking("partner", both=True, rate=0.3)), "rate 0.45, now 0.3"),
    ("query as context", query_as_context(candidates=1), "candidates 5, now 1"),
    ("query as context", query_as_context(mixed_context=0.5), "mixed_context 0.0, now 0.5"),
    ("query as context", query_as_context(data=OTHER_TEXTS), "queries.tokens hash .*, now hash"),
    ("query tower", rankings(depth=3), "depth 6, now 3"),
    ("query tower", rankings(batch_size=4), "batch_size 5, now 4"),
    ("query tower", rankings(query_length=10), "query_length 20, now 10"),
    ("query tower", rankings(queries=ASKED[::-1]), "queries.tokens hash .*, now hash"),
    ("query tower", rankings(passages=PASSAGES[::-1]), "passages hash .*, now hash"),
    ("query tower", rankings(weights=(0.5, 0.5)), "teacher hash .*, now hash"),
    ("query as context", spans(), "length 40, now 32"),
]


@pytest.mark.parametrize(("kind", "new", "line"), MODULES, ids=str)
def test_another_loss_or_model_is_refused(
    kind: str, new: dict[str, Any], line: str, world: Path, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    made = Kind(partial(KINDS[kind].module, **{**RATE, **new}), KINDS[kind].data)
    with pytest.raises(UserError, match=line) as error:
        train(made, world, tmp_path, checkpoint(kind))
    assert "\n" not in str(error.value)
    assert "load_from_checkpoint" in str(error.value)


@pytest.mark.parametrize(("kind", "data", "line"), DATA, ids=[f"{kind}: {line}" for kind, _, line in DATA])
def test_other_batches_are_refused(
    kind: str, data: Any, line: str, world: Path, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    with pytest.raises(UserError, match=f"other data.*{line}"):
        train(Kind(partial(KINDS[kind].module, **RATE), data), world, tmp_path, checkpoint(kind))


@pytest.mark.parametrize("changed", ["corpus.jsonl", "queries.jsonl", "qrels/train.tsv"])
def test_other_texts_of_the_same_number_and_length_are_refused(
    changed: str, world: Path, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    other = shutil.copytree(world / "scifact", tmp_path / "other" / "scifact")
    shutil.copytree(world / "bert", tmp_path / "other" / "bert")
    made = biencoder()
    train(made, tmp_path / "other", tmp_path, checkpoint("bi-encoder"))  # the same texts elsewhere
    path = other / changed
    old, new = {
        "corpus.jsonl": ("Note 3.", "Note 4."),
        "queries.jsonl": (' 3"', ' 4"'),
        "qrels/train.tsv": ("p3", "p4"),
    }[changed]
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=r"other data .*hash"):
        train(made, tmp_path / "other", tmp_path, checkpoint("bi-encoder"))


def test_texts_in_a_list_are_those_of_a_list_and_how_they_are_computed_is_free(world: Path, tmp_path: Path) -> None:
    texts = [path.read_text() for path in sorted((world / "notes").glob("*.txt"))]
    module = partial(CoCondenserModule, **RATE)

    def data(texts: list[str], **changes: Any) -> Callable[[Path], SpanPairDataModule]:
        options = {"length": 32, "min_length": 4, "batch_size": 6, "chunk_tokens": 256, **changes}
        return lambda world: SpanPairDataModule(texts, world / "bert", **options)

    run = trainer(tmp_path, max_steps=HALF)
    run.fit(module(world / "bert"), data(texts)(world))
    run.save_checkpoint(path := tmp_path / "list.ckpt")
    train(Kind(module, data(texts, chunk_tokens=64)), world, tmp_path, path)
    words = texts[5].split(" ")
    texts[5] = " ".join([words[1], words[0], *words[2:]])
    with pytest.raises(UserError, match=r"other data .*hash"):
        train(Kind(module, data(texts)), world, tmp_path, path)


def test_another_kind_of_module_and_loaders_of_ones_own_are_refused(
    world: Path, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    with pytest.raises(UserError, match="module CondenserModule, now CoCondenserModule"):
        train(Kind(partial(CoCondenserModule, **RATE), spans()), world, tmp_path, checkpoint("condenser"))
    with pytest.raises(UserError, match="module CrossEncoderModule, now BiEncoderModule"):
        train(biencoder(), world, tmp_path, checkpoint("cross-encoder"))
    data = triples()(world)
    data.prepare_data()
    data.setup()
    with pytest.raises(UserError, match=r"other data .TripleDataModule, now loaders"):
        trainer(tmp_path, max_steps=WHOLE).fit(
            BiEncoderModule(world / "bert", **RATE), data.train_dataloader(), ckpt_path=str(checkpoint("bi-encoder"))
        )


class Named(TripleDataModule):
    """A user's own, with the data of ours."""


def test_a_data_module_by_another_name_is_known_by_its_data(
    world: Path, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    def named(**changes: Any) -> Callable[[Path], Named]:
        options = {"negatives_per_query": 2, "mining_depth": 6, "batch_size": 4, "query_length": 16, **changes}
        own = triples()(world)
        return lambda world: Named(
            world / "scifact", world / "bert", negatives=own.negatives, passage_length=40, **options
        )

    module = partial(BiEncoderModule, **RATE)
    train(Kind(module, named()), world, tmp_path, checkpoint("bi-encoder"))
    with pytest.raises(UserError, match="seed 42, now 3"):
        train(Kind(module, named(seed=3)), world, tmp_path, checkpoint("bi-encoder"))


def test_a_run_that_would_end_before_is_refused_and_one_that_is_done_ends(
    world: Path, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    path = checkpoint("bi-encoder")
    with pytest.raises(UserError, match="is at step 3, but this run ends at step 2; raise max_steps"):
        train(biencoder(), world, tmp_path, path, max_steps=2)
    _, seen = train(biencoder(), world, tmp_path, path, max_steps=HALF)
    assert not seen.rates


def test_more_epochs_go_on_as_if_they_had_been_asked_for(world: Path, tmp_path: Path) -> None:
    made = biencoder()
    _, all_of_it = train(made, world, tmp_path, max_steps=-1, max_epochs=3)
    keeps = ModelCheckpoint(tmp_path / "kept", filename="one", every_n_epochs=1)
    run = trainer(tmp_path, max_epochs=1, callbacks=[keeps], enable_checkpointing=True)
    run.fit(made.module(world / "bert"), made.data(world))
    run.save_checkpoint(after := tmp_path / "after.ckpt")
    epoch = len(all_of_it.rates) // 3
    for path in (tmp_path / "kept" / "one.ckpt", after):  # by a callback at the end of the epoch, and after the fit
        _, seen = train(made, world, tmp_path, path, max_steps=-1, max_epochs=3)
        assert seen.rates == all_of_it.rates[epoch:], path
        assert seen.read == all_of_it.read[epoch:], path


@pytest.mark.parametrize("limit", [2, 0.7])
def test_every_epoch_has_as_many_batches_as_the_trainer_limits_it_to(limit: float, world: Path, tmp_path: Path) -> None:
    made, epochs = biencoder(), {"max_steps": -1, "max_epochs": 3, "limit_train_batches": limit}
    keeps = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    _, whole = train(made, world, tmp_path, **epochs, callbacks=[keeps], enable_checkpointing=True)
    _, passes = train(made, world, tmp_path, max_steps=6)  # two passes of three batches
    assert (whole.read, whole.rates) == (passes.read, passes.rates)
    _, seen = train(made, world, tmp_path, tmp_path / "step=3.ckpt", **epochs)
    assert (seen.read, seen.rates) == (whole.read[3:], whole.rates[3:])


def test_epochs_of_another_length_are_refused_where_they_end_the_run(world: Path, tmp_path: Path) -> None:
    made, epochs = biencoder(), {"max_steps": -1, "max_epochs": 3}
    run = trainer(tmp_path, **epochs, limit_train_batches=2, callbacks=[Stop(3)])
    run.fit(made.module(world / "bert"), made.data(world))
    run.save_checkpoint(path := tmp_path / "middle.ckpt")
    with pytest.raises(UserError, match=r"other settings .limit_train_batches 2, now 3"):
        train(made, world, tmp_path, path, **epochs)
    train(made, world, tmp_path, path, limit_train_batches=3)  # max_steps ends it


@pytest.mark.parametrize("at", [1, 4, 5])
def test_a_pass_that_a_callback_ended_in_its_middle_is_finished(at: int, world: Path, tmp_path: Path) -> None:
    made, epochs = biencoder(), {"max_steps": -1, "max_epochs": 3}
    _, whole = train(made, world, tmp_path, **epochs)
    assert len(whole.rates) == 9
    run = trainer(tmp_path, **epochs, callbacks=[Stop(at)])
    run.fit(made.module(world / "bert"), made.data(world))
    run.save_checkpoint(path := tmp_path / "stopped.ckpt")  # after the fit: Lightning has counted the pass
    _, seen = train(made, world, tmp_path, path, **epochs)
    assert (seen.read, seen.rates) == (whole.read[at:], whole.rates[at:])


class Stop(pl.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        trainer.should_stop = trainer.global_step == self.step


def test_checkpoints_of_before_are_still_gone_on_with(
    world: Path, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    saved = torch.load(checkpoint("bi-encoder"), weights_only=True)
    del saved["condensery"]
    saved["TripleDataModule"] = {"steps_an_epoch": saved["TripleDataModule"]["steps_an_epoch"]}
    torch.save(saved, path := tmp_path / "old.ckpt")
    _, whole = train(biencoder(), world, tmp_path)
    _, seen = train(biencoder(), world, tmp_path, path)
    assert seen.rates == whole.rates[HALF:]
    with pytest.raises(UserError, match=r"other data .steps_an_epoch 3, now 5"):
        train(Kind(biencoder().module, triples(batch_size=2)), world, tmp_path, path)
    with pytest.raises(UserError, match=r"another model .* weights, now"):
        train(biencoder(towers="separate"), world, tmp_path, path)


def test_weights_alone_and_weights_of_another_model_are_one_line(
    world: Path, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    run = trainer(tmp_path, max_steps=1)
    run.fit(biencoder().module(world / "bert"), triples()(world))
    run.save_checkpoint(path := tmp_path / "weights.ckpt", weights_only=True)
    with pytest.raises(UserError, match="holds only weights"):
        train(biencoder(), world, tmp_path, path)
    with pytest.raises(UserError, match=r"of another model .model.*missing"):
        trainer(tmp_path).validate(CrossEncoderModule(world / "bert"), triples(pairs=True)(world), ckpt_path=str(path))


def test_the_way_out_is_open_and_a_refused_fit_leaves_nothing_behind(
    world: Path, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    path = checkpoint("bi-encoder")
    module = biencoder().module(world / "bert")
    run = trainer(tmp_path, max_steps=2)
    with pytest.raises(UserError, match="ends at step 2"):
        run.fit(module, triples()(world), ckpt_path=str(path), weights_only=True)
    trainer(tmp_path, max_steps=2).fit(module, triples()(world))  # anew
    anew = BiEncoderModule.load_from_checkpoint(path, weights_only=True, temperature=2.0, seed=7)
    assert same(weights(anew), torch.load(path, weights_only=True)["state_dict"])
    run = trainer(tmp_path, max_steps=2)
    run.fit(anew, triples(batch_size=5)(world))
    assert run.global_step == 2


def test_nothing_is_said_where_nothing_has_changed(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("condensery.training.resumption.rank_zero_info", said.append)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    path, made = tmp_path / "half.ckpt", biencoder()
    run = trainer(tmp_path, max_steps=WHOLE, callbacks=[Stop(HALF)])
    run.fit(made.module(world / "bert"), made.data(world))
    run.save_checkpoint(path)
    resumed, _ = train(made, world, tmp_path, path)
    whole, _ = train(made, world, tmp_path)
    assert same(weights(whole), weights(resumed))
    assert not said


def test_other_frozen_weights_apply_and_are_said(
    world: Path, tmp_path: Path, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("condensery.training.resumption.rank_zero_info", said.append)

    def frozen(*given: Any, **options: Any) -> BiEncoderModule:
        module = BiEncoderModule(*given, **RATE, **options)
        module.model.passage.model.embeddings.requires_grad_(False)
        return module

    path = checkpoint("bi-encoder")
    module, _ = train(Kind(frozen, triples()), world, tmp_path, path)
    assert "frozen weights model.query.model.embeddings.word_embeddings" in said[0]
    assert "(the checkpoint had none)" in said[0]
    kept = {name: weight for name, weight in weights(module).items() if ".embeddings." in name}
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert same(kept, {name: saved[name] for name in kept})


def test_a_checkpoint_is_validated_on_other_data(
    world: Path, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    module, run = biencoder().module(world / "bert"), trainer(tmp_path)
    other = triples(batch_size=3, train_queries=5, query_length=8)(world)
    (found,) = run.validate(module, other, ckpt_path=str(checkpoint("bi-encoder")), weights_only=True, verbose=False)
    assert 0 < found["val/mrr@10"] <= 1
    assert same(weights(module), torch.load(checkpoint("bi-encoder"), weights_only=True)["state_dict"])


def test_another_number_of_processes_is_said_and_remembered(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("condensery.training.resumption.rank_zero_info", said.append)
    made, start = biencoder(), None
    for number, step in ((2, 1), (4, 2), (4, 3), (1, 4)):
        monkeypatch.setattr("condensery.training.resumption.processes", lambda number=number: number)
        run, module = trainer(tmp_path, max_steps=WHOLE, callbacks=[Stop(step)]), made.module(world / "bert")
        run.fit(module, made.data(world), ckpt_path=start, weights_only=True)
        run.save_checkpoint(start := tmp_path / f"{step}.ckpt")
    assert said == [
        "training resumes at step 1 with processes 4 (the checkpoint had 2)",
        "training resumes at step 3 with processes 1 (the checkpoint had 4)",
    ]
    assert module.process_changes == ["processes: 2 up to step 1, then 4", "processes: 4 up to step 3, then 1"]


@pytest.mark.parametrize("averages", slow_except(["exponential", "stochastic"], "exponential"))
def test_with_averages_of_weights_it_goes_on(averages: str, world: Path, tmp_path: Path) -> None:
    """In the first epoch, behind it, and in the second.

    Lightning's ``StochasticWeightAveraging`` takes the schedule away for the rest of an epoch: the rate stands still.
    """
    exact = averages == "exponential"

    def fit(start: Path | None = None, *more: pl.Callback) -> dict[str, Any]:
        callback = EMAWeightAveraging(decay=0.9) if exact else StochasticWeightAveraging(1e-3, swa_epoch_start=1)
        module = BiEncoderModule(world / "bert", **RATE)
        run = trainer(tmp_path, max_epochs=2, callbacks=[callback, *more])
        run.fit(module, triples()(world), ckpt_path=start and str(start), weights_only=False)
        assert run.global_step == 6 or more
        return weights(module)

    whole = fit()
    for at in (2, 3, 4):
        path = tmp_path / f"{at}.ckpt"
        fit(None, Stops(at, path))
        assert same(whole, fit(path)) or not exact
