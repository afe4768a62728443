"""How long ``run.py`` takes to say anything: wall time of a whole process, the best of several.

    python experiments/benchmarks/startup.py [recipe=quickstart] [rounds=5]

Prints one JSON line of seconds:

    python_s    an interpreter that does nothing
    help_s      run.py --help
    cfg_s       run.py experiment=RECIPE --cfg job
    dry_run_s   run.py experiment=RECIPE dry_run=true
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sizes import given

RUN = str(Path(__file__).resolve().parents[2] / "run.py")


def seconds(rounds: int, *command: str) -> float:
    """Wall time of a command, the best of so many."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def main(recipe: str, rounds: str) -> None:
    """Run the benchmark and print its line."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = [RUN, f"experiment={recipe}", f"output_root={folder}"]
        ways = {
            "python_s": ["-c", "pass"],
            "help_s": [RUN, "--help"],
            "cfg_s": [*chosen, "--cfg", "job"],
            "dry_run_s": [*chosen, "dry_run=true"],
        }
        print(json.dumps({name: round(seconds(int(rounds), *command), 2) for name, command in ways.items()}))


if __name__ == "__main__":
    main(**given(__doc__, recipe="quickstart", rounds="5"))
