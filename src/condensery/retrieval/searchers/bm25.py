"""Define ``BM25``, for BM25 search from Python. Its rankings equal those of the stage ``bm25``. It does not import torch."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from condensery.ranges import Share, Weight, check_values
from condensery.retrieval.indexes.bm25 import BM25Index, index_texts
from condensery.retrieval.indexes.terms import Analyser
from condensery.retrieval.ranking import Ranking, unpack
from condensery.retrieval.searchers.base import Searcher, titled
from condensery.retrieval.searchers.sparse_vectors import SparseVector, passage_vector, query_vector
from condensery.text.table import with_titles


class BM25(Searcher):
    """BM25 search (Robertson and Zaragoza 2009) over titles and texts.

    The formula is Lucene's, written out in ``condensery.retrieval.indexes.bm25``.

    Args:
        k1: term frequency saturation; the default is Anserini's, because its BM25 is the usual baseline of dense retrievers.
        b: length normalisation; the default is Anserini's.
        stopwords: "english" (Lucene's list) or "none".
        stemmer: a Snowball algorithm ("porter" is Lucene's), or "none".
        language: a name in ``condensery.text.languages.LANGUAGES``, such as "chinese", "any" or "words". "auto" guesses the
            language from the script of the passages, and prints the language if its terms are not plain words.

    Raises:
        UserError: a number is out of its range, or the stemmer, the stop word list or the language does not exist.
            ``index`` raises this error if no passage has a word.
    """

    def __init__(
        self,
        k1: Weight = 0.9,
        b: Share = 0.4,
        stopwords: str = "english",
        stemmer: str = "porter",
        language: str = "auto",
    ) -> None:
        check_values(BM25, locals())
        Analyser(stopwords, stemmer, language)  # raises an error if one of the three does not exist
        super().__init__()
        self._settings = (float(k1), float(b), stopwords, stemmer)
        self._language = language
        self._folder: Any = None
        self._average: float | None = None  # mean number of terms of the indexed passages, computed on first use

    def identity(self) -> str:
        """Return the settings as a string. The results depend only on the settings and the passages."""
        return f"bm25 {(*self._settings, self._language)}"

    def encode_queries(self, texts: Sequence[str]) -> list[SparseVector]:
        """Return queries as sparse vectors for a vector store: term number -> frequency of the term in the query.

        To reproduce the scores of this class, the store multiplies these vectors with the vectors of ``encode_passages`` and
        with the idf of the store's passages, ln(1 + (N - n + 0.5) / (n + 0.5)). Qdrant does so with the modifier ``idf``. The
        module ``condensery.retrieval.searchers.sparse_vectors`` explains the factors and the term numbers.

        Raises:
            UserError: nothing is indexed.
        """
        return [query_vector(self._index.terms(text)) for text in self._check(texts)]

    def encode_passages(self, texts: Sequence[str], titles: Sequence[str] | None = None) -> list[SparseVector]:
        """Return passages as sparse vectors for a vector store: term number -> weight of the term, without the idf.

        The passages need not be indexed in this object. Their lengths are normalised by the average length of the indexed
        passages, so a vector stays valid when passages are added to the store later. ``encode_queries`` describes how a
        store computes scores from the vectors.

        Raises:
            UserError: nothing is indexed.
        """
        self._check([])
        if self._average is None:
            own = with_titles(self._titles, self._texts)
            self._average = sum(len(self._index.analyser.terms(text)) for text in own) / len(self)
        k1, b, *_ = self._settings
        given = map(self._index.analyser.terms, with_titles(*titled(texts, titles)))
        return [passage_vector(terms, k1, b, self._average) for terms in given]

    def _prepare(self, titles: list[str], texts: list[str]) -> None:
        analyser = Analyser.of(texts, *self._settings[2:], self._language, "BM25:", "BM25(language=...)")
        folder = TemporaryDirectory(prefix="bm25-")
        index_texts(with_titles(titles, texts), len(texts), Path(folder.name), *self._settings[:2], analyser, "index")
        self._folder, self._index = folder, BM25Index(Path(folder.name))  # the folder lives as long as this object
        self._average = None

    def _rank(self, queries: list[str], k: int) -> Ranking:
        return self._index.search_texts(queries, k) if queries else unpack(np.empty((0, k), np.int64))

    def _score(self, queries: list[str], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        return self._index.score_texts(queries, passage_rows)

    def without_terms(self, queries: Sequence[str]) -> int:
        """Count the queries that share no term with any passage. BM25 finds nothing for them."""
        return self._index.texts_without_terms(queries)
