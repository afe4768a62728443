"""SIGKILL in any stage, at any moment: the same command, run again, ends with the bits of an uninterrupted run."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killed_runs import checkpoints, kill, same_results, start, wait
from small_runs import CONF, PROJECT, Done, run_command

KILLS = 8
LONGER = [  # so that training takes long enough to be killed in
    "stage.pretrain_mlm.steps=60",
    "stage.pretrain_condenser.steps=60",
    "stage.pretrain_cocondenser.steps=60",
    "stage.finetune.steps=60",
    "stage.pretrain_mlm.checkpoint_every=5",
    "stage.pretrain_condenser.checkpoint_every=5",
    "stage.pretrain_cocondenser.checkpoint_every=5",
    "stage.finetune.checkpoint_every=5",
]

JOINED = [  # a warm start, what it is made of, and a fusion
    "stages.warm={stage: warm_start, length: 32}",
    "stages.mlm={stage: pretrain_mlm, init: warm}",
    "stages.joined={stage: fuse, retrievers: [bm25, round1], depth: 100}",
    "+table.rows.joined=joined",
]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_killed_after_a_checkpoint_it_goes_on_from_there(
    finished: Done, on_beir: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from condensery.training import loop

    arguments = ["experiment=tiny", *on_beir, f"output_root={tmp_path}"]
    process = start(str(tmp_path), *arguments)
    wait(process, lambda: bool(checkpoints(tmp_path)))
    kill(process, str(tmp_path))
    left = [int(path.stem.partition("=")[2]) for path in checkpoints(tmp_path)]
    resumed: list[Path | None] = []
    first = loop.last_checkpoint

    def noted(folder: Path) -> Path | None:
        resumed.append(first(folder))
        return resumed[-1]

    monkeypatch.setattr(loop, "last_checkpoint", noted)
    again = run_command(*arguments).sound()
    assert again.computed != finished.computed, "what was finished before the kill is reused"
    assert len(left) == 1
    assert {path.name for path in resumed if path} == {f"step={left[0]}.ckpt"}
    same_results(again.folder, finished.folder)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_at_random_moments_it_ends_with_the_same_bits(jobs: int, on_beir: list[str], tmp_path: Path) -> None:
    recipe = ["experiment=tiny", *on_beir, *LONGER, *JOINED]
    whole = run_command(*recipe, f"output_root={tmp_path / 'whole'}").sound()
    root, draw = tmp_path / "killed", random.Random(jobs)
    arguments = [*recipe, f"output_root={root}", f"jobs={jobs}"]
    seen: set[Path] = set()  # checkpoints that an earlier kill left behind
    kills = resumable = 0
    process = start(str(tmp_path), *arguments)
    while kills < KILLS:
        if kills % 2:  # while a stage trains, soon after it has written a checkpoint
            wait(process, lambda old=frozenset(seen): bool({*checkpoints(root)} - old))
            time.sleep(draw.uniform(0, 0.1))
        else:  # anywhere, the imports included
            time.sleep(draw.uniform(1, 6))
        if process.poll() is not None:
            break
        kill(process, str(tmp_path))
        kills += 1
        resumable += bool(checkpoints(root))
        seen |= {*checkpoints(root)}
        process = start(str(tmp_path), *arguments)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert kills >= 3
    assert resumable >= 1, "no kill came after a checkpoint"
    last = run_command(*arguments).sound()
    assert last.computed == []
    same_results(last.folder, whole.folder)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs ulimit")
def test_a_disk_that_takes_no_more_in_any_stage_is_one_line_and_it_goes_on_when_it_does(
    finished: Done, on_beir: list[str], tmp_path: Path
) -> None:
    """No file may be larger than a limit, so that each stage fails in the midst of its own; the limit is then raised."""
    command = [sys.executable, str(PROJECT / "run.py"), "--config-dir", str(CONF), "experiment=tiny", *on_beir]
    codes = []
    for number, limit in enumerate(["1", "8", "24", "48", "96", "180", "360", "unlimited"]):  # KiB
        arguments = [*command, f"output_root={tmp_path}", f"jobs={1 + number % 2}"]
        script = f'ulimit -f {limit}; exec "$@"'
        done = subprocess.run(
            ["bash", "-c", script, "run", *arguments], capture_output=True, text=True, env=os.environ, timeout=300
        )
        codes.append(done.returncode)
        if done.returncode:
            assert done.returncode == 1, done.stderr
            assert done.stderr.count("\n") == 1, done.stderr
            assert "allows" in done.stderr or "no space is left" in done.stderr, done.stderr
    assert codes.count(1) >= 3
    (run,) = tmp_path.glob("runs/tiny-*")
    same_results(run, finished.folder)
