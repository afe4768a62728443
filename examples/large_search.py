"""Searching more passages than fit into memory: the vectors and the lists of an approximate index are on disk."""

import json
from pathlib import Path

from condensery import Retriever
from condensery.retrieval.indexes.ann import ApproximateIndex, build_approximate, write_approximate
from condensery.retrieval.indexes.dense import write_vectors

retriever = Retriever("cocondenser")  # or another encoder, by folder or hub name
texts = [json.loads(line)["text"] for line in Path("scifact/corpus.jsonl").read_text(encoding="utf-8").splitlines()]
parts = (texts[first : first + 10_000] for first in range(0, len(texts), 10_000))
exact = write_vectors(Path("vectors"), map(retriever.encode_passages, parts))
build_approximate(exact, Path("near"), "IVF64,Flat", on_disk=True)
write_approximate(Path("near"), exact, "vectors", {"nprobe": 4, "ef_search": 64}, compared=100)
near = ApproximateIndex(Path("near"), exact)
scores, rows = near.search_vectors(retriever.encode_queries(["read json"]), 3)
print(scores, rows, near.recall)  # recall against exact search
