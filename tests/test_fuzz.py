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
    code, told, said = fuzz(tmp_path / "found", "cases=14", "seed=6", f"only={','.join(kinds)}")
    assert (code, told["cases"], told["findings"]) == (0, 14, 0), said
    assert sorted(told["kinds"]) == sorted(kinds)
    assert not (tmp_path / "found").exists()


PLANTED = """
import os, time
from condensery.errors import UserError
from condensery.text.formats import beir
read, objects = beir.read_qrels, beir.read_objects
def planted(path, split, *others):
    if os.path.exists("../stack.txt"):  # not yet where the sound input is read
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
        "silent",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("hang", "memory", "outside", "poor line")),
    ],
)
def test_a_planted_fault_is_found_and_replayed(tmp_path: Path, kind: str) -> None:
    limits = ["only=beir", "seconds=2", "megabytes=150"]
    planted = PLANTED.format(FAULTS.get(kind, "pass"))
    planted += "beir.read_objects = by_their_size" if kind == "silent" else "beir.read_qrels = planted"
    code, told, said = fuzz(tmp_path / "found", f"cases={60 if kind == 'silent' else 3}", *limits, planted=planted)
    assert code == 1, said
    assert kind in told["found"], said
    found = next((tmp_path / "found").glob(f"{kind.replace(' ', '-')}-*"))
    assert (found / "finding.txt").read_text().startswith(f"{kind}: case=")
    assert (found / "input" / "queries.jsonl").exists() or "queries.jsonl" in (found / "finding.txt").read_text()
    if kind == "traceback":
        number = found.name.rpartition("-")[2]
        code, told, said = fuzz(tmp_path / "again", f"case={number}", *limits, planted=planted)
        assert (code, told["found"]) == (1, {kind: 1}), said
        story = (tmp_path / "again" / found.name / "finding.txt").read_text()
        assert story.splitlines()[0] == (found / "finding.txt").read_text().splitlines()[0]


def test_an_unknown_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="only=nix: the kinds are beir, "):
        fuzz(tmp_path, "only=nix")
