"""Stage ``late_interaction_index``: stores the token vectors of passages, and searches them.

Shapes: n queries, m passages of a block, N vectors of these passages, v vectors of a query, d dimensions, k results.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from condensery.baselines.late_interaction.model import UNUSED, TokenEncoder
from condensery.baselines.late_interaction.saving import load_token_encoder
from condensery.baselines.late_interaction_index.config import LateInteractionIndexConfig
from condensery.errors import UserError
from condensery.models.biencoder import QUERY
from condensery.models.precision import inference, with_cast_weights
from condensery.retrieval.finite import check_finite
from condensery.retrieval.indexes.dense import device_of_search
from condensery.retrieval.indexes.interface import CollectionRetriever
from condensery.retrieval.indexes.opening import open_index
from condensery.retrieval.ranking import EMPTY, Ranking, ordered, pack, top, unpack
from condensery.retrieval.shards import compute_in_shards
from condensery.stages.base import Context
from condensery.stages.devices import torch_device
from condensery.system.files import load_array, read_json, write_json
from condensery.system.progress import SILENT, ProgressTask
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Tokens
from condensery.tokens.batches import chunks, flatten
from condensery.tokens.ranges import ranges
from condensery.tokens.text_reader import TextReader
from condensery.tokens.tokenizer import check_same_tokenizer, load_tokenizer
from condensery.tokens.vocabulary import Vocabulary, with_special

BLOCK = 1 << 18  # vectors that are compared at once
PIECE = {"cpu": 1 << 14}  # vectors of a list that are compared at once, so that a CPU's cache holds their products
GROUP = 64  # queries that are encoded together, and compared with a block while it is in memory
Rows = NDArray[np.integer]


class Block:
    """The vectors of some passages, sorted by their keys, and within a key by passage.

    Args:
        vectors: (N, d), passage after passage.
        keys: (N,) key of each vector.
        counts: (m,) number of vectors of each passage.
        device: device of the matrix products.

    Attributes:
        size: the memory of the block in bytes, including all inverted lists, even those that have not been made yet.
    """

    def __init__(self, vectors: NDArray[np.floating], keys: Rows, counts: Rows, device: str) -> None:
        order = np.argsort(keys, kind="stable")
        self.vectors = torch.from_numpy(vectors[order].astype(np.float32)).to(device)
        self.keys, self.number = keys[order], len(counts)
        self.owners = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)[order]).to(device)
        self.lists: dict[float, list[tuple[Tensor, Tensor, Tensor]]] = {}
        # bytes of a vector besides its numbers: 4 (key), 8 (owner), at most 16 (in its list); 1,024 for each list
        self.size = self.vectors.nbytes + 28 * len(keys) + 1024 * len(np.unique(self.keys))

    def scores(self, query: Tensor) -> NDArray[np.float32]:
        """Return the scores (m,) of a query, whose vectors (v, d + 1) have their keys as last coordinate."""
        total = self.vectors.new_zeros(self.number)
        for key in query[:, -1].unique().tolist():
            of_query = query[query[:, -1] == key, :-1]  # (vectors of the query with this key, d)
            for vectors, owners, counts in [] if key == UNUSED else self._list(key):
                total[owners] += maxima(vectors, counts, of_query).sum(dim=0)
        return total.cpu().numpy()

    def _list(self, key: float) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return the inverted list of a key in pieces: vectors, their passages, and the number of vectors per passage."""
        if key not in self.lists:
            first, stop = np.searchsorted(self.keys, [key, key + 1]).tolist()
            owners, counts = self.owners[first:stop].unique_consecutive(return_counts=True)
            size = max(
                1, PIECE.get(counts.device.type, BLOCK) * len(counts) // max(1, stop - first)
            )  # passages of a piece
            vectors = self.vectors[first:stop].split([int(part.sum()) for part in counts.split(size)])
            pieces = zip(vectors, owners.split(size), counts.split(size), strict=True)
            self.lists[key] = [piece for piece in pieces if len(piece[0])]
        return self.lists[key]


def maxima(vectors: Tensor, counts: Tensor, query: Tensor) -> Tensor:
    """Return the largest inner product of each vector of a query with the vectors of each passage, (v, m).

    Args:
        vectors: (N, d), passage after passage.
        counts: (m,) number of vectors of each passage, at least 1.
        query: (v, d).
    """
    if vectors.device.type != "cpu":
        return torch.segment_reduce(vectors @ query.T, "max", lengths=counts).T
    starts = (counts.cumsum(0) - counts).numpy()
    return torch.from_numpy(
        np.maximum.reduceat((query @ vectors.T).numpy(), starts, axis=1)
    )  # faster than segment_reduce


class LateInteractionIndex:
    """Ranks passages by the interaction of token vectors: all passages exactly, or the candidates of another retriever.

    Args:
        folder: folder of the index.
        collection: the collection with the queries.
        candidates: the retriever whose results are scored; None = all passages are scored.
        memory: bytes of blocks that stay in memory from one search to the next. Each search makes all other blocks again.
        device: device of the encoder and the products.
    """

    def __init__(
        self, folder: Path, collection: Collection, candidates: CollectionRetriever | None, memory: int, device: str
    ) -> None:
        self.folder, self.candidates, self.device = folder, candidates, device
        self.texts = collection.queries.column("text")
        self.about: dict[str, Any] = read_json(folder / "index.json")
        self.vectors, self.keys = (load_array(folder / f"{name}.npy", mapped=True) for name in ("vectors", "keys"))
        self.counts = load_array(folder / "counts.npy")
        self.starts = np.cumsum(self.counts) - self.counts  # (P,) first vector of each passage
        self.kept: dict[tuple[int, int], Block] = {}  # (first passage, last passage + 1) -> block
        self.room = memory

    def __len__(self) -> int:
        return len(self.counts)

    def search(self, query_rows: Rows, k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best passages of queries of the collection, as ``CollectionRetriever.search``."""
        queries = self._encoded(self.texts.take(query_rows))
        if self.candidates is None:
            return self._exact(queries, k, progress)
        found = self.candidates.search(query_rows, min(self.about["depth"], len(self)), progress)[1]
        return ordered(self._scores(queries, found), found, k)

    def search_texts(self, texts: Sequence[str], k: int) -> Ranking:
        """Return the k best passages for any queries. Raises ``UserError`` if the candidates' index knows no new queries."""
        queries = self._encoded(texts)
        if self.candidates is None:
            return self._exact(queries, k)
        if not hasattr(self.candidates, "search_texts"):
            raise UserError(f"{self.folder}: its candidates exist only for the collection's queries; use bm25's")
        found = self.candidates.search_texts(texts, min(self.about["depth"], len(self)))[1]
        return ordered(self._scores(queries, found), found, k)

    def score(self, query_rows: Rows, passage_rows: Rows) -> NDArray[np.float32]:
        """Return the exact scores (n, k) of passages (n, k) for queries (n,) of the collection; NaN for padding (row -1)."""
        return self._scores(self._encoded(self.texts.take(query_rows)), passage_rows)

    def _exact(self, queries: Sequence[Tensor], k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Compare each query with all passages, block by block."""
        best = np.full((len(queries), k), EMPTY, np.int64)
        cuts = np.searchsorted(self.starts, np.arange(0, len(self.vectors), BLOCK))
        edges = np.unique([0, *cuts.tolist(), len(self)]).tolist()
        for first in range(0, len(queries), GROUP):
            part = slice(first, first + GROUP)
            for start, stop in pairwise(edges):
                block, rows = self._kept(start, stop), np.arange(start, stop)
                scores = np.stack([block.scores(query) for query in queries[part]])  # (at most GROUP, m)
                best[part] = top(np.concatenate([best[part], top(pack(scores, rows), k)], axis=1), k)
            progress.advance(len(queries[part]))
        return unpack(best)

    def _scores(self, queries: Sequence[Tensor], passage_rows: Rows) -> NDArray[np.float32]:
        pairs = zip(queries, passage_rows, strict=True)
        scores = [self._block(np.maximum(rows, 0)).scores(query) for query, rows in pairs]
        found = np.array(scores, np.float32).reshape(passage_rows.shape)
        return np.where(passage_rows < 0, np.float32(np.nan), found)

    def _kept(self, start: int, stop: int) -> Block:
        """Return the block of the passages ``start`` to ``stop`` - 1. It stays in memory if there is room."""
        block = self.kept.get((start, stop)) or self._block(np.arange(start, stop))
        if (start, stop) not in self.kept and block.size <= self.room:
            self.kept[start, stop] = block
            self.room -= block.size
        return block

    def _block(self, rows: Rows) -> Block:
        places = ranges(self.starts[rows], self.counts[rows])
        return Block(self.vectors[places], self.keys[places], self.counts[rows], self.device)

    @cached_property
    def _reader(self) -> tuple[TokenEncoder, Any, Vocabulary]:
        """The encoder, its tokenizer and the ids of special tokens."""
        folder = self.folder.parents[1] / self.about["model"]
        tokenizer = load_tokenizer(folder)
        model = with_cast_weights(load_token_encoder(folder).to(self.device).eval(), self.about["precision"])
        return model, tokenizer, Vocabulary.of(tokenizer)

    def _encoded(self, texts: Sequence[str]) -> list[Tensor]:
        """Return the vectors (v, d + 1) of queries, with their keys as last coordinate."""
        model, tokenizer, ends = self._reader
        found: list[Tensor] = [torch.empty(0)] * len(texts)
        for first in range(0, len(texts), GROUP):
            read = tokenizer(list(texts[first : first + GROUP]), add_special_tokens=False, verbose=False)["input_ids"]
            rows = flatten([with_special(ids, ends, model.interaction.lengths[0]) for ids in read])
            for chunk in chunks(*rows, GROUP * model.interaction.query_length, ends.pad, tower=QUERY):
                with inference(self.device, self.about["precision"]):
                    keyed = model.keyed(chunk.to(self.device))  # (b, v, d + 1)
                for row, vectors in zip(chunk.rows.tolist(), keyed, strict=True):
                    found[first + row] = vectors
        return found


def open_late_interaction(
    folder: Path, collection: Collection, threads: int, memory: int, device: str | None
) -> LateInteractionIndex:
    """Open the index in ``folder``; arguments as in ``open_index``."""
    named = read_json(folder / "index.json")["candidates"]
    below = None if named is None else open_index(folder.parents[1] / named, collection, threads, memory, device)
    return LateInteractionIndex(folder, collection, below, memory, device_of_search(device))


def build(config: LateInteractionIndexConfig, context: Context) -> dict[str, Any]:
    """Write vectors.npy, keys.npy, counts.npy and index.json; a restart keeps complete shards."""
    device, folder, label = torch_device(context.runtime.accelerator), context.folder, context.stage_name
    tokens = Tokens(context.input("tokens"))
    check_same_tokenizer(context.input("model"), tokens.vocabulary, context.place("tokens"), "name those of the model")
    model = with_cast_weights(load_token_encoder(context.input("model")).to(device).eval(), config.precision)
    reader = TextReader(tokens.passages, tokens.vocabulary, model.interaction.lengths[1], tokens.titles)

    def encoded(part: slice, task: ProgressTask) -> dict[str, NDArray[Any]]:
        found: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * (part.stop - part.start)
        for chunk in reader.chunks(np.arange(part.start, part.stop), config.chunk_tokens):
            with inference(device, config.precision):
                keyed = model.keyed(chunk.to(device)).float().cpu().numpy()  # (b, v, d + 1)
            for row, vectors in zip(chunk.rows.tolist(), keyed, strict=True):
                found[row] = vectors[vectors[:, -1] != UNUSED]
            task.advance(len(keyed))
        joined = np.concatenate(found)
        check_finite(joined, f"{label}: vector")
        counts = np.array([len(vectors) for vectors in found])
        return {
            "vectors": joined[:, :-1].astype(config.dtype),
            "keys": joined[:, -1].astype(np.int32),
            "counts": counts,
        }

    compute_in_shards(encoded, len(reader), folder / "counts.npy", label, size=config.shard_size, unit="texts")
    candidates = context.artifacts("retriever")
    about = {"method": "late_interaction", "passages": len(reader), "model": context.artifact("model").reference}
    about |= {"candidates": candidates[0].reference if candidates else None}
    write_json(folder / "index.json", {**about, "depth": config.depth, "precision": config.precision})
    stored = [load_array(folder / f"{name}.npy", mapped=True) for name in ("vectors", "keys", "counts")]
    bytes_each = sum(array.nbytes for array in stored) / len(reader)
    context.say(f"{bytes_each:,.0f} bytes of vectors per passage")
    return {"passages": len(reader), "vectors": len(stored[0]), "bytes_per_passage": bytes_each}
