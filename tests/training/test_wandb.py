"""Without a key every training stage leaves an offline W&B run of its own, closed, and whole after an interruption."""

from pathlib import Path
from typing import Any

import pytest
import trainings
from wandb_files import Offline, offline_runs

from condensery.errors import UserError
from condensery.training.loggers import wandb_logger
from condensery.training.loop import fit
from condensery.training.resumption import first_step
from condensery.training.wandb_run import Tracked, start

wandb = pytest.importorskip("wandb")


def tracked(folder: Path, name: str, **changes: Any) -> Tracked:
    given: dict[str, Any] = {
        "enabled": "auto", "project": "tests", "entity": None, "group": "study", "name": f"{name} · seed=1",
        "job_type": "pretrain", "run_id": f"id-{name}", "config": {"steps": 3, "backbone": {"size": 4}}, "folder": folder,
    }  # fmt: skip
    return Tracked(**{**given, **changes})


def test_each_stage_writes_and_closes_an_offline_run_and_a_failing_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    module, data, settings = trainings.run("cocondenser", tmp_path, steps=3)
    with wandb_logger(tracked(tmp_path, "one"), tmp_path / "one", 0) as loggers:
        fit(module, data, settings, tmp_path / "one", "one", loggers=loggers, sample=trainings.sample(tmp_path))
    assert wandb.run is None, "the run of the stage is still open"
    with pytest.raises(ZeroDivisionError), wandb_logger(tracked(tmp_path, "two"), tmp_path / "two", 0):
        raise ZeroDivisionError
    assert wandb.run is None
    one, two = offline_runs(tmp_path)
    assert (one.name, one.group, one.job_type, one.id) == ("one · seed=1", "study", "pretrain", "id-one")
    assert (two.name, two.group, two.id) == ("two · seed=1", "study", "id-two")
    assert (one.exit_code, two.exit_code) == (0, 1)
    assert one.config["steps"] == 3
    assert one.config["backbone"] == {"size": 4}
    names = ("loss", "mlm_head", "mlm_late", "contrast", "lr", "grad_norm", "tokens_per_s", "tokens")
    assert {f"train/{name}" for name in names} | {"val/mrr@10"} <= one.curves.keys()
    assert [step for step, _ in one.curves["train/loss"]] == [0, 1, 2]
    assert capsys.readouterr().out.count("W&B: no API key; logs are in") == 1, "once a run"


def test_names_have_the_length_that_an_upload_accepts_and_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for end in "ab":
        long = tracked(tmp_path, "n" * 200 + end, group="g" * 200, job_type="j" * 100, run_id=end)
        with wandb_logger(long, tmp_path / end, 0):
            pass
    one, two = offline_runs(tmp_path)
    assert (len(one.name), len(one.group), len(one.job_type)) == (128, 128, 64)
    assert one.name != two.name
    assert one.group == two.group


def test_a_stage_that_was_interrupted_leaves_one_run_with_the_whole_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")

    def trained(name: str, stop: int | None = None) -> None:
        module, data, settings = trainings.run("condenser", tmp_path, steps=9, checkpoint_every=3)
        batch = data.batches.batch

        def until(step: int, *share: Any) -> Any:
            if step == stop:
                raise KeyboardInterrupt
            return batch(step, *share)

        monkeypatch.setattr(data.batches, "batch", until)
        folder = tmp_path / name
        with wandb_logger(tracked(tmp_path, name), folder, first_step(folder)) as loggers:
            fit(module, data, settings, folder, name, loggers=loggers)

    def named(run: str) -> Offline:
        (found,) = (one for one in offline_runs(tmp_path) if one.id == run)
        return found

    trained("whole")
    with pytest.raises(SystemExit):  # what Lightning makes of Ctrl-C
        trained("cut", stop=5)
    half = named("id-cut")
    assert half.exit_code == 1
    assert len(half.curves["train/loss"]) < 9
    trained("cut")
    whole, cut = named("id-whole"), named("id-cut")
    assert [step for step, _ in cut.curves["train/loss"]] == list(range(9)), "every step once"
    for name in ("train/loss", "train/mlm_head", "train/lr"):
        assert dict(cut.curves[name]) == pytest.approx(dict(whole.curves[name]), rel=1e-6), name
    assert (cut.id, cut.exit_code) == ("id-cut", 0)


@pytest.mark.parametrize("mode", ["disabled", None])
def test_switched_off_there_is_no_run(mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)
    with wandb_logger(tracked(tmp_path, "one", enabled="auto" if mode else False), tmp_path, 0) as loggers:
        assert loggers == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [wandb.Error, ValueError], ids=["no answer", "a wrong environment variable"])
def test_without_an_answer_auto_goes_on_and_true_is_an_error_in_one_line(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(**settings: Any) -> None:
        assert (settings["mode"], settings["resume"]) == ("online", "allow")
        raise kind("no way\nto the host")

    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(wandb, "init", unreachable)
    assert start(tracked(tmp_path, "one")) is None
    assert "logger.wandb: no way to the host; curves go only into the CSV file" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"^logger\.wandb: no way to the host$"):
        start(tracked(tmp_path, "one", enabled=True))


@pytest.mark.parametrize("mode", ["offline", "dryrun"])
def test_offline_counts_even_if_there_is_a_key(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def noted(**settings: Any) -> None:
        assert (settings["mode"], settings["resume"]) == ("offline", None)
        raise wandb.Error("enough")

    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(wandb, "init", noted)
    assert start(tracked(tmp_path, "one")) is None
    assert "W&B: logs are in" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["NETRC", "home", "server", "WANDB_IDENTITY_TOKEN_FILE", "another server"])
def test_a_key_is_found_where_wandb_reads_it(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def noted(**settings: Any) -> None:
        used.append(settings["mode"])
        raise wandb.Error("enough")

    stored = tmp_path / (".netrc" if place != "NETRC" else "keys")
    stored.write_text(f"machine {'wandb.example.org' if 'server' in place else 'api.wandb.ai'} login user password k\n")
    stored.chmod(0o644)  # which others may read
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path if place != "WANDB_IDENTITY_TOKEN_FILE" else tmp_path / "empty"))
    if place == "server":
        monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org/")
    elif place.isupper():
        monkeypatch.setenv(place, str(stored))
    monkeypatch.setattr(wandb, "init", noted)
    start(tracked(tmp_path, "one"))
    assert used == ["offline" if place == "another server" else "online"]
