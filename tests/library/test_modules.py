"""Every public module in a plain ``pl.Trainer``: as Lightning's users expect it."""

import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import BatchSizeFinder, LearningRateFinder, ModelCheckpoint
from sentences import SENTENCES
from slow import slow_except
from stage_defaults import defaults_of
from torch import Tensor
from torch.utils.data import DataLoader

import condensery
from condensery import (
    BM25,
    BiEncoderModule,
    CoCondenserModule,
    CondenserModule,
    ContextMasking,
    CrossEncoderModule,
    Fused,
    InverseClozeModule,
    MaskedAutoEncoderModule,
    PairScores,
    PassageQueryDataModule,
    QueryAsContextModule,
    QueryTowerModule,
    RankingDataModule,
    RetrievalLoss,
    Retriever,
    SpanPairDataModule,
    TripleDataModule,
    UserError,
    check_gradients,
    evaluate,
    run,
)
from condensery.losses.registry import register
from condensery.models.biencoder import BiEncoder
from condensery.text.to_collection import collection_of
from condensery.tokens.tokenizer import load_tokenizer
from condensery.training.validation import PairSample, mean_reciprocal_rank_of_pairs

SPANS: dict[str, Any] = {"length": 32, "min_length": 4, "batch_size": 6, "chunk_tokens": 256}
TRIPLES: dict[str, Any] = {"negatives": BM25, "negatives_per_query": 2, "mining_depth": 6, "batch_size": 4}
QUERIES = [{"text": text, "queries": [text.split()[0], text[:20]]} for text in SENTENCES * 3]
PASSAGES = [f"{text} Note {number}." for number, text in enumerate(SENTENCES * 3)]
ASKED = [" ".join(text.split()[:3]) + f" {number}" for number, text in enumerate(PASSAGES)]
AUTOENCODER = ContextMasking("partner", both=True, rate=0.45)
ITSELF = ContextMasking("same", both=True, rate=None)
RATE = {"learning_rate": 1e-3}


@dataclass
class Kind:
    """A module and its data, made from the folder ``world``."""

    module: Callable[..., Any]
    data: Callable[[Path], Any]


class Table(list[str]):
    """Like a table of pandas: it iterates over the names of its columns."""

    columns = ("text",)


def spans(**changes: Any) -> Callable[[Path], SpanPairDataModule]:
    return lambda world: SpanPairDataModule(world / "notes", world / "bert", **{**SPANS, **changes})


def single_spans(**changes: Any) -> Callable[[Path], SpanPairDataModule]:
    return spans(**{"pairs": None, "batch_size": 24, "chunk_tokens": 1024, **changes})  # fewer steps a pass


def triples(**changes: Any) -> Callable[[Path], TripleDataModule]:
    lengths = {"query_length": 16, "passage_length": 40}
    return lambda world: TripleDataModule(world / "scifact", world / "bert", **{**TRIPLES, **lengths, **changes})


def triples_of_student(**changes: Any) -> Callable[[Path], TripleDataModule]:
    """The passages have the vectors of a student."""

    def made(world: Path) -> TripleDataModule:
        student = Retriever(world / "bert", query_length=20, passage_length=40)
        more = {
            "text_queries": [(f"note {n}", f"p{n}") for n in range(18)],
            "text_batch_size": 3,
            "shared_negatives": 7,
        }
        return triples(**{"student": student, "negatives_per_query": 3, **more, **changes})(world)

    return made


def rankings(
    weights: tuple[float, float] = (0.6, 0.4),
    passages: list[str] = PASSAGES,
    queries: list[str] = ASKED,
    **changes: Any,
) -> Callable[[Path], RankingDataModule]:
    def made(world: Path) -> RankingDataModule:
        student = Retriever(world / "bert", query_length=20, passage_length=40).index(passages)
        teacher = Fused([BM25().index(passages), student], weights)
        return RankingDataModule(queries, student, teacher, **{"depth": 6, "batch_size": 5, **changes})

    return made


KINDS = {
    "condenser": Kind(CondenserModule, single_spans()),
    "cocondenser": Kind(CoCondenserModule, spans()),
    "query as context": Kind(
        QueryAsContextModule, lambda world: PassageQueryDataModule(QUERIES, world / "bert", length=40, batch_size=6)
    ),
    "mlm": Kind(partial(CondenserModule, head_layers=0), single_spans()),
    "cot-mae": Kind(MaskedAutoEncoderModule, spans(mask_rate=0.3, decoder=AUTOENCODER)),
    "retromae": Kind(partial(MaskedAutoEncoderModule, decoder="enhanced"), single_spans(mask_rate=0.3, decoder=ITSELF)),
    "inverse cloze": Kind(InverseClozeModule, spans(pairs="sentence", query_length=20)),
    "query tower": Kind(QueryTowerModule, rankings()),
    "bi-encoder": Kind(BiEncoderModule, triples()),
    "bi-encoder's queries": Kind(partial(BiEncoderModule, train_passages=False), triples_of_student()),
    "cross-encoder": Kind(CrossEncoderModule, triples(pairs=True)),
}
each = pytest.mark.parametrize("kind", KINDS)


def trainer(folder: Path, **options: Any) -> pl.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    return pl.Trainer(**{**quiet, "default_root_dir": folder, "enable_checkpointing": False, **options})


def weights(module: pl.LightningModule) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


class Stops(pl.Callback):
    """A user's callback: counts the steps, keeps a checkpoint of one, and stops there."""

    def __init__(self, at: int | None = None, path: Path | None = None) -> None:
        self.at, self.path, self.steps = at, path, 0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.steps += 1
        if trainer.global_step == self.at:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def test_the_passages_of_a_student_are_encoded_in_one_process_and_found_by_the_others(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triples_of_student()(world).prepare_data()
    indexed = Retriever(world / "bert", query_length=20, passage_length=40)
    monkeypatch.setattr(Retriever, "index", lambda *_: pytest.fail("encoded again"))
    data = triples_of_student(student=indexed)(world)
    data.setup()
    assert data.batches.vectors([0, 1, 2]).shape == (3, indexed.model.hidden_size)


@pytest.mark.parametrize("kind", slow_except(KINDS, "cocondenser", "bi-encoder", "cross-encoder"))
def test_it_trains_saves_resumes_and_loads(kind: str, world: Path, tmp_path: Path) -> None:
    """With the user's callback; in the middle of the second epoch it is stopped, and ends with the same bits."""
    made = KINDS[kind]
    data = made.data(world)
    data.prepare_data()
    data.setup()
    epoch = data.batches.steps_an_epoch()
    assert epoch > 1
    whole, counted = made.module(world / "bert", **RATE), Stops()
    before = weights(whole)
    trainer(tmp_path, max_epochs=2, callbacks=[counted]).fit(whole, made.data(world))
    assert counted.steps == 2 * epoch
    assert not same(before, weights(whole))
    path = tmp_path / "middle.ckpt"
    halved = trainer(tmp_path, max_epochs=2, callbacks=[Stops(epoch + 1, path)])
    halved.fit(made.module(world / "bert", **RATE), made.data(world))
    resumed = made.module(world / "bert", **RATE)
    trainer(tmp_path, max_epochs=2).fit(resumed, made.data(world), ckpt_path=str(path), weights_only=True)
    assert same(weights(whole), weights(resumed))
    loaded = type(whole).load_from_checkpoint(path, weights_only=True)
    assert loaded.hparams["learning_rate"] == 1e-3
    assert not same(before, weights(loaded))
    whole.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer.json").exists()
    again = made.module(tmp_path / "saved")
    shared = [name for name in weights(again) if not name.startswith("model.decoder")]
    assert shared
    assert all(torch.equal(weights(whole)[name], weights(again)[name]) for name in shared)


@each
def test_fast_dev_run_and_a_profiler(kind: str, world: Path, tmp_path: Path) -> None:
    made = KINDS[kind]
    run = trainer(tmp_path, fast_dev_run=True, profiler="simple")
    run.fit(made.module(world / "bert"), made.data(world))
    assert run.global_step == 1
    assert "run_training_epoch" in run.profiler.summary()


def test_one_pass_reads_everything_and_the_next_in_another_order(world: Path) -> None:
    data = triples(seed=3)(world)
    data.prepare_data()
    data.setup()
    batches = data.batches
    epoch = batches.steps_an_epoch()
    first, second = (
        [item for step in range(start, start + epoch) for item in batches.order(step)[1].tolist()]
        for start in (0, epoch)
    )
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_dev_queries_are_validated_on(world: Path, tmp_path: Path) -> None:
    best = ModelCheckpoint(tmp_path / "best", monitor="val/mrr@10", mode="max")
    options: dict[str, Any] = {"enable_checkpointing": True, "callbacks": [best]}
    run = trainer(tmp_path, max_epochs=1, num_sanity_val_steps=0, **options)
    module = BiEncoderModule(world / "bert", **RATE)
    run.fit(module, triples()(world))
    value = float(run.callback_metrics["val/mrr@10"])
    assert float(best.best_model_score) == value
    retriever = Retriever(module, precision="fp32")
    dev = evaluate(retriever, condensery.text.to_collection.collection_of(world / "scifact"), ["MRR@10"], split="dev")
    assert evaluate(retriever, world / "scifact", ["MRR@10"], split="dev") == dev, "of a folder the same are held out"
    assert value == pytest.approx(dev["MRR@10"], abs=1e-6), "the sample holds all passages of so small a collection"
    assert retriever.query_length == 16
    run = trainer(tmp_path, max_epochs=1)
    run.fit(CoCondenserModule(world / "bert", **RATE), spans()(world))
    assert not any(name.startswith("val") for name in run.callback_metrics), "plain text has none"


def test_passages_that_were_encoded_with_other_weights_are_not_searched(world: Path, tmp_path: Path) -> None:
    module = BiEncoderModule(world / "bert", **RATE)
    retriever = Retriever(module).index(ASKED)
    both = Fused([retriever, BM25().index(ASKED)])
    trainer(tmp_path, max_steps=2).fit(module, triples()(world))
    for search in (retriever.search, both.search):
        with pytest.raises(UserError, match=r"the passage encoder has been trained since index.* call index again"):
            search("rain", 1)
    assert len(retriever.index(ASKED).search(ASKED, 1)) == len(ASKED)


def test_one_tower_is_not_saved_over_two(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    BiEncoderModule(world / "bert", towers="separate").save_pretrained(tmp_path / "saved")
    for module in (BiEncoderModule(world / "bert"), CoCondenserModule(world / "bert")):
        with pytest.raises(
            UserError, match="query_encoder is of two towers, and this model has one; give another folder"
        ):
            module.save_pretrained(tmp_path / "saved")
    assert not Retriever(tmp_path / "saved").model.shared, "nothing was written"
    BiEncoderModule(tmp_path / "saved", towers="separate").save_pretrained(tmp_path / "saved")
    assert "left out" not in capsys.readouterr().out
    assert BiEncoderModule(tmp_path / "saved").model.shared
    assert (
        "saved: only its passage encoder is used, for queries too; towers=separate uses both\n"
        in capsys.readouterr().out
    )


class Loaded(SpanPairDataModule):
    """A user's, with a loader of their own."""

    loaded = 0

    def val_dataloader(self) -> Any:
        self.loaded += 1
        return []


def test_a_cross_encoder_is_validated_on_what_bm25_confuses(world: Path, tmp_path: Path) -> None:
    data = triples(pairs=True)(world)
    best = ModelCheckpoint(tmp_path / "best", monitor="val/mrr@10", mode="max")
    run = trainer(tmp_path, max_steps=3, callbacks=[best], enable_checkpointing=True)
    run.fit(CrossEncoderModule(world / "bert", **RATE), data)
    sample = data.validation_sample()
    assert isinstance(sample, PairSample)
    assert sample.size == 10
    vocabulary = data.tokenizer_folder and load_tokenizer(data.tokenizer_folder)
    read = {
        row: vocabulary.decode(ids[:length], skip_special_tokens=True)
        for chunk in sample.pairs
        for row, ids, length in zip(chunk.rows.tolist(), chunk.input_ids, chunk.lengths, strict=True)
    }
    lists = [[read[row] for row in range(first, first + 10)] for first in range(0, len(read), 10)]
    assert len(lists) == 4
    for own in lists:  # "what q n ... note n text Note n.": the positive has the number of its query
        query = own[0].split(" note ")[0]
        assert all(one.startswith(query) for one in own)
        number = query.split()[-1]
        assert f"note {number} " in own[0]
        assert sum(f" note {number} " in one.removeprefix(query) for one in own) == 1  # a judged passage is no other
        same = own[0].split(f"note {number} ")[1].split(" note ")[0]
        assert same in own[1], "first of the others is what shares the sentence"
    assert best.best_model_score == run.callback_metrics["val/mrr@10"] >= 0.1

    def score(order: Tensor) -> float:
        return mean_reciprocal_rank_of_pairs(lambda chunk: order[chunk.rows], sample)

    rows = torch.arange(40)
    assert score(-(rows % 10).float()) == 1.0
    assert score((rows % 10).float()) == pytest.approx(0.1)
    assert score(torch.zeros(40)) == pytest.approx(0.1)  # who cannot tell them apart has found nothing
    assert score(torch.where(rows % 10 < 3, 1.0, 0.0)) == pytest.approx(1 / 3)


def test_where_nothing_is_validated_lightning_has_nothing_to_say(world: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = trainer(tmp_path, max_epochs=1)
        run.fit(CondenserModule(world / "bert", **RATE), spans()(world))
    assert not [str(warning.message) for warning in caught if "across ranks is zero" in str(warning.message)]
    assert not run.enable_validation
    data = Loaded(world / "notes", world / "bert", **SPANS)
    trainer(tmp_path, max_epochs=1).fit(CondenserModule(world / "bert", **RATE), data)
    assert data.loaded


TRAIN = """
import gc
gc.disable()  # while Lightning is imported
import sys
import pytorch_lightning as pl
import torch
from condensery import CoCondenserModule, SpanPairDataModule

gc.enable()
world, out, devices = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = dict(length=32, min_length=4, batch_size=6, chunk_tokens=128)
data = SpanPairDataModule(f"{world}/notes", tokenizer=f"{world}/bert", **options)
module = CoCondenserModule(f"{world}/bert", learning_rate=1e-3, dropout=0.0)
quiet = dict(enable_progress_bar=False, enable_model_summary=False, logger=False, enable_checkpointing=False)
strategy = "ddp" if devices > 1 else "auto"
trainer = pl.Trainer(max_steps=7, devices=devices, accelerator="cpu", strategy=strategy, **quiet)
trainer.fit(module, data)
if trainer.is_global_zero:
    torch.save((module.state_dict(), dict(trainer.callback_metrics)), out)
"""


@pytest.mark.slow
def test_two_processes_of_lightning_end_with_the_weights_of_one(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, one_process, two_processes = (tmp_path / name for name in ("train.py", "one.pt", "two.pt"))
    script.write_text(TRAIN)
    monkeypatch.setattr(sys, "argv", [str(script), str(world), str(one_process), "1"])
    exec(compile(TRAIN, str(script), "exec"), {"__name__": "__main__"})
    path = ":".join(sys.path)
    done = subprocess.run(
        ["env", f"PYTHONPATH={path}", "OMP_NUM_THREADS=1", sys.executable, script, world, two_processes, "2"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (one, losses), (two, others) = torch.load(one_process), torch.load(two_processes)
    assert losses.keys() == others.keys()
    for name, value in losses.items():
        assert float(others[name]) == pytest.approx(float(value), rel=1e-4), name
    for name, value in one.items():
        assert (two[name] - value).norm() <= 1e-3 * value.norm() + 1e-6, name


def test_a_loss_of_ones_own_by_object_and_by_name(world: Path, tmp_path: Path) -> None:
    @register("margin")
    class Margin(RetrievalLoss):
        def __init__(self, margin: float = 1.0, temperature: float = 1.0) -> None:
            super().__init__()
            self.margin, self.temperature = margin, temperature

        def forward(self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
            scores = queries @ passages.T / self.temperature
            wanted = scores.gather(1, positive[:, None])
            return (scores - wanted + self.margin).clamp(min=0).mean()

    results = []
    for loss in (Margin(0.5, 2.0), {"name": "margin", "margin": 0.5}):
        module = BiEncoderModule(world / "bert", loss=loss, temperature=2.0, **RATE)
        run = trainer(tmp_path, max_steps=3)
        run.fit(module, triples()(world))
        results.append((float(run.callback_metrics["train/contrast"]), weights(module)))
    assert results[0][0] == results[1][0] > 0
    assert same(results[0][1], results[1][1])


class Sharp(RetrievalLoss):
    """A temperature, a bias and a projection that are learned, all read in ``forward``."""

    def prepare(self, hidden_size: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.log_scale, self.bias = torch.nn.Parameter(torch.zeros(())), torch.nn.Parameter(torch.zeros(1))
        self.head = torch.nn.Linear(hidden_size, 8)

    def forward(self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
        scores = torch.tanh(self.head(queries) @ self.head(passages).T + self.bias) * self.log_scale.exp()
        return torch.nn.functional.cross_entropy(scores, positive)


def test_weights_of_a_loss_are_trained_saved_and_resumed(world: Path, tmp_path: Path) -> None:
    def made() -> BiEncoderModule:
        return BiEncoderModule(world / "bert", loss=Sharp(), dropout=0.0, **RATE)

    whole, path = made(), tmp_path / "middle.ckpt"
    before = weights(whole)
    trainer(tmp_path, max_steps=4).fit(whole, triples(chunk_tokens=64)(world))
    moved = {name for name, value in weights(whole).items() if not torch.equal(value, before[name])}
    assert {"loss.log_scale", "loss.bias", "loss.head.weight", "loss.head.bias"} <= moved
    optimiser = whole.optimizers()
    assert isinstance(optimiser, pl.core.optimizer.LightningOptimizer)
    undecayed = {id(weight) for weight in optimiser.param_groups[1]["params"]}
    assert {id(whole.loss.log_scale), id(whole.loss.bias)} <= undecayed
    trainer(tmp_path, max_steps=4, callbacks=[Stops(2, path)]).fit(made(), triples(chunk_tokens=64)(world))
    resumed = made()
    trainer(tmp_path, max_steps=4).fit(resumed, triples(chunk_tokens=64)(world), ckpt_path=str(path), weights_only=True)
    assert same(weights(whole), weights(resumed))
    loaded = BiEncoderModule.load_from_checkpoint(path, loss=Sharp(), weights_only=True)
    assert float(loaded.loss.log_scale.detach()) != 0


FROZEN = {
    "passages": lambda model: [model.passage],
    "queries": lambda model: [model.query],
    "embeddings and the first layer": lambda model: [model.query.model.embeddings, model.query.model.encoder.layer[0]],
}


@pytest.mark.parametrize("part", FROZEN)
def test_what_is_frozen_stays_and_the_rest_is_trained(part: str, world: Path, tmp_path: Path) -> None:
    module = BiEncoderModule(world / "bert", towers="separate", **RATE)
    fixed = [weight for each in FROZEN[part](module.model) for weight in each.requires_grad_(False).parameters()]
    before = [weight.clone() for weight in fixed], weights(module)
    trainer(tmp_path, max_steps=2).fit(module, triples(chunk_tokens=64)(world))
    assert all(torch.equal(weight, old) for weight, old in zip(fixed, before[0], strict=True))
    moved = sum(not torch.equal(value, before[1][name]) for name, value in weights(module).items())
    assert moved >= len(before[1]) - len(fixed) - 4, "but for weights that no text reads"
    assert moved > 10


def test_mlm_trains_the_head_of_a_frozen_backbone_and_nothing_to_train_is_one_line(world: Path, tmp_path: Path) -> None:
    for kind in (CondenserModule, CoCondenserModule):
        module = kind(world / "bert", **RATE)
        module.model.encoder.requires_grad_(False)
        before = weights(module)
        trainer(tmp_path, max_steps=2).fit(module, spans(pairs="document", chunk_tokens=128)(world))
        moved = [name for name, value in weights(module).items() if not torch.equal(value, before[name])]
        assert any(name.startswith("model.head") for name in moved)
        assert not any(name.startswith("model.encoder") for name in moved)
        module.requires_grad_(False)
        with pytest.raises(UserError, match="nothing is trained"):
            trainer(tmp_path, max_steps=1).fit(module, spans(pairs="document")(world))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda world: BiEncoderModule(world / "bert", loss="info_nze"), "there is no loss 'info_nze' .did you mean"),
        (
            lambda world: BiEncoderModule(world / "bert", loss={"name": "info_nce", "speed": 3}),
            "info_nce has no option .speed",
        ),
        (lambda world: CoCondenserModule(world / "nothing"), "no such folder"),
        (lambda world: SpanPairDataModule(world / "notes"), "give `tokenizer`"),
        (lambda world: SpanPairDataModule(world / "notes", world / "bert").batches, "call prepare_data"),
        (lambda world: SpanPairDataModule(world / "nowhere", world / "bert").prepare_data(), "no such folder"),
        (lambda world: SpanPairDataModule(["a", 3], world / "bert").prepare_data(), "text 1 must be a str, not int"),
        (lambda world: PassageQueryDataModule([{"text": "x"}], world / "bert"), r"data\[0\]"),
        (
            lambda world: PassageQueryDataModule([QUERIES[0], {"text": "x", "queries": ["y", " "]}], world / "bert"),
            r"data\[1\]: .* blank",
        ),
        (
            lambda world: PassageQueryDataModule([{"text": "x", "queries": "rain"}], world / "bert"),
            r"data\[0\]: .*a list of strings",
        ),
        (lambda world: triples(batch_size=0)(world), "TripleDataModule: batch_size must be a whole number >= 1, not 0"),
        (lambda world: triples(below_share=1.5)(world), "below_share must be a number > 0 and <= 1, not 1.5"),
        (lambda world: triples(below_score=float("inf"))(world), "below_score must be a number, not inf"),
        (lambda world: triples(relabel=world / "nowhere")(world), "nowhere: no such file; set relabel to the folder"),
        (lambda world: spans(batch_size=1.5)(world), "SpanPairDataModule: batch_size must be a whole number >= 1"),
        (lambda world: spans(mask_rate=2)(world), "mask_rate must be a number > 0 and <= 1, not 2"),
        (lambda world: PassageQueryDataModule(QUERIES, world / "bert", length=True), "length must be a whole number"),
        (lambda world: BiEncoderModule(world / "bert", learning_rate=-1e-5), "learning_rate must be a number > 0"),
        (lambda world: BM25(k1=np.float32("inf")), "k1 must be a number >= 0, not"),  # type: ignore[arg-type]
        (
            lambda world: triples(teacher={"q0": {"p0": np.float16("inf")}})(world).prepare_data(),
            "a score must be a finite number of 32 bits",
        ),
        (lambda world: CoCondenserModule(world / "bert", temperature=0), "CoCondenserModule: temperature must be"),
        (lambda world: CrossEncoderModule(world / "bert", warmup_ratio=float("nan")), "warmup_ratio must be a number"),
        (
            lambda world: triples(pairs=True, query_length=40)(world),
            "TripleDataModule: query_length=40 leaves no room for a passage in passage_length=40; it may be "
            "passage_length - 4 at most",
        ),
        (lambda world: triples(pairs=True, query_length=37)(world), "query_length=37 leaves no room"),
        (
            lambda world: CrossEncoderModule(world / "bert").save_pretrained(world / "no", world / "bert", (60, 60)),
            "save_pretrained: query_length=60 leaves no room for a passage in length=60",
        ),
        (
            lambda world: Retriever(
                world / "bert", query_length=8, vectors={"query_prefix": "search the query in notes: "}
            ),
            "query_prefix: 'search the query in notes: ' has .* tokens; raise query_length, which is 8",
        ),
        (
            lambda world: Retriever(world / "bert", passage_length=4, vectors={"passage_prefix": "note of text: "}),
            "passage_prefix: .* raise passage_length, which is 4",
        ),
        (lambda world: rankings(depth=0)(world), "RankingDataModule: depth must be a whole number >= 1, not 0"),
        (
            lambda world: rankings(queries="rain")(world),
            "RankingDataModule: `queries` must be a list with at least one text",
        ),  # type: ignore[arg-type]
        (
            lambda world: rankings(queries=[])(world),
            "RankingDataModule: `queries` must be a list with at least one text",
        ),
        (
            lambda world: rankings(queries=["rain", " "])(world),
            r"queries\[1\] is not a text, or is blank; leave it out",
        ),
        (
            lambda world: RankingDataModule(ASKED, Retriever(world / "bert"), BM25().index(PASSAGES)),
            r"the student has indexed nothing; call its index\(passages\) first",
        ),
        (
            lambda world: RankingDataModule(ASKED, Retriever(world / "bert", windows=3).index(PASSAGES), BM25()),
            "the student has up to 3 vectors per passage; make it with windows=1",
        ),
        (
            lambda world: RankingDataModule(
                ASKED, Retriever(world / "bert").index(PASSAGES), BM25().index(PASSAGES[:4])
            ),
            r"the teacher has indexed other passages \(4\) than the student \(18\); call index\(\) of both with the same",
        ),
        (
            lambda world: RankingDataModule(ASKED, Retriever(world / "bert").index(PASSAGES), BM25),  # type: ignore[arg-type]
            "RankingDataModule: teacher must be a Searcher, not <class",
        ),
        (
            lambda world: rankings(queries=5)(world),
            "RankingDataModule: `queries` must be a list with at least one text",
        ),  # type: ignore[arg-type]
        (
            lambda world: triples(negatives=5)(world),
            "TripleDataModule: negatives: give BM25, a Retriever or files, not 5",
        ),
        (
            lambda world: triples(negatives=dict)(world),
            "negatives: give BM25, a Retriever or files, not <class 'dict'>",
        ),
        (lambda world: triples(negatives=[Retriever])(world), "negatives: give BM25, a Retriever or files, not <class"),
        (
            lambda world: triples(in_batch_teacher=5)(world),
            "TripleDataModule: in_batch_teacher must be a Searcher or the class BM25, not 5",
        ),
        (lambda world: triples(in_batch_teacher=Retriever)(world), "must be a Searcher or the class BM25, not <class"),
        (lambda world: triples(order=dict)(world), "order must be a function, not <class 'dict'>"),
        (
            lambda world: triples(negatives=BM25, teacher=Retriever)(world).prepare_data(),
            "teacher: expected BM25 or a Retriever, an object with predict",
        ),
        (
            lambda world: triples(teacher={"q0": 5})(world).prepare_data(),
            "the teacher's scores: give query id -> passage id -> score, not {'q0': 5}",
        ),
        (lambda world: PairScores.of({"q0": {"p0": 1.0}}, 5), "of: collection must be a Collection, not 5"),  # type: ignore[arg-type]
        *(
            (
                partial(lambda wrong, world: SpanPairDataModule(["a"], wrong), wrong),
                "tokenizer must be a string or a path",
            )
            for wrong in (True, 5, ["bert"], {"name": "bert"}, dict)
        ),
        (lambda world: BiEncoderModule(world / "bert", tokenizer=5), "tokenizer must be a string or a path, not 5"),  # type: ignore[arg-type]
        (lambda world: Retriever(world / "bert", tokenizer=True), "tokenizer must be a string or a path, not True"),  # type: ignore[arg-type]
        (lambda world: run(["smoke"]), r"run: experiment must be a string, not \['smoke'\]"),  # type: ignore[arg-type]
        (lambda world: run("smoke", recipes=5), "run: recipes must be a string or a path, not 5"),  # type: ignore[arg-type]
        (lambda world: run("smoke", environment=["A=1"]), "run: environment must be a mapping, not"),  # type: ignore[arg-type]
        (lambda world: run("smoke", environment={"A": 1}), "run: value of environment 0 must be a str, not int"),  # type: ignore[dict-item]
        (lambda world: triples(negatives=[BM25, None])(world), "negatives: give BM25, a Retriever or files, not None"),
        (lambda world: triples(relabel=5)(world), "a path or a name is expected, not an object of the class int"),
        (lambda world: triples(training=5)(world), "training must be a TrainingQueries, not 5"),
        (lambda world: triples(order=5)(world), "order must be a function, not 5"),
        (lambda world: triples(query_prefix=5)(world), "query_prefix must be a string, not 5"),
        (
            lambda world: triples(text_queries=["rain"])(world),
            r"text_queries\[0\] must be a text and an id; correct or remove it",
        ),
        (
            lambda world: triples(text_queries=5)(world),
            r"text_queries\[0\] must be a text and an id; correct or remove it",
        ),
        (lambda world: spans(decoder="both")(world), "decoder must be a ContextMasking, not 'both'"),
        *(
            (partial(lambda name, make, world: make(world / "bert").save_pretrained(name), name, make), message)
            for make in (BiEncoderModule, CrossEncoderModule)
            for name, message in (
                ("x" * 256, r"^x{256}: the name is too long for this disk"),
                (Path("a") / ("é" * 128), "^a/é{128}: the name is too long"),
                ("a\ud800", r"^a\\ud800: the name holds half a character"),
            )
        ),
        (lambda world: Retriever("x" * 256), "^x{256}: the name is too long"),
        (lambda world: evaluate(BM25(), "x" * 256), "^x{256}: the name is too long"),
        (lambda world: CoCondenserModule(world / "bert").save_pretrained(""), "'' names no folder; give '.' for"),
        (lambda world: CrossEncoderModule(world / "bert").save_pretrained(" "), "' ' names no folder; give '.' for"),
        *(
            (
                partial(lambda file, world: BiEncoderModule(world / "bert").save_pretrained(world / file), file),
                "no folder",
            )
            for file in ("bert/config.json", "bert/config.json/new")
        ),
        (
            lambda world: BiEncoderModule(world / "bert").save_pretrained("new", lengths=(0, 40)),
            r"save_pretrained: lengths must be 2 values, each a whole number >= 3, not \(0, 40\)",
        ),
        (
            lambda world: CrossEncoderModule(world / "bert").save_pretrained("new", world / "bert", (16,)),  # type: ignore[arg-type]
            r"save_pretrained: lengths must be 2 values, each a whole number >= 3, not \(16,\)",
        ),
        *(
            (
                partial(
                    lambda lengths, world: BiEncoderModule(world / "bert").save_pretrained("new", None, lengths), wrong
                ),
                f"save_pretrained: {key}_length: 513 is too large; the model has 512 positions",
            )
            for key, wrong in (("query", (513, 40)), ("passage", (40, 513)))
        ),
        (
            lambda world: CoCondenserModule(world / "bert").save_pretrained("new", lengths=(64, 513)),
            "save_pretrained: passage_length: 513 is too large; the model has 512 positions",
        ),
        (
            lambda world: CrossEncoderModule(world / "bert").save_pretrained("new", world / "bert", (64, 513)),
            "save_pretrained: length: 513 is too large; the model has 512 positions",
        ),
        (
            lambda world: Retriever(world / "bert", query_length=513),
            "Retriever: query_length: 513 is too large; the model has 512",
        ),
        (lambda world: Retriever(world / "bert").passage_vectors, "nothing is indexed yet"),
        (lambda world: BM25().index(["rain", None]), "index: passage '1' has no text"),  # type: ignore[list-item]
        (lambda world: BM25().index(["rain"]).search(None), "search: query 0 must be a str"),  # type: ignore[call-overload]
        (lambda world: BM25(k1=-1), "BM25: k1 must be a number >= 0, not -1"),
        (lambda world: Retriever(world / "bert", query_length="64"), "query_length must be a whole number"),
        (
            lambda world: spans(pairs="documents")(world),
            "pairs must be one of document, passage, sentence, not 'documents'",
        ),
        (lambda world: spans(spans="window")(world), "spans must be one of sentences, windows, not 'window'"),
        (lambda world: spans(whole_word="no")(world), "whole_word must be True or False, not 'no'"),
        (lambda world: spans(seed="a")(world), "seed must be a whole number >= 0, not 'a'"),
        (lambda world: ContextMasking("partners", both=True, rate=0.4), "context must be one of partner, same"),  # type: ignore[arg-type]
        (lambda world: ContextMasking("same", both=True, rate=2.0), "rate must be a number > 0 and <= 1, not 2.0"),
        (lambda world: BiEncoderModule(world / "bert", towers="Separate"), "towers must be one of shared, separate"),
        (
            lambda world: BiEncoderModule(world / "bert", loss=lambda *parts: 0),
            "give a name, a mapping with name and",
        ),  # type: ignore[arg-type]
        (lambda world: BiEncoderModule(torch.nn.Linear(2, 2)), "not an object of the class Linear"),  # type: ignore[arg-type]
        (
            lambda world: MaskedAutoEncoderModule(world / "bert", decoder="x"),
            "decoder must be one of masked, causal, enhanced",
        ),  # type: ignore[arg-type]
        (lambda world: Retriever(world / "bert", vectors={"pooling": "Mean"}), "vectors: pooling must be one of cls,"),  # type: ignore[typeddict-item]
        (
            lambda world: Retriever(world / "bert", vectors={"truncate_dim": 0}),
            "truncate_dim must be a whole number >= 1",
        ),
        (
            lambda world: Retriever(world / "bert", vectors={"poolin": "cls"}),
            r"no setting 'poolin' \(did you mean 'pooling'",
        ),  # type: ignore[typeddict-unknown-key]
        (lambda world: Retriever(world / "bert", device="xyz"), "device: 'xyz' cannot be used here"),
        (
            lambda world: Retriever(world / "bert", vectors={"query_prefix": 3}),
            "Retriever: vectors: query_prefix must be a string, not 3",
        ),  # type: ignore[typeddict-item]
        (lambda world: Retriever(world / "bert", device="meta"), "device: 'meta' cannot be used here"),
        (lambda world: Retriever(world / "bert", query_length=10**400), "query_length must be a whole number >= 3"),
        (lambda world: Retriever(None), "a path or a name is expected, not an object of the class NoneType"),  # type: ignore[arg-type]
        (lambda world: Retriever(world / "bert").encode_queries("rain"), "a list of strings is expected, not one str"),
        (lambda world: Retriever(world / "bert").encode_passages(["rain", None]), "text 1 must be a str, not NoneType"),  # type: ignore[list-item]
        (lambda world: Retriever(world / "bert").encode_passages(["a", "b"], ["c"]), "encode: 1 title, but 2 texts"),
        (lambda world: BM25().index({"rain", "sun"}), "index: give a sequence of texts"),  # type: ignore[arg-type]
        (lambda world: BM25().index(Table(["text"])), "index: give a sequence of texts"),
        (lambda world: BM25().index(np.array("rain")), "index: give a sequence of texts"),  # type: ignore[arg-type]
        (
            lambda world: BM25().index(["rain"]).search(np.array("rain")),  # type: ignore[call-overload]
            "a list of strings is expected, not one ndarray",
        ),
        (lambda world: BM25().index(["rain"]).search(b"rain"), "a list of strings is expected, not one bytes"),  # type: ignore[arg-type]
        (
            lambda world: BM25().index([{"_id": "b", "text": "rain"}]),
            "item 0 has an id, but a list has none; give a mapping",
        ),  # type: ignore[list-item]
        (
            lambda world: BM25().index([{"id": 7, "text": "rain"}]),
            "item 0 has an id, but a list has none; give a mapping",
        ),  # type: ignore[list-item]
        (lambda world: BM25().index(["rain"]).search(Table(["text"])), "a list of strings is expected, not one Table"),
        (lambda world: BM25().index(["rain"]).rank("rain", 1), "a list of strings is expected, not one str"),
        (lambda world: BM25().index(["rain"]).search({"rain"}), "a list of strings is expected, not one set"),  # type: ignore[call-overload]
        (lambda world: BM25().index(["rain"]).search("rain", k=None), "k must be a whole number >= 1, not None"),  # type: ignore[call-overload]
        (
            lambda world: BM25().index(["rain"]).score(["rain"], np.array([[1]])),
            "passage_rows must be whole numbers below 1",
        ),
        (lambda world: BM25().index(["rain"]).score(["rain"], np.array([0])), r"in 1 rows \(n, k\)"),
        (
            lambda world: evaluate(BM25(), world / "judged", split="foo"),
            "evaluate: split must be one of train, dev, test",
        ),  # type: ignore[arg-type]
        (lambda world: evaluate(BM25(), world / "judged", []), "and at least one metric"),
        (lambda world: evaluate(BM25(), world / "judged", None), "metric 'None' does not exist"),
        (lambda world: evaluate(BM25, world / "judged"), "evaluate: give a searcher"),  # type: ignore[arg-type]
        (lambda world: Fused(BM25()), "Fused: a list of searchers is expected"),  # type: ignore[arg-type]
        (
            lambda world: SpanPairDataModule(["a", None], world / "bert").prepare_data(),
            "text 1 must be a str, not NoneType",
        ),  # type: ignore[list-item]
        (lambda world: SpanPairDataModule({"a": "b"}, world / "bert").prepare_data(), "is expected, not one dict"),  # type: ignore[arg-type]
        (lambda world: CoCondenserModule(world / "bert").objective(None), None),
    ],
)
def test_what_is_wrong_is_one_line(wrong: Any, message: str | None, world: Path) -> None:
    if message is not None:
        with pytest.raises(UserError, match=message):
            wrong(world)


def test_new_layers_have_the_type_of_the_checkpoint(world: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        modules = CoCondenserModule(world / "bert"), MaskedAutoEncoderModule(world / "bert")
    finally:
        torch.set_default_dtype(torch.float32)
    assert {weight.dtype for module in modules for weight in module.parameters()} == {torch.float32}


def test_a_path_may_begin_with_the_home_folder(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    BiEncoderModule(world / "bert").save_pretrained("~/saved")
    CrossEncoderModule(world / "bert").save_pretrained("~/crossed", world / "bert", (20, 60))
    assert {path.name for path in tmp_path.iterdir()} == {"saved", "crossed"}
    for where in ("negatives", "teacher"):
        data = triples(**{where: "~/lists.jsonl"})(world)
        with pytest.raises(UserError, match=re.escape(f"{tmp_path}/lists.jsonl: no such file")):
            data.prepare_data()


def test_a_null_title_counts_as_empty() -> None:
    (hit,) = BM25().index({"a": {"title": None, "text": "rain falls"}}).search("rain")  # type: ignore[dict-item]
    assert (hit.title, hit.text) == ("", "rain falls")


def test_texts_may_come_from_a_generator_or_an_array(world: Path) -> None:
    ids, retriever = ["1", "0"], Retriever(world / "bert").index(PASSAGES)
    for searcher in (BM25().index(["rain falls", "rain, rain"]), Fused([BM25()]).index(["rain falls", "rain, rain"])):
        (hits,) = searcher.search((query for query in ["rain"]), k=np.int64(2))  # type: ignore[call-overload]
        assert [hit.id for hit in hits] == ids
        assert [[hit.id for hit in found] for found in searcher.search(np.array(["rain"]))] == [ids]  # type: ignore[call-overload]
    assert len(BM25().index(["rain"]).encode_queries(one for one in "ab")) == 2  # type: ignore[arg-type]
    named = {"rain falls": "a", "rain, rain": "b"}  # the keys of a mapping have an order
    (hits, _) = BM25().index(named.keys()).search(named.keys())  # type: ignore[call-overload, arg-type]
    assert [hit.text for hit in hits] == ["rain falls", "rain, rain"]
    first = retriever.encode_passages(PASSAGES[:2], ["a", "b"])
    again = retriever.encode_passages((one for one in PASSAGES[:2]), np.array(["a", "b"]))  # type: ignore[arg-type]
    assert (first == again).all()
    assert retriever.encode_queries([]).shape == (0, first.shape[1])
    data = SpanPairDataModule((text for text in PASSAGES), world / "bert", **SPANS)  # type: ignore[arg-type]
    data.prepare_data()
    data.setup()
    assert data.batches.steps_an_epoch() == -(-len(PASSAGES) // SPANS["batch_size"])


def test_the_hash_of_texts_is_not_misled_by_nul() -> None:
    assert BM25().index(["a\0b", "c"]).content_hash != BM25().index(["a", "b\0c"]).content_hash
    assert collection_of(["a b\0c", "d"]).folder != collection_of(["a b", "c\0d"]).folder


def test_a_search_for_more_than_there_is_takes_no_memory() -> None:
    assert [hit.id for hit in BM25().index(["rain falls", "rain, rain"]).search("rain", k=10**12)] == ["1", "0"]


def test_short_spans_need_no_other_argument(world: Path) -> None:
    data = SpanPairDataModule(world / "notes", world / "bert", length=12)
    data.prepare_data()
    data.setup()
    assert data.min_length == 5
    assert data.batches.batch(0).chunks


def test_what_a_trainer_cannot_do_is_said(world: Path, tmp_path: Path) -> None:
    def fit(module: Any = None, data: Any = None, **options: Any) -> None:
        made = module or CoCondenserModule(world / "bert")
        trainer(tmp_path, **{"max_steps": 1, **options}).fit(made, data or spans()(world))

    with pytest.raises(UserError, match="max_steps or max_epochs"):
        fit(max_steps=-1, max_epochs=-1)
    with pytest.raises(Exception, match="manual optimization"):
        fit(accumulate_grad_batches=2)
    with pytest.raises(Exception, match="manual optimization"):
        fit(gradient_clip_val=1.0)
    with pytest.raises(UserError, match="inputs have 600 tokens, the encoder 512 positions; lower length"):
        fit(data=spans(length=600)(world))
    with pytest.raises(UserError, match=r"CrossEncoderModule is trained on TripleDataModule\(pairs=True\)"):
        fit(module=CrossEncoderModule(world / "bert"), data=triples()(world))
    with pytest.raises(UserError, match=r"BiEncoderModule is trained on .*; SpanPairDataModule\(pairs='document'\)"):
        fit(module=BiEncoderModule(world / "bert"))
    with pytest.raises(UserError, match=r"PassageQueryDataModule; SpanPairDataModule\(pairs=None\) does not fit"):
        fit(data=spans(pairs=None)(world))
    with pytest.raises(UserError, match=r"QueryTowerModule is trained on RankingDataModule; TripleDataModule\(pairs"):
        fit(module=QueryTowerModule(world / "bert"), data=triples()(world))
    with pytest.raises(
        UserError, match=r"is trained on TripleDataModule; RankingDataModule\(pairs='ranking'\) does not"
    ):
        fit(module=BiEncoderModule(world / "bert"), data=rankings()(world))
    for other in ({"vectors": {"pooling": "mean"}}, {"model": _other(world)}):
        with pytest.raises(UserError, match="student encodes passages otherwise; begin with its checkpoint"):
            fit(module=QueryTowerModule(**{"model": world / "bert", **other}), data=rankings()(world))
        with pytest.raises(UserError, match="student encodes passages otherwise; begin with its checkpoint"):
            fit(
                module=BiEncoderModule(**{"model": world / "bert", **other}, train_passages=False),
                data=triples_of_student()(world),
            )
    with pytest.raises(UserError, match="vectors of the data module's student; give train_passages=False"):
        fit(module=BiEncoderModule(world / "bert"), data=triples_of_student()(world))
    with pytest.raises(UserError, match="queries need a tower of their own"):
        BiEncoderModule(BiEncoder(QueryTowerModule(world / "bert").model.passage), train_passages=False)
    for wrong, said in (
        ({"text_queries": [("rain", "p99")]}, "text_queries: no passage has the id 'p99'"),
        (
            {"text_queries": [("rain", "p1"), (" ", "p2")]},
            r"text_queries\[1\] must be a text and an id; correct or remove it",
        ),
        (
            {"text_queries": np.array([["rain", "p1"]])},
            r"text_queries\[0\] must be a text and an id; correct or remove it",
        ),
        ({"text_batch_size": 0}, "text_batch_size must be a whole number >= 1, not 0"),
    ):
        with pytest.raises(UserError, match=said):
            triples_of_student(**wrong)(world).setup()
    with pytest.raises(UserError, match="shared_negatives needs the vectors of a `student`; give one"):
        triples(shared_negatives=3)(world)
    with pytest.raises(UserError, match="leave out `text_queries`"):
        triples(text_queries=[("rain", "p1")], pairs=True)(world)
    with pytest.raises(UserError, match="`student` must be a Retriever with windows=1"):
        triples_of_student(pairs=True)(world)
    with pytest.raises(
        UserError, match="MaskedAutoEncoderModule: the data module has no texts for the decoder; give it"
    ):
        fit(module=MaskedAutoEncoderModule(world / "bert"))
    with pytest.raises(UserError, match="BatchSizeFinder: memory depends on chunk_tokens"):
        fit(callbacks=[BatchSizeFinder()])
    with pytest.raises(UserError, match=r"is trained on TripleDataModule; a loader of Tensor does not fit"):
        trainer(tmp_path, max_steps=1).fit(BiEncoderModule(world / "bert"), DataLoader([1, 2]))  # type: ignore[arg-type]
    for data in (used := triples()(world), rankings()(world)):  # a loader of the right data module has no step either
        for _ in range(2):
            data.prepare_data()
            data.setup()
            loader, name = data.train_dataloader(), type(data).__name__
            with pytest.raises(UserError, match=f"BiEncoderModule: give Trainer.fit the {name}, and not its loader"):
                trainer(tmp_path, max_steps=1).fit(BiEncoderModule(world / "bert"), loader)
            if data is used:  # a trainer of before
                fit(module=BiEncoderModule(world / "bert"), data=data)
    with pytest.raises(UserError, match=r"is trained on TripleDataModule; RankingDataModule\(pairs='ranking'\) does"):
        check_gradients(BiEncoderModule(world / "bert"), rankings()(world))
    with pytest.raises(UserError, match="lower learning_rate, raise warmup_ratio or set max_grad_norm"):
        fit(module=_infinite(world))


@pytest.mark.parametrize("kind", ["condenser", "bi-encoder"])
def test_the_learning_rate_that_lightning_finds_is_used(kind: str, world: Path, tmp_path: Path) -> None:
    rates = list[float]()

    class Noted(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def end(first: float, finders: Sequence[pl.Callback] = ()) -> tuple[pl.LightningModule, dict[str, Tensor]]:
        rates.clear()
        module = KINDS[kind].module(world / "bert", learning_rate=first)
        trainer(tmp_path, max_steps=4, callbacks=[*finders, Noted()]).fit(module, KINDS[kind].data(world))
        return module, weights(module)

    # the finder tries 30 steps, and gives back the weights of before
    finder = LearningRateFinder(1e-6, 1e-2, 30, early_stop_threshold=None)
    module, found = end(1e-3, [finder])
    assert module.learning_rate == finder.optimal_lr.suggestion() != 1e-3
    seen = [*rates]
    assert same(end(float(module.learning_rate))[1], found)
    assert seen == rates


def _other(world: Path) -> BiEncoder:
    model = QueryTowerModule(world / "bert").model
    with torch.no_grad():
        next(model.passage.parameters()).mul_(2)
    return model


def _infinite(world: Path) -> CoCondenserModule:
    module = CoCondenserModule(world / "bert")
    with torch.no_grad():
        next(module.parameters()).fill_(float("inf"))
    return module


def test_data_and_encoder_have_one_tokenizer(world: Path, tmp_path: Path) -> None:
    from condensery.tokens.tokenizer import train_wordpiece

    train_wordpiece(["other words are here and there"] * 3, 120, tmp_path / "other")
    data = SpanPairDataModule(world / "notes", tmp_path / "other", **SPANS)
    with pytest.raises(UserError, match="the data module has another tokenizer than"):
        trainer(tmp_path, max_steps=1).fit(CoCondenserModule(world / "bert"), data)


def test_another_runs_checkpoint_is_refused(world: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.ckpt"
    trainer(tmp_path, max_epochs=1, callbacks=[Stops(1, path)]).fit(CoCondenserModule(world / "bert"), spans()(world))
    with pytest.raises(UserError, match="checkpoint was saved with other data"):
        trainer(tmp_path, max_epochs=1).fit(
            CoCondenserModule(world / "bert"), spans(batch_size=3)(world), ckpt_path=str(path), weights_only=True
        )


@pytest.mark.parametrize("kind", [CondenserModule, CrossEncoderModule])
def test_an_artifact_of_a_run_is_not_overwritten(kind: Any, world: Path, tmp_path: Path) -> None:
    (tmp_path / "finetune" / "1").mkdir(parents=True)
    (tmp_path / "finetune" / "1" / "manifest.json").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "finetune" / "1")
    with pytest.raises(UserError, match=r"^\S*link: is a stage's artifact, .*; save into another folder$"):
        kind(world / "bert").save_pretrained(str(tmp_path / "link"), world / "bert", (8, 40))
    assert [path.name for path in (tmp_path / "link").iterdir()] == ["manifest.json"]


def test_what_a_teacher_taught_opens_as_a_retriever_with_the_passages_as_they_were(world: Path, tmp_path: Path) -> None:
    data, module = rankings()(world), QueryTowerModule(world / "bert", **RATE)
    trainer(tmp_path, max_steps=6).fit(module, data)
    workers: Any = pickle.loads(pickle.dumps(data.batches))
    assert (workers.batch(1).passages == data.batches.batch(1).passages).all()
    (world / "bert" / "README.md").write_text("---\nlicense: mit\n---\n")
    module.save_pretrained(tmp_path / "adapted")
    assert "\nlicense: mit\n" in (tmp_path / "adapted" / "README.md").read_text()
    adapted = Retriever(tmp_path / "adapted").index(PASSAGES)
    assert (adapted.query_length, adapted.passage_length) == (20, 40)
    assert (adapted.passage_vectors == data.student.passage_vectors).all()
    assert (adapted.encode_queries(ASKED) == Retriever(module).encode_queries(ASKED)).all()
    assert not (adapted.encode_queries(ASKED) == data.student.encode_queries(ASKED)).any()
    assert len(adapted.search(ASKED[0], 3)) == 3


def test_texts_are_tokenised_once(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = spans()(world)
    data.prepare_data()
    monkeypatch.setattr(
        "condensery.training.data.data_module.tokenise_collection", lambda **_: pytest.fail("read again")
    )
    spans(seed=9)(world).prepare_data()


def test_mined_negatives_may_know_the_positive(world: Path) -> None:
    mined = []
    for margin in (None, 0.0, 1e6):
        data = triples(below_margin=margin)(world)
        data.prepare_data()
        mined.append(data._sources()[0].counts)
    assert (mined[1] <= mined[0]).all()
    assert mined[0].sum() > 0
    assert mined[2].sum() == 0


@pytest.mark.parametrize(("decoder", "stage"), [("masked", "pretrain_cotmae"), ("enhanced", "pretrain_retromae")])
def test_an_autoencoder_trains_at_the_rate_of_its_paper(decoder: Any, stage: str, world: Path) -> None:
    wanted = defaults_of(stage)["learning_rate"]
    assert MaskedAutoEncoderModule(world / "bert", decoder=decoder).learning_rate == wanted
    assert MaskedAutoEncoderModule(world / "bert", decoder=decoder, learning_rate=2e-5).learning_rate == 2e-5
