"""Measure the cost of each step by size. Write costs.json in this folder, from which ``tables.py`` makes tables.

    python experiments/scale/cost.py [passages=10000,30000,100000] [rounds=2] [steps=8] [file=] [folder=]

The collections are those of ``benchmarks/large_collection.py``: passages of 8 to 16 made-up words, from their files to
mined negatives. The encoder has one layer with hidden size 32. 200 queries are searched, and negatives are mined for another
200. Each step calls the functions that the stage of a recipe calls. Steps of training are those of
``benchmarks/pretraining_step.py`` and ``finetuning_step.py``, with 2 layers and hidden size 64 (shape S). They are measured
by batch size, number of tokens, and vocabulary size. ``rounds``: repetitions of each step of a collection. ``steps``:
repetitions of each step of training. The minimum of the CPU-seconds is used, because other work on the machine can only
increase them. A tenth of the first size is run before all others and not counted, because it includes the imports. ``file``:
file that is written in place of costs.json. ``folder``: folder of temporary files. The program uses one thread.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import finetuning_step
import large_collection
import pretraining_step
from sizes import SHAPES, Shape, cpu_seconds, given, language_model

from condensery.losses.gradient_cache import backpropagate
from condensery.models.biencoder import BiEncoder
from condensery.models.encoder import Encoder
from condensery.models.precision import inference
from condensery.retrieval.indexes.ann import ApproximateIndex, build_approximate, write_approximate
from condensery.retrieval.indexes.bm25 import BM25Index, build_bm25
from condensery.retrieval.indexes.dense import DenseIndex
from condensery.retrieval.indexes.encoding import EncoderInput, Encoding, write_dense_index
from condensery.retrieval.mining import mine
from condensery.system import memory_growth
from condensery.text.collection import Collection
from condensery.text.formats.beir import BeirSource
from condensery.text.formats.beir import read as read_beir
from condensery.text.source import Splits
from condensery.text.writer import CollectionWriter
from condensery.tokens.artifacts import Tokens, tokenise_collection
from condensery.tokens.text_reader import TextReader
from condensery.tokens.tokenizer import train_wordpiece

FILE = Path(__file__).with_name("costs.json")
SHAPE = replace(SHAPES["S"], spans=32)
LENGTH, WORDS, QUERIES, DEPTH = 64, 8_000, 200, 100
TINY = Shape(1, 32, 2, 0, 0)
BATCHES, LENGTHS, VOCABULARIES = (16, 32, 64, 128), (16, 32, 64, 128), (4_000, 8_000, 16_000, 32_000)


def collection(size: int, rounds: int, folder: str) -> dict[str, dict[str, float]]:
    """Return the cost of each step on a collection of ``size`` passages: CPU-seconds, and the bytes that it wrote."""
    costs: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(dir=folder or None) as name:
        root, made = Path(name), Path(name) / "made"
        large_collection.write_collection(root / "beir", size, QUERIES)
        source = BeirSource(
            name="made up",
            root=str(root / "beir"),
            splits=Splits(train="train", dev=None, test="test"),
            documents=None,
            empty_passages="error",
            dev_queries=0,
            unlabelled_queries=0,
        )

        def step(name: str, work: Callable[[Path], object]) -> Path:
            target = made / name.replace(" ", "_")

            def anew() -> None:
                shutil.rmtree(target, ignore_errors=True)
                target.mkdir(parents=True)
                work(target)

            seconds = min(cpu_seconds(anew) for _ in range(rounds))
            size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
            costs[name] = {"cpu_s": round(seconds, 4), "bytes": size}
            return target

        def read(target: Path) -> None:
            with CollectionWriter(target, "made up") as writer:
                read_beir(source, writer)

        corpus = Collection(step("read", read))
        texts = corpus.passages.column("text")
        words = step("train a tokenizer", lambda target: train_wordpiece(texts, WORDS, target, warn=False))
        tokens = Tokens(step("tokenise", lambda target: tokenise_collection(corpus, words, target, titles=False)))
        costs["tokenise"]["tokens"] = tokens.passages.token_count
        model = BiEncoder(Encoder(language_model(TINY, 0.0, "eager", WORDS).base_model)).eval()

        def encode(target: Path) -> None:
            encoding = Encoding(target, shard_size=20_000, budget=4_096)
            with inference(torch.device("cpu"), "fp32"):
                for encoded, store in ((encoding.queries, tokens.queries), (encoding.passages, tokens.passages)):
                    encoded(model.vectors, EncoderInput(TextReader(store, tokens.vocabulary, LENGTH)))
            write_dense_index(target)

        vectors = step("encode", encode)
        lexical = step("index with BM25", lambda target: build_bm25(corpus, target, 0.9, 0.4))
        exact = DenseIndex(vectors, device="cpu")

        def near(target: Path) -> None:
            build_approximate(exact, target, "IVF64,Flat", 5_000, on_disk=True)
            write_approximate(target, exact, "encode/x", {"nprobe": 4, "ef_search": 64}, 1)

        approximate = ApproximateIndex(step("index with ann_index", near), exact)
        bm25, rows = BM25Index(lexical, corpus), corpus.questions("test")
        for name, index in (("exactly", exact), ("with BM25", bm25), ("with ann_index", approximate)):
            step(f"search {name}", partial(lambda index, target: index.search(rows, DEPTH), index))
        step("mine exactly", lambda target: mine(exact, corpus, "train", DEPTH, target))
    return costs


def least(step: Callable[[], object], steps: int) -> float:
    """Return the CPU-seconds of a step: the minimum of ``steps`` repetitions, after one step that is not counted."""
    step()
    return min(cpu_seconds(step) for _ in range(steps))


def pretraining(shape: Shape, length: int, words: int, steps: int) -> float:
    """Return the CPU-seconds of a coCondenser step with spans of half of ``length`` to ``length`` tokens."""
    model = pretraining_step.make_model(shape, 0.1, "eager", words)
    batch = pretraining_step.make_batch(shape, lengths=(length // 2, length), words=words)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        pretraining_step.our_gradients(model, batch, shape, "fp32")
        optimiser.step()
        optimiser.zero_grad()

    return least(step, steps)


def finetuning(queries: int, steps: int) -> float:
    """Return the CPU-seconds of a fine-tuning step with a positive and a hard negative per query, in chunks of 16 queries."""
    model = BiEncoder(Encoder(language_model(SHAPE, 0.1, "eager", WORDS).base_model)).train()
    parts = finetuning_step.batch(queries, max(1, queries // 16), WORDS)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        backpropagate(model, parts, lambda vectors: finetuning_step.contrast(queries, vectors))
        optimiser.step()
        optimiser.zero_grad()

    return least(step, steps)


def training(steps: int) -> dict[str, dict[int, float]]:
    """Return the CPU-seconds of training steps, by the varied quantity and its size."""
    batches = {spans: pretraining(replace(SHAPE, spans=spans), LENGTH, WORDS, steps) for spans in BATCHES}
    return {
        "pre-training step by spans": batches,
        "pre-training step by tokens of a span": {n: pretraining(SHAPE, n, WORDS, steps) for n in LENGTHS},
        "pre-training step by vocabulary": {n: pretraining(SHAPE, LENGTH, n, steps) for n in VOCABULARIES},
        "fine-tuning step by queries": {n: finetuning(n, steps) for n in BATCHES},
    }


def main(passages: str, rounds: str, steps: str, file: str, folder: str) -> None:
    """Measure, and write the results after each size."""
    torch.set_num_threads(1)
    sizes = [int(size) for size in passages.split(",")]
    collection(max(100, min(sizes) // 10), 1, folder)  # not counted: it includes imports and memory allocated once
    told: dict[str, dict[str, Any]] = {"training": training(int(steps)), "collections": {}}
    for size in sizes:
        told["collections"][str(size)] = collection(size, int(rounds), folder)
        Path(file or FILE).write_text(json.dumps({**told, "queries": QUERIES, "depth": DEPTH}, indent=1) + "\n")
    print(file or FILE)


if __name__ == "__main__":
    memory_growth.keep_flat()  # as the stages that train do
    main(**given(__doc__, passages="10000,30000,100000", rounds="2", steps="8", file="", folder=""))
