"""Compare encoding as the stage `encode` does it with the backbone alone, on the same tokens in the same run.

    python experiments/benchmarks/encoding.py [shape=B] [precision=fp32] [passages=2000] [rounds=5] [threads=1] \
        [device=cpu] [chunk_tokens=8192] [checkpoint=MODEL collection=DIR]

Shape A is BERT-base. Shape B has 4 layers with hidden size 256, and shape S 2 layers with hidden size 64. Passages have 20 to
126 tokens. A chunk has at most ``chunk_tokens`` tokens, padding included. The stage reads the token store, makes chunks,
encodes them, and writes the shards of vectors. The backbone gets finished chunks and runs transformers' layers with fused
attention. Its CLS states are discarded. The program prints one JSON line:

    tokens_per_cpu_s, backbone_tokens_per_cpu_s    tokens without padding
    ratio                                          the first divided by the second
    difference                                     largest difference of any number of any vector, over the largest number

``checkpoint`` is a folder or a name on the hub. It compares ``Retriever.encode_passages`` with sentence-transformers'
``encode_document``, both with their defaults, on the passages of a folder in any layout that is read. ``precision`` is then
the precision of ``Retriever``, by default auto. Each of the two has its own process. The processes run alternately, and the
best time of ``rounds`` is reported. The program prints one JSON line for whole passages, and one for their first 40
words:

    tokens                         mean tokens of a text as the model truncates it, special tokens included
    sentence_transformers          texts per CPU-second, in fp32
    fp32, ratio                    ``Retriever`` in fp32, and this number divided by that of sentence_transformers
    PRECISION, PRECISION_ratio     ``Retriever`` in its default precision, if that is not fp32
    share                          useful operations per second, over the rate of large matrix products (``Retriever``, fp32)
    profile                        shares of the wall-clock time (``Retriever``, fp32); other work on the machine disturbs it
    difference                     largest difference of any number of any vector (``Retriever``, fp32)
    agreement                      share of the ten nearest passages of each text in fp32 that are among its ten in PRECISION

With device=cuda, a time ends when the GPU has finished the work.
"""

import json
import random
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sizes import SHAPES, VOCABULARY, given, in_turn, language_model, matmul_rate, mixed, seconds
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from condensery import Retriever
from condensery.models.encoder import Encoder
from condensery.models.precision import precision_on
from condensery.retrieval.indexes.dense import shard_path
from condensery.retrieval.indexes.encoding import EncoderInput, Encoding
from condensery.system.files import write_json
from condensery.text.to_collection import collection_of
from condensery.tokens.batches import Chunk
from condensery.tokens.store import TokenStore
from condensery.tokens.text_reader import TextReader
from condensery.tokens.vocabulary import Vocabulary

LENGTH, SHARD = 128, 1_000
WORDS = 40  # number of words of a short text
THEIRS = "sentence_transformers"
PROFILE = {"products": "mm", "attention": "attention", "gelu": "gelu", "norms": "norm", "copies and sums": ""}


def random_store(folder: Path, texts: int) -> TokenStore:
    """Return a store of texts of 18 to 126 random tokens."""
    random = np.random.default_rng(1)
    starts = np.concatenate([[0], np.cumsum(random.integers(18, LENGTH - 1, texts))]).astype(np.int64)
    folder.mkdir()
    random.integers(1_000, VOCABULARY, starts[-1]).astype(np.uint16).tofile(folder / "tokens.bin")
    np.save(folder / "starts.npy", starts)
    counts = {"texts": texts, "tokens": int(starts[-1]), "sentences": -1, "documents": -1}
    write_json(folder / "store.json", {"dtype": "uint16", **counts})
    return TokenStore(folder)


def bert_vocabulary() -> Vocabulary:
    """Return a vocabulary with the ids of BERT's special tokens."""
    special = np.array([0, 100, 101, 102, 103])
    return Vocabulary(VOCABULARY, 0, 101, 102, 103, 100, special, np.zeros(VOCABULARY, np.uint8))


def texts_of(collection: str, number: int) -> dict[str, list[str]]:
    """Return passages of a folder with their titles, in two kinds: whole, and cut to their first words."""
    passages = collection_of(Path(collection)).passages
    whole = passages.full_texts(random.Random(1).sample(range(len(passages)), min(number, len(passages))))
    return {"long": whole, "short": [" ".join(text.split()[:WORDS]) for text in whole]}


def work(way: str, checkpoint: str, folder: Path, threads: str, device: str) -> None:
    """Encode in this process as ``way``, whenever a line of the input asks for it; answer with a JSON line."""
    torch.set_num_threads(int(threads))
    texts, retriever = json.loads((folder / "texts.json").read_text()), None
    if way == THEIRS:
        from sentence_transformers import SentenceTransformer

        encode: Any = SentenceTransformer(checkpoint, device=device).encode_document
    else:
        retriever = Retriever(checkpoint, device=device, precision=way)  # type: ignore[arg-type]
        encode = retriever.encode_passages
    for kind in texts:
        np.save(folder / f"{way}_{kind}.npy", encode(texts[kind]))  # this first call also warms up
    print(json.dumps(about(retriever, texts, device) if retriever is not None and way == "fp32" else {}), flush=True)
    for kind in map(str.strip, sys.stdin):
        print(seconds(partial(encode, texts[kind]), device), flush=True)


def about(retriever: Retriever, texts: dict[str, list[str]], device: str) -> dict[str, Any]:
    """Return for each kind of texts the tokens, the seconds at the rate of matrix products, and the profile."""
    found: dict[str, Any] = {}
    config, rate = retriever.model.passage.model.config, matmul_rate("fp32", device)
    d, inner = config.hidden_size, getattr(config, "intermediate_size", 4 * config.hidden_size)
    for kind, own in texts.items():
        ids = retriever._tokenizer(own, truncation=True, max_length=retriever.passage_length)["input_ids"]
        lengths = np.array(list(map(len, ids)))
        operations = 2 * (4 * d * d + 2 * d * inner) * lengths.sum() + 4 * d * np.square(lengths).sum()
        least = float(config.num_hidden_layers * operations / rate)
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            retriever.encode_passages(own[: max(1, len(own) // 4)])
        shares: dict[str, float] = dict.fromkeys(PROFILE, 0.0)
        for event in profiled.key_averages():
            name = next(name for name, part in PROFILE.items() if part in event.key)
            shares[name] += event.self_cpu_time_total
        whole = sum(shares.values())
        shown = {name: round(time / whole, 2) for name, time in shares.items()}
        found[kind] = {"tokens": round(float(lengths.mean()), 1), "least": least, "profile": shown}
    return found


def compare(checkpoint: str, collection: str, precision: str, passages: str, rounds: str, *how: str) -> None:
    """Compare with sentence-transformers, and print a line for each kind of texts."""
    texts, own = texts_of(collection, int(passages)), precision_on(how[1], precision)
    ways = [THEIRS, *dict.fromkeys(["fp32", own])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "texts.json").write_text(json.dumps(texts))
        command = [sys.executable, __file__, "process"]
        processes = {
            way: subprocess.Popen(
                [*command, way, checkpoint, name, *how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for way in ways
        }
        known = {way: json.loads(answer(process)) for way, process in processes.items()}["fp32"]
        for kind, given_texts in texts.items():
            best = dict.fromkeys(ways, float("inf"))
            for _ in range(int(rounds)):
                for way, process in processes.items():
                    best[way] = min(best[way], float(answer(process, kind)))
            vectors = {way: np.load(folder / f"{way}_{kind}.npy") for way in ways}
            print(json.dumps(line(kind, len(given_texts), best, vectors, known[kind], own)), flush=True)
        for process in processes.values():
            process.communicate()


def answer(process: "subprocess.Popen[str]", asked: str | None = None) -> str:
    """Return the next line of a process, after asking it for a kind of texts."""
    assert process.stdin
    assert process.stdout
    if asked:
        print(asked, file=process.stdin, flush=True)
    found = process.stdout.readline()
    return found or sys.exit(f"a process ended with {process.wait()}")


def line(
    kind: str, number: int, best: dict[str, float], vectors: dict[str, Any], known: dict[str, Any], own: str
) -> dict[str, Any]:
    """Return what is printed for one kind of texts."""
    result = {"texts": kind, "tokens": known["tokens"]}
    result |= {way: round(number / taken, 2) for way, taken in best.items()}
    result["ratio"] = round(best[THEIRS] / best["fp32"], 2)
    if own != "fp32":
        result[f"{own}_ratio"] = round(best[THEIRS] / best[own], 2)
    result |= {"share": round(known["least"] / best["fp32"], 2), "profile": known["profile"]}
    result["difference"] = float(f"{np.abs(vectors['fp32'] - vectors[THEIRS]).max():.1e}")
    return result | {"agreement": round(agreement(vectors["fp32"], vectors[own]), 3)}


def agreement(one: np.ndarray, other: np.ndarray, k: int = 10) -> float:
    """Return the share of each vector's k nearest vectors that are also its k nearest among the vectors ``other``."""
    best = [np.argsort(-(vectors @ vectors.T), axis=1, kind="stable")[:, :k] for vectors in (one, other)]
    return float(np.mean([len(set(a) & set(b)) / len(a) for a, b in zip(*best, strict=True)]))


def main(
    shape: str,
    precision: str,
    passages: str,
    rounds: str,
    threads: str,
    device: str,
    chunk_tokens: str,
    checkpoint: str,
    collection: str,
) -> None:
    """Run the benchmark and print its lines."""
    if checkpoint:
        compare(checkpoint, collection, precision or "auto", passages or "200", rounds, threads, device)
    else:
        stage(shape, precision or "fp32", passages or "2000", rounds, threads, device, int(chunk_tokens))


def stage(shape: str, precision: str, passages: str, rounds: str, threads: str, device: str, budget: int) -> None:
    """Compare the stage with the backbone, and print the line."""
    torch.set_num_threads(int(threads))
    shard = max(SHARD, budget // 2)  # so that a shard has many chunks
    ours = Encoder(language_model(SHAPES[shape], 0.1, "eager").base_model).eval().to(device)
    bare = language_model(SHAPES[shape], 0.1, "sdpa").base_model.eval().to(device)

    def cls(chunk: Chunk) -> Tensor:
        with torch.inference_mode(), mixed(precision, device):
            return ours.cls(chunk.to(device))

    def backbone(chunk: Chunk) -> Tensor:
        with torch.inference_mode(), mixed(precision, device):
            found = bare(input_ids=chunk.input_ids, attention_mask=chunk.attention_mask.long())
            return found.last_hidden_state[:, 0]

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = random_store(folder / "tokens", int(passages))
        source = EncoderInput(TextReader(store, bert_vocabulary(), LENGTH))

        def encode_all() -> None:
            for path in (folder / "index").glob("passages/*"):
                path.unlink()
            Encoding(folder / "index", shard, budget).passages(cls, source)

        made = [
            chunk
            for first in range(0, len(store), shard)
            for chunk in source.chunks(np.arange(first, min(first + shard, len(store))), budget)
        ]
        made = [chunk.to(device) for chunk in made]
        taken, alone = in_turn(int(rounds), encode_all, lambda: [backbone(chunk) for chunk in made], device=device)
        first = np.load(shard_path(folder / "index", 0))
        wanted = backbone(made[0]).float().cpu().numpy()
        difference = np.abs(first[made[0].rows.cpu().numpy()] - wanted).max() / np.abs(wanted).max()
    tokens = sum(int(chunk.lengths.sum()) for chunk in made)
    result = {
        "shape": shape,
        "precision": precision,
        "device": device,
        "passages": int(passages),
        "tokens_per_cpu_s": round(tokens / taken),
        "backbone_tokens_per_cpu_s": round(tokens / alone),
        "ratio": round(alone / taken, 2),
        "difference": float(f"{difference:.1e}"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["process"]:
        way, checkpoint, folder, *how = sys.argv[2:]
        work(way, checkpoint, Path(folder), *how)
    else:
        empty = dict.fromkeys(("precision", "passages", "checkpoint", "collection"), "")
        main(**given(__doc__, shape="B", rounds="5", threads="1", device="cpu", chunk_tokens="8192", **empty))
