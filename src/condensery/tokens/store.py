"""The token store: the ids of tokenised texts in one memory-mapped file, and the starts of texts, sentences and documents."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from io import BufferedWriter
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from condensery.errors import UserError, shown
from condensery.system.files import read_json, write_json
from condensery.system.progress import progress
from condensery.tokens.workers import ENGLISH, Piece, encode, in_order, read_tokenizer

Ids = NDArray[np.int64]
_FIELDS = {"dtype": str, "texts": int, "tokens": int, "sentences": int, "documents": int}
_BLOCK = 1 << 22  # number of tokens counted at a time
_ABSENT = -1  # stands for the number of sentences or documents if they were not recorded


class TokenStore:
    """The token ids of N texts, without special tokens, memory-mapped from a folder.

    Args:
        folder: folder to which ``tokenise`` wrote the store.
        single_texts: whether to treat each text as a document, even if the folder records documents.
        texts: see the attribute.

    Attributes:
        tokens: (T,) uint16 or uint32, the token ids of all texts, concatenated.
        starts: (N + 1,) int64, the start of each text in ``tokens``.
        sentences: (S,) int64, the start of each sentence in ``tokens``, ascending; each text begins a sentence. None
            if the store was written without sentences.
        documents: (D + 1,) int64, the first text of each document; without documents each text is a document.
        texts: the texts of a store that ``tokenise`` has just written; empty for any other store.

    Raises:
        UserError: the folder holds no complete store, or the files of the store are inconsistent.
    """

    def __init__(self, folder: Path, single_texts: bool = False, texts: Sequence[str] = ()) -> None:
        self.folder, self.single_texts, self.texts = Path(folder), single_texts, texts
        if not self.exists(self.folder):
            raise UserError(f"{self.folder}: holds no complete token store; give force=[tokens]")
        about = read_json(self.folder / "store.json")
        if not isinstance(about, dict) or any(type(about.get(name)) is not kind for name, kind in _FIELDS.items()):
            raise UserError(f"{self.folder / 'store.json'}: does not describe a token store; give force=[tokens]")
        self.token_count: int = about["tokens"]
        self.tokens: NDArray = self._map_tokens(about["dtype"])
        self.starts: Ids = self._map("starts.npy", about["texts"] + 1, self.token_count)
        self.sentences: Ids | None = None
        if about["sentences"] != _ABSENT:
            self.sentences = self._map("sentences.npy", about["sentences"])
        self.documents: Ids = np.arange(about["texts"] + 1, dtype=np.int64)
        if about["documents"] != _ABSENT and not single_texts:
            self.documents = self._map("documents.npy", about["documents"] + 1, about["texts"])

    def __reduce__(self) -> tuple[type["TokenStore"], tuple[Path, bool]]:
        # a pickled store holds its folder only, so another process maps the files instead of receiving their content
        return TokenStore, (self.folder, self.single_texts)

    @staticmethod
    def exists(folder: Path) -> bool:
        """Return whether ``folder`` holds a complete store. The description ``store.json`` is written last."""
        return (Path(folder) / "store.json").is_file()

    def __len__(self) -> int:
        return len(self.starts) - 1

    def text(self, index: int) -> NDArray:
        """Return the ids of one text as a view, without special tokens."""
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    def sentence_spans(self, index: int) -> list[tuple[int, int]]:
        """Return (start, tokens) of each sentence of one text; [] if the text is empty or the store has no sentences."""
        if self.sentences is None:
            return []
        first, last = int(self.starts[index]), int(self.starts[index + 1])
        a, b = np.searchsorted(self.sentences, [first, last])
        return [(start, end - start) for start, end in pairwise([*self.sentences[a:b].tolist(), last])]

    def share_of(self, token: int) -> float:
        """Return the share of one id among all tokens, from 0 to 1; 0 for an empty store. The store is read in blocks."""
        blocks = (self.tokens[first : first + _BLOCK] for first in range(0, self.token_count, _BLOCK))
        return sum(int(np.count_nonzero(block == token)) for block in blocks) / max(1, self.token_count)

    def content(self) -> dict[str, NDArray | None]:
        """Return the arrays of the store by name. The folder is not part of the content."""
        return {name: getattr(self, name) for name in ("tokens", "starts", "sentences", "documents")}

    @cached_property
    def lengths(self) -> Ids:
        """The number of tokens of each text, (N,)."""
        return np.diff(self.starts)

    @cached_property
    def document_starts(self) -> Ids:
        """The start of each document in ``tokens``, (D + 1,). The texts of a document are adjacent."""
        return np.asarray(self.starts[self.documents])

    @cached_property
    def document_lengths(self) -> Ids:
        """The number of tokens of each document, (D,)."""
        return np.diff(self.document_starts)

    def _map_tokens(self, dtype: str) -> NDArray:
        path = self.folder / "tokens.bin"
        if dtype not in ("uint16", "uint32"):
            raise UserError(f"{self.folder / 'store.json'}: dtype {shown(str(dtype))!r} is neither uint16 nor uint32")
        held = path.stat().st_size // np.dtype(dtype).itemsize if path.exists() else 0
        if held != self.token_count:
            raise UserError(f"{path}: has {held} tokens, but store.json says {self.token_count}; give force=[tokens]")
        return np.memmap(path, dtype=dtype, mode="r") if held else np.empty(0, dtype=dtype)

    def _map(self, name: str, size: int, last: int | None = None) -> Ids:
        """Memory-map an int64 array, and check its size.

        If ``last`` is given, also check that the first value is 0 and the last value is ``last``.
        """
        path = self.folder / name
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path}: not readable ({error}); give force=[tokens]") from None
        wrong = array.dtype != np.int64 or array.ndim != 1 or len(array) != size
        if wrong or (last is not None and (len(array) == 0 or array[0] != 0 or array[-1] != last)):
            raise UserError(f"{path}: does not fit the tokens in its folder; give force=[tokens]")
        return array


def tokenise(
    texts: Sequence[str],
    tokenizer: Path,
    folder: Path,
    *,
    sentences: bool,
    language: str = ENGLISH,
    documents: ArrayLike | None = None,
    workers: int = 1,
    batch: int = 512,
    label: str = "tokenise",
) -> TokenStore:
    """Tokenise every text once, in order, and write a ``TokenStore``.

    Each text is tokenised as a whole. Sentence boundaries are detected in the characters and mapped to tokens by the
    tokenizer's offsets, so the ids do not depend on where sentences end. The result does not depend on ``workers`` or
    ``batch``. A few batches are in memory at a time.

    Args:
        texts: list of texts, or a column that returns a list of strings for a slice.
        tokenizer: folder with ``tokenizer.json`` (the artifact of the stage `tokenizer`).
        folder: folder to which the store is written; an older store there is replaced.
        sentences: whether the beginnings of sentences are recorded as well.
        language: see ``sentence_begins``.
        documents: (D + 1,) first text of each document; the last entry is len(texts).
        workers: number of processes; with 1 the work is done in this process.
        batch: number of texts per task.
        label: label of the progress display.

    Raises:
        UserError: ``tokenizer`` holds no usable tokenizer.json.
        ValueError: ``documents`` does not run from 0 to len(texts) in ascending order.
    """
    edges = np.asarray([0, len(texts)] if documents is None else documents, dtype=np.int64)
    if len(edges) == 0 or edges[0] != 0 or edges[-1] != len(texts) or (np.diff(edges) < 0).any():
        raise ValueError("documents must ascend from 0 to the number of texts")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("store.json", "documents.npy", "sentences.npy"):
        (folder / name).unlink(missing_ok=True)
    ids = read_tokenizer(tokenizer).get_vocab(with_added_tokens=True).values()
    dtype = "uint16" if max(ids, default=0) < 1 << 16 else "uint32"
    slices = (texts[start : start + batch] for start in range(0, len(texts), batch))
    with progress(label, len(texts), "texts") as task:
        work = partial(encode, dtype=dtype, sentences=sentences, language=language)
        tokens, sentence_count = _write(folder, in_order(work, slices, tokenizer, workers), sentences, task.advance)
    counts = {"texts": len(texts), "tokens": tokens, "sentences": sentence_count, "documents": _ABSENT}
    if documents is not None:
        counts["documents"] = len(edges) - 1
        np.save(folder / "documents.npy", edges)
    write_json(folder / "store.json", {"dtype": dtype, **counts})
    return TokenStore(folder, texts=texts)


def _write(folder: Path, pieces: Iterable[Piece], sentences: bool, advance: Callable[[int], None]) -> tuple[int, int]:
    """Append pieces to the files of a store. Returns the numbers of tokens and of sentences (``_ABSENT`` without them)."""
    tokens = 0
    with (
        open(folder / "tokens.bin", "wb") as ids,
        _Growing(folder / "starts.npy") as starts,
        _Growing(folder / "sentences.npy") as places,
    ):
        starts.append(np.zeros(1, dtype=np.int64))
        for piece in pieces:
            ids.write(piece.ids.tobytes())
            starts.append(tokens + np.cumsum(piece.lengths))
            places.append(tokens + piece.sentences)
            tokens += len(piece.ids)
            advance(len(piece.lengths))
    if not sentences:
        (folder / "sentences.npy").unlink()
    return tokens, places.count if sentences else _ABSENT


class _Growing:
    """An int64 .npy file to which values are appended.

    On leaving the ``with`` block, the header is written again, with the final length. NumPy pads the header so that any
    length fits.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0

    def __enter__(self) -> "_Growing":
        self.stream: BufferedWriter = open(self.path, "wb")
        self._header()
        return self

    def append(self, values: Ids) -> None:
        self.stream.write(values.astype("<i8").tobytes())
        self.count += len(values)

    def __exit__(self, *error: object) -> None:
        self.stream.seek(0)
        self._header()
        self.stream.close()

    def _header(self) -> None:
        described = {"descr": "<i8", "fortran_order": False, "shape": (self.count,)}
        np.lib.format.write_array_header_1_0(self.stream, described)
