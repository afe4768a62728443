"""Validation during training: MRR of the current model on a sample of dev queries."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from condensery.models.biencoder import PASSAGE, QUERY
from condensery.models.precision import autocast
from condensery.randomness import generator
from condensery.retrieval.finite import check_finite
from condensery.retrieval.indexes.own_passages import own_passages
from condensery.retrieval.searchers.bm25 import BM25
from condensery.text.collection import Collection
from condensery.text.languages import guess
from condensery.tokens.batches import Chunk
from condensery.tokens.pairs import PairReader
from condensery.tokens.text_reader import Readers
from condensery.training.dev_passages import Relevant, parted_by_dev

Ids = NDArray[np.int64]
_QUERIES = 64  # queries whose candidates' vectors are gathered at once
DIVERGING = "training diverges, or began with broken weights; lower learning_rate, raise warmup_ratio, or train in fp32"


@dataclass(frozen=True)
class _Sample:
    """Queries and passages for validation.

    Attributes:
        queries, passages: chunks of the q queries and of the p passages; the chunks' ``rows`` are indices in the sample.
    """

    queries: list[Chunk]
    passages: list[Chunk]

    def to(self, device: torch.device) -> Self:
        """Return the same sample on ``device``."""
        queries, passages = ([chunk.to(device) for chunk in part] for part in (self.queries, self.passages))
        return replace(self, queries=queries, passages=passages)

    def vectors(self, encode: Callable[[Chunk], Tensor]) -> tuple[Tensor, Tensor]:
        """Return the vectors (q, d) and (p, d) of queries and passages, see ``encoded``."""
        return encoded(encode, self.queries), encoded(encode, self.passages)


@dataclass(frozen=True)
class ValidationSample(_Sample):
    """A few queries and a small corpus that holds their positives.

    The corpus is small, so MRR@10 on the sample is far higher than on the whole corpus. Use it only to follow the progress
    of training.

    Attributes:
        relevant: (q, p) bool, True where a passage is relevant to the query.
        own: (q, p) bool, True where a passage is the query itself (``own_passages``) and is therefore not ranked; None = no
            passage is a query.
    """

    relevant: np.ndarray
    own: np.ndarray | None = None


def sample_of(
    collection: Collection,
    readers: Readers,
    queries: int = 200,
    passages: int = 2000,
    *,
    budget: int = 8192,
    left_out: bool = False,
) -> ValidationSample | None:
    """Draw a validation sample: some dev queries, the queries' positives, and random passages.

    Args:
        collection: collection with the judgements.
        readers: readers of the collection's passages and queries.
        queries, passages: maximum number of queries and of random passages; the positives are added to the passages.
        budget: maximum number of tokens in a chunk, padding included.
        left_out: whether training queries that share a relevant passage with a dev query are added, if there are fewer dev
            queries than ``queries``.

    Returns:
        the sample; None if the collection has no dev split.
    """
    if "dev" not in collection.splits:
        return None
    chosen, passage_rows, relevant = _drawn(collection, queries, passages, left_out)
    own = _own(collection, chosen, passage_rows)
    parts = _read(readers, chosen, passage_rows, budget)
    return ValidationSample(*parts, relevant, own if own.any() else None)


def _read(readers: Readers, queries: Ids, passages: Ids, budget: int) -> tuple[list[Chunk], list[Chunk]]:
    """Return the chunks of the queries (q,) and the passages (p,), given by their rows in the collection."""
    asked = readers[QUERY].chunks(queries, budget, QUERY)
    return asked, readers[PASSAGE].chunks(passages, budget, PASSAGE)


@dataclass(frozen=True)
class CandidateSample(_Sample):
    """A few queries, each with candidates of its own: one positive, and passages sampled from a retriever's top ranks.

    The development set of Zhao et al. (§4.1) has this form, with 100 candidates per query.

    Attributes:
        candidates: (q, c) int64, rows of ``passages``, the positive first; -1 = there is no further candidate.
    """

    candidates: Ids


def candidate_sample(
    collection: Collection, readers: Readers, queries: int, candidates_of: Callable[[Ids], Ids], *, budget: int
) -> CandidateSample:
    """Draw some dev queries, and take their candidates.

    Args:
        collection, readers, budget: as for ``sample_of``; the collection has a dev split.
        queries: maximum number of queries.
        candidates_of: function from query rows (q,) to rows of passages (q, c), the positive first; -1 = there is no further
            candidate.
    """
    positives, random = collection.qrels("dev").positives(), generator("validation")
    chosen = random.permutation(np.fromiter(positives, np.int64))[:queries]
    rows = candidates_of(chosen)  # (q, c)
    known, places = np.unique(rows, return_inverse=True)
    empty = int((known < 0).sum())  # 1 if ``known`` contains -1, otherwise 0
    parts = _read(readers, chosen, known[empty:], budget)
    return CandidateSample(*parts, places.reshape(rows.shape) - empty)


@dataclass(frozen=True)
class PairSample:
    """A few queries, each paired with a positive and with the passages that BM25 ranks highest.

    Attributes:
        pairs: chunks of pairs. Rows i * size to (i + 1) * size - 1 are the pairs of query i. The first of these rows has the
            positive.
        size: number of pairs per query.
    """

    pairs: list[Chunk]
    size: int

    def to(self, device: torch.device) -> "PairSample":
        """Return the same sample on ``device``."""
        return replace(self, pairs=[chunk.to(device) for chunk in self.pairs])


def pair_sample(
    collection: Collection, reader: PairReader, queries: int, passages: int, *, size: int = 10, budget: int = 8192
) -> PairSample | None:
    """Draw a validation sample for a cross-encoder: some dev queries, each with a positive and BM25's top passages.

    BM25 ranks the passages of a sample that is drawn as in ``sample_of``. The ranking leaves out passages
    that are judged relevant to the query, and a passage that is the query itself.

    Args:
        collection: collection with the judgements.
        reader: converts pairs to token ids.
        queries, passages: maximum number of queries and of random passages; the positives are added to the passages.
        size: number of pairs per query; fewer if there are too few passages.
        budget: maximum number of tokens in a chunk, padding included.

    Returns:
        the sample; None if the collection has no dev split.
    """
    if "dev" not in collection.splits:
        return None
    chosen, passage_rows, relevant = _drawn(collection, queries, passages)
    no_candidates = relevant | _own(collection, chosen, passage_rows)
    size = min(size, 1 + len(passage_rows) - int(no_candidates.sum(axis=1).max()))
    texts = collection.passages.full_texts(passage_rows)
    bm25 = BM25(stemmer="none", language=guess(texts)).index(texts)
    _, ranked = bm25.rank(collection.queries.column("text").take(chosen), len(passage_rows))
    lists = []
    for row, known, left_out in zip(ranked, relevant, no_candidates, strict=True):
        # passages that share no term with the query come last
        order = np.concatenate([row[row >= 0], np.setdiff1d(np.arange(len(passage_rows)), row)])
        lists.append(np.concatenate([np.flatnonzero(known)[:1], order[~left_out[order]][: size - 1]]))
    return PairSample(reader.chunks(np.repeat(chosen, size), passage_rows[np.concatenate(lists)], budget), size)


def _drawn(
    collection: Collection, queries: int, passages: int, left_out: bool = False
) -> tuple[Ids, Ids, NDArray[np.bool_]]:
    """Draw the collection rows of a validation sample.

    Returns:
        the queries (q,); the passages (p,), ascending, which include all passages relevant to the queries; and (q, p) bool,
        True where a passage is relevant to the query.
    """
    positives: Relevant = dict(collection.qrels("dev").positives())
    random = generator("validation")  # the same sample in every run and for every seed, so that curves can be compared
    chosen = random.permutation(np.fromiter(positives, np.int64))[:queries]
    if left_out and len(chosen) < queries and "train" in collection.splits:
        shared, _ = parted_by_dev(dict(collection.qrels("train").positives()), collection)
        further = [query for query in shared if query not in positives]
        drawn = generator("validation", "left out").permutation(np.array(further, np.int64))[: queries - len(chosen)]
        chosen, positives = np.concatenate([chosen, drawn]), shared | positives
    relevant_rows = [positives[int(query)] for query in chosen]
    others = random.integers(0, len(collection.passages), passages)
    passage_rows = np.unique(np.concatenate([*relevant_rows, others]).astype(np.int64))
    return chosen, passage_rows, np.stack([np.isin(passage_rows, rows) for rows in relevant_rows])


def _own(collection: Collection, query_rows: Ids, passage_rows: Ids) -> NDArray[np.bool_]:
    """Return (q, p) bool, True where a passage is the query itself."""
    return np.asarray(own_passages(collection, query_rows)[:, None] == passage_rows)


def mean_reciprocal_rank_of_pairs(score: Callable[[Chunk], Tensor], sample: PairSample) -> float:
    """Return MRR@10 on a sample. A passage with the same score as the positive is ranked before the positive.

    Args:
        score: function from a chunk to scores (b,).
        sample: the sample of pairs.

    Raises:
        UserError: a score is not finite.
    """
    # (queries, size)
    scores = _in_order(sample.pairs, [score(chunk).float() for chunk in sample.pairs]).view(-1, sample.size)
    check_finite(scores.cpu().numpy(), "val/mrr@10: a score of validation query", remedy=DIVERGING)
    ranks = (scores >= scores[:, :1]).sum(dim=1)  # (queries,)
    return float((ranks <= 10).div(ranks).mean())


def mean_reciprocal_rank(encode: Callable[[Chunk], Tensor], sample: ValidationSample) -> float:
    """Return MRR@10 on a sample, with passages ranked by inner product.

    Args:
        encode: function from a chunk to vectors (b, d).
        sample: the sample of queries and passages.

    Raises:
        UserError: a vector is not finite.
    """
    return float(reciprocal_ranks(*sample.vectors(encode), sample).mean())


def mean_reciprocal_ranks(
    encode: Callable[[Chunk], Tensor], sample: CandidateSample, cutoffs: Sequence[int]
) -> list[float]:
    """Return MRR on a sample of candidates, for each cutoff. A query whose positive ranks after the cutoff counts as 0.

    A candidate with the same score as the positive is ranked before the positive. Raises ``UserError`` if a vector is not
    finite.
    """
    queries, passages = sample.vectors(encode)
    rows = torch.from_numpy(sample.candidates).to(queries.device)  # (q, c)
    parts = zip(queries.split(_QUERIES), rows.split(_QUERIES), strict=True)
    with autocast(queries.device, "fp32"):  # in bf16, many passages would have the same score
        scores = torch.cat([torch.einsum("qd,qcd->qc", some, passages[own]) for some, own in parts])  # (q, c)
    scores = scores.masked_fill(rows < 0, -torch.inf)
    ranks = 1 + (scores[:, 1:] >= scores[:, :1]).sum(dim=1)  # (q,)
    return [float((ranks <= cutoff).div(ranks).mean()) for cutoff in cutoffs]


def reciprocal_ranks(
    queries: Tensor, passages: Tensor, sample: ValidationSample, bm25: Tensor | None = None, weight: float = 0.0
) -> Tensor:
    """Return the reciprocal rank (q,) of each query's best positive; 0 if no positive is in the top ten.

    Args:
        queries, passages: the vectors (q, d) and (p, d) of the sample, see ``encoded``.
        sample: the sample, with the relevant passages.
        bm25: BM25 scores (q, p), see ``bm25_scores``; None = inner products only.
        weight: weight of the BM25 scores, 0 to 1; inner products have weight 1 - ``weight``. Before they are added, both
            kinds of scores are scaled to [0, 1] for each query.
    """
    relevant = torch.from_numpy(sample.relevant).to(queries.device)  # (q, p)
    with autocast(queries.device, "fp32"):
        scores = queries @ passages.T  # (q, p)
    if bm25 is not None:
        scores = weight * _scaled(bm25.to(scores)) + (1 - weight) * _scaled(scores)
    if sample.own is not None:
        scores = scores.masked_fill(torch.from_numpy(sample.own).to(scores.device), -torch.inf)
    best = scores.topk(min(10, len(passages)), dim=1).indices  # (q, 10), or (q, p) if p < 10
    hits = relevant.gather(1, best)  # (q, 10)
    first = hits.float().argmax(dim=1)  # (q,)
    return hits.any(dim=1) / (first + 1.0)


def _scaled(scores: Tensor) -> Tensor:
    """Scale the scores (q, p) of each query to [0, 1]."""
    lowest, highest = scores.amin(dim=1, keepdim=True), scores.amax(dim=1, keepdim=True)  # (q, 1) each
    return (scores - lowest) / (highest - lowest).clamp(min=torch.finfo(scores.dtype).tiny)


def bm25_scores(sample: ValidationSample, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """Return the BM25 scores (q, p) on a sample; 0 if query and passage share no term.

    Args:
        sample: the queries and passages as token ids.
        tokenizer: tokenizer that decodes the ids.
    """
    queries, passages = (_texts(part, tokenizer) for part in (sample.queries, sample.passages))
    scores, rows = BM25(language=guess(passages)).index(passages).rank(queries, len(passages))
    found = np.zeros((len(queries), len(passages)), np.float32)  # (q, p)
    asked, places = np.nonzero(rows >= 0)
    found[asked, rows[asked, places]] = scores[asked, places]
    return torch.from_numpy(found)


def _texts(parts: list[Chunk], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the texts of chunks, in the order of their rows."""
    texts = {}
    for chunk in parts:
        for row, ids, length in zip(chunk.rows.tolist(), chunk.input_ids.tolist(), chunk.lengths.tolist(), strict=True):
            texts[row] = str(tokenizer.decode(ids[:length], skip_special_tokens=True))
    return [texts[row] for row in range(len(texts))]


def encoded(encode: Callable[[Chunk], Tensor], parts: list[Chunk]) -> Tensor:
    """Return the vectors (n, d) of chunks, in the order of their rows. Raises ``UserError`` if a vector is not finite."""
    vectors = _in_order(parts, [encode(chunk).float() for chunk in parts])
    what = "query" if parts and parts[0].tower == QUERY else "passage"
    check_finite(vectors.cpu().numpy(), f"val/mrr@10: the vector of validation {what}", remedy=DIVERGING)
    return vectors


def _in_order(parts: list[Chunk], values: list[Tensor]) -> Tensor:
    """Join the values of all chunks, and sort them by row."""
    rows, joined = torch.cat([chunk.rows for chunk in parts]), torch.cat(values)
    # the chunks may be on the CPU although their values are on a GPU
    return torch.empty_like(joined).index_copy_(0, rows.to(joined.device), joined)
