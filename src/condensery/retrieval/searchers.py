"""Retrievers for a program of your own: texts in, passages out, without a recipe or an output folder.

They compute what the stages ``encode``, ``bm25`` and ``evaluate`` compute, on passages that fit into memory.

Shapes: n texts or queries, m passages, d dimensions, k results.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from condensery.arguments import check_numbers
from condensery.errors import UserError, shown
from condensery.retrieval.finite import check_finite
from condensery.retrieval.ranking import Ranking
from condensery.retrieval.searcher import Searcher
from condensery.text.lines import check_whole

if TYPE_CHECKING:
    from condensery.models.biencoder import BiEncoder
    from condensery.models.vectors import VectorOptions
    from condensery.retrieval.sparse import SparseVector
    from condensery.training.modules.encoders import EncoderModule

CHUNK_TOKENS = 16_384  # padded tokens that go through the encoder at a time


class BM25(Searcher):
    """BM25 (Robertson and Zaragoza 2009) with Lucene's formula over titles and texts; see ``condensery.retrieval.bm25``.

    Args:
        k1: saturation of term frequency; the default is Anserini's, with which dense retrievers are usually compared.
        b: length normalisation; the default is Anserini's.
        stopwords: "english" (Lucene's list) or "none".
        stemmer: an algorithm of Snowball (porter is Lucene's), or "none".
        language: "auto" is guessed from the letters of the passages, and a line says so where their terms are not plain
            words; otherwise a name of ``condensery.text.languages.LANGUAGES``, such as "chinese", "any" or "words".

    Raises:
        UserError: a number is out of its range; from ``index``, there is no such stemmer, list or language, or no word to
            index.
    """

    def __init__(
        self,
        k1: float = 0.9,
        b: float = 0.4,
        stopwords: str = "english",
        stemmer: str = "porter",
        language: str = "auto",
    ) -> None:
        check_numbers("BM25", locals())
        super().__init__()
        self._settings = (k1, b, stopwords, stemmer)
        self._language = language
        self._folder: Any = None
        self._average: float | None = None  # terms of a passage that is indexed, once that is asked for

    def identity(self) -> str:
        """See ``Searcher``."""
        return f"bm25 {(*self._settings, self._language)}"

    def encode_queries(self, texts: Sequence[str]) -> "list[SparseVector]":
        """Queries as sparse vectors for a vector store: the number of a term -> how often it is in the text.

        A store has the scores of this class where it multiplies them with the idf of its own passages, ln(1 + (N - n + 0.5) /
        (n + 0.5)), and with the vectors of ``encode_passages``. Qdrant does, with the modifier ``idf``. See
        ``condensery.retrieval.sparse``.

        Raises ``UserError`` where nothing is indexed.
        """
        from condensery.retrieval.sparse import query_vector

        self._check(texts)
        return [query_vector(self._index.terms(text)) for text in texts]

    def encode_passages(self, texts: Sequence[str], titles: Sequence[str] | None = None) -> "list[SparseVector]":
        """Passages as sparse vectors for a vector store, indexed here or not: the number of a term -> what it weighs.

        Lengths are compared with the average of those that are indexed, so that what is added to the store later changes no
        vector that is there. See ``encode_queries``.

        Raises ``UserError`` where nothing is indexed.
        """
        from condensery.retrieval.sparse import passage_vector

        self._check([])
        if self._average is None:
            self._average = sum(map(len, self._terms(self._titles, self._texts))) / len(self)
        k1, b, *_ = self._settings
        given = self._terms(titles or [""] * len(texts), texts)
        return [passage_vector(terms, k1, b, self._average) for terms in given]

    def _terms(self, titles: Sequence[str], texts: Sequence[str]) -> Iterator[list[str]]:
        for text in _joined(titles, texts):
            check_whole(text, "text", "encode")
            yield self._index.analyser.terms(text)

    def _prepare(self, titles: list[str], texts: list[str]) -> None:
        from condensery.retrieval.analyser import chosen_language
        from condensery.retrieval.bm25 import BM25Index, index_texts

        language = chosen_language(self._language, texts, ("BM25:", "BM25(language=...)"))
        folder = TemporaryDirectory(prefix="bm25-")
        joined = _joined(titles, texts)
        index_texts(joined, len(texts), Path(folder.name), *self._settings, what="index", language=language)
        self._folder, self._index = folder, BM25Index(Path(folder.name))  # the folder lives as long as this
        self._average = None

    def _rank(self, queries: list[str], k: int) -> Ranking:
        return self._index.search_texts(queries, k) if queries else _nothing(k)

    def _score(self, queries: list[str], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        return self._index.score_texts(queries, passage_rows)

    def without_terms(self, queries: Sequence[str]) -> int:
        """How many of some queries share no term with any passage, so that nothing is found for them."""
        return self._index.texts_without_terms(queries)


class Retriever(Searcher):
    """A bi-encoder: inner products of vectors, all passages searched exactly.

    Args:
        source: a folder or hub name of what this project or sentence-transformers saved, or of any encoder of the BERT
            family; a ``BiEncoder``, or a module that trains one, whose weights it then shares.
        query_length: longest query in tokens, [CLS] and [SEP] included; None = as the folder says, or the longest that
            the encoder reads, 512 at most.
        passage_length: longest passage in tokens, as ``query_length``.
        tokenizer: folder or hub name; None = that of ``source``.
        device: "cpu", "cuda", ...; None = the GPU where there is one.
        vectors: ``pooling``, ``normalise``, ``truncate_dim``, ``query_prefix``, ``passage_prefix``, in place of what
            ``source`` says, where that is a folder or a name; see ``VectorSettings``.
        windows: stretches of a passage that are indexed at most, each of ``passage_length`` tokens with the title before
            it; a passage ranks by its best. 1 = what is longer is cut.

    Raises:
        UserError: nothing can be loaded, or sentence-transformers makes its vectors in a way that is not known here.
    """

    def __init__(
        self,
        source: "str | Path | BiEncoder | EncoderModule",
        *,
        query_length: int | None = None,
        passage_length: int | None = None,
        tokenizer: str | Path | None = None,
        device: str | None = None,
        vectors: "VectorOptions | None" = None,
        windows: int = 1,
    ) -> None:
        from condensery.models.biencoder import BiEncoder
        from condensery.models.checkpoint import load_any_retriever
        from condensery.models.hub import checkpoint_folder
        from condensery.retrieval.dense import device_of_search
        from condensery.tokens.prefixes import check_prefix
        from condensery.tokens.tokenizer import load_tokenizer
        from condensery.tokens.vocabulary import Vocabulary

        check_numbers("Retriever", locals())
        super().__init__()
        lengths: tuple[int | None, int | None] = (None, None)
        self._name = f"Retriever({shown(str(source))!r})" if isinstance(source, str | Path) else "Retriever"
        if isinstance(source, str | Path):
            source = checkpoint_folder(source)
            self.model, lengths = load_any_retriever(source, vectors)
            tokenizer = tokenizer if tokenizer is not None else source
        elif isinstance(source, BiEncoder):
            self.model = source
        else:
            self.model, lengths = source.towers(), source.lengths
            tokenizer = tokenizer if tokenizer is not None else source.saved_with
        if tokenizer is None:
            raise UserError("Retriever: a model does not say its tokenizer; give `tokenizer`")
        longest = min(512, self.model.query.longest, self.model.passage.longest)
        self.query_length = query_length or lengths[0] or longest
        self.passage_length = passage_length or lengths[1] or longest
        self.device, self.windows = device_of_search(device), windows
        self.tokenizer, self._tokenizer = tokenizer, load_tokenizer(tokenizer)
        self._vocabulary = Vocabulary.of(self._tokenizer)
        for side in ("query", "passage"):
            prefix = getattr(self.model.settings, f"{side}_prefix")
            length = getattr(self, f"{side}_length")
            check_prefix(f"{side}_prefix", prefix, len(self._words(prefix)), f"{side}_length", length)

    @property
    def passage_vectors(self) -> NDArray[np.float32]:
        """The vectors of the indexed passages, (m, d); with ``windows``, of all windows of the first passage, the second, ...

        Raises ``UserError`` where nothing is indexed.
        """
        self._check([])
        return self._vectors

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of queries, (n, d). Raises ``UserError`` where one is not finite."""
        from condensery.models.biencoder import QUERY

        before = self.model.settings.query_prefix
        return self._encode([self._ids_of(text, self.query_length, before) for text in texts], QUERY, texts)

    def encode_passages(self, texts: Sequence[str], titles: Sequence[str] | None = None) -> NDArray[np.float32]:
        """The vectors of passages, (n, d); each is read as its title, [SEP], its text where it has a title.

        Raises ``UserError`` where one is not finite.
        """
        from condensery.models.biencoder import PASSAGE

        titles = titles or [""] * len(texts)
        before, length = self.model.settings.passage_prefix, self.passage_length
        rows = [self._ids_of(text, length, before, title) for title, text in zip(titles, texts, strict=True)]
        return self._encode(rows, PASSAGE, texts)

    def identity(self) -> str:
        """See ``Searcher``: its weights, its tokenizer, its lengths."""
        digest = hashlib.blake2b(self._tokenizer.backend_tokenizer.to_str().encode(), digest_size=16)
        if len(self.model.passage.head):  # of activations and normalisations there are no weights
            digest.update(repr(self.model.passage.head).encode())
        for name, weight in self.model.state_dict().items():
            digest.update(name.encode() + weight.cpu().numpy().tobytes())
        own, windows = self.model.settings.own(), f" windows {self.windows}" if self.windows > 1 else ""
        settings = f" {sorted(own.items())}" if own else ""
        return f"{digest.hexdigest()} {self.query_length} {self.passage_length}{settings}{windows}"

    def _prepare(self, titles: list[str], texts: list[str]) -> None:
        from condensery.models.biencoder import PASSAGE

        if self.windows == 1:
            self._vectors = self.encode_passages(texts, titles)
            return
        pieces = [self._windows_of(text, title) for title, text in zip(titles, texts, strict=True)]
        owners = [text for text, windows in zip(texts, pieces, strict=True) for _ in windows]
        self._vectors = self._encode([ids for windows in pieces for ids in windows], PASSAGE, owners)
        self._starts = np.cumsum([0, *map(len, pieces)])  # (m + 1,) the first window of each passage

    def _rank(self, queries: list[str], k: int) -> Ranking:
        from condensery.retrieval.dense import search_array
        from condensery.retrieval.ranking import pack, unpack
        from condensery.retrieval.windows import best_of_windows

        if not queries:
            return _nothing(k)
        search = partial(search_array, self.encode_queries(queries), self._vectors, device=self.device)
        if self.windows == 1:
            return search(k=k)
        return unpack(best_of_windows(lambda number: pack(*search(k=number)), self._starts, k))

    def _score(self, queries: list[str], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        from condensery.retrieval.dense import multiply
        from condensery.retrieval.windows import scores_of_best_window

        vectors = self.encode_queries(queries)

        def products(rows: NDArray[np.integer]) -> NDArray[np.float32]:
            found = np.zeros(rows.shape, np.float32)
            multiply(vectors, self._vectors, rows, 0, len(self._vectors), found)
            check_finite(found, "score: a score of query", queries)
            return found

        return scores_of_best_window(products, None if self.windows == 1 else self._starts, passage_rows)

    def _windows_of(self, text: str, title: str) -> list[NDArray[np.int64]]:
        from condensery.retrieval.windows import cut
        from condensery.tokens.vocabulary import with_special

        before, words = self._words(self.model.settings.passage_prefix + title), self._words(text)
        if title and self._words(title):
            before = [*before, self._vocabulary.sep]
        room = max(1, self.passage_length - 2 - len(before))  # [CLS] and [SEP] are the two
        skipped = cut(np.array([len(words)]), np.array([room]), self.windows).skipped.tolist()
        return [with_special([*before, *words[at:]], self._vocabulary, self.passage_length) for at in skipped]

    def _ids_of(self, text: str, length: int, prefix: str, title: str = "") -> NDArray[np.int64]:
        from condensery.tokens.vocabulary import with_special

        if title and self._words(title):
            ids = [*self._words(prefix + title), self._vocabulary.sep, *self._words(text)]
        else:
            ids = self._words(prefix + text)
        return with_special(ids, self._vocabulary, length)

    def _words(self, text: str) -> list[int]:
        check_whole(text, "text", "encode")
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def _encode(self, rows: list[NDArray[np.int64]], tower: int, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of rows of ids, (n, d), that ``texts`` (n,) name; ``UserError`` where one is not finite."""
        import torch

        from condensery.tokens.batches import chunks, flatten

        encoder = self.model.to(self.device)
        training = encoder.training
        encoder.eval()
        encoded: NDArray[np.float32] | None = None
        with torch.inference_mode():
            for chunk in chunks(*flatten(rows), CHUNK_TOKENS, self._vocabulary.pad, tower=tower):
                vectors = encoder.vectors(chunk.to(torch.device(self.device))).float().cpu().numpy()
                if encoded is None:
                    encoded = np.empty((len(rows), vectors.shape[1]), np.float32)
                encoded[chunk.rows.numpy()] = vectors
        encoder.train(training)
        if encoded is None:
            return np.empty((0, 0), np.float32)
        check_finite(encoded, f"{self._name}: the vector of", texts)
        return encoded


def _joined(titles: Sequence[str], texts: Sequence[str]) -> Iterator[str]:
    """What BM25 reads of passages."""
    return (f"{title} {text}" if title else text for title, text in zip(titles, texts, strict=True))


def _nothing(k: int) -> Ranking:
    return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
