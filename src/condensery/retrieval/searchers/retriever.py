"""Define ``Retriever``, for dense search with a bi-encoder from Python, without a recipe or an output folder.

The passages must fit into memory. The results equal those of the stages ``encode`` and ``evaluate``.

Shapes: n texts or queries, m passages, d dimensions, k results.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.models.biencoder import PASSAGE, QUERY, BiEncoder
from condensery.models.checkpoints.backbone import check_words
from condensery.models.checkpoints.hub import checkpoint_folder
from condensery.models.checkpoints.retrievers import load_any_retriever
from condensery.models.precision import inference, precision_on, with_cast_weights
from condensery.models.vectors import VectorOptions
from condensery.ranges import Count, Length, check_values
from condensery.retrieval.finite import check_finite
from condensery.retrieval.indexes.dense import device_of_search, inner_products, search_array
from condensery.retrieval.indexes.encoding import encode_chunks
from condensery.retrieval.indexes.quantisation_loss import quantised
from condensery.retrieval.indexes.quantiser import Decoded
from condensery.retrieval.indexes.windows import best_of_windows, cut, scores_of_best_window
from condensery.retrieval.ranking import Ranking, pack, unpack
from condensery.retrieval.searchers.base import Searcher, titled
from condensery.text.lines import whole_texts
from condensery.tokens.batches import chunks, flatten
from condensery.tokens.prefixes import check_prefix
from condensery.tokens.tokenizer import load_tokenizer
from condensery.tokens.vocabulary import Vocabulary, with_special

WINDOW = 16_384  # texts that are sorted by length together; the next texts are tokenised while these are encoded
CHUNK_TOKENS = 65_536  # maximum number of tokens per encoder batch on a GPU, padding included (docs/measured.md)
CHUNK_TOKENS_CPU = 2_048  # on a CPU; the tokens' states then fit into its caches (docs/measured.md, "Encoding")

Rows = list[NDArray[np.int64]]  # token ids of each text


class TrainedModule(Protocol):
    """A Lightning module that trains a bi-encoder, such as ``BiEncoderModule``."""

    def towers(self) -> BiEncoder:
        """Return the bi-encoder."""

    @property
    def lengths(self) -> tuple[int, int]:
        """Maximum lengths of a query and of a passage, in tokens."""

    @property
    def saved_with(self) -> str | Path | None:
        """Folder or hub name of the tokenizer; None if the module does not know it."""


class Retriever(Searcher):
    """Dense retriever: encodes passages and queries with a bi-encoder, and searches exactly, by inner product.

    Args:
        source: folder or hub name of a model saved by this project or by sentence-transformers, or of any encoder of the
            BERT family. It may also be a ``BiEncoder``, or a module that trains one, whose weights the retriever then shares.
        query_length: maximum query length in tokens, [CLS] and [SEP] included; None = the length stored in the folder. If the
            folder stores none, the encoder's maximum input length is used, at most 512.
        passage_length: maximum passage length in tokens; None = the same rule as for ``query_length``.
        tokenizer: folder or hub name; None = the tokenizer of ``source``.
        device: "cpu", "cuda", ...; None = the GPU if there is one.
        vectors: values of ``pooling``, ``normalise``, ``truncate_dim``, ``query_prefix`` and ``passage_prefix`` that replace
            the values stored with ``source``, if ``source`` is a folder or a name. ``VectorSettings`` explains these values.
        windows: maximum number of windows that are indexed per passage. Each window has ``passage_length`` tokens, and begins
            with the title. A passage is ranked by its best window. 1 = longer passages are truncated.
        dtype: how the vectors of passages are kept: float32, int8 (a quarter of the memory) or binary (a 32nd), as in the
            stage ``encode``. For int8 and binary, ``index`` prints their size and their recall.
        precision: "fp32", or mixed precision in "bf16" or "fp16"; "auto" = bf16 on GPUs and processors that are fast in bf16,
            otherwise fp32, as with ``trainer.precision=auto`` in a recipe. docs/measured.md ("Encoding") compares rankings in
            bf16 and fp32.

    Attributes:
        precision: the precision that is used, never "auto".

    Raises:
        UserError: the model or tokenizer cannot be loaded, the model has unsupported sentence-transformers modules, a length
            exceeds the model's positions, or the device does not support the precision.
    """

    def __init__(
        self,
        source: str | Path | BiEncoder | TrainedModule,
        *,
        query_length: Length | None = None,
        passage_length: Length | None = None,
        tokenizer: str | Path | None = None,
        device: str | None = None,
        vectors: VectorOptions | None = None,
        windows: Count = 1,
        dtype: Literal["float32", "int8", "binary"] = "float32",
        precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
    ) -> None:

        check_values(Retriever, locals())
        super().__init__()
        lengths: tuple[int | None, int | None] = (None, None)
        self._name = f"Retriever({shown(str(source))!r})" if isinstance(source, str | Path) else "Retriever"
        given: Any = source
        if isinstance(given, BiEncoder):
            self.model = given
        elif hasattr(given, "towers"):
            self.model, lengths = given.towers(), given.lengths
            tokenizer = tokenizer if tokenizer is not None else given.saved_with
        else:
            given = checkpoint_folder(given, key="Retriever: source")
            self.model, lengths = load_any_retriever(given, vectors)
            self.model.eval()
            tokenizer = tokenizer if tokenizer is not None else given
        if tokenizer is None:
            raise UserError("Retriever: a model does not name its tokenizer; give the argument `tokenizer`")
        longest = min(512, self.model.query.longest, self.model.passage.longest)
        self.query_length = query_length or min(lengths[0] or longest, self.model.query.longest)
        self.passage_length = passage_length or min(lengths[1] or longest, self.model.passage.longest)
        self.device, self.windows, self.dtype = str(device_of_search(device)), windows, dtype
        self._owned = isinstance(given, str | Path)  # loaded here, so nothing else trains the model
        self._ready: tuple[list[Any], BiEncoder] = [], self.model
        try:
            torch.tensor(0.0, device=self.device).item()  # the device meta creates tensors, but cannot compute
        except (RuntimeError, AssertionError) as error:
            why = str(error).partition("\n")[0]
            raise UserError(f"Retriever: device: {self.device!r} cannot be used here ({why})") from None
        self.precision = precision_on(self.device, precision, "Retriever: precision")
        self.tokenizer, self._tokenizer = tokenizer, load_tokenizer(tokenizer)
        self._vocabulary = Vocabulary.of(self._tokenizer)
        for tower in (self.model.query, self.model.passage):
            check_words(tower.model, self._name, self._vocabulary)
        for side in ("query", "passage"):
            (prefix,) = whole_texts([getattr(self.model.settings, f"{side}_prefix")], f"Retriever: {side}_prefix: text")
            length = getattr(self, f"{side}_length")
            getattr(self.model, side).check_length(length, f"Retriever: {side}_length")
            check_prefix(f"{side}_prefix", prefix, len(self._words([prefix])[0]), f"{side}_length", length)

    @property
    def passage_vectors(self) -> NDArray[np.float32]:
        """Vectors of the indexed passages, float32 (m, d). If ``windows`` is above 1, each window has a row.

        The windows of a passage have consecutive rows. Vectors that are kept in int8 or binary are decoded.

        Raises:
            UserError: nothing is indexed.
        """
        self._check([])
        return self._vectors[:]

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors of queries, float32 (n, d). Raises ``UserError`` if a vector is not finite."""
        pairs = list(zip(*titled(texts, None), strict=True))
        rows_of = partial(self._rows, pairs, self.query_length, self.model.settings.query_prefix)
        return self._encode(rows_of, QUERY, [text for _, text in pairs])

    def encode_passages(self, texts: Sequence[str], titles: Sequence[str] | None = None) -> NDArray[np.float32]:
        """Return the vectors of passages, float32 (n, d). A passage with a title is encoded as its title, [SEP] and its text.

        Raises:
            UserError: a vector is not finite.
        """
        pairs = list(zip(*titled(texts, titles), strict=True))
        rows_of = partial(self._rows, pairs, self.passage_length, self.model.settings.passage_prefix)
        return self._encode(rows_of, PASSAGE, [text for _, text in pairs])

    def identity(self) -> str:
        """Return a string with a hash of weights and tokenizer, the lengths, the settings, and a precision other than fp32.

        The results depend only on these and on the passages.
        """
        digest = hashlib.blake2b(self._tokenizer.backend_tokenizer.to_str().encode(), digest_size=16)
        if len(self.model.passage.head):  # activations and normalisations have no weights
            digest.update(repr(self.model.passage.head).encode())
        for name, weight in self.model.state_dict().items():
            digest.update(name.encode() + weight.cpu().numpy().tobytes())
        own, windows = self.model.settings.own(), f" windows {self.windows}" if self.windows > 1 else ""
        settings = f" {sorted(own.items())}" if own else ""
        kept = "" if self.dtype == "float32" else f" {self.dtype}"
        precision = f" {self.precision}" if self.precision != "fp32" else ""
        lengths = f"{self.query_length} {self.passage_length}"
        return f"{digest.hexdigest()} {lengths}{settings}{windows}{kept}{precision}"

    def _check(self, queries: Sequence[str]) -> list[str]:
        checked = super()._check(queries)
        if not self._owned and not torch.equal(self._scales(), self._indexed):
            raise UserError("search: the passage encoder has been trained since index(passages); call index again")
        return checked

    def _scales(self) -> torch.Tensor:
        """Return the biases and scales of the passage encoder, fp32 (n,). Any training of the encoder changes them."""
        return torch.cat([one.detach().float().cpu() for one in self.model.passage.parameters() if one.dim() == 1])

    def _prepare(self, titles: list[str], texts: list[str]) -> None:
        self._indexed = self._scales()
        if self.windows == 1:
            vectors = self.encode_passages(texts, titles)
        else:
            pieces = [self._windows_of(text, title) for title, text in zip(titles, texts, strict=True)]
            owners = [text for text, windows in zip(texts, pieces, strict=True) for _ in windows]
            rows = [ids for windows in pieces for ids in windows]
            vectors = self._encode(rows.__getitem__, PASSAGE, owners)
            self._starts = np.cumsum([0, *map(len, pieces)])  # (m + 1,) row of each passage's first window
        self._vectors: NDArray[np.float32] | Decoded = vectors
        if self.dtype != "float32":
            self._vectors, lost = quantised(vectors, self.dtype)
            print(f"{self._name}: {lost}", flush=True)

    def _rank(self, queries: list[str], k: int) -> Ranking:

        if not queries:
            return unpack(np.empty((0, k), np.int64))
        search = partial(search_array, self.encode_queries(queries), self._vectors, device=self.device)
        if self.windows == 1:
            return search(k=k)
        return unpack(best_of_windows(lambda number: pack(*search(k=number)), self._starts, k))

    def _score(self, queries: list[str], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:

        vectors = self.encode_queries(queries)

        def products(rows: NDArray[np.integer]) -> NDArray[np.float32]:
            found = inner_products(vectors, rows, [(0, len(self._vectors), self._vectors)])
            check_finite(found, "score: a score of query", queries)
            return found

        return scores_of_best_window(products, None if self.windows == 1 else self._starts, passage_rows)

    def _windows_of(self, text: str, title: str) -> Rows:

        before, words, named = self._words([self.model.settings.passage_prefix + title, text, title])
        if named:
            before = [*before, self._vocabulary.sep]
        room = max(1, self.passage_length - 2 - len(before))  # 2: [CLS] and [SEP]
        skipped = cut(np.array([len(words)]), np.array([room]), self.windows).skipped.tolist()
        return [with_special([*before, *words[at:]], self._vocabulary, self.passage_length) for at in skipped]

    def _rows(self, titled: Sequence[tuple[str, str]], length: int, prefix: str, part: slice) -> Rows:
        """Return the token ids, special tokens included, of the (title, text) pairs in the slice ``part``."""
        pairs = titled[part]
        named = [bool(ids) for ids in self._words([title for title, _ in pairs])]  # whether the title has a token
        bodies = self._words([text if own else prefix + text for (_, text), own in zip(pairs, named, strict=True)])
        titles = iter(self._words([prefix + title for (title, _), own in zip(pairs, named, strict=True) if own]))
        rows = []
        for body, own in zip(bodies, named, strict=True):
            ids = [*next(titles), self._vocabulary.sep, *body] if own else body
            rows.append(with_special(ids, self._vocabulary, length))
        return rows

    def _words(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens."""
        if not any(texts):  # the tokenizer does not take an empty list
            return [[] for _ in texts]
        found = self._tokenizer(list(texts), add_special_tokens=False, verbose=False, return_attention_mask=False)
        return list(found["input_ids"])

    def _encode(self, rows_of: Callable[[slice], Rows], tower: int, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode n texts into vectors (n, d). ``rows_of`` returns the token ids of a part of the texts.

        Raises ``UserError`` if a vector is not finite. The message quotes the text.
        """
        encoder, pad, device = self._encoder(), self._vocabulary.pad, torch.device(self.device)
        cpu = device.type == "cpu"
        budget = CHUNK_TOKENS_CPU if cpu else CHUNK_TOKENS
        training = encoder.training
        if training:
            encoder.eval()
        windows = [slice(first, first + WINDOW) for first in range(0, max(1, len(texts)), WINDOW)]
        vectors = []
        with inference(device, self.precision):
            for rows in _one_ahead(rows_of, windows):
                parts = chunks(*flatten(rows), budget, pad, tower=tower, level=cpu)
                vectors.append(encode_chunks(lambda chunk: encoder.vectors(chunk.to(device)), parts, len(rows)))
        if training:
            encoder.train()
        encoded = np.concatenate(vectors) if len(texts) else np.empty((0, self.model.hidden_size), np.float32)
        check_finite(encoded, f"{self._name}: the vector of", texts)
        return encoded

    def _encoder(self) -> BiEncoder:
        """Return the model on its device. The weights of a loaded model are cast once, and again if they have changed."""
        if self._ready[0] != self._state():
            model = self.model.to(self.device)
            self._ready = self._state(), with_cast_weights(model, self.precision) if self._owned else model
        return self._ready[1]

    def _state(self) -> list[Any]:
        versions = ((one.data_ptr(), 0 if one.is_inference() else one._version) for one in self.model.parameters())
        return [self.model, self.model.settings, self.device, self.precision, *versions]


def _one_ahead(rows_of: Callable[[slice], Rows], parts: Sequence[slice]) -> Iterator[Rows]:
    """Yield the rows of each part. While the caller uses them, a thread computes the rows of the next part."""
    rows = rows_of(parts[0])
    with ThreadPoolExecutor(1) as thread:
        for part in parts[1:]:
            coming = thread.submit(rows_of, part)
            yield rows
            rows = coming.result()
    yield rows
