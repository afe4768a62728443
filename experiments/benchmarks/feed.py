"""Measure the cost of building batches in a worker, and of receiving them in the training process.

    python experiments/benchmarks/feed.py [kind=all] [chunk_tokens=2048,32768] [batches=20] [rate=500000] [device=cpu]

Kinds: spans (MLM, Condenser), pairs (coCondenser, two spans of each document), passage_query (query-as-context), triples
(fine-tuning). A batch has 2,000 spans, documents or passages, or 64 queries with 16 passages each. The texts are random
tokens, as long as those of MS MARCO. One worker of the loader makes the batches that the training process reads, as in a run.
The program prints a table:

    tokens, chunks     tokens and chunks of a batch
    made               millions of tokens that a worker puts into batches per second of its core
    worker, training   cores that worker and training need at ``rate`` tokens per second (BERT-base on an H200: about 500,000)

With device=cuda, the training process also copies the batches to the GPU, in pinned memory.
"""

import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from encoding import bert_vocabulary
from sizes import VOCABULARY, given
from torch.utils.data import DataLoader

from condensery.system.files import write_json
from condensery.tokens.spans import SentencePacked
from condensery.tokens.store import TokenStore
from condensery.tokens.text_reader import Readers, TextReader
from condensery.training.data.data_module import StepDataModule
from condensery.training.data.sources import PassageQueries, PassagesAndQueries, RowSource, SingleSpans, SpanPairs
from condensery.training.data.span_batches import SpanBatches
from condensery.training.data.steps import Batch, Batches
from condensery.training.data.training_queries import TrainingQueries
from condensery.training.data.triple_batches import TripleBatches

LENGTH, TEXTS, TICK = 128, 40_000, 100.0  # TICK: clock ticks per second in /proc, on Linux


def text_store(folder: Path, texts: int, low: int, high: int) -> TokenStore:
    """Return a store of texts of ``low`` to ``high`` random tokens in sentences of 15."""
    random = np.random.default_rng(1)
    starts = np.concatenate([[0], np.cumsum(random.integers(low, high, texts))]).astype(np.int64)
    sentences = np.unique(np.concatenate([starts[:-1], np.arange(0, starts[-1], 15)]))
    folder.mkdir()
    random.integers(1_000, VOCABULARY, starts[-1]).astype(np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "starts.npy", starts)
    np.save(folder / "sentences.npy", sentences)
    counts = {"texts": texts, "tokens": int(starts[-1]), "sentences": len(sentences), "documents": -1}
    write_json(folder / "store.json", {"dtype": "uint16", **counts})
    return TokenStore(folder)


def spans(store: TokenStore, pairs: bool, budget: int) -> Batches:
    """Return batches of single spans, or of two spans of each text."""
    packed = SentencePacked(store, LENGTH, 0.1, 1, 16)
    vocabulary = bert_vocabulary()
    source = SpanPairs(packed, vocabulary) if pairs else SingleSpans(packed, vocabulary)
    return span_batches(source, budget)


def span_batches(source: RowSource, budget: int) -> Batches:
    """Return batches of 2,000 items of ``source``, masked as in BERT."""
    return SpanBatches(
        source, bert_vocabulary(), batch_size=2000, mask_rate=0.15, whole_word=True, budget=budget, seed=1
    )


def passage_queries(passages: TokenStore, queries: TokenStore, budget: int) -> Batches:
    """Return batches of a passage and one of its five queries."""
    first = np.arange(len(passages) + 1) * (len(queries) // len(passages))
    asked = PassagesAndQueries(passages, None, queries, first)
    source = PassageQueries(asked, bert_vocabulary(), LENGTH, 32, 5, 1)
    return span_batches(source, budget)


def triples(passages: TokenStore, queries: TokenStore, budget: int) -> Batches:
    """Return batches of queries, each with a positive and 15 of 200 hard negatives."""
    random, number = np.random.default_rng(1), 10_000
    pool = random.integers(0, len(passages), (number, 200)).astype(np.int32)
    positives = random.integers(0, len(passages), number)
    training = TrainingQueries(np.arange(number), positives, np.arange(number + 1), pool)
    readers = Readers(TextReader(passages, bert_vocabulary(), LENGTH), TextReader(queries, bert_vocabulary(), 32))
    return TripleBatches(readers, training, batch_size=64, negatives=15, budget=budget, seed=1)


def worker_seconds() -> float:
    """Return the CPU-seconds of the loader's one worker since it was started."""
    (worker,) = multiprocessing.active_children()
    fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def fed(batches: Batches, number: int, device: torch.device) -> dict[str, float]:
    """Take ``number`` batches from a worker. Return the CPU-seconds per token of both processes, and a batch's mean size."""
    data = StepDataModule(batches, workers=1)
    data.epoch = number + 10  # steps in an epoch: more than the loader makes here
    made: DataLoader[Batch] = data.train_dataloader()
    made.pin_memory = device.type == "cuda"
    loader: Any = iter(made)  # Any: the base class of torch has no ``close``
    next(loader).to(device)  # now the worker has started
    before, here = worker_seconds(), time.process_time()
    tokens = chunks = 0
    for _ in range(number):
        batch = next(loader).to(device)
        tokens, chunks = tokens + batch.tokens, chunks + len(batch.chunks)
    here, there = time.process_time() - here, worker_seconds() - before
    loader.close()  # this also ends the worker
    for process in multiprocessing.active_children():
        process.join()
    return {"tokens": tokens / number, "chunks": chunks / number, "training": here / tokens, "worker": there / tokens}


def main(kind: str, chunk_tokens: str, batches: str, rate: str, device: str) -> None:
    """Run the benchmark; print its table, and each row as JSON."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = text_store(folder / "documents", TEXTS, 150, 700)
        passages = text_store(folder / "passages", TEXTS, 40, 120)
        queries = text_store(folder / "queries", 5 * TEXTS, 4, 12)
        kinds: dict[str, Callable[[int], Batches]] = {
            "spans": lambda budget: spans(documents, False, budget),
            "pairs": lambda budget: spans(documents, True, budget),
            "passage_query": lambda budget: passage_queries(passages, queries, budget),
            "triples": lambda budget: triples(passages, queries, budget),
        }
        if kind != "all" and kind not in kinds:
            sys.exit(f"kind={kind}: use all or one of {', '.join(kinds)}")
        head = f"{'kind':14}{'chunk':>7}{'tokens':>9}{'chunks':>8}{'made':>7}{'worker':>8}{'training':>10}"
        print(head, file=sys.stderr)
        for one in kinds if kind == "all" else [kind]:
            for budget in map(int, chunk_tokens.split(",")):
                found = fed(kinds[one](budget), int(batches), torch.device(device))
                cores = {name: float(rate) * found[name] for name in ("worker", "training")}
                row = f"{one:14}{budget:7}{found['tokens']:9,.0f}{found['chunks']:8.0f}{1e-6 / found['worker']:6.1f}M"
                print(f"{row}{cores['worker']:8.2f}{cores['training']:10.3f}", file=sys.stderr)
                about = {"kind": one, "chunk_tokens": budget, "tokens": round(found["tokens"])}
                about |= {"chunks": round(found["chunks"]), "made_per_cpu_s": round(1 / found["worker"])}
                print(json.dumps(about | {f"{name}_cores": round(value, 3) for name, value in cores.items()}))


if __name__ == "__main__":
    main(**given(__doc__, kind="all", chunk_tokens="2048,32768", batches="20", rate="500000", device="cpu"))
