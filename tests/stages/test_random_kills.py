"""A run is ended at random moments of all its stages, in every way: nothing is left alive, and it ends with the same bits.

    CONDENSERY_KILLS=100 CONDENSERY_KILLS_SEED=1 python -m pytest -m slow -s tests/stages/test_random_kills.py

Each number of jobs gets half of the kills (by default 10 in all). One store takes many of them: a stage is hit twice at
most, and the run goes on from there; when it comes to its end, the next kills begin on an empty store. The line that is
printed says what was hit, and how.
"""

import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from killed_runs import begun, checkpoints, kill, same_results, start
from small_runs import MODEL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc"),
]

KILLS = int(os.environ.get("CONDENSERY_KILLS", "10"))
SEED = int(os.environ.get("CONDENSERY_KILLS_SEED", "1"))
WAYS = [  # the signal, and whether the whole group gets it, as from a terminal
    (signal.SIGKILL, False),
    (signal.SIGKILL, True),
    (signal.SIGTERM, False),
    (signal.SIGTERM, True),
    (signal.SIGINT, True),
]
CODES = {signal.SIGKILL: {-9}, signal.SIGTERM: {143, -15}, signal.SIGINT: {130, -2}}
# What Python itself says in a process that was being started when the one that started it was killed: nobody can catch that.
ORPHANED = re.compile(
    r'Traceback \(most recent call last\):\n  File "<string>", line 1, in <module>\n(?:  .*\n)*'
    r"(?:_pickle\.UnpicklingError: pickle data was truncated|EOFError: Ran out of input)\n"
)
RECIPE = [
    "experiment=smoke",
    *(word for word in MODEL if not word.startswith("jobs=")),
    "stages.round1.batching=adaptive",
    *(
        f"stage.{kind}.checkpoint_every=2"
        for kind in ("pretrain_mlm", "pretrain_condenser", "pretrain_cocondenser", "finetune")
    ),
]
START_UP = 0.15  # share of the kills before the first stage
OFTEN = 0.5  # how often a stage that starts is one to be killed in, at most


@dataclass
class Reference:
    """A run that was left alone."""

    folder: Path
    seconds: dict[str, float]  # of each stage
    start_up: float  # seconds


@dataclass
class Tally:
    """What was hit, and how."""

    kills: int = 0
    lives: int = 0
    resumed: int = 0  # kills that left a checkpoint
    ways: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)


class Run:
    """One attempt at the recipe; its output is read as it comes."""

    def __init__(self, root: Path, jobs: int, draw: random.Random) -> None:
        self.root, self.lines, self.begun = root, list[str](), list[str]()
        extra = ["trainer.workers=1"] if draw.random() < 0.2 else []
        tracked = "offline" if draw.random() < 0.3 else "disabled"
        arguments = [*RECIPE, *extra, f"output_root={root}", f"jobs={jobs}"]
        self.process = start(str(root), *arguments, WANDB_MODE=tracked)
        self.output = self.process.stdout
        assert self.output is not None
        self.process.stdout = None  # `communicate` then waits for the process alone
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def running(self) -> bool:
        return self.process.poll() is None

    def _read(self) -> None:
        for line in self.output or ():
            self.lines.append(line)
            self.begun += begun(line)

    def sleep(self, seconds: float) -> None:
        """So long, or until the run has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def end(self, by: signal.Signals, group: bool) -> None:
        """Kill it, and see that it ended as it should and left nothing."""
        kill(self.process, str(self.root), by, group)
        self.close()
        out = "".join(self.lines)
        assert self.process.returncode in CODES[by] | {0}, out  # 0: it had ended at that very moment
        if by == signal.SIGKILL:
            out = ORPHANED.sub("", out)
        assert "Traceback" not in out, f"after {by.name}{' to the group' if group else ''}\n{out}"

    def folder(self) -> Path:
        """The run's folder, where it went well."""
        out = "".join(self.lines)
        assert self.process.returncode == 0, out
        assert "Traceback" not in out, out
        (found,) = self.root.glob("runs/smoke-*")
        return found

    def close(self) -> None:
        """Its output has come to an end, too."""
        self.reader.join(10)
        assert not self.reader.is_alive(), "its output is held open"


def lived_until(run: Run, reference: Reference, draw: random.Random, hits: Counter[str], often: float) -> str | None:
    """Let it run until it is to be killed, and say in which stage that is; None where it came to its end before."""
    if draw.random() < START_UP:
        run.sleep(draw.uniform(0.3, reference.start_up))
        return (run.begun or ["start-up"])[-1] if run.running() else None
    seen = 0
    while run.running():
        for stage in run.begun[seen:]:
            seen += 1
            if hits[stage] < 2 and draw.random() < often:
                hits[stage] += 1
                run.sleep(draw.uniform(0, 1.2 * reference.seconds[stage]))
                return stage if run.running() else None
        time.sleep(0.02)
    return None


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    root = tmp_path_factory.mktemp("alone")
    clock = time.monotonic()
    run = Run(root, 1, random.Random(0))
    while run.running() and not run.begun:
        time.sleep(0.02)
    start_up = time.monotonic() - clock
    run.process.wait(1200)
    run.close()
    manifests = [json.loads(path.read_text()) for path in root.glob("artifacts/*/*/manifest.json")]
    return Reference(run.folder(), {one["name"]: one["wall_seconds"] for one in manifests}, start_up)


@pytest.mark.parametrize("jobs", [1, 2])
def test_killed_at_random_moments_of_all_stages_it_ends_with_the_same_bits(
    jobs: int, reference: Reference, tmp_path: Path
) -> None:
    draw, tally, wanted = random.Random(f"{SEED} {jobs}"), Tally(), (KILLS + jobs - 1) // 2
    ways = draw.sample(WAYS, len(WAYS))
    often = min(OFTEN, wanted / len(reference.seconds))
    while tally.kills < wanted:
        root, hits = tmp_path / f"life{tally.lives}", Counter[str]()
        tally.lives += 1
        run = Run(root, jobs, draw)
        while tally.kills < wanted and (stage := lived_until(run, reference, draw, hits, often)):
            by, group = ways[tally.kills % len(ways)]
            run.end(by, group)
            tally.kills += 1
            tally.resumed += bool(checkpoints(root))
            tally.ways[f"{by.name}{' to the group' if group else ''}"] += 1
            tally.stages[stage] += 1
            run = Run(root, jobs, draw)
        try:
            run.process.wait(1200)
        except subprocess.TimeoutExpired:
            run.end(signal.SIGKILL, group=True)
            raise AssertionError("".join(run.lines)) from None
        run.close()
        same_results(run.folder(), reference.folder)
        assert not list(root.glob("artifacts/*/*.partial"))
    counts = {"ways": dict(tally.ways), "stages": dict(tally.stages)}
    print(f"\n{json.dumps({'jobs': jobs, 'seed': SEED, **tally.__dict__, **counts})}")
