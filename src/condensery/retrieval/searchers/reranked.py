"""Define ``Reranked``, which reranks the best passages of a searcher with a cross-encoder, from Python."""

from collections.abc import Callable, Sequence
from copy import copy
from hashlib import blake2b
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from condensery.errors import UserError, shown
from condensery.ranges import Count, check_values
from condensery.retrieval.cross_encoders import Rows, Score, Scores
from condensery.retrieval.ranking import Ranking, ordered
from condensery.retrieval.searchers.base import Searcher, numbered
from condensery.system.progress import ProgressTask, progress

Predict = Callable[[list[tuple[str, str]]], Any]  # (query, passage) pairs -> one score per pair
SETTINGS = ("activation_fn", "max_length", "prompts")  # those of a ``CrossEncoder`` on which its scores depend
PAIRS = 65_536  # (query, passage) pairs per call of a ``Predict`` function


class Predicting(Protocol):
    """An object that scores (query, passage) pairs, such as ``CrossEncoder`` of sentence-transformers."""

    def predict(self, pairs: list[tuple[str, str]], /) -> Any:
        """Return one score per (query, passage) pair."""


class Reranked(Searcher):
    """Two-stage search: a cross-encoder reranks the best passages of a searcher (Nogueira and Cho 2019).

    ``index`` works on a copy and leaves the given searcher unchanged.

    Args:
        searcher: ``BM25``, a ``Retriever``, a ``Fused``, ... If it has indexed passages, ``index`` need not be called.
        cross_encoder: sentence-transformers' ``CrossEncoder``, another object with ``predict``, or a function. The
            method or function maps a list of (query, passage) pairs to one score per pair. A passage is its title, a
            space and its text.
        depth: number of passages reranked per query, which is also the maximum number of results.

    Raises:
        UserError: an argument has the wrong type. A search raises this error if nothing is indexed, or if a score is not
            finite.
    """

    def __init__(self, searcher: Searcher, cross_encoder: Predicting | Predict, depth: Count = 100) -> None:
        check_values(Reranked, locals())
        super().__init__()
        predict = predicting(cross_encoder)
        if not isinstance(searcher, Searcher) or predict is None:
            raise UserError("Reranked: give a searcher, and an object with predict(pairs of texts) or a function")
        self.searcher, self.depth, self._predict = copy(searcher), depth, predict
        self._ids, self._titles, self._texts = searcher._ids, searcher._titles, searcher._texts
        self._cross_encoder, self._unique = cross_encoder, uuid4().hex

    def identity(self) -> str:
        """Return a string with the depth and the identities of cross-encoder and searcher. The results depend only on these.

        A cross-encoder without weights, such as a function, gets a new identity for each ``Reranked`` object.
        """
        return f"reranked {self.depth} {_weights(self._cross_encoder) or self._unique} {self.searcher.identity()}"

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
    """Return a hash of a cross-encoder's weights and settings; an empty string if it has no weights.

    The settings are the object's plain attributes, and those of sentence-transformers' ``CrossEncoder``.
    """
    if not hasattr(cross_encoder, "state_dict"):
        return ""
    own = {**vars(cross_encoder), **{name: repr(getattr(cross_encoder, name, None)) for name in SETTINGS}}
    plain = {name: value for name, value in own.items() if isinstance(value, bool | int | float | str)}
    digest = blake2b(repr(sorted((plain | {"training": False}).items())).encode(), digest_size=16)
    for name, tensor in cross_encoder.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().float().numpy().tobytes())
    return digest.hexdigest()


def by_texts(
    predict: Predict, queries: Callable[[Rows], Sequence[str]], passages: Callable[[Rows], Sequence[str]], label: str
) -> Score:
    """Return a function that scores passages with ``predict``. ``queries`` and ``passages`` map rows (n,) to texts."""

    def score(query_rows: Rows, candidates: Rows, task: ProgressTask) -> Scores:
        place, at = np.nonzero(candidates >= 0)
        scores = np.full(candidates.shape, np.nan, np.float32)
        for first in range(0, len(place), PAIRS):
            part = slice(first, first + PAIRS)
            read = passages(candidates[place[part], at[part]])
            pairs = list(zip(queries(query_rows[place[part]]), read, strict=True))
            scores[place[part], at[part]] = _numbers(predict(pairs), len(pairs), label)
            task.advance(len(pairs))
        return scores

    return score


def predicting(given: Any) -> Predict | None:
    """Return the ``predict`` method of an object, or ``given`` itself if it is a function; otherwise None."""
    predict = getattr(given, "predict", None if hasattr(given, "parameters") else given)
    return predict if callable(predict) and not isinstance(given, type) else None


def _numbers(given: Any, pairs: int, label: str) -> Scores:
    """Convert the result of a ``Predict`` function to scores (pairs,).

    Raises ``UserError`` unless there is one finite number for each pair.
    """
    given = given.detach().float().cpu().numpy() if hasattr(given, "detach") else given
    try:
        found = np.asarray(given, np.float32)
    except (TypeError, ValueError):
        raise UserError(f"{label}: it must return a number for each pair, not {shown(repr(given))}") from None
    if found.shape not in ((pairs,), (pairs, 1)):
        raise UserError(f"{label}: for {pairs} pairs it returned shape {found.shape}; return one number for each pair")
    if not np.isfinite(found).all():
        at = int(np.flatnonzero(~np.isfinite(found.reshape(-1)))[0])
        raise UserError(f"{label}: the score of pair {at} is not finite")
    return found.reshape(-1)
