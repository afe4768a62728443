"""Stage ``splade_index``: stores the sparse vectors of passages, and searches them exactly.

Shapes: n queries, P passages, V tokens of the vocabulary, k results.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from condensery.baselines.splade.model import SparseEncoder, load_sparse_encoder
from condensery.baselines.splade_index.config import SpladeIndexConfig
from condensery.models.biencoder import QUERY
from condensery.models.precision import inference, with_cast_weights
from condensery.retrieval.finite import check_finite
from condensery.retrieval.indexes.dense import device_of_search
from condensery.retrieval.ranking import Ranking, ordered
from condensery.retrieval.shards import compute_in_shards
from condensery.stages.base import Context
from condensery.stages.devices import torch_device
from condensery.system.files import load_array, read_json, write_json
from condensery.system.progress import SILENT, ProgressTask
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Tokens
from condensery.tokens.batches import Chunk, chunks, flatten
from condensery.tokens.text_reader import TextReader
from condensery.tokens.tokenizer import check_same_tokenizer, load_tokenizer
from condensery.tokens.vocabulary import Vocabulary, with_special

GROUP = 64  # queries that are searched at once
ARRAYS = ("weights", "terms", "counts")  # weights and terms of all passages, one after the other; terms per passage
Rows = NDArray[np.integer]


class SpladeIndex:
    """Ranks passages by the exact inner product of sparse vectors. Passages that share no term with a query are not found.

    Args:
        folder: folder of the index.
        collection: the collection with the queries.
        memory: maximum memory of a search in bytes.
        device: device of the encoder.
    """

    def __init__(self, folder: Path, collection: Collection, memory: int, device: str) -> None:
        self.folder, self.texts, self.device = folder, collection.queries.column("text"), device
        self.about: dict[str, Any] = read_json(folder / "index.json")
        weights, terms, counts = (load_array(folder / f"{name}.npy") for name in ARRAYS)
        starts = np.concatenate([[0], np.cumsum(counts)])
        self.passages = csr_array((weights, terms, starts), shape=(len(counts), self.about["dim"]))  # (P, V)
        self.lists = self.passages.T.tocsr()  # (V, P), the inverted list of each term
        self.group = max(1, min(GROUP, memory // (32 * max(1, len(counts)))))

    def __len__(self) -> int:
        return int(self.passages.shape[0])

    def search(self, query_rows: Rows, k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best passages of queries of the collection, as ``CollectionRetriever.search``."""
        return self._ranked(self.encoded(self.texts.take(query_rows)), k, progress)

    def search_texts(self, texts: Sequence[str], k: int) -> Ranking:
        """Return the k best passages for any queries."""
        return self._ranked(self.encoded(texts), k)

    def score(self, query_rows: Rows, passage_rows: Rows) -> NDArray[np.float32]:
        """Return the scores (n, k) of passages (n, k) for queries (n,) of the collection; NaN for padding (row -1)."""
        queries = self.encoded(self.texts.take(query_rows))
        found = [
            (self.passages[np.maximum(rows, 0)] @ queries[[place]].T).toarray()[:, 0]
            for place, rows in enumerate(passage_rows)
        ]
        return np.where(passage_rows < 0, np.float32(np.nan), np.array(found, np.float32).reshape(passage_rows.shape))

    def _ranked(self, queries: csr_array, k: int, progress: ProgressTask = SILENT) -> Ranking:
        parts = [(np.empty((0, k), np.float32), np.empty((0, k), np.int64))]
        rows = np.arange(len(self))[None, :]  # (1, P)
        for first in range(0, queries.shape[0], self.group):
            scores = (queries[first : first + self.group] @ self.lists).toarray()  # (group, P)
            parts.append(ordered(scores, np.where(scores > 0, rows, -1), k))
            progress.advance(len(scores))
        scores, found = (np.concatenate(part) for part in zip(*parts, strict=True))
        return scores, found

    @cached_property
    def _reader(self) -> tuple[SparseEncoder, int, Any, Vocabulary]:
        """The encoder, the maximum tokens of a query, the tokenizer and the ids of special tokens."""
        folder = self.folder.parents[1] / self.about["model"]
        tokenizer = load_tokenizer(folder)
        model, length, _ = load_sparse_encoder(folder)
        model = with_cast_weights(model.to(self.device).eval(), self.about["precision"])
        return model, length, tokenizer, Vocabulary.of(tokenizer)

    def encoded(self, texts: Sequence[str]) -> csr_array:
        """Return the sparse vectors (n, V) of queries."""
        model, length, tokenizer, ends = self._reader
        parts = [csr_array((0, self.about["dim"]), dtype=np.float32)]
        for first in range(0, len(texts), GROUP):
            read = tokenizer(list(texts[first : first + GROUP]), add_special_tokens=False, verbose=False)["input_ids"]
            rows = flatten([with_special(ids, ends, length) for ids in read])
            found = chunks(*rows, self.about["chunk_tokens"], ends.pad, tower=QUERY)
            parts.append(_sparse(model, found, len(read), self.about["precision"]))
        return vstack(parts, format="csr")


def _sparse(model: SparseEncoder, parts: Sequence[Chunk], number: int, precision: str) -> csr_array:
    """Encode ``number`` texts into sparse vectors (number, V), in their order."""
    found, order = [csr_array((0, model.hidden_size), dtype=np.float32)], [np.empty(0, np.int64)]
    device = next(model.parameters()).device
    for chunk in parts:
        with inference(device, precision):
            weights = model.vectors(chunk.to(device)).float().cpu().numpy()  # (b, V)
        check_finite(weights, "SPLADE: the vector of text", chunk.rows.numpy())
        found.append(csr_array(weights))
        order.append(chunk.rows.numpy())
    return vstack(found, format="csr")[np.argsort(np.concatenate(order))[:number]]


def open_splade(folder: Path, collection: Collection, threads: int, memory: int, device: str | None) -> SpladeIndex:
    """Open the index in ``folder``; arguments as in ``open_index``."""
    return SpladeIndex(folder, collection, memory, device_of_search(device))


def build(config: SpladeIndexConfig, context: Context) -> dict[str, Any]:
    """Write weights.npy, terms.npy, counts.npy and index.json; a restart keeps complete shards."""
    device, folder, label = torch_device(context.runtime.accelerator), context.folder, context.stage_name
    tokens = Tokens(context.input("tokens"))
    check_same_tokenizer(context.input("model"), tokens.vocabulary, context.place("tokens"), "name those of the model")
    model, _, length = load_sparse_encoder(context.input("model"))
    model = with_cast_weights(model.to(device).eval(), config.precision)
    reader = TextReader(tokens.passages, tokens.vocabulary, length, tokens.titles)

    def encoded(part: slice, task: ProgressTask) -> dict[str, NDArray[Any]]:
        parts = reader.chunks(np.arange(part.start, part.stop), config.chunk_tokens)
        vectors = _sparse(model, parts, part.stop - part.start, config.precision)
        task.advance(part.stop - part.start)
        return dict(zip(ARRAYS, (vectors.data, vectors.indices.astype(np.int32), np.diff(vectors.indptr)), strict=True))

    compute_in_shards(encoded, len(reader), folder / "counts.npy", label, size=config.shard_size, unit="texts")
    about = {"method": "splade", "passages": len(reader), "model": context.artifact("model").reference}
    about |= {"dim": model.hidden_size, "precision": config.precision, "chunk_tokens": config.chunk_tokens}
    write_json(folder / "index.json", about)
    stored = {name: load_array(folder / f"{name}.npy", mapped=True) for name in ARRAYS}
    if not len(stored["terms"]):
        raise context.error("", "no passage has a term; train its encoder with a smaller passage_flops")
    found = {"bytes_per_passage": sum(array.nbytes for array in stored.values()) / len(reader)}
    found["terms_per_passage"] = len(stored["terms"]) / len(reader)
    context.say(", ".join(f"{value:,.1f} {name.replace('_per_', ' a ')}" for name, value in found.items()))
    return {"passages": len(reader), **found}
