"""Measure seconds and memory of every stage that reads, tokenises, encodes, searches and mines ever larger collections.

    python experiments/benchmarks/large_collection.py [passages=1000000,2000000] [queries=1000] [bm25=false] [folder=]

Each size is a run of ``run.py`` over a BEIR folder of that many passages of 8 to 16 words. The words are drawn by their
frequency from a vocabulary as large as that of a language. A larger collection begins with the smaller one. A WordPiece
tokenizer is trained on the collection. The encoder has one layer with hidden size 32, and is fine-tuned for one step.
``queries`` test queries are searched, and negatives are mined for the same number of train queries. ``bm25``: a second run
indexes the same collection with BM25, searches and mines. ``folder``: folder of all files during the run (500 bytes per
passage, 5 GB for 10 million); empty: the system's temporary folder. The program needs Linux. It prints a JSON line for each
run:

    passages, row           number of passages; encoder or bm25
    stages                  for each stage, s: wall seconds, cpu_s: of all threads and processes, peak_mb: see below
    s_per_million           wall seconds of the whole run per million passages, including its start
    cpu_s_per_million       the same in CPU-seconds, on which other work on the machine has less effect
    ratio, cpu_ratio        s_per_million and cpu_s_per_million, divided by those of the first size
    peak_mb                 the largest peak of a stage. A peak is the sum of the peaks of resident memory, mapped files
                            included, of the run and of all processes that it started, even if at different moments
    bytes_per_passage       difference of the peak from that of the first size, divided by the additional passages
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from sizes import given

RUN = Path(__file__).resolve().parents[2] / "run.py"
WORDS, BLOCK = 40_000, 20_000  # size of the vocabulary; number of passages drawn at a time
SETTINGS = (
    "data=beir backbone=tiny backbone.layers=1 backbone.hidden=32 backbone.heads=2 backbone.intermediate=64"
    " backbone.max_positions=64 backbone.initializer_range=0.2 trainer=cpu logger=csv jobs=1 stage.finetune.passage_length=64"
)
STAGES = (
    "corpus.stage=corpus tokenizer.stage=tokenizer tokens.stage=tokens"
    " encoder.stage=finetune encoder.init=backbone encoder.steps=1 encoder.epochs=null encoder.validate_every=0"
    " encoder.negatives_per_query=0 mined.stage=mine mined.retriever=encoder"
)
LEXICAL = "corpus.stage=corpus bm25.stage=bm25 mined.stage=mine mined.retriever=bm25"


def texts(passages: int) -> Iterator[list[str]]:
    """Yield blocks of passages of made-up words. A few words occur in most passages, and most words in few."""
    letters, random = np.array(list("etaoinshrdlucmfwyp")), np.random.default_rng(1)
    words = ["".join(random.choice(letters, random.integers(2, 11))) for _ in range(WORDS)]
    reach = np.cumsum(1.0 / np.arange(2, WORDS + 2))
    for first in range(0, passages, BLOCK):
        random = np.random.default_rng([2, first])
        ends = np.cumsum(random.integers(8, 17, BLOCK)).tolist()
        drawn = np.searchsorted(reach, random.random(ends[-1]) * reach[-1]).tolist()
        flat = [words[word] for word in drawn]
        block = [" ".join(flat[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
        yield block[: passages - first]


def write_collection(root: Path, passages: int, queries: int) -> None:
    """Write a BEIR folder. The queries are the first words of passages all over it; every second query is in train."""
    (root / "qrels").mkdir(parents=True)
    asked = np.linspace(0, passages - 1, 2 * queries, dtype=np.int64).tolist()
    wanted, number, found = dict.fromkeys(asked), 0, dict[int, str]()
    with open(root / "corpus.jsonl", "w", encoding="utf-8") as corpus:
        for block in texts(passages):
            rows = enumerate(block, number)
            corpus.writelines(f'{{"_id": "p{row}", "text": "{text}"}}\n' for row, text in rows)
            found |= {row: block[row - number] for row in range(number, number + len(block)) if row in wanted}
            number += len(block)
    with open(root / "queries.jsonl", "w", encoding="utf-8") as stream:
        stream.writelines(
            json.dumps({"_id": f"q{row}", "text": " ".join(text.split()[:5])}) + "\n" for row, text in found.items()
        )
    for part, split in enumerate(("train", "test")):
        lines = [f"q{row}\tp{row}\t1\n" for row in list(found)[part::2]]
        (root / "qrels" / f"{split}.tsv").write_text("".join(lines))


class Peaks:
    """The peaks of resident memory of a process and of those that it starts, between one mark and the next."""

    def __init__(self, leader: int) -> None:
        self.leader, self.helpers = leader, dict[int, int]()

    def look(self) -> None:
        """Note the memory of the running processes. Call this repeatedly, because ended processes cannot be read."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):
                number = int(process.name)
                if os.getpgid(number) == self.leader != number:
                    self.helpers[number] = max(self.helpers.get(number, 0), high_water(number))

    def mark(self) -> float:
        """Return the peak in MiB since the last mark."""
        with suppress(OSError):
            self.look()
            total = high_water(self.leader) + sum(self.helpers.values())
            Path(f"/proc/{self.leader}/clear_refs").write_text("5")  # resets the peak
            self.helpers.clear()
            return total / 1024
        return 0.0


def high_water(process: int) -> int:
    """Return the peak of a process's resident memory in KiB, 0 if it has ended."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def run(root: Path, output: Path, stages: str, row: str) -> dict[str, Any]:
    """Run a recipe on a folder. Return its seconds, and for each computed stage its seconds and its peak of memory."""
    arguments = [f"data.root={root}", f"output_root={output}", *SETTINGS.split()]
    recipe = [f"name={row}", f"table.rows.{row}={row}", *(f"stages.{setting}" for setting in stages.split())]
    command = [sys.executable, str(RUN), *arguments, *recipe]
    environment = {**os.environ, "CONDENSERY_CACHE": str(output / "cache"), "CONDENSERY_PROGRESS": "off"}
    start, before = time.monotonic(), cpu_seconds()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True, process_group=0)
    peaks, ended, found = Peaks(process.pid), threading.Event(), dict[str, float]()

    def watch() -> None:
        while not ended.wait(0.5):
            peaks.look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", file=sys.stderr)
            if line.startswith("[") and " done in " in line:
                found[line[1:].partition("]")[0]] = peaks.mark()
        if process.wait():
            sys.exit(f"error: the run ended with exit code {process.returncode}")
    finally:
        ended.set()
        watcher.join()
        if process.poll() is None:  # the benchmark was interrupted
            os.killpg(process.pid, signal.SIGKILL)
    (made,) = output.glob(f"runs/{row}-*/stages")
    told = {name: json.loads((made / name / "manifest.json").read_text()) for name in found}
    seconds = {"s": "wall_seconds", "cpu_s": "cpu_seconds"}
    stages_of_run = {
        name: {key: round(told[name][long], 1) for key, long in seconds.items()} | {"peak_mb": round(peak)}
        for name, peak in found.items()
    }
    return {"stages": stages_of_run, "s": time.monotonic() - start, "cpu_s": cpu_seconds() - before}


def cpu_seconds() -> float:
    """Return the CPU-seconds of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def figures(made: dict[str, Any], size: int, first_size: int, first: dict[str, Any] | None) -> dict[str, Any]:
    """Return the figures of a run; ``first`` has the figures of the first size."""
    said: dict[str, Any] = {"stages": made["stages"]}
    for ratio, key in (("ratio", "s"), ("cpu_ratio", "cpu_s")):
        said[f"{key}_per_million"] = round(1e6 / size * made[key], 1)
        said[ratio] = round(said[f"{key}_per_million"] / (first or said)[f"{key}_per_million"], 3)
    said["peak_mb"] = max(stage["peak_mb"] for stage in made["stages"].values())
    if first and size > first_size:
        said["bytes_per_passage"] = round((said["peak_mb"] - first["peak_mb"]) * 2**20 / (size - first_size))
    return said


def main(passages: str, queries: str, bm25: str, folder: str) -> None:
    """Run the benchmark and print its lines."""
    sizes = [int(size) for size in passages.split(",")]
    recipes = {"encoder": STAGES} | ({"bm25": LEXICAL} if bm25 == "true" else {})
    first: dict[str, dict[str, Any]] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=folder or None) as name:
            write_collection(Path(name) / "collection", size, int(queries))
            for row, recipe in recipes.items():
                made = run(Path(name) / "collection", Path(name) / "outputs", recipe, row)
                said = figures(made, size, sizes[0], first.get(row))
                first.setdefault(row, said)
                print(json.dumps({"passages": size, "row": row, **said}), flush=True)


if __name__ == "__main__":
    main(**given(__doc__, passages="1000000,2000000", queries="1000", bm25="false", folder=""))
