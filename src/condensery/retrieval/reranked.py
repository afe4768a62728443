"""``Reranked``: a searcher of a program of your own whose best passages are put in order by a cross-encoder."""

from copy import copy
from hashlib import blake2b
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from condensery.arguments import check_numbers
from condensery.errors import UserError
from condensery.retrieval.ranking import Ranking, ordered
from condensery.retrieval.searcher import Searcher, numbered
from condensery.retrieval.teachers import Predict, Predicting, by_texts, predicting
from condensery.system.progress import progress


class Reranked(Searcher):
    """The best passages of a searcher in the order of a cross-encoder (Nogueira and Cho 2019).

    ``index`` does not change the searcher that was given.

    Args:
        searcher: ``BM25``, a ``Retriever``, a ``Fused``, ... Where it has indexed passages, nothing need be indexed again.
        cross_encoder: sentence-transformers' ``CrossEncoder``, another object with ``predict``, or a function. It maps pairs
            of a query and a passage (its title, a blank and its text) to a number for each pair.
        depth: passages that the cross-encoder reads for each query; a search finds no more.

    Raises:
        UserError: an argument has another type; from a search, nothing is indexed, or a score is no finite number.
    """

    def __init__(self, searcher: Searcher, cross_encoder: Predicting | Predict, depth: int = 100) -> None:
        check_numbers("Reranked", locals())
        super().__init__()
        predict = predicting(cross_encoder)
        if not isinstance(searcher, Searcher) or predict is None:
            raise UserError(
                "Reranked: a searcher is expected, and an object with predict(pairs of texts) or a function"
            )
        self.searcher, self.depth, self._predict = copy(searcher), depth, predict
        self._ids, self._titles, self._texts = searcher._ids, searcher._titles, searcher._texts
        self._reads = _weights(cross_encoder)

    def identity(self) -> str:
        """The depth and the identities of cross-encoder and searcher: all that the results depend on.

        A cross-encoder without weights has a new identity each time.
        """
        return f"reranked {self.depth} {self._reads} {self.searcher.identity()}"

    def _prepare(self, titles: list[str], texts: list[str]) -> None:
        self.searcher = copy(self.searcher).index(numbered(titles, texts))

    def _rank(self, queries: list[str], k: int) -> Ranking:
        _, rows = self.searcher.rank(queries, self.depth)
        return ordered(self._score(queries, rows), rows, k)

    def _score(self, queries: list[str], passage_rows: NDArray[np.integer]) -> NDArray[np.float32]:
        score = by_texts(self._predict, lambda rows: [queries[row] for row in rows], self._read, "Reranked")
        with progress("cross-encoder", int((passage_rows >= 0).sum()), "pairs") as task:
            return score(np.arange(len(queries)), passage_rows, task)

    def _read(self, rows: NDArray[np.integer]) -> list[str]:
        return [f"{self._titles[row]} {self._texts[row]}" if self._titles[row] else self._texts[row] for row in rows]


def _weights(cross_encoder: object) -> str:
    """A hash of the weights of a cross-encoder; for one without weights a unique random name."""
    if not hasattr(cross_encoder, "state_dict"):
        return uuid4().hex
    digest = blake2b(digest_size=16)
    for name, tensor in cross_encoder.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()
