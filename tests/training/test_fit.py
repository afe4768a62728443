"""The training loop: what it does to the weights, what it logs, and what it refuses."""

import csv
import math
import time
from pathlib import Path
from typing import Any

import pytest
import textbook
import torch
import trainings
from pytorch_lightning.plugins import MixedPrecision
from slow import slow_except
from torch import nn

from condensery.errors import UserError
from condensery.training import loop
from condensery.training.data.span_batches import SpanBatch
from condensery.training.data.steps import Share
from condensery.training.learning_rate import linear_schedule
from condensery.training.loop import fit


def _curves(folder: Path) -> dict[str, dict[int, float]]:
    """Column -> step -> value of ``logs/metrics.csv``."""
    found: dict[str, dict[int, float]] = {}
    with open(folder / "logs" / "metrics.csv", newline="", encoding="utf-8") as stream:
        steps = []
        for row in csv.DictReader(stream):
            steps.append(int(row["step"]))
            for name, value in row.items():
                if value and name != "step":
                    found.setdefault(name, {})[steps[-1]] = float(value)
    assert steps == sorted(set(steps)), "a step twice, or out of order"
    return found


@pytest.mark.parametrize(
    ("kind", "parts"),
    slow_except(
        [
            ("condenser", {"mlm_head", "mlm_late"}),
            ("cocondenser", {"mlm_head", "mlm_late", "contrast"}),
            ("query_as_context", {"mlm_head", "mlm_late", "contrast"}),
            ("cotmae", {"mlm_late", "mlm_context"}),
            ("retromae", {"mlm_late", "mlm_context"}),
            ("ict", {"contrast"}),
            ("biencoder", {"contrast"}),
        ],
        "cocondenser",
        "retromae",
        "biencoder",
    ),
)
def test_every_part_of_the_loss_and_of_the_course_is_logged(kind: str, parts: set[str], tmp_path: Path) -> None:
    module, data, settings = trainings.run(kind, tmp_path)
    values = fit(module, data, settings, tmp_path / "run", kind, sample=trainings.sample(tmp_path))
    curves = _curves(tmp_path / "run")
    names = {f"train/{name}" for name in {"loss", "lr", "grad_norm", "tokens_per_s", "tokens", *parts}}
    assert curves.keys() - {"epoch"} == names | {"val/mrr@10"}
    for name in names:
        assert list(curves[name]) == list(range(12)), name
    assert list(curves["val/mrr@10"]) == [3, 7, 11]
    for step in range(12):
        assert sum(curves[f"train/{part}"][step] for part in parts) == pytest.approx(
            curves["train/loss"][step], rel=1e-5
        )
        assert curves["train/lr"][step] == pytest.approx(1e-3 * linear_schedule(step, 12, 0.25))
        assert curves["train/grad_norm"][step] > 0
        assert curves["train/tokens_per_s"][step] > 0
        read = sum(data.batches.batch(earlier).tokens for earlier in range(step + 1))
        assert curves["train/tokens"][step] == read
    assert values.keys() == names | {"val/mrr@10"}
    assert values["train/loss"] == pytest.approx(curves["train/loss"][11], rel=1e-5)
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert [path.name for path in (tmp_path / "run" / "logs").iterdir()] == ["metrics.csv"]


def test_validation_and_the_last_step_are_logged_also_between_the_steps_that_are(tmp_path: Path) -> None:
    module, data, settings = trainings.run("cocondenser", tmp_path, log_every=5, validate_every=3, checkpoint_every=0)
    fit(module, data, settings, tmp_path / "run", "x", sample=trainings.sample(tmp_path))
    curves = _curves(tmp_path / "run")
    assert list(curves["train/loss"]) == [4, 9, 11]
    assert list(curves["train/tokens_per_s"]) == [4, 9, 11]
    assert list(curves["val/mrr@10"]) == [2, 5, 8, 11]


def test_a_run_shorter_than_the_distance_of_two_log_lines_is_logged(tmp_path: Path) -> None:
    module, data, settings = trainings.run("condenser", tmp_path, steps=3, log_every=50)
    fit(module, data, settings, tmp_path / "run", "x")
    assert list(_curves(tmp_path / "run")["train/loss"]) == [2]


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    module, data, settings = trainings.run(
        "biencoder", tmp_path, steps=25, learning_rate=3e-3, log_every=1, checkpoint_every=0
    )
    fit(module, data, settings, tmp_path / "run", "x")
    losses = list(_curves(tmp_path / "run")["train/loss"].values())
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])


def test_a_step_is_adamw_on_the_whole_batchs_gradient_with_matrices_alone_decayed(tmp_path: Path) -> None:
    """One step by hand: gradient of the full batch, AdamW with its two groups, rate of the schedule."""
    changes = {"steps": 1, "warmup_ratio": 0.0, "weight_decay": 0.5, "max_grad_norm": 0.0, "learning_rate": 0.01}
    module, data, settings = trainings.run("condenser", tmp_path, **changes)
    for layer in module.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    encoder, contrast = module.objective(batch := data.batches.batch(0))
    assert contrast is None
    losses = [sum(encoder.encode(chunk)[1].values()) for chunk in batch.chunks]
    sum(losses).backward()
    gradient = textbook.gradients(module)
    module.zero_grad()
    fit(module, data, settings, tmp_path / "run", "x")
    for name, parameter in module.named_parameters():
        decay = 0.5 if before[name].ndim > 1 else 0.0
        expected = before[name] * (1 - 0.01 * decay) - 0.01 * gradient[name] / (gradient[name].abs() + 1e-8)
        clear = gradient[name].abs() > 1e-5  # elsewhere the sign of the rounding error decides
        torch.testing.assert_close(parameter.detach()[clear], expected[clear], rtol=0, atol=1e-5)
    groups = module.configure_optimizers()["optimizer"].param_groups
    assert sum(len(group["params"]) for group in groups) == len(before), "a parameter twice, or none"


def test_queries_and_passages_that_fit_one_chunk_are_encoded_once_to_the_same_weights(tmp_path: Path) -> None:
    def trained(limit: int) -> tuple[int, nn.Module]:
        module, data, settings = trainings.run("biencoder", tmp_path / str(limit), steps=2)
        data.batches.budget = 10**6
        data.chunk_tokens = limit
        encode, encoded = module.model.vectors, []
        module.model.vectors = lambda chunk: encoded.append(chunk) or encode(chunk)
        fit(module, data, settings, tmp_path / str(limit), "t")
        return len(encoded), module

    (once, module), (twice, other) = trained(10**6), trained(0)
    assert (once, twice) == (2 * 2, 2 * 3), "chunks of two steps"
    assert all(torch.equal(own, same) for own, same in zip(module.parameters(), other.parameters(), strict=True))


def test_the_gradient_is_clipped_to_the_norm_and_logged_before_that(tmp_path: Path) -> None:
    for clip in (0.05, 0.0):
        module, data, settings = trainings.run("cocondenser", tmp_path, steps=1, max_grad_norm=clip)
        fit(module, data, settings, tmp_path / f"run{clip}", "x")
        logged = _curves(tmp_path / f"run{clip}")["train/grad_norm"][0]
        left = math.sqrt(sum(float((gradient**2).sum()) for gradient in textbook.gradients(module).values()))
        assert logged > 0.1
        assert left == pytest.approx(clip or logged, rel=1e-3)


@pytest.mark.parametrize(
    ("at", "checkpoint_every"), [(1, 0), (11, 0), (4, 5)], ids=["early", "at the end", "at a checkpoint"]
)
def test_a_gradient_that_is_not_finite_stops_the_run_before_anything_is_written(
    at: int, checkpoint_every: int, tmp_path: Path
) -> None:
    module, data, settings = trainings.run("cocondenser", tmp_path, log_every=50, checkpoint_every=checkpoint_every)
    make = data.batches.batch

    def poisoned(step: int, share: Share) -> SpanBatch:
        if step == at:
            with torch.no_grad():
                next(module.parameters()).fill_(float("inf"))
        return make(step, share)

    data.batches.batch = poisoned  # type: ignore[method-assign]
    with pytest.raises(UserError, match=f"not finite at step {at}; lower learning_rate") as raised:
        fit(module, data, settings, tmp_path / "run", "x")
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.glob("run/checkpoints/*"))


def test_fp16_without_a_gpu_is_one_line(tmp_path: Path) -> None:
    module, data, settings = trainings.run("condenser", tmp_path, precision="fp16")
    with pytest.raises(UserError, match=r"^trainer\.precision: fp16 needs a GPU; use bf16 or fp32 on a CPU$"):
        fit(module, data, settings, tmp_path / "run", "x")


def test_in_fp16_the_gradient_is_clipped_without_the_scale_of_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "precision_on", lambda *_: None)  # the CPU passes for a device with fp16
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))  # type: ignore[arg-type]
    monkeypatch.setitem(loop._PRECISIONS, "fp16", None)
    trainer = loop.pl.Trainer
    monkeypatch.setattr(loop.pl, "Trainer", lambda plugins, **given: trainer(plugins=[*plugins, scaled], **given))
    module, data, settings = trainings.run("cocondenser", tmp_path, precision="fp16", dropout=0.0, steps=2)
    fit(module, data, settings, tmp_path / "half", "x")
    monkeypatch.undo()
    module, data, settings = trainings.run("cocondenser", tmp_path, dropout=0.0, steps=2)
    fit(module, data, settings, tmp_path / "full", "x")
    half, full = _curves(tmp_path / "half"), _curves(tmp_path / "full")
    assert half["train/grad_norm"][0] == pytest.approx(full["train/grad_norm"][0], rel=0.02)
    assert scaled.scaler is not None
    assert scaled.scaler.get_scale() > 1
    assert half["train/loss"][1] == pytest.approx(full["train/loss"][1], rel=0.02)


@pytest.mark.parametrize("kind", slow_except(trainings.KINDS, "cocondenser", "cotmae", "biencoder"))
def test_bf16_trains_close_to_fp32_and_keeps_the_weights_in_fp32(kind: str, tmp_path: Path) -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        module, data, settings = trainings.run(kind, tmp_path, precision=precision, steps=4)
        losses[precision] = fit(module, data, settings, tmp_path / precision, "x")["train/loss"]
        assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.1)


def test_the_mean_reciprocal_rank_of_the_sample_is_that_of_a_loop(tmp_path: Path) -> None:
    module, data, settings = trainings.run("biencoder", tmp_path, steps=1, learning_rate=1e-12)
    sample = trainings.sample(tmp_path)
    logged = fit(module, data, settings, tmp_path / "run", "x", sample=sample)["val/mrr@10"]
    module.eval()
    with torch.no_grad():
        sides = []
        for parts in (sample.queries, sample.passages):
            rows = {row: vector for c in parts for row, vector in zip(c.rows.tolist(), module.vectors(c), strict=True)}
            sides.append(torch.stack([rows[row] for row in sorted(rows)]))
    total = 0.0
    for query, scores in enumerate((sides[0] @ sides[1].T).tolist()):
        ranking = sorted(range(15), key=lambda passage: -scores[passage])[:10]
        total += next((1 / rank for rank, p in enumerate(ranking, 1) if sample.relevant[query, p]), 0.0)
    assert logged == pytest.approx(total / 6, rel=1e-5)
    module.train()


@pytest.mark.parametrize("slow", [True, False])
def test_it_says_when_it_waited_for_batches(slow: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, data, settings = trainings.run("condenser", tmp_path, steps=4)
    data.setup()
    make = data.batches.batch

    step = module.objective

    def batch(*given: Any) -> Any:
        time.sleep(0.4 * slow)
        return make(*given)

    def objective(batch: Any) -> Any:
        time.sleep(0.4 * (not slow))
        return step(batch)

    data.batches.batch, module.objective = batch, objective  # type: ignore[method-assign]
    fit(module, data, settings, tmp_path / "run", "stage")
    said = capsys.readouterr().out
    assert ("[stage] " in said and "% of the time; set trainer.workers=2" in said) == slow
