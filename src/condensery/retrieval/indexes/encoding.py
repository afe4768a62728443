"""Encode texts, and write their vectors to disk in shards of consecutive rows. Several processes may share the shards.

Within a shard, texts are sorted by length and split into batches, called chunks, of a fixed token budget. Sorting keeps
padding low.

Shapes: b rows per chunk, d dimensions.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from condensery.errors import UserError
from condensery.retrieval.finite import check_finite
from condensery.retrieval.indexes.dense import shard_path
from condensery.retrieval.indexes.quantisation_loss import EXACT, RECALL, SAMPLE, Dtype, Quantising, sample_of
from condensery.retrieval.indexes.quantiser import FILE as LEVELS
from condensery.retrieval.indexes.quantiser import QUANTISED, Quantiser
from condensery.retrieval.indexes.windows import FILE as WINDOWS
from condensery.retrieval.indexes.windows import Windows, cut
from condensery.retrieval.shards import compute_in_shards
from condensery.sharing import SINGLE_PROCESS, ProcessGroup
from condensery.system.files import load_array, read_json, save_array, write_json
from condensery.system.progress import SILENT, ProgressTask, progress
from condensery.tokens.batches import Chunk
from condensery.tokens.spans import SPECIAL_TOKENS
from condensery.tokens.text_reader import TextReader

Encode = Callable[[Chunk], Tensor]  # token ids of b texts -> their vectors (b, d)


@dataclass(frozen=True)
class EncoderInput:
    """The encoder inputs of texts. ``len`` gives their number.

    Attributes:
        reader: builds the encoder inputs.
        windows: maximum number of windows encoded per text. Each window is one encoder input, and begins with the title.
        rows: (n,), indices of the texts to encode; None = all texts.
    """

    reader: TextReader
    windows: int = 1
    rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return len(self.reader) if self.windows == 1 else len(self.cut.texts)

    @cached_property
    def cut(self) -> Windows:
        """The windows of all texts."""
        return cut(self.reader.texts.lengths, self._room(), self.windows)

    def unread(self) -> float:
        """Return the share of the texts whose last tokens are in no window."""
        return float((self.reader.texts.lengths > self.windows * self._room()).mean())

    def _room(self) -> NDArray[np.int64]:
        """Return the number of tokens (P,) that a window holds of each text, without title and special tokens."""
        reader = self.reader
        room = np.full(len(reader), reader.length - SPECIAL_TOKENS - len(reader.prefix))
        if reader.titles is not None:
            before = reader.titles.lengths + (reader.titles.lengths > 0)  # title and [SEP]
            room = room - np.minimum(before, room - 1)
        return room

    def chunks(self, rows: NDArray[np.int64], budget: int) -> list[Chunk]:
        """Return the encoder inputs ``rows`` (n,) in chunks of at most ``budget`` tokens, padding included.

        ``Chunk.rows`` are indices into ``rows``.
        """
        hidden = None
        if self.rows is not None:
            rows = self.rows[rows]
        if self.windows > 1:
            rows, skipped = self.cut.texts[rows], self.cut.skipped[rows]
            hidden = np.stack([self.reader.texts.starts[rows], skipped], axis=1)
        return self.reader.chunks(rows, budget, hidden=hidden)


def shard_ranges(texts: int, shard_size: int) -> list[tuple[int, int]]:
    """Return the range of rows (first, stop) of each shard; ``stop`` is exclusive."""
    return [(first, min(first + shard_size, texts)) for first in range(0, texts, shard_size)]


@dataclass(frozen=True)
class Encoding:
    """Encodes passages and queries into the files of a dense index; ``write_dense_index`` finishes the index.

    Complete shards are reused. Vectors that are not finite raise ``UserError``.

    Attributes:
        folder: folder of the index.
        shard_size: rows per shard.
        budget: maximum number of tokens per chunk, padding included.
        dtype: data type of the stored vectors. Queries are stored as float32 if passages are int8 or binary.
        group: the processes that share the shards.
        label: label of the progress bar and beginning of error messages.
        encoder: name of the encoder in error messages.
    """

    folder: Path
    shard_size: int
    budget: int
    dtype: Dtype = "float32"
    group: ProcessGroup = SINGLE_PROCESS
    label: str = "encode"
    encoder: str = ""

    def passages(self, encode: Encode, source: EncoderInput) -> Quantising | None:
        """Encode all rows of ``source`` into ``folder``/passages/00000.npy, ...

        Shards of another layout (shard size, number of texts, dtype) are removed first.

        Args:
            encode: computes the vectors of a chunk. The tensors of the chunk are on the CPU.
            source: the texts. For int8 and binary the queries must be encoded first, because they are used to measure the
                quantisation loss.

        Returns:
            For int8 and binary, the object that quantises the vectors and measures the loss; None for other types.
        """
        plan = shard_ranges(len(source), self.shard_size)
        layout: dict[str, Any] = {"texts": len(source), "shard_size": self.shard_size, "dtype": self.dtype}

        def prepared() -> Quantising:
            missing(self.folder, layout, len(plan))
            drawn = sample_of(len(source), SAMPLE)
            sample = self._vectors(encode, source, drawn, self.label)
            return Quantising.of(self.folder, self.dtype, sample.astype(np.float32), drawn)

        quantising = self.group.from_rank_zero(prepared) if self.dtype in QUANTISED and plan else None
        with self.group.shards(lambda: missing(self.folder, layout, len(plan))) as mine:
            rows = {number: plan[number] for number in mine}
            with progress(self.label, sum(stop - first for first, stop in rows.values()), "texts") as task:
                for number in mine:
                    vectors = self._vectors(encode, source, np.arange(*rows[number]), self.label, task)
                    if quantising is not None:
                        vectors = quantising.stored(self.folder, number, rows[number][0], vectors)
                    save_array(shard_path(self.folder, number), vectors)
        return quantising

    def queries(self, encode: Encode, source: EncoderInput) -> None:
        """Encode the queries of ``source`` into ``folder``/queries.npy (n, d), in their order.

        If ``source.rows`` is set, only these queries of the collection are encoded, and query_rows.npy (n,) holds their rows.
        """
        label = f"{self.label} queries"

        def encoded(part: slice, task: ProgressTask) -> dict[str, NDArray[Any]]:
            vectors = self._vectors(encode, source, np.arange(part.start, part.stop), label, task)
            return {"queries": vectors, **({} if source.rows is None else {"query_rows": source.rows[part]})}

        path = self.folder / "queries.npy"
        compute_in_shards(encoded, len(source), path, label, size=self.shard_size, group=self.group, unit="texts")

    def _vectors(
        self, encode: Encode, source: EncoderInput, rows: NDArray[np.int64], label: str, task: ProgressTask = SILENT
    ) -> NDArray[Any]:
        """Return the vectors (n, d) of the rows ``rows`` (n,) of ``source``, before quantisation."""
        dtype: Dtype = "float32" if self.dtype in QUANTISED else self.dtype
        vectors = encode_chunks(encode, source.chunks(rows, self.budget), len(rows), dtype, task)
        encoder = f"its encoder {self.encoder}".rstrip()
        remedy = f"{encoder} diverged in training, or needs precision fp32 or dtype float32"
        check_finite(vectors, f"{label}: the {dtype} vector of text", rows, remedy)
        return vectors


def encode_chunks(
    encode: Encode, parts: Sequence[Chunk], rows: int, dtype: Dtype = "float32", task: ProgressTask = SILENT
) -> NDArray[Any]:
    """Encode chunks that have ``rows`` rows in total into vectors (rows, d), and advance ``task`` by rows.

    Without chunks, the result has the shape (0, 0).
    """
    vectors: NDArray[Any] = np.empty((0, 0), dtype)
    for chunk in parts:
        encoded = encode(chunk).detach().float().cpu().numpy()
        if not len(vectors):
            vectors = np.empty((rows, encoded.shape[1]), dtype)
        vectors[chunk.rows.numpy()] = encoded
        task.advance(len(encoded))
    return vectors


def missing(folder: Path, layout: dict[str, Any], shards: int) -> list[int]:
    """Return the indices of the shards that are not in ``folder`` yet. Shards of another layout are removed."""
    path = folder / "layout.json"
    if not path.exists() or read_json(path) != layout:
        for made in ("passages", EXACT):
            shutil.rmtree(folder / made, ignore_errors=True)
        for made in (LEVELS, RECALL):
            (folder / made).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, layout)
    return [number for number in range(shards) if not shard_path(folder, number).exists()]


def write_dense_index(
    folder: Path, windows: Windows | None = None, quantising: Quantising | None = None
) -> dict[str, Any]:
    """Write ``index.json``, after all shards and queries.npy are written.

    Args:
        folder: folder of the index.
        windows: the windows of the texts, if a text may have several vectors.
        quantising: the return value of ``Encoding.passages``.

    Returns:
        The content of ``index.json``, and with ``quantising`` also the recall after quantisation.

    Raises:
        UserError: a shard is missing, or its shape differs from the layout.
    """
    layout = read_json(folder / "layout.json")
    plan = shard_ranges(layout["texts"], layout["shard_size"])
    dims = set()
    for number, (first, stop) in enumerate(plan):
        path = shard_path(folder, number)
        if not path.exists():
            raise UserError(f"{path}: this shard was not encoded; run the stage again")
        rows, dim = load_array(path, mapped=True).shape
        if rows != stop - first:
            raise UserError(f"{path}: {rows} vectors instead of {stop - first}; remove it and run the stage again")
        dims.add(dim)
    if len(dims) != 1:
        raise UserError(f"{folder / 'passages'}: vectors of {len(dims)} sizes; remove it and run the stage again")
    dim = Quantiser.load(folder).dim if layout["dtype"] in QUANTISED else dims.pop()
    queries = len(load_array(folder / "queries.npy", mapped=True)) if (folder / "queries.npy").exists() else 0
    about = {"method": "dense", "passages": layout["texts"], "queries": queries, "dim": dim}
    about |= {"dtype": layout["dtype"], "shards": plan}
    if windows is not None:
        about |= {"passages": len(windows.starts) - 1, "windows": layout["texts"]}
        save_array(folder / WINDOWS, windows.starts)
    write_json(folder / "index.json", about)
    return about if quantising is None else {**about, **quantising.write_recall(folder, len(plan))}
