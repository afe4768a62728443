"""Kill small pipelines at random moments, start each again, and compare its result with that of an uninterrupted pipeline.

    python experiments/benchmarks/endurance.py [pipelines=50] [kills=1] [together=8] [jobs=2] [seed=1] [experiment=smoke]
    ... [devices=1] [launcher=local]

Each pipeline begins on an empty store and is killed ``kills`` times. SIGKILL, SIGTERM and SIGINT (Ctrl-C) are each a third of
the kills. Only the main process is killed. Half of the kills come at any moment, and half soon after a training stage
has written a checkpoint. A pipeline that ends before its first kill is not counted. All contents of the artifacts are
compared except manifests and curves, which record times. The program prints one JSON line:

    pipelines, identical pipelines that were killed; how many of them ended bit-identical to the uninterrupted one
    kills, resumed       kills; how many of them left a checkpoint from which the next start resumed
    orphans              processes that were still alive ten seconds after a kill

With several numbers of processes (``devices=1,2,4 launcher=local,torchrun together=0``), each start has another number of
processes than the start before, and one of the launchers. The pipeline is then smaller. It pre-trains and fine-tunes without
dropout. Most kills come soon after a checkpoint. The line then has:

    identical            how many pipelines ended with the batches (batch_digests.py) and weights of the uninterrupted one
    difference           largest relative difference of a model's weights, without biases of keys, which softmax ignores
    hit                  kills by launcher and number of processes

Before the pipelines, ``together`` runs start at the same time on one store. Every second run has the whole recipe. The other
runs have a recipe of another name that lacks a row. So all runs share the artifacts that they need. A line reports them:

    together, ended      runs; how many of them ended without an error
    stages, computed     artifacts that they needed; how many times an artifact was computed
    waited               how often a run waited for another run
    identical            whether artifacts and results equal those of a single run
"""

import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import batch_digests
from safetensors.torch import load_file
from sizes import given

RUN = Path(__file__).resolve().parents[2] / "run.py"
MARK = "CONDENSERY_ENDURANCE"  # environment variable that all processes of a run inherit
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TIMED = {"manifest.json", "metrics.csv"}
PREPARED = ("corpus", "tokenizer", "tokens", "bm25", "token_vectors", "warm_start")  # stages before training
ROUNDING = 1e-4  # largest relative difference of weights after a change of the number of processes
LEFT_OUT = ("mlm", "condenser", "warm_tuned", "mlm_tuned", "condenser_tuned", "mined", "round2", "fused")
SMALLER = [  # one stage that pre-trains, and one that fine-tunes
    *(f"~stages.{name}" for name in LEFT_OUT),
    "figures={}",
    "table.baseline=BM25",
    "~table.rows",
    "+table.rows={BM25: bm25, coCondenser: round1}",
    *(f"backbone.{setting}" for setting in ("dropout=0.0", "vocab_size=2000", "hidden=64", "intermediate=128")),
    *(f"stage.pretrain_cocondenser.{setting}" for setting in ("steps=45", "batch_size=14")),
    *(f"stage.finetune.{setting}" for setting in ("steps=45", "batch_size=14")),
]


def start(root: Path, arguments: list[str], output: Any = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
    """Start a run, or resume it."""
    often = [
        f"stage.{kind}.checkpoint_every=3"
        for kind in ("pretrain_mlm", "pretrain_condenser", "pretrain_cocondenser", "finetune")
    ]
    # one thread, because another number of threads would round sums differently
    command = [sys.executable, str(RUN), f"output_root={root}", "trainer.threads=1", *often, *arguments]
    environment = {**os.environ, MARK: str(root), "WANDB_MODE": "disabled"}
    folders = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment |= {"CONDENSERY_STAGES": "batch_digests", "PYTHONPATH": os.pathsep.join(folders)}
    environment[batch_digests.FOLDER] = str(batches_of(root))
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def batches_of(root: Path) -> Path:
    """Return the folder of the digests of the batches."""
    return root.with_name(f"{root.name}-batches")


def alive(root: Path) -> int:
    """Return how many processes of the run are alive."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            found += state != "Z" and f"{MARK}={root}".encode() in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
    return found


def checkpoints(root: Path) -> set[Path]:
    """Return the checkpoints from which an interrupted training would resume."""
    return set(root.glob("artifacts/*/*.partial/checkpoints/step=*.ckpt"))


def digest(root: Path) -> dict[str, str]:
    """Return the digests of all files of the artifacts and of the results."""
    files = [*root.glob("artifacts/**/*"), *root.glob("runs/*/results.json")]
    return {
        str(path.relative_to(root)): hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in files
        if path.is_file() and path.name not in TIMED and ".lock" not in path.name
    }


def difference(root: Path, alone: Path) -> float:
    """Return the largest relative difference between a model's weights and those of the uninterrupted pipeline."""
    found = [0.0]
    for path in alone.glob("artifacts/*/*/*.safetensors"):
        mine, wanted = load_file(root / path.relative_to(alone)), load_file(path)
        names = [name for name in wanted if not name.endswith("key.bias")]
        off = math.hypot(*(float((mine[name] - wanted[name]).norm()) for name in names))
        found.append(off / math.hypot(*(float(wanted[name].norm()) for name in names)))
    return max(found)


def wait_for_the_moment(process: "subprocess.Popen[bytes]", root: Path, draw: random.Random, longest: float) -> None:
    """Sleep until a random moment within ``longest`` seconds, or until the process has ended."""
    moment, anywhere = time.monotonic() + draw.uniform(0.2, longest), draw.random() < 0.5
    while process.poll() is None and time.monotonic() < moment:
        time.sleep(0.005)
    known = checkpoints(root)
    while process.poll() is None and not anywhere:
        if checkpoints(root) - known:
            time.sleep(draw.uniform(0, 0.1))
            return
        time.sleep(0.005)


def wait_for_checkpoints(process: "subprocess.Popen[bytes]", root: Path, draw: random.Random) -> None:
    """Sleep until up to three more checkpoints are written, then for a random moment; end early if the process has ended."""
    known, left = checkpoints(root), draw.randint(1, 3)
    while process.poll() is None and left:
        new = checkpoints(root) - known
        known, left = known | new, left - bool(new)
        time.sleep(0.005)
    time.sleep(draw.uniform(0, 0.5))


def kill(process: "subprocess.Popen[bytes]", root: Path, by: signal.Signals) -> int:
    """Kill a run. Return how many of its processes are still alive ten seconds later."""
    process.send_signal(by)
    process.wait()
    patience = time.monotonic() + 10
    while alive(root) and time.monotonic() < patience:
        time.sleep(0.05)
    return alive(root)


def at_once(root: Path, runs: int, arguments: list[str], alone: Path) -> dict[str, Any]:
    """Start several runs at once on one store. Return their results, compared with those of a single run."""
    root.mkdir()
    logs = [root.with_name(f"together{number}.txt") for number in range(runs)]
    fewer = ["name=fewer", "~table.rows.MLM", "table.baseline=BM25"]
    processes = []
    for number, path in enumerate(logs):
        with open(path, "wb") as stream:
            processes.append(start(root, [*arguments, *(fewer if number % 2 else [])], stream))
    ended = sum(process.wait() == 0 for process in processes)
    said = "".join(path.read_text() for path in logs)
    made, wanted = digest(root), digest(alone)
    artifacts = {name: value for name, value in wanted.items() if name.startswith("artifacts")}
    (rows,) = (json.loads(path.read_text()) for path in alone.glob("runs/*/results.json"))
    results = [json.loads(path.read_text()) for path in root.glob("runs/*/results.json")]
    same = [found == [row for row in rows if row["row"] in {one["row"] for one in found}] for found in results]
    whole = {name: value for name, value in made.items() if name.startswith("artifacts")} == artifacts
    return {
        "together": runs,
        "ended": ended,
        "stages": len(list(root.glob("artifacts/*/*/manifest.json"))),
        "computed": len(re.findall(r"^\[\S+\] done in ", said, re.MULTILINE)),
        "waited": said.count("another process computes this stage; waiting for it"),
        "identical": whole and all(same) and len(results) == min(2, runs),
    }


def main(
    pipelines: str, kills: str, together: str, jobs: str, seed: str, experiment: str, devices: str, launcher: str
) -> None:
    """Run the benchmark and print its lines."""
    draw, begun, numbers = random.Random(int(seed)), 0, [int(number) for number in devices.split(",")]
    changing, hit, now, by = len(numbers) > 1, Counter[str](), numbers[0], launcher.split(",")[0]
    recipe = [f"experiment={experiment}", *(SMALLER if changing else [])]
    told: dict[str, Any] = {"pipelines": 0, "identical": 0, "kills": 0, "resumed": 0, "orphans": 0}
    told |= {"difference": 0.0, "hit": {}} if changing else {}

    def arguments() -> list[str]:
        return [*recipe, f"jobs={jobs}", f"trainer.devices={now}", f"launcher={by}"]

    with tempfile.TemporaryDirectory() as folder:
        alone, clock = Path(folder) / "alone", time.monotonic()
        if start(alone, arguments()).wait():
            sys.exit(f"error: {experiment} does not run")
        wanted, lasted = digest(alone), time.monotonic() - clock
        if int(together):
            found = at_once(Path(folder) / "together", int(together), [*recipe, "jobs=1", f"launcher={by}"], alone)
            print(json.dumps(found), flush=True)
            if (found["ended"], found["computed"], found["identical"]) != (int(together), found["stages"], True):
                sys.exit(1)
        while told["pipelines"] < int(pipelines):
            root, begun, killed = Path(folder) / f"killed{begun}", begun + 1, 0
            for kind in PREPARED if changing else ():
                shutil.copytree(alone / "artifacts" / kind, root / "artifacts" / kind)
            process = start(root, arguments())
            while killed < int(kills):
                if changing and draw.random() < 0.8:
                    wait_for_checkpoints(process, root, draw)
                else:
                    wait_for_the_moment(process, root, draw, lasted / 4 if changing else lasted)
                if process.poll() is not None:
                    break
                told["orphans"] += kill(process, root, SIGNALS[told["kills"] % 3])
                told["resumed"] += bool(checkpoints(root))
                told["kills"] += 1
                hit[f"{by} {now}"] += 1
                killed += 1
                now = draw.choice([number for number in numbers if number != now] or numbers)
                by = draw.choice(launcher.split(","))
                print(json.dumps({"kills": told["kills"], "hit": dict(hit)}), file=sys.stderr, flush=True)
                process = start(root, arguments())
            well = process.wait() == 0
            if changing:
                well = well and batch_digests.noted(batches_of(root)) == batch_digests.noted(batches_of(alone))
                told["difference"] = max(told["difference"], difference(root, alone) if well else 1.0)
                told["hit"] = dict(sorted(hit.items()))
                well = well and told["difference"] < ROUNDING
            else:
                well = well and digest(root) == wanted
            told["pipelines"] += killed > 0 or not well
            told["identical"] += killed > 0 and well
            print(json.dumps(told), file=sys.stderr, flush=True)
            if well:
                shutil.rmtree(root)
    if not told["pipelines"]:
        return
    print(json.dumps({**told, "files": len(wanted)}))
    if told["identical"] < told["pipelines"] or told["orphans"]:
        sys.exit(1)


if __name__ == "__main__":
    main(
        **given(
            __doc__,
            pipelines="50",
            kills="1",
            together="8",
            jobs="2",
            seed="1",
            experiment="smoke",
            devices="1",
            launcher="local",
        )
    )
