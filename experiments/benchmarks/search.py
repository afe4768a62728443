"""Search a dense index with this project, and with FAISS alone on the same vectors in memory, in the same run.

    python experiments/benchmarks/search.py [passages=200000] [dim=256] [queries=500] [k=100] [rounds=3] [threads=1] \
        [device=cpu|cuda]

The project reads shards of 50,000 vectors from disk, searches them one after the other, and merges the results. Ties are
broken by row. FAISS runs IndexFlatIP.search. The program prints one JSON line:

    cpu_s, faiss_cpu_s    CPU-seconds for all queries, median
    ratio                 faiss_cpu_s / cpu_s
    agreement             share of the k passages of a query that both found

With device=cuda, the project searches on the GPU. If FAISS's library for GPUs is installed (faiss_on_gpu), FAISS does too.
The seconds are then wall-clock seconds.
"""

import json
import tempfile
from pathlib import Path

import faiss
import numpy as np
from sizes import given, in_turn

from condensery.retrieval.indexes.dense import DenseIndex, shard_path
from condensery.retrieval.indexes.encoding import shard_ranges
from condensery.system.files import write_json

SHARD = 50_000


def main(passages: str, dim: str, queries: str, k: str, rounds: str, threads: str, device: str) -> None:
    """Run the benchmark and print its line."""
    random = np.random.default_rng(1)
    vectors = random.standard_normal((int(passages), int(dim)), np.float32)
    asked = random.standard_normal((int(queries), int(dim)), np.float32)
    faiss.omp_set_num_threads(int(threads))
    bare: faiss.Index = faiss.IndexFlatIP(int(dim))
    bare.add(vectors)
    on_gpu = device != "cpu" and faiss.get_num_gpus() > 0
    if on_gpu:
        bare = faiss.index_cpu_to_all_gpus(bare)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = shard_ranges(len(vectors), SHARD)
        shard_path(folder, 0).parent.mkdir()
        for number, (first, stop) in enumerate(plan):
            np.save(shard_path(folder, number), vectors[first:stop])
        about = {"method": "dense", "passages": len(vectors), "dim": int(dim), "dtype": "float32", "shards": plan}
        write_json(folder / "index.json", about)
        index = DenseIndex(folder, int(threads), device=device)
        ours, theirs = in_turn(
            int(rounds), lambda: index.search_vectors(asked, int(k)), lambda: bare.search(asked, int(k)), device=device
        )
        found, wanted = index.search_vectors(asked, int(k))[1], bare.search(asked, int(k))[1]
    same = np.mean([len(np.intersect1d(a, b)) / int(k) for a, b in zip(found, wanted, strict=True)])
    result = {
        "passages": len(vectors),
        "queries": len(asked),
        "k": int(k),
        "cpu_s": round(ours, 2),
        "faiss_cpu_s": round(theirs, 2),
        "ratio": round(theirs / ours, 2),
        "agreement": round(float(same), 4),
        "faiss_on_gpu": on_gpu,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(**given(__doc__, passages="200000", dim="256", queries="500", k="100", rounds="3", threads="1", device="cpu"))
