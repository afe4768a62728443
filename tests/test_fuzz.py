"""The fuzzer finds nothing where nothing is wrong, and each kind of fault that is planted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "experiments" / "benchmarks"


def fuzz(findings: Path, *arguments: str, planted: str = "") -> tuple[int, dict[str, Any], str]:
    """Run the fuzzer behind a few lines of Python; its exit code, the line at its end, and all that it printed."""
    program = f"{planted}\nimport runpy\nrunpy.run_path({str(BENCHMARKS / 'fuzz.py')!r}, run_name='__main__')"
    command = [sys.executable, "-c", program, *arguments, f"findings={findings}"]
    environment = {**os.environ, "PYTHONPATH": f"{BENCHMARKS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout


def test_a_few_seconds_of_it_find_nothing(tmp_path: Path) -> None:
    kinds = ["beir", "tevatron", "sts", "sheet", "run.trec", "recipe", "table"]
    code, told, said = fuzz(tmp_path / "found", "cases=2", "seed=6", f"only={','.join(kinds)}")
    assert (code, told["findings"]) == (0, 0), said
    assert sorted(told["kinds"]) == sorted(kinds)
    assert min(told["kinds"].values()) >= 2


PLANTED = """
import resource, time
from condensery.errors import UserError
from condensery.text.formats import beir, qrels
read, objects = qrels.read_qrels, beir.read_objects
def planted(path, split, *others):
    if resource.getrlimit(resource.RLIMIT_AS)[0] > 0:  # not yet where the sound input is read
        {}
    return read(path, split, *others)
def by_their_size(path):
    for place, record in objects(path):
        if isinstance(record.get("text"), str):
            record["text"] += str(path.stat().st_size)
        yield place, record
"""
FAULTS = {
    "traceback": "raise KeyError(split)",
    "hang": "time.sleep(99)",
    "memory": "bytearray(300 << 20)",
    "outside": "open('/dev/full', 'w')",
    "poor line": "raise UserError('it is wrong')",
}


@pytest.mark.parametrize(
    "kind",
    [
        "traceback",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("silent", "hang", "memory", "outside", "poor line")),
    ],
)
def test_a_planted_fault_is_found_and_found_again(tmp_path: Path, kind: str) -> None:
    limits = ["only=beir", "seconds=2", "megabytes=150"]
    planted = PLANTED.format(FAULTS.get(kind, "pass"))
    planted += "beir.read_objects = by_their_size" if kind == "silent" else "qrels.read_qrels = planted"
    code, told, said = fuzz(tmp_path / "found", f"cases={60 if kind == 'silent' else 3}", *limits, planted=planted)
    assert code == 1, said
    assert kind in told["found"], said
    found = tmp_path / "found" / f"{kind.replace(' ', '-')}-beir"
    story = (found / "finding.txt").read_text()
    assert story.startswith(f"{kind}: beir, ")
    assert (found / "input" / "corpus.jsonl").exists() or "corpus.jsonl" in story
    if kind == "silent":  # the case that was found is tried first
        code, told, said = fuzz(tmp_path / "found", "cases=1", "seed=2", *limits, planted=planted)
        assert (code, told["found"]) == (1, {kind: 1}), said


def test_an_unknown_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="only=nix: the kinds are beir, "):
        fuzz(tmp_path, "only=nix")
