"""The sparse vectors of BM25: a store that knows only idf and inner products has BM25's own scores."""

import math
from collections import Counter
from zlib import crc32

import numpy as np
import pytest

from condensery.errors import UserError
from condensery.retrieval.searchers.bm25 import BM25

PASSAGES = {
    "river": {"title": "Rivers", "text": "A river carries stones to the sea, and the stones roll in the river."},
    "stone": "Stones are old. Old stones are round.",
    "sea": {"title": "", "text": "The sea is salt."},
    "tea": "喝绿茶的人",
    "none": "of the and",
}
QUERIES = ["rivers and stones", "old old stones", "salt", "绿茶", "茶", "of the", "nothing of the kind"]


def stored(passages: list[dict[int, float]], queries: list[dict[int, float]]) -> np.ndarray:
    """The scores (n, m) of a store, by its own count of passages."""
    known = Counter(number for vector in passages for number in vector)
    idf = {number: math.log(1 + (len(passages) - n + 0.5) / (n + 0.5)) for number, n in known.items()}
    return np.array(
        [
            [sum(query[t] * idf[t] * passage[t] for t in query if t in passage) for passage in passages]
            for query in queries
        ]
    )


def columns(passages: dict[str, str | dict[str, str]]) -> tuple[list[str], list[str]]:
    """Texts and titles."""
    given = [{"title": "", "text": one} if isinstance(one, str) else one for one in passages.values()]
    return [one["text"] for one in given], [one["title"] for one in given]


@pytest.mark.parametrize("settings", [{}, {"k1": 1.5, "b": 0.9, "stemmer": "none", "stopwords": "none"}])
def test_a_store_has_the_scores_of_bm25(settings: dict[str, float | str]) -> None:
    bm25 = BM25(**settings).index(PASSAGES)  # type: ignore[arg-type]
    found = stored(bm25.encode_passages(*columns(PASSAGES)), bm25.encode_queries(QUERIES))
    rows = np.tile(np.arange(len(PASSAGES)), (len(QUERIES), 1))
    np.testing.assert_allclose(found, bm25.score(QUERIES, rows), rtol=1e-6, atol=1e-7)
    assert (found > 0).any(axis=1).tolist() == [True] * 5 + [bool(settings), bool(settings)]


def test_passages_that_are_added_have_the_scores_of_an_index_of_all_of_the_same_average_length() -> None:
    first = {"a": "amber birch cedar", "b": "birch cedar delta"}
    added = {"c": "zebra birch zebra"}
    bm25, whole = BM25().index(first), BM25().index(first | added)
    vectors = bm25.encode_passages(*columns(first)) + bm25.encode_passages(*columns(added))
    queries = ["zebra", "birch amber"]
    rows = np.tile(np.arange(3), (2, 1))
    np.testing.assert_allclose(stored(vectors, bm25.encode_queries(queries)), whole.score(queries, rows), rtol=1e-6)


def test_the_vectors_of_passages_follow_what_is_indexed() -> None:
    bm25 = BM25().index(["amber"])
    short = bm25.encode_passages(["amber birch"])
    bm25.index(["amber birch cedar delta"])
    longer = bm25.encode_passages(["amber birch"])
    assert short[0].keys() == longer[0].keys() == {crc32(b"amber"), crc32(b"birch")}
    assert max(short[0].values()) < min(longer[0].values())


def test_terms_that_share_a_number_count_together() -> None:
    assert crc32(b"plumless") == crc32(b"buckeroo")
    bm25 = BM25(stemmer="none").index(["plumless", "buckeroo"])
    assert bm25.encode_queries(["plumless buckeroo buckeroo"]) == [{crc32(b"plumless"): 3}]
    assert len(bm25.encode_passages(["plumless buckeroo"])[0]) == 1


def test_what_cannot_be_encoded_is_one_line() -> None:
    for encode in (BM25().encode_queries, BM25().encode_passages):
        with pytest.raises(UserError, match="nothing is indexed yet"):
            encode(["amber"])
    with pytest.raises(UserError, match="half a character"):
        BM25().index(["amber"]).encode_passages(["\ud800"])
