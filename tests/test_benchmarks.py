"""The benchmarks run, in small: what they measure is not tested here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from small import some_text, write_beir


def lines_of(project: Path, name: str, *arguments: str) -> list[dict[str, float]]:
    """The JSON lines that a benchmark prints."""
    command = [sys.executable, str(project / "experiments" / "benchmarks" / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("pairs", ["folder", "synthetic"])
def test_batches_of_search_are_harder_than_random_ones(project: Path, tmp_path: Path, pairs: str) -> None:
    source = f"root={write_beir(tmp_path, some_text())}" if pairs == "folder" else "synthetic=300"
    random, greedy, beam = lines_of(project, "batch_scheduling", source, "batch=8")
    assert random["pairs"] == greedy["pairs"] == beam["pairs"] > 20
    assert min(greedy["hardness"], beam["hardness"]) > random["hardness"]
