"""Measure in half an hour what needs a GPU: tests, speed, memory, and whether its results agree with those of the CPU.

    python experiments/gpu/report.py [device=cuda] [minutes=30] [again=false]

``make gpu-report`` runs this program. Each part is a command with a time limit. Its output, or its failure, is kept in
outputs/gpu-report/, and the part is not run again unless again=true. After each part, experiments/gpu/README.md is written.
With device=cpu, the same commands run on small shapes. This only tests the commands.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
BENCHMARKS = PROJECT / "experiments" / "benchmarks"
KEPT = PROJECT / "outputs" / "gpu-report"
NOT_A_GPU = """> This page was made with `device=cpu`, on small shapes, to try the command: its numbers say nothing of a GPU.
> Parts of it were run on an H100: [measured](../../docs/measured.md#on-a-gpu)."""
TOLERANCE = 0.02  # of a metric between two devices, because rounding changes single ranks


@dataclass(frozen=True)
class Part:
    """A command with its title and its time limit in minutes."""

    name: str
    title: str
    command: Sequence[str]
    minutes: float


def parts(device: str) -> list[Part]:
    """Return all parts of the report, the most informative first."""
    gpu = device != "cpu"
    step = [str(BENCHMARKS / "pretraining_step.py"), f"device={device}"]
    plan = [("A", "bf16"), ("C", "bf16"), ("B", "bf16"), ("A", "fp32")] if gpu else [("S", "fp32")]
    small = [] if gpu else ["together=true", "compile=false", "steps=1"]
    found = [
        Part(
            f"step-{shape}-{precision}",
            f"a step of pre-training, shape {shape}, {precision}",
            [*step, f"shape={shape}", f"precision={precision}", *small],
            4,
        )
        for shape, precision in plan
    ]
    encoding = [str(BENCHMARKS / "encoding.py"), f"device={device}"]
    for shape in ("A", "B") if gpu else ("S",):
        sizes = ["precision=bf16", "passages=50000"] if gpu else ["passages=100", "rounds=1"]
        found.append(Part(f"encoding-{shape}", f"encoding, shape {shape}", [*encoding, f"shape={shape}", *sizes], 3))
    sizes = (
        ["passages=1000000", "dim=768", "queries=2000"] if gpu else ["passages=2000", "dim=32", "queries=20", "k=10"]
    )
    search = [str(BENCHMARKS / "search.py"), f"device={device}", "rounds=2", *sizes]
    feed = [str(BENCHMARKS / "feed.py"), f"device={device}"]
    numbers = [str(HERE / "report.py"), f"device={device}", "part=numbers"]
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    found.append(Part("numbers", "a small recipe on both devices, in fp32", numbers, 6))
    found.append(Part("tests", "tests/gpu", tests, 8))
    found.append(Part("search", "exact search, and FAISS", search, 3))
    few = [] if gpu else ["batches=3", "kind=pairs", "chunk_tokens=2048"]
    found.append(Part("feed", "feeding batches", [*feed, *few], 3))
    return found


def run(part: Part, device: str, seconds: float) -> dict[str, Any]:
    """Run a part. Return what it printed as JSON, the end of its other output, and how it ended."""
    start = time.monotonic()
    environment = {**os.environ, "WANDB_MODE": "disabled", "CONDENSERY_PROGRESS": "off"}
    try:
        done = subprocess.run(
            [sys.executable, *part.command],
            cwd=PROJECT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=max(1.0, min(seconds, 60 * part.minutes if device != "cpu" else seconds)),
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        code, out, err = None, _text(late.stdout), _text(late.stderr)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    words = [line for line in [*out.splitlines(), *err.splitlines()] if line.strip() and not line.startswith("{")]
    about = {"exit_code": code, "seconds": round(time.monotonic() - start, 1), "lines": lines, "words": words[-30:]}
    return {"part": part.name, "device": device, **about}


def _text(found: Any) -> str:
    return found.decode(errors="replace") if isinstance(found, bytes) else found or ""


def numbers(device: str) -> None:
    """Run ``conf/experiment/agree.yaml`` in fp32 on the CPU and on ``device``; print both runs' metrics and their difference.

    If ``device`` is cpu, the second run has two threads.
    """
    other = ["trainer=gpu"] if device != "cpu" else ["trainer=cpu", "trainer.threads=2"]
    ways = {"cpu": ["trainer=cpu", "trainer.threads=1"], "other": other}
    common = ["--config-dir", str(HERE / "conf"), "experiment=agree", "trainer.precision=fp32"]
    found = {}
    for name, given in ways.items():
        root = KEPT / f"recipe-{device}-{name}"
        command = [sys.executable, "run.py", *common, *given, f"output_root={root}"]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
        (folder,) = (root / "runs").iterdir()
        rows = json.loads((folder / "results.json").read_text())
        found[name] = {metric: value for row in rows for metric, value in row["metrics"].items()}
    worst = max(abs(value - found["other"][metric]) for metric, value in found["cpu"].items())
    print(json.dumps({**found, "largest_difference": round(worst, 5), "agree": worst <= TOLERANCE}))
    if worst > TOLERANCE:
        sys.exit(f"the two differ by {worst:.3f}, more than {TOLERANCE}")


def page(device: str, found: dict[str, dict[str, Any]]) -> str:
    """Return the Markdown of all results so far."""
    every = parts(device)
    head = ["# On a GPU", ""]
    if device == "cpu":
        head += [NOT_A_GPU, ""]
    head += ["`make gpu-report` made this page; `make gpu-report device=cpu` tries the command without a GPU.", ""]
    head += [f"{_machine(device)}", "", "| part | ended | seconds |", "|---|---|--:|"]
    for part in every:
        one = found.get(part.name)
        head.append(f"| {part.title} | {_ended(one)} | {one['seconds'] if one else ''} |")
    for part in every:
        if one := found.get(part.name):
            head += ["", f"## {part.title[0].upper()}{part.title[1:]}", "", f"    python {_shell(part.command)}", ""]
            head += _table(one["lines"])
            if one["exit_code"] != 0 or not one["lines"]:
                head += ["```", *one["words"], "```"]
    return "\n".join(head) + "\n"


def _ended(one: dict[str, Any] | None) -> str:
    if one is None:
        return "not done"
    return {0: "well", 5: "nothing to test", None: "took too long"}.get(
        one["exit_code"], f"**exit code {one['exit_code']}**"
    )


def _shell(command: Sequence[str]) -> str:
    return " ".join(str(Path(word).relative_to(PROJECT)) if word.startswith("/") else word for word in command)


def _table(lines: list[dict[str, Any]]) -> list[str]:
    """Return a table: one column of values if there is one line of numbers, otherwise a row per line."""
    if len(lines) == 1:
        return ["| | |", "|---|--:|", *(f"| {key} | {value} |" for key, value in lines[0].items()), ""]
    if not lines:
        return []
    keys = list(lines[0])
    rows = ["| " + " | ".join(str(line.get(key, "")) for key in keys) + " |" for line in lines]
    return ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys), *rows, ""]


def _machine(device: str) -> str:
    import torch

    name = "a CPU" if device == "cpu" else torch.cuda.get_device_name()
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}."


def main(device: str = "cuda", minutes: str = "30", again: str = "false", part: str = "") -> None:
    """Run what is not done yet, and write the page."""
    if part == "numbers":
        numbers(device)
        return
    if device != "cpu":
        import torch

        if not torch.cuda.is_available():
            sys.exit("torch sees no GPU here; device=cpu tries the command on small shapes")
    KEPT.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * float(minutes)
    found: dict[str, dict[str, Any]] = {}
    for one in parts(device):
        kept = KEPT / f"{device}-{one.name}.json"
        if kept.exists() and again != "true":
            found[one.name] = json.loads(kept.read_text())
        elif until - time.monotonic() < 5:
            print(f"{one.title}: no time left; the same command goes on", flush=True)
            continue
        else:
            print(f"{one.title} ...", flush=True)
            found[one.name] = run(one, device, until - time.monotonic())
            if found[one.name]["exit_code"] is not None:  # a part that took too long is not kept, so it is run again
                kept.write_text(json.dumps(found[one.name], indent=1))
        print(f"{one.title}: {_ended(found[one.name])}", flush=True)
        (HERE / "README.md").write_text(page(device, found))
    print(HERE / "README.md", flush=True)
    if bad := [name for name, one in found.items() if one["exit_code"] not in (0, 5)]:
        sys.exit(f"not well: {', '.join(bad)}; the page says what they printed")


if __name__ == "__main__":
    try:
        options = dict(argument.split("=", 1) for argument in sys.argv[1:])
        if set(options) - {"device", "minutes", "again", "part"} or options.get("device", "cuda") not in (
            "cuda",
            "cpu",
        ):
            raise ValueError
    except ValueError:
        sys.exit("usage: report.py [device=cuda|cpu] [minutes=30] [again=false]")
    main(**options)
