"""Kill a small pipeline at random moments, start it again each time, and compare its end with that of a run left alone.

    python experiments/benchmarks/endurance.py [kills=50] [jobs=2] [seed=1] [experiment=smoke]

A third of the kills each by SIGKILL, SIGTERM and SIGINT (Ctrl-C), to the main process alone; half of them anywhere, half
soon after a training has written a checkpoint. A pipeline that ends before all kills are done is compared and begun
anew. Everything that the artifacts hold is compared, but for manifests and curves, which tell of time. Prints one JSON line:

    kills, resumed       kills; how many of them left a checkpoint to go on from
    pipelines            how many came to their end
    identical            how many of them have the bits of the run left alone
    orphans              processes that outlived a kill by ten seconds
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sizes import given

RUN = Path(__file__).resolve().parents[2] / "run.py"
MARK = "CONDENSERY_ENDURANCE"  # environment variable that all processes of a run inherit
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TIMED = {"manifest.json", "metrics.csv"}


def start(root: Path, experiment: str, jobs: int) -> "subprocess.Popen[bytes]":
    """Begin a run, or go on with it."""
    often = [
        f"stage.{kind}.checkpoint_every=3"
        for kind in ("pretrain_mlm", "pretrain_condenser", "pretrain_cocondenser", "finetune")
    ]
    command = [sys.executable, str(RUN), f"experiment={experiment}", f"output_root={root}", f"jobs={jobs}", *often]
    environment = {**os.environ, MARK: str(root), "WANDB_MODE": "disabled"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)


def alive(root: Path) -> int:
    """How many processes of the run there are."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            found += state != "Z" and f"{MARK}={root}".encode() in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
    return found


def checkpoints(root: Path) -> set[Path]:
    """From which an interrupted training would go on."""
    return set(root.glob("artifacts/*/*.partial/checkpoints/step=*.ckpt"))


def digest(root: Path) -> dict[str, str]:
    """The content of all artifacts, and of the results."""
    files = [*root.glob("artifacts/**/*"), *root.glob("runs/*/results.json")]
    return {
        str(path.relative_to(root)): hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in files
        if path.is_file() and path.name not in TIMED and ".lock" not in path.name
    }


def wait_for_the_moment(process: "subprocess.Popen[bytes]", root: Path, draw: random.Random) -> None:
    """Sleep until a random moment, or until the process has ended."""
    begun, known = time.monotonic(), checkpoints(root)
    anywhere, longest = draw.random() < 0.5, draw.uniform(0.2, 8)
    while process.poll() is None and time.monotonic() - begun < (longest if anywhere else 30):
        if not anywhere and checkpoints(root) - known:
            time.sleep(draw.uniform(0, 0.1))
            return
        time.sleep(0.005)


def main(kills: str, jobs: str, seed: str, experiment: str) -> None:
    """Run the benchmark and print its line."""
    draw, done, resumed, ended, orphans = random.Random(int(seed)), 0, 0, [], 0
    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder) / "alone"
        if start(alone, experiment, int(jobs)).wait():
            sys.exit(f"error: {experiment} does not run")
        wanted = digest(alone)
        while done < int(kills):
            root = Path(folder) / f"killed{len(ended)}"
            process = start(root, experiment, int(jobs))
            while done < int(kills):
                wait_for_the_moment(process, root, draw)
                if process.poll() is not None:
                    break
                process.send_signal(SIGNALS[done % 3])
                process.wait()
                patience = time.monotonic() + 10
                while alive(root) and time.monotonic() < patience:
                    time.sleep(0.05)
                orphans += alive(root)
                done, resumed = done + 1, resumed + bool(checkpoints(root))
                print(f"{done} kills, {len(ended)} pipelines ended", file=sys.stderr)
                process = start(root, experiment, int(jobs))
            failed = process.wait()
            ended.append(not failed and digest(root) == wanted)
    result = {"kills": done, "resumed": resumed, "pipelines": len(ended), "identical": sum(ended), "orphans": orphans}
    print(json.dumps({**result, "files": len(wanted)}))
    if sum(ended) < len(ended) or orphans:
        sys.exit(1)


if __name__ == "__main__":
    main(**given(__doc__, kills="50", jobs="2", seed="1", experiment="smoke"))
