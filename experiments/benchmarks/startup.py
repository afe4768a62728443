"""Measure how long ``run.py`` takes to print something: the shortest of several times of a whole process.

    python experiments/benchmarks/startup.py [recipe=quickstart] [rounds=5]

The program prints one JSON line with wall-clock seconds and CPU-seconds (``_cpu_s``). Other work on the machine changes
the CPU-seconds less than the wall-clock seconds:

    python_s    an interpreter that does nothing
    help_s      run.py --help
    cfg_s       run.py experiment=RECIPE --cfg job
    dry_run_s   run.py experiment=RECIPE dry_run=plan
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sizes import given

RUN = str(Path(__file__).resolve().parents[2] / "run.py")


def seconds(rounds: int, *command: str) -> tuple[float, float]:
    """Return the wall-clock seconds and the CPU-seconds of a command, each the best of several runs."""
    clock, processor = [], []
    for _ in range(rounds):
        before, start = _children(), time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        clock.append(time.perf_counter() - start)
        processor.append(_children() - before)
    return min(clock), min(processor)


def _children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def main(recipe: str, rounds: str) -> None:
    """Run the benchmark and print its line."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = [RUN, f"experiment={recipe}", f"output_root={folder}"]
        ways = {
            "python": ["-c", "pass"],
            "help": [RUN, "--help"],
            "cfg": [*chosen, "--cfg", "job"],
            "dry_run": [*chosen, "dry_run=plan"],
        }
        found: dict[str, float] = {}
        for name, command in ways.items():
            clock, processor = seconds(int(rounds), *command)
            found |= {f"{name}_s": round(clock, 2), f"{name}_cpu_s": round(processor, 2)}
        print(json.dumps(found))


if __name__ == "__main__":
    main(**given(__doc__, recipe="quickstart", rounds="5"))
