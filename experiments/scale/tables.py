"""Make the tables of README.md from costs.json: the cost of each step by size, and the plan for large collections.

    python experiments/scale/tables.py [dollars=3.00] [core_dollars=0.05] [gpus=8] [cores=16] [disk=2e9] [queries=500000]

``dollars``: price of a GPU per hour. ``core_dollars``: price of a CPU core per hour. ``gpus``: number of GPUs of the cluster.
``cores``: number of CPU cores that are rented with each GPU. ``disk``: bytes that a disk reads per second. ``queries``:
number of train queries. Negatives are mined for them, and the retriever is fine-tuned on them for three epochs.

The rates of training and encoding are those of an H100 in docs/measured.md ("On a GPU"), in operations per second. So a text
of any length costs its number of operations divided by the rate. A ~ marks figures for which no rate was measured.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from arguments import given

from condensery.models.flops import EncoderSize, Step
from condensery.text.formats.dpr import PUBLISHED as DPR
from condensery.text.formats.msmarco import PUBLISHED as MSMARCO

FILE = Path(__file__).with_name("costs.json")
BERT, DIM, CHUNK = EncoderSize(12, 768, 3_072, 12, 30_522), 768, 16_384
SPAN, QUESTION = 84.0, 15.0  # mean tokens of a passage and of a query in the measurements below
WORD = 12.0  # mean words of a passage of large_collection.py
HOUR, GIB = 3_600.0, 2.0**30
# Measured on an H100 (docs/measured.md): seconds of a pre-training step with 1,024 spans; seconds of a fine-tuning step
# with 256 queries and 512 passages through the gradient cache; tokens encoded per second
PRETRAINING_STEP, FINETUNING_STEP, ENCODED = 1_024 * SPAN / 194_000, 0.202, 417_000
# Measured on CPUs (docs/measured.md): operations per second of a thread of a Xeon; bytes of memory for each word
# of text in BM25's index of ten million passages
THREAD, BM25_MEMORY = 145e9, 4.0e9 / (1e7 * WORD)
FP32 = 20e12  # assumed, not measured: operations per second of an H100 in exact search


@dataclass(frozen=True)
class Collection:
    """The data about a collection that the plan needs.

    Attributes:
        name: name of the collection.
        passages: number of passages.
        tokens: mean tokens of a passage.
        lists: number of inverted lists of the approximate index.
    """

    name: str
    passages: float
    tokens: float
    lists: float


COLLECTIONS = [
    Collection("MS MARCO", MSMARCO.passages or 0, MSMARCO.passage_tokens or 0, 16_384),
    Collection("Wikipedia", DPR["nq"].passages or 0, DPR["nq"].passage_tokens or 0, 32_768),
    Collection("ClueWeb22-B", 87e6, 128, 65_536),  # the first 128 tokens of each document
]


def exponent(cost: dict[float, float]) -> float:
    """Return b of the power law cost = a size^b, fitted to the costs by least squares of the logarithms."""
    return float(np.polyfit(np.log(list(cost)), np.log(list(cost.values())), 1)[0])


def slope(cost: dict[float, float]) -> tuple[float, float]:
    """Return the cost of one more unit and the cost at size 0, from the line with the least squared relative errors."""
    sizes, values = (np.array(list(column), float) for column in (cost.keys(), cost.values()))
    columns = np.stack([sizes, np.ones(len(sizes))], axis=1) / values[:, None]
    found, *_ = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)
    return float(found[0]), float(found[1])


def line(*cells: str) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def short(number: float) -> str:
    """Return a number with two or three digits, or with commas."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2g}"


def by_size(costs: dict[str, dict[float, float]], unit: str) -> list[str]:
    """Return a table of CPU-seconds by size. All its rows have the same sizes."""
    sizes = list(next(iter(costs.values())))
    lines = [line(unit, *(f"{size:,.0f}" for size in sizes), "exponent", "without the fixed part", "fixed, CPU-s")]
    lines.append(line("---", *["--:"] * (len(sizes) + 3)))
    for name, cost in costs.items():
        fixed = slope(cost)[1]
        fixed = 0.0 if fixed < 0.01 * min(cost.values()) else fixed
        rest = {size: seconds - fixed for size, seconds in cost.items()}
        cleared = f"{exponent(rest):.2f}" if min(rest.values()) > 0 else "-"
        lines.append(line(name, *map(short, cost.values()), f"{exponent(cost):.2f}", cleared, short(fixed)))
    return [*lines, ""]


@dataclass(frozen=True)
class Part:
    """One part of a plan.

    Attributes:
        name: name of the part.
        gpu: seconds of one GPU.
        cores: CPU-seconds of work that all cores share.
        core: CPU-seconds of work that only one core can do.
        guessed: whether no rate was measured for it.
    """

    name: str
    gpu: float = 0.0
    cores: float = 0.0
    core: float = 0.0
    guessed: bool = False

    def hours(self, gpus: float, cores: float) -> float:
        """Return the hours on ``gpus`` GPUs and ``cores`` cores, which work one after the other."""
        return (self.gpu / gpus + self.cores / cores + self.core) / HOUR


def plan(one: Collection, costs: dict[float, dict[str, dict[str, float]]], disk: float, queries: float) -> list[Part]:
    """Return the parts of a plan for a collection, in order."""
    largest = max(costs)
    step = costs[largest]
    of_step = {name: {size: cost[name]["cpu_s"] for size, cost in costs.items()} for name in step}
    each = {name: max(slope(cost)[0], 0.0) for name, cost in of_step.items()}  # CPU-seconds of one more passage
    longer = one.tokens / (step["tokenise"]["tokens"] / largest)

    def rate(step: Step, seconds: float) -> float:
        return step.flops / seconds

    def spans(rows: float, length: float) -> Step:
        return Step(BERT, rows, length, CHUNK, 2, 0.15, 2, contrast=True, precision="bf16")

    def read(rows: float, length: float, trained: bool) -> Step:
        return Step(BERT, rows, length, CHUNK, contrast=trained, trained=trained, precision="bf16")

    pretrained = spans(1_024, min(one.tokens, 128)).flops / rate(spans(1_024, SPAN), PRETRAINING_STEP)
    measured = read(256, QUESTION, True).flops + read(512, SPAN, True).flops
    finetuned = read(3 * queries, QUESTION, True).flops + read(8 * 3 * queries, one.tokens, True).flops
    encoded = read(one.passages, one.tokens, False).flops / rate(read(1, SPAN, False), SPAN / ENCODED)
    vectors = 2 * DIM * one.passages  # bytes of all vectors, and half of the operations of a query
    return [
        Part("read", core=each["read"] * longer * one.passages),
        Part("tokenise", cores=each["tokenise"] * longer * one.passages),
        Part("pre-train for an epoch of passages", gpu=pretrained * one.passages / 1_024),
        Part("fine-tune", gpu=finetuned / (measured / FINETUNING_STEP)),
        Part("encode", gpu=encoded),
        Part("index with BM25", core=each["index with BM25"] * longer * one.passages),
        Part("search 6,980 queries exactly", gpu=6_980 * vectors / FP32, core=vectors / disk, guessed=True),
        Part("mine", gpu=queries * vectors / FP32, core=queries / 16_384 * vectors / disk, guessed=True),
        Part("index with ann_index, PQ64", cores=2 * DIM * one.lists * one.passages / THREAD, guessed=True),
    ]


def space(one: Collection, costs: dict[float, dict[str, dict[str, float]]]) -> dict[str, float]:
    """Return bytes on disk and in memory."""
    step = costs[max(costs)]
    token = step["tokenise"]["bytes"] / step["tokenise"]["tokens"]
    text = step["read"]["bytes"] / step["tokenise"]["tokens"]
    words = one.passages * one.tokens / (step["tokenise"]["tokens"] / max(costs)) * WORD
    lists = one.passages * (64 + 8)
    return {
        "disk: collection": one.passages * one.tokens * text,
        "disk: tokens": one.passages * one.tokens * token,
        "disk: vectors, float16": 2 * DIM * one.passages,
        "disk: ann_index, PQ64, while it is built": 2 * lists,
        "memory: exact search, any size": 2 * GIB,
        "memory: BM25 while it is indexed": BM25_MEMORY * words,
        "memory: IVF,Flat": (4 * DIM + 8) * one.passages,
        "memory: IVF,PQ64": lists + 4 * DIM * one.lists,
        "memory: the same with on_disk": 2 * GIB + 4 * DIM * one.lists,
    }


def main(dollars: str, core_dollars: str, gpus: str, cores: str, disk: str, queries: str) -> None:
    """Print the tables."""
    told = json.loads(FILE.read_text())
    costs = {float(size): cost for size, cost in told["collections"].items()}
    steps = {name: {size: cost[name]["cpu_s"] for size, cost in costs.items()} for name in costs[max(costs)]}
    print("\n".join(by_size(steps, "CPU-seconds by passages")))
    for name, cost in told["training"].items():
        kind, _, size = name.partition(" by ")
        print("\n".join(by_size({kind: {float(n): seconds for n, seconds in cost.items()}}, f"CPU-seconds by {size}")))
    plans = [plan(one, costs, float(disk), float(queries)) for one in COLLECTIONS]
    names = [f"{one.name}, {one.passages / 1e6:.1f} M" for one in COLLECTIONS]
    for number in (1, int(gpus)):
        machine = "hours on one GPU" if number == 1 else f"hours on {number} GPUs"
        print(line(machine, *names), line("---", *["--:"] * len(names)), sep="\n")
        total = np.zeros(len(plans))
        for parts in zip(*plans, strict=True):
            hours = [part.hours(number, number * float(cores)) for part in parts]
            total += hours
            print(line(parts[0].name, *(("~" if parts[0].guessed else "") + short(one) for one in hours)))
        paid = total * number * (float(dollars) + float(cores) * float(core_dollars))
        print(line("together", *map(short, total)))
        print(line("dollars, all machines for all hours", *map(short, paid)), end="\n\n")
    spaces = [space(one, costs) for one in COLLECTIONS]
    print(line("GiB", *names), line("---", *["--:"] * len(names)), sep="\n")
    for name in spaces[0]:
        print(line(name, *(short(one[name] / GIB) for one in spaces)))


if __name__ == "__main__":
    prices = {"dollars": "3.00", "core_dollars": "0.05", "gpus": "8", "cores": "16", "disk": "2e9", "queries": "500000"}
    main(**given(__doc__, **prices))
