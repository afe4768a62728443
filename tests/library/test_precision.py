"""The precisions of Lightning's Trainer: every module trains in it, or says in one line in which it does."""

from pathlib import Path

import pytest
import torch
from test_modules import KINDS, RATE, Sharp, Stops, same, trainer, triples, weights
from torch import Tensor

from condensery import BiEncoderModule, RetrievalLoss, UserError

TRUE = {"64-true": torch.float64, "bf16-true": torch.bfloat16}
QUICKLY = ("cocondenser", "bi-encoder")


@pytest.mark.parametrize(
    ("kind", "precision"),
    [pytest.param(kind, one, marks=() if kind in QUICKLY else pytest.mark.slow) for kind in KINDS for one in TRUE],
)
def test_every_module_trains_and_validates_in_true_precisions(
    kind: str, precision: str, world: Path, tmp_path: Path
) -> None:
    made = KINDS[kind]
    module = made.module(world / "bert", **RATE)
    before = weights(module)
    run = trainer(tmp_path, max_steps=2, precision=precision)
    run.fit(module, made.data(world))
    after = weights(module)
    assert {value.dtype for value in after.values() if value.is_floating_point()} == {TRUE[precision]}
    assert any(not torch.equal(value, before[name].to(value.dtype)) for name, value in after.items())
    assert run.callback_metrics["train/loss"].isfinite()
    module.save_pretrained(tmp_path / "saved")
    made.module(tmp_path / "saved")


@pytest.mark.parametrize("precision", ["16-true"])
def test_a_precision_in_which_adamw_fails_is_one_line(precision: str, world: Path, tmp_path: Path) -> None:
    for kind in ("cocondenser", "bi-encoder", "cross-encoder"):
        module = KINDS[kind].module(world / "bert", **RATE)
        with pytest.raises(
            UserError, match=r"Trainer.precision='16-true'.: .* use 32-true, bf16-mixed, 16-mixed, 64-true"
        ):
            trainer(tmp_path, max_steps=1, precision=precision).fit(module, KINDS[kind].data(world))
        assert {value.dtype for value in module.parameters()} == {torch.float32}, "it is as it was"


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "16-true", "bf16-mixed"])
def test_what_is_only_validated_is_in_any(precision: str, world: Path, tmp_path: Path) -> None:
    run = trainer(tmp_path, precision=precision)
    for kind in ("bi-encoder", "cross-encoder"):
        (values,) = run.validate(KINDS[kind].module(world / "bert"), KINDS[kind].data(world), verbose=False)
        assert 0 < values["val/mrr@10"] <= 1


def test_batches_that_are_none_of_ours_are_cast_as_ever(world: Path, tmp_path: Path) -> None:
    data = KINDS["bi-encoder"].data(world)
    run = trainer(tmp_path, max_steps=1, precision="64-true")
    run.fit(KINDS["bi-encoder"].module(world / "bert"), data)
    assert run.precision_plugin.convert_input({"numbers": torch.ones(2)})["numbers"].dtype == torch.float64
    batch = data.batches.batch(0)
    assert run.precision_plugin.convert_input(batch) is batch


def test_a_run_in_doubles_goes_on_exactly(world: Path, tmp_path: Path) -> None:
    made, path = KINDS["bi-encoder"], tmp_path / "half.ckpt"
    whole, halved, resumed = (made.module(world / "bert", **RATE) for _ in range(3))
    trainer(tmp_path, max_epochs=2, precision="64-true").fit(whole, made.data(world))
    run = trainer(tmp_path, max_epochs=2, precision="64-true", callbacks=[Stops(2, path)])
    run.fit(halved, made.data(world))
    run = trainer(tmp_path, max_epochs=2, precision="64-true")
    run.fit(resumed, made.data(world), ckpt_path=str(path), weights_only=True)
    assert same(weights(whole), weights(resumed))


class ByText(Sharp):
    """The same projection, read in ``features``, by chunks."""

    def features(self, vectors: Tensor, tower: int) -> Tensor:
        return self.head(vectors)

    def forward(self, queries: Tensor, passages: Tensor, positive: Tensor, known: Tensor | None = None) -> Tensor:
        scores = (queries @ passages.T + self.bias) * self.log_scale.exp()
        return torch.nn.functional.cross_entropy(scores, positive)


QUICK = [(Sharp, "bf16-true"), (Sharp, "64-true"), (ByText, "bf16-mixed"), ("learning_to_rank", "bf16-true")]


@pytest.mark.parametrize(
    ("loss", "precision"),
    [
        pytest.param(loss, one, marks=() if (loss, one) in QUICK else pytest.mark.slow)
        for loss in (Sharp, ByText, "learning_to_rank")
        for one in ("bf16-true", "64-true", "bf16-mixed")
    ],
)
def test_weights_of_a_loss_are_no_narrower_than_fp32_and_go_on_exactly(
    loss: type[RetrievalLoss] | str, precision: str, world: Path, tmp_path: Path
) -> None:
    def fit(path: Path | None = None, **options: object) -> dict[str, Tensor]:
        made = BiEncoderModule(world / "bert", loss=loss if isinstance(loss, str) else loss(), learning_rate=1e-4)
        run = trainer(tmp_path, max_steps=4, precision=precision, **options)
        run.fit(made, triples()(world), ckpt_path=path and str(path), weights_only=True)
        return weights(made)

    before = weights(BiEncoderModule(world / "bert", loss=loss if isinstance(loss, str) else loss()))
    whole = fit()
    fit(callbacks=[Stops(2, tmp_path / "half.ckpt")])
    assert same(whole, fit(tmp_path / "half.ckpt"))
    own = {name: value for name, value in whole.items() if name.startswith("loss.")}
    dtype = torch.float64 if precision == "64-true" else torch.float32
    assert {value.dtype for value in own.values()} == {dtype}
    if loss != "learning_to_rank":
        assert all((value != before[name]).any() for name, value in own.items()), "also a step of 1e-4 counts"
