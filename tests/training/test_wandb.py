"""Without a key every training stage leaves an offline W&B run of its own, and closes it."""

from pathlib import Path

import pytest
import tiny

from condensery.training.logs import wandb_logger
from condensery.training.loop import fit


def test_each_stage_writes_and_closes_an_offline_run_and_a_failing_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for stage in ("one", "two"):
        module, data = tiny.run("cocondenser", tmp_path, steps=3)
        loggers = wandb_logger("auto", "tests", None, "group", stage, f"id-{stage}", tmp_path)
        assert wandb.run.name == stage
        assert wandb.run.group == "group"
        if stage == "two":
            monkeypatch.setattr(data.batches, "batch", lambda step: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                fit(module, data, tmp_path / stage, stage, loggers=loggers)
        else:
            fit(module, data, tmp_path / stage, stage, loggers=loggers, sample=tiny.sample(tmp_path))
        assert wandb.run is None, "the run of the stage is still open"
    (one,) = (tmp_path / "wandb").glob("offline-run-*-id-one/run-id-one.wandb")
    assert list((tmp_path / "wandb").glob("offline-run-*-id-two/run-id-two.wandb"))
    wanted = {"loss", "mlm_head", "mlm_late", "contrast", "lr", "grad_norm", "tokens_per_s", "tokens"}
    written = one.read_bytes()  # records in protobuf, not compressed
    for name in {f"train/{name}" for name in wanted} | {"val/mrr@10"}:
        assert name.encode() in written, name
    assert capsys.readouterr().out.count("W&B: no key, offline under") == 2


@pytest.mark.parametrize("mode", ["disabled", None])
def test_switched_off_there_is_no_run(mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)
    assert wandb_logger("auto" if mode else False, "tests", None, "group", "one", "id", tmp_path) == []
    assert not list(tmp_path.iterdir())
