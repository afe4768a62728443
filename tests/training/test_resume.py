"""A run that is interrupted and started again ends with the weights and the curves of one that was not."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
import trainings
from pytorch_lightning.loggers import CSVLogger
from slow import slow_except
from trainings import InterruptionError, Stop

from condensery.errors import UserError
from condensery.system import signals
from condensery.training import loop
from condensery.training.loggers import csv_logger, merge_parts
from condensery.training.loop import fit
from condensery.training.resumption import first_step, last_checkpoint


def _fit(kind: str, root: Path, name: str, **changes: Any) -> dict[str, torch.Tensor]:
    """Train from what lies in the run's folder; the weights."""
    module, data, settings = trainings.run(kind, root, **changes)
    fit(module, data, settings, root / name, name, sample=trainings.sample(root))
    return module.state_dict()


def _stopped(kind: str, root: Path, name: str, at: int, **changes: Any) -> None:
    module, data, settings = trainings.run(kind, root, **changes)
    with pytest.raises(InterruptionError):
        fit(module, data, settings, root / name, name, sample=trainings.sample(root), loggers=[Stop(root, at)])


def _curves(folder: Path) -> list[dict[str, str]]:
    """The rows of ``metrics.csv`` without what tells of time."""
    with open(folder / "logs" / "metrics.csv", newline="", encoding="utf-8") as stream:
        return [
            {k: v for k, v in row.items() if k not in ("train/tokens_per_s", "epoch")} for row in csv.DictReader(stream)
        ]


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    "kind",
    slow_except(
        (*trainings.KINDS, "query_tower", "frozen_passages", "head_first", "contrast_and_mlm"),
        "cocondenser",
        "biencoder",
        "cotmae",
    ),
)
def test_a_run_stopped_after_a_checkpoint_ends_bit_identical(kind: str, tmp_path: Path) -> None:
    whole = _fit(kind, tmp_path, "whole")
    _stopped(kind, tmp_path, "parts", at=8)  # the checkpoint is of step 5
    assert last_checkpoint(tmp_path / "parts") == tmp_path / "parts/checkpoints/step=5.ckpt"
    resumed = _fit(kind, tmp_path, "parts")
    assert _same(whole, resumed)
    assert _curves(tmp_path / "parts") == _curves(tmp_path / "whole")
    assert not (tmp_path / "parts" / "checkpoints").exists()


def test_a_run_stopped_three_times_also_before_its_first_checkpoint_ends_bit_identical(tmp_path: Path) -> None:
    whole = _fit("cocondenser", tmp_path, "whole", checkpoint_every=4)
    for at in (2, 6, 9):
        _stopped("cocondenser", tmp_path, "parts", at, checkpoint_every=4)
    assert _same(whole, _fit("cocondenser", tmp_path, "parts", checkpoint_every=4))
    assert _curves(tmp_path / "parts") == _curves(tmp_path / "whole")


def test_a_loaded_model_has_dropout_from_the_first_step_however_often_it_is_validated_or_resumed(
    tmp_path: Path,
) -> None:
    """Transformers gives what it loads with dropout off."""
    options = {"steps": 6, "checkpoint_every": 2, "validate_every": 3}

    def trained(name: str, at: int | None = None, **changes: Any) -> dict[str, torch.Tensor]:
        module, data, settings = trainings.loaded(tmp_path, **{**options, **changes})
        stop = [] if at is None else [Stop(tmp_path, at)]
        with nullcontext() if at is None else pytest.raises(InterruptionError):
            fit(module, data, settings, tmp_path / name, name, sample=trainings.sample(tmp_path), loggers=stop)
        return module.state_dict()

    whole = trained("whole")
    for at in (2, 4):  # before and behind the first validation
        trained("parts", at)
        assert first_step(tmp_path / "parts") == at
    assert _same(whole, trained("parts"))
    assert _curves(tmp_path / "parts") == _curves(tmp_path / "whole")
    assert _same(whole, trained("not validated", validate_every=0))
    first = {"steps": 1, "validate_every": 0}
    assert not _same(trained("first step", **first), trained("first step without", **first, dropout=0.0))


@pytest.mark.slow
def test_slow_steps_are_checkpointed_by_the_minute_and_the_run_ends_bit_identical(tmp_path: Path) -> None:
    whole = _fit("cocondenser", tmp_path, "whole", log_every=4)
    often = {"log_every": 4, "checkpoint_every": 0, "checkpoint_minutes": 1e-9}  # each step takes longer
    module, data, settings = trainings.run("cocondenser", tmp_path, **often)
    with pytest.raises(InterruptionError):
        fit(
            module,
            data,
            settings,
            tmp_path / "parts",
            "x",
            sample=trainings.sample(tmp_path),
            loggers=[Stop(tmp_path, 7)],
        )
    assert [path.name for path in (tmp_path / "parts" / "checkpoints").iterdir()] == ["step=7.ckpt"]
    assert _same(whole, _fit("cocondenser", tmp_path, "parts", log_every=4, checkpoint_minutes=1e9))
    assert _curves(tmp_path / "parts") == _curves(tmp_path / "whole")


def test_a_run_stopped_behind_its_last_step_gives_the_same_weights_values_and_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the checkpoint of the last step: there is no step left to log anything."""
    module, data, settings = trainings.run("cocondenser", tmp_path, checkpoint_every=6)
    values = fit(module, data, settings, tmp_path / "whole", "x", sample=trainings.sample(tmp_path))

    def stop(folder: Path) -> Path:
        raise InterruptionError

    module, data, settings = trainings.run("cocondenser", tmp_path, checkpoint_every=6)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "merge_parts", stop)
        with pytest.raises(InterruptionError):
            fit(module, data, settings, tmp_path / "parts", "x", sample=trainings.sample(tmp_path))
    for _ in range(2):  # the second time with the curves already merged
        again, data, settings = trainings.run("cocondenser", tmp_path, checkpoint_every=6)
        with monkeypatch.context() as patch:
            patch.setattr(loop.shutil, "rmtree", lambda *_, **__: None)
            resumed = fit(again, data, settings, tmp_path / "parts", "x", sample=trainings.sample(tmp_path))
        assert _same(module.state_dict(), again.state_dict())
        differing = {name for name in values if resumed.get(name) != pytest.approx(values[name], rel=1e-5)}
        assert differing <= {"train/tokens_per_s"}
        assert resumed.keys() == values.keys()


@pytest.mark.slow
def test_a_killed_process_ends_bit_identical(tmp_path: Path) -> None:
    """SIGKILL, with no chance to write anything; another process goes on."""
    script = (
        "import sys; from pathlib import Path; from trainings import Stop, fit; import trainings; root = Path(sys.argv[1]);"
        "module, data, settings = trainings.run('cocondenser', root);"
        "fit(module, data, settings, root / 'parts', 'x', sample=trainings.sample(root), loggers=[Stop(root, 8, kill=True)])"
    )
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert last_checkpoint(tmp_path / "parts") is not None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert _same(_fit("cocondenser", tmp_path, "parts"), _fit("cocondenser", tmp_path, "whole"))
    finally:
        torch.set_num_threads(threads)
    assert _curves(tmp_path / "parts") == _curves(tmp_path / "whole")


def test_a_checkpoint_that_was_not_written_whole_is_not_read(tmp_path: Path) -> None:
    whole = _fit("condenser", tmp_path, "whole")
    _stopped("condenser", tmp_path, "parts", at=8)
    folder = tmp_path / "parts" / "checkpoints"
    (folder / "step=10.partial").write_bytes((folder / "step=5.ckpt").read_bytes()[:5000])
    assert last_checkpoint(tmp_path / "parts") == folder / "step=5.ckpt"
    assert _same(whole, _fit("condenser", tmp_path, "parts"))


def test_a_checkpoint_is_under_its_name_only_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_fabric.plugins.io import TorchCheckpointIO

    def breaks(self: Any, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(b"half")
        raise InterruptionError

    monkeypatch.setattr(TorchCheckpointIO, "save_checkpoint", breaks)
    module, data, settings = trainings.run("condenser", tmp_path)
    with pytest.raises(InterruptionError):
        fit(module, data, settings, tmp_path / "run", "x")
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    assert last_checkpoint(tmp_path / "run") is None


def test_a_damaged_checkpoint_is_one_line_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    for damage in (b"", b"no checkpoint"):
        (folder / "step=5.ckpt").write_bytes(damage)
        module, data, settings = trainings.run("condenser", tmp_path)
        with pytest.raises(UserError, match=r"step=5\.ckpt: this checkpoint cannot be read .*; delete it") as raised:
            fit(module, data, settings, tmp_path / "run", "x")
        assert "\n" not in str(raised.value)


def test_a_checkpoint_with_a_flipped_bit_is_not_trained_on(tmp_path: Path) -> None:
    _stopped("condenser", tmp_path, "parts", at=8)
    path = tmp_path / "parts" / "checkpoints" / "step=5.ckpt"
    raw = bytearray(path.read_bytes())
    with ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
    raw[largest.header_offset + 200 + largest.file_size // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(
        UserError, match=r"step=5\.ckpt: this checkpoint cannot be read \(.*\); delete it to train anew"
    ):
        _fit("condenser", tmp_path, "parts")


class Poison:
    """What leaves a file behind when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_a_poisoned_checkpoint_runs_nothing_and_is_named(tmp_path: Path) -> None:
    folder, trace = tmp_path / "run" / "checkpoints", tmp_path / "trace"
    folder.mkdir(parents=True)
    torch.save({"state_dict": {}, "callbacks": {"x": Poison(trace)}}, folder / "step=5.ckpt")
    torch.load(folder / "step=5.ckpt", weights_only=False)
    assert trace.exists(), "the poison works"
    trace.unlink()
    module, data, settings = trainings.run("condenser", tmp_path)
    with pytest.raises(UserError, match=r"step=5\.ckpt: this checkpoint cannot be read .*; delete it") as raised:
        fit(module, data, settings, tmp_path / "run", "x")
    assert "\n" not in str(raised.value)
    assert not trace.exists()


def test_the_newest_checkpoint_is_that_of_the_highest_step(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for step in (5, 10, 100, 95):
        (tmp_path / "checkpoints" / f"step={step}.ckpt").touch()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step=100.ckpt"


def test_the_parts_of_the_curves_become_one_without_repeated_or_unfinished_lines(tmp_path: Path) -> None:
    def part(first_step: int, text: str) -> None:
        path = Path(csv_logger(tmp_path, first_step).log_dir)
        path.mkdir(parents=True)
        (path / "metrics.csv").write_text(text, encoding="utf-8")

    part(0, "a,step\n1,0\n2,1\n3,2\n4,3\n")
    part(7, "a,step\n9,7\n")
    part(2, "a,step,b\n30,2,\n40,3,7\n,3,8\n50,4")  # killed while it wrote; what began at step 7 is of no use now
    lines = merge_parts(tmp_path).read_text(encoding="utf-8").split()
    assert lines == ["a,b,step", "1,,0", "2,,1", "30,,2", "40,8,3"]
    part(3, "a,step\n41,3\n51,4\n")
    assert merge_parts(tmp_path).read_text(encoding="utf-8").split() == ["a,step", "1,0", "2,1", "30,2", "41,3", "51,4"]
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["metrics.csv"]


@pytest.fixture
def _heard() -> Iterator[None]:
    """Signals are heard as by the command, and forgotten after the test."""
    numbers = signal.SIGTERM, signal.SIGUSR1
    before, hook = {number: signal.getsignal(number) for number in numbers}, sys.unraisablehook
    signals.leave_upon(numbers, lambda number: SystemExit(128 + number))
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    sys.unraisablehook = hook
    for known in (signals.came, signals._again, signals._handlers):
        known.clear()  # type: ignore[attr-defined]


class Signals(CSVLogger):
    """Sends this process signals while the step ``at`` is logged."""

    def __init__(self, folder: Path, at: int, number: int, times: int = 1) -> None:
        super().__init__(folder / "signals")
        self.at, self.number, self.times = at, number, times

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        for _ in range(self.times if step == self.at else 0):
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM], ids=["SIGUSR1", "SIGTERM"])
@pytest.mark.usefixtures("_heard")
def test_a_warning_makes_a_checkpoint_of_the_step_before_the_run_ends(number: int, tmp_path: Path) -> None:
    whole = _fit("condenser", tmp_path, "whole")
    module, data, settings = trainings.run("condenser", tmp_path, checkpoint_every=1000)
    loggers, sample = [Signals(tmp_path, 6, number)], trainings.sample(tmp_path)
    with pytest.raises(SystemExit):
        fit(module, data, settings, tmp_path / "parts", "parts", loggers=loggers, sample=sample)
    assert first_step(tmp_path / "parts") in (7, 8), "the step that it came in, or the next"
    signals.came.clear()
    signals._again.clear()
    assert _same(whole, _fit("condenser", tmp_path, "parts"))
    assert _curves(tmp_path / "whole") == _curves(tmp_path / "parts")


@pytest.mark.usefixtures("_heard")
def test_who_asks_twice_is_not_kept_waiting(tmp_path: Path) -> None:
    module, data, settings = trainings.run("condenser", tmp_path, checkpoint_every=1000)
    with pytest.raises(SystemExit):
        fit(module, data, settings, tmp_path / "run", "run", loggers=[Signals(tmp_path, 6, signal.SIGTERM, times=2)])
    assert first_step(tmp_path / "run") == 0
