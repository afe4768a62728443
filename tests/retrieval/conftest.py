"""A small collection and a small dense index over it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from condensery.system.files import write_json
from condensery.text.collection import Collection
from condensery.text.records import Passage, Query
from condensery.text.writer import CollectionWriter

WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath", "islet", "jetty", "knoll", "ledge"]
PASSAGES, QUERIES = 60, 12


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """60 passages of random words and 12 queries; query i is relevant to the passages i and 2i + 1."""
    folder = tmp_path_factory.mktemp("collection")
    random = np.random.default_rng(0)
    with CollectionWriter(folder, "woods") as writer:
        for query in range(QUERIES):
            for passage in {query, 2 * query + 1}:
                writer.add_judgement("train", f"q{query}", f"p{passage}", 1)
            writer.add_judgement("train", f"q{query}", f"p{PASSAGES - 1 - query}", 0)
            writer.add_judgement("test", f"q{query}", f"p{query}", 1)
        for passage in range(PASSAGES):
            text = " ".join(random.choice(WORDS, 8))
            writer.add_passage(Passage(f"p{passage}", "Title" if passage % 2 else "", text))
        for query in range(QUERIES):
            writer.add_query(Query(f"q{query}", " ".join(random.choice(WORDS, 3))))
    return Collection(folder)


WriteDense = Callable[..., Path]


@pytest.fixture
def write_dense(tmp_path: Path) -> WriteDense:
    """Write vectors as a dense index folder."""

    def write(passages: np.ndarray, queries: np.ndarray, shard: int, dtype: str = "float32") -> Path:
        folder = tmp_path / "dense"
        (folder / "passages").mkdir(parents=True)
        shards = [(first, min(first + shard, len(passages))) for first in range(0, len(passages), shard)]
        for number, (first, stop) in enumerate(shards):
            np.save(folder / "passages" / f"{number:05d}.npy", passages[first:stop].astype(dtype))
        np.save(folder / "queries.npy", queries.astype(dtype))
        about = {"method": "dense", "passages": len(passages), "queries": len(queries), "dim": passages.shape[1]}
        write_json(folder / "index.json", {**about, "dtype": dtype, "shards": shards})
        return folder

    return write
