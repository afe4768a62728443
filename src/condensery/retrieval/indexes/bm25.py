"""Index the titles and texts of a collection for BM25, and search them.

bm25s builds the postings. A search is a sparse matrix product in SciPy. A search with a single query imports neither bm25s
nor SciPy, because the import would take longer than the search.

The scores are Lucene's: idf(t) * tf / (tf + k1 * (1 - b + b * |p| / average |p|)), idf(t) = ln(1 + (N - n + 0.5) /
(n + 0.5)) (Kamphuis et al. 2020, "Which BM25 do you mean?", the variant "Lucene (accurate)"). The usual parameters in
comparisons with dense retrievers are Anserini's, k1 = 0.9 and b = 0.4.
"""

import logging
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError
from condensery.retrieval.indexes.terms import Analyser
from condensery.retrieval.ranking import EMPTY, Keys, Ranking, pack, top, unpack
from condensery.system.files import load_array, read_json, write_json
from condensery.system.progress import SILENT, ProgressTask, progress
from condensery.text.collection import Collection
from condensery.text.languages import AUTO, WORDS
from condensery.text.table import with_titles

if TYPE_CHECKING:
    import scipy.sparse as sparse

SHOWN = 4096  # passages between two updates of the progress bar
POSTINGS = 8_000_000  # maximum number of postings that a block of queries reads: 64 MB of results

Rows = NDArray[np.integer]
Take = Callable[[int, NDArray[np.float32], NDArray[np.int32]], None]


class _TermIds:
    """The term ids of every passage, on disk. bm25s reads them passage by passage."""

    def __init__(self, path: Path, starts: NDArray[np.int64]) -> None:
        self.flat = np.memmap(path, dtype=np.uint32, mode="r")
        self.starts = starts

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, passage: int) -> list[int]:
        ids: list[int] = self.flat[self.starts[passage] : self.starts[passage + 1]].tolist()
        return ids


def build_bm25(
    collection: Collection,
    folder: Path,
    k1: float,
    b: float,
    stopwords: str = "english",
    stemmer: str = "none",
    language: str = AUTO,
    label: str = "bm25",
) -> dict[str, Any]:
    """Index titles and texts of all passages into ``folder``.

    Args:
        collection: the collection of the passages.
        folder: folder of the index.
        k1: term frequency saturation.
        b: length normalisation.
        stopwords, stemmer: see ``Analyser``.
        language: a language, or ``auto`` to guess the language from the passages.
        label: name of the stage, which begins the printed line about the guessed language.

    Returns:
        The content of ``index.json``.

    Raises:
        UserError: no passage has a word to index.
    """
    titles, texts = (collection.passages.column(name) for name in ("title", "text"))
    analyser = Analyser.of(texts, stopwords, stemmer, language, f"[{label}]", f"stages.{label}.language")
    what = f"collection '{collection.name}'"
    return index_texts(with_titles(titles, texts), len(collection.passages), folder, k1, b, analyser, what)


def index_texts(
    texts: Iterable[str], total: int, folder: Path, k1: float, b: float, analyser: Analyser, what: str
) -> dict[str, Any]:
    """Index ``total`` texts from any source, as ``build_bm25`` does. ``what`` is a noun for the texts in error messages."""
    with _not_importing("jax"):
        import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # bm25s sets its logger to DEBUG on import
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / "terms.tmp"
    vocabulary, starts = _write_terms(texts, total, analyser, scratch)
    if not vocabulary:
        raise UserError(f"{what}: no passage has a word that BM25 can index")
    index = bm25s.BM25(k1=k1, b=b, method="lucene", csc_backend="scipy")
    ids = SimpleNamespace(ids=_TermIds(scratch, starts), vocab=vocabulary)
    index.index(ids, create_empty_token=False, show_progress=False)
    index.save(folder, show_progress=False)
    scratch.unlink()
    settings = {"k1": k1, "b": b, **analyser.settings}
    about = {"method": "bm25", "passages": len(starts) - 1, "terms": len(vocabulary), **settings}
    write_json(folder / "index.json", about)
    return about


@contextmanager
def _not_importing(library: str) -> Iterator[None]:
    """Make ``import library`` fail, unless it is imported already.

    bm25s imports JAX if JAX is installed, and JAX takes three quarters of the GPU's memory when it is first used.
    """
    if library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[library]


def _write_terms(
    texts: Iterable[str], total: int, analyser: Analyser, path: Path
) -> tuple[dict[str, int], NDArray[np.int64]]:
    """Number the terms in the order of first occurrence, and write the term ids (uint32) of all passages to ``path``.

    Returns:
        The id of each term, and the offset of each passage among the term ids, int64 (passages + 1,).
    """
    vocabulary: dict[str, int] = {}
    lengths = array("q")
    with open(path, "wb") as stream, progress("bm25", total, "passages") as task:
        for number, text in enumerate(texts, start=1):
            terms = analyser.terms(text)
            array("I", [vocabulary.setdefault(term, len(vocabulary)) for term in terms]).tofile(stream)
            lengths.append(len(terms))
            if number % SHOWN == 0 or number == total:
                task.advance((number - 1) % SHOWN + 1)
    return vocabulary, np.concatenate([np.zeros(1, np.int64), np.cumsum(np.frombuffer(lengths, np.int64))])


class BM25Index:
    """A memory-mapped BM25 index. It returns only passages that share a term with the query."""

    def __init__(self, folder: Path, collection: Collection | None = None, threads: int = 1) -> None:
        """Open the index in ``folder``.

        ``collection`` is required by the methods that take query rows, and not by the methods that take strings.
        """
        about = read_json(folder / "index.json")
        language = about.get("language", WORDS)  # default for old indexes, which do not store a language
        self.analyser = Analyser(about["stopwords"], about["stemmer"], language)
        self.vocabulary: dict[str, int] = read_json(folder / "vocab.index.json")
        self.passages: int = about["passages"]
        # scores and passages of all postings, term by term, and the offset of each term's first posting
        data, indices, indptr = (
            load_array(folder / f"{name}.csc.index.npy", mapped=True) for name in ("data", "indices", "indptr")
        )
        self.arrays = data, indices, indptr
        self.collection = collection
        self.threads = max(1, threads)

    def __len__(self) -> int:
        return self.passages

    @cached_property
    def postings(self) -> "sparse.csr_matrix":
        """Score of each term in each passage, sparse (terms, passages)."""
        import scipy.sparse as sparse

        # bm25s stores (passages, terms) in CSC format. The same arrays in CSR format are the transpose, (terms, passages).
        return sparse.csr_matrix(self.arrays, shape=(len(self.vocabulary), self.passages), copy=False)

    def search(self, query_rows: Rows, k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best passages of queries of the collection, as ``CollectionRetriever.search``."""
        return self.search_texts(self._texts(query_rows), k, progress)

    def search_texts(self, texts: Sequence[str], k: int, progress: ProgressTask = SILENT) -> Ranking:
        """Return the k best passages for n query strings: scores and rows (n, k), as ``CollectionRetriever.search``."""
        best: Keys = np.full((len(texts), k), EMPTY, np.int64)

        def keep(i: int, scores: NDArray[np.float32], rows: NDArray[np.int32]) -> None:
            best[i] = top(pack(scores, rows), k)

        self._score(texts, keep, progress)
        return unpack(best)

    def ranks(
        self, texts: Sequence[str], rows: Rows, without: Rows, progress: ProgressTask = SILENT
    ) -> NDArray[np.int64]:
        """For each query string, return the rank (from 1) of one given passage in the complete ranking of ``search_texts``.

        Args:
            texts: n query strings.
            rows: int (n,), for each query, the passage whose rank is computed.
            without: int (n,), for each query, a passage that is left out of the ranking; -1 = none.
            progress: progress bar, which advances by queries.

        Returns:
            Ranks, int64 (n,); -1 if the query and the passage share no term, because no search returns the passage then.
        """
        ranks = np.full(len(texts), -1, np.int64)

        def count(i: int, scores: NDArray[np.float32], passages: NDArray[np.int32]) -> None:
            ranked = passages != without[i]
            keys, own = pack(scores[ranked], passages[ranked]), passages[ranked] == rows[i]
            if own.any():
                ranks[i] = (keys >= keys[own][0]).sum()

        self._score(texts, count, progress)
        return ranks

    def score(self, query_rows: Rows, passage_rows: Rows) -> NDArray[np.float32]:
        """Return the scores (n, k) of passages (n, k) for queries (n,) of the collection, as ``score_texts``."""
        return self.score_texts(self._texts(query_rows), passage_rows)

    def score_texts(self, texts: Sequence[str], passage_rows: Rows) -> NDArray[np.float32]:
        """Return the scores (n, k) of passages (n, k) for n query strings: 0 if no term is shared, NaN for padding."""
        values = np.zeros(passage_rows.shape, np.float32)

        def keep(i: int, scores: NDArray[np.float32], rows: NDArray[np.int32]) -> None:
            if len(rows):
                order = np.argsort(rows)
                place = order[np.minimum(np.searchsorted(rows, passage_rows[i], sorter=order), len(rows) - 1)]
                values[i] = np.where(rows[place] == passage_rows[i], scores[place], 0.0)

        self._score(texts, keep, SILENT)
        values[passage_rows < 0] = np.nan
        return values

    def neighbours(self, texts: Sequence[str], k: int) -> tuple[Ranking, Ranking]:
        """Return the k best passages of each text, and the k best texts of each passage.

        Both rankings have the format of ``CollectionRetriever.search``. The first, (n, k), holds row numbers of passages.
        The second, (passages, k), holds indices of ``texts``.
        """
        best: Keys = np.full((len(texts), k), EMPTY, np.int64)
        best_texts, lock = _BestTexts(self.passages, k), Lock()

        def keep(i: int, scores: NDArray[np.float32], rows: NDArray[np.int32]) -> None:
            best[i] = top(pack(scores, rows), k)
            with lock:
                best_texts.add(i, scores, rows)

        self._score(texts, keep, SILENT)
        return unpack(best), unpack(best_texts.keys())

    def without_terms(self, query_rows: Rows) -> int:
        """Count the queries (n,) that share no term with any passage. BM25 finds nothing for them."""
        return self.texts_without_terms(self._texts(query_rows))

    def texts_without_terms(self, texts: Sequence[str]) -> int:
        """Count the query strings that share no term with any passage."""
        return sum(not self._counts(text) for text in texts)

    def _texts(self, query_rows: Rows) -> list[str]:
        if self.collection is None:
            raise ValueError("a BM25Index without a collection searches texts, and knows no query rows")
        return self.collection.queries.column("text").take(query_rows)

    def _score(self, texts: Sequence[str], take: Take, progress: ProgressTask) -> None:
        """Call ``take`` for each text with its index, its nonzero scores and their passages, from several threads."""
        if len(texts) == 1:
            take(0, *self._scores_of_one(texts[0]))
            progress.advance(1)
            return
        queries = self._matrix(texts)

        def work(block: tuple[int, int]) -> None:
            scores = queries[block[0] : block[1]] @ self.postings
            for i in range(scores.shape[0]):
                part = slice(scores.indptr[i], scores.indptr[i + 1])
                take(block[0] + i, scores.data[part], scores.indices[part])
            progress.advance(block[1] - block[0])

        with ThreadPoolExecutor(self.threads) as pool:  # the product releases the interpreter lock
            for _ in pool.map(work, self._blocks(queries)):
                pass

    def _scores_of_one(self, text: str) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Return the nonzero scores of one text, and their passages. The scores equal those of the matrix product exactly."""
        data, indices, indptr = self.arrays
        scores = np.zeros(self.passages, np.float32)
        for term, count in self._counts(text).items():
            part = slice(indptr[term], indptr[term + 1])
            scores[indices[part]] += np.float32(count) * data[part]  # a passage occurs once per term
        scored = np.flatnonzero(scores).astype(np.int32)
        return scores[scored], scored

    def _counts(self, text: str) -> Counter[int]:
        """Return the frequency in a text of each term of the index, in the order of the text."""
        return Counter(self.vocabulary[term] for term in self.terms(text) if term in self.vocabulary)

    def terms(self, text: str) -> list[str]:
        """Return the terms with which a query string is searched, including terms that are not in the index.

        Some scripts are indexed as character bigrams. A query of only single characters of such scripts is searched with all
        bigrams that contain one of the characters.
        """
        terms = self.analyser.terms(text)
        if all(map(self.analyser.language.is_half_a_pair, terms)):
            terms = [term for one in terms for term in self.vocabulary if one in term]
        return terms

    def _matrix(self, texts: Sequence[str]) -> "sparse.csr_matrix":
        """Return the frequency of each term in each text, sparse (queries, terms)."""
        import scipy.sparse as sparse

        columns, counts, starts = array("i"), array("f"), [0]
        for text in texts:
            known = self._counts(text)
            columns.extend(known.keys())
            counts.extend(known.values())
            starts.append(len(columns))
        arrays = (np.asarray(counts, np.float32), np.asarray(columns, np.int32), np.asarray(starts, np.int32))
        return sparse.csr_matrix(arrays, shape=(len(texts), len(self.vocabulary)))

    def _blocks(self, queries: "sparse.csr_matrix") -> Iterator[tuple[int, int]]:
        """Split the queries into blocks (first, stop). A block reads at most ``POSTINGS`` postings, or has only one query."""
        touched = np.concatenate([[0], np.cumsum(np.diff(self.postings.indptr).astype(np.int64)[queries.indices])])
        reach = touched[queries.indptr]  # (queries + 1,)
        first, total = 0, queries.shape[0]
        while first < total:
            stop = int(np.searchsorted(reach, reach[first] + POSTINGS, side="right")) - 1
            stop = min(max(stop, first + 1), total)
            yield first, stop
            first = stop


class _BestTexts:
    """Collects the k best texts of every passage from a stream of texts. Memory holds a few times k keys per passage."""

    def __init__(self, passages: int, k: int) -> None:
        self.k = k
        self.least: Keys = np.full(passages, EMPTY, np.int64)  # a key below it is not among the k best
        self.row_blocks, self.key_blocks = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
        self.waiting, self.room = 0, max(passages * k, POSTINGS // 4)

    def add(self, text: int, scores: NDArray[np.float32], rows: NDArray[np.int32]) -> None:
        """Add one text, with the scores that it gives the passages ``rows``."""
        keys = pack(scores, np.full(1, text))
        good = keys > self.least[rows]
        self.row_blocks.append(rows[good])
        self.key_blocks.append(keys[good])
        self.waiting += int(good.sum())
        if self.waiting > self.room:
            self._sift()

    def _sift(self) -> tuple[NDArray[np.int32], Keys, NDArray[np.int64]]:
        """Keep the k best keys of each passage.

        Returns:
            The passage of each key, the keys, and the rank of each key among the keys of its passage.
        """
        rows, keys = np.concatenate(self.row_blocks), np.concatenate(self.key_blocks)
        order = np.lexsort((-keys, rows))
        rows, keys = rows[order], keys[order]
        place = np.arange(len(rows)) - np.searchsorted(rows, rows)
        kept = place < self.k
        rows, keys, place = rows[kept], keys[kept], place[kept]
        last = place == self.k - 1
        self.least[rows[last]] = keys[last]
        self.row_blocks, self.key_blocks, self.waiting = [rows], [keys], 0
        return rows, keys, place

    def keys(self) -> Keys:
        """Return the best keys of the texts added so far, (passages, k)."""
        rows, keys, place = self._sift()
        best: Keys = np.full((len(self.least), self.k), EMPTY, np.int64)
        best[rows, place] = keys
        return best
