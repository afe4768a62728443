"""Validation on the way: how well the retriever as it stands finds the positives of a few dev queries."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from condensery.models.biencoder import PASSAGE, QUERY
from condensery.randomness import generator
from condensery.text.collection import Collection
from condensery.tokens.artifacts import Tokens
from condensery.tokens.batches import Chunk, chunks, text_rows


@dataclass(frozen=True)
class ValidationSample:
    """A few queries and a small corpus that holds their positives.

    The corpus is small, so what is measured on it is far above that of the whole corpus: it shows the course, no more.

    Attributes:
        queries, passages: chunks; ``rows`` are places in the sample.
        relevant: (q, p) bool.
    """

    queries: list[Chunk]
    passages: list[Chunk]
    relevant: np.ndarray

    def to(self, device: torch.device) -> "ValidationSample":
        """The same sample on ``device``."""
        queries, passages = ([chunk.to(device) for chunk in part] for part in (self.queries, self.passages))
        return replace(self, queries=queries, passages=passages)


def sample_of(
    collection: Collection,
    tokens: Tokens,
    lengths: tuple[int, int],
    queries: int = 200,
    passages: int = 2000,
    *,
    budget: int = 8192,
) -> ValidationSample | None:
    """Some dev queries, their positives, and passages drawn at random; None where the collection has no dev split.

    Args:
        collection: with the judgements.
        tokens: of the collection.
        lengths: longest query and passage in tokens, [CLS] and [SEP] included.
        queries, passages: how many, at most; positives come on top.
        budget: padded tokens a chunk may hold.
    """
    if "dev" not in collection.splits:
        return None
    positives = collection.qrels("dev").positives()
    random = generator("validation")  # the same sample for every training and seed, so that curves can be compared
    chosen = random.permutation(np.fromiter(positives, np.int64))[:queries]
    relevant_rows = [positives[int(query)] for query in chosen]
    others = random.integers(0, len(collection.passages), passages)
    found = np.unique(np.concatenate([*relevant_rows, others]).astype(np.int64))
    relevant = np.stack([np.isin(found, rows) for rows in relevant_rows])
    pad, vocabulary = tokens.vocabulary.pad, tokens.vocabulary
    asked = chunks(*text_rows(tokens.queries, chosen, vocabulary, lengths[0]), budget, pad, tower=QUERY)
    text = text_rows(tokens.passages, found, vocabulary, lengths[1], tokens.titles)
    return ValidationSample(asked, chunks(*text, budget, pad, tower=PASSAGE), relevant)


def mean_reciprocal_rank(embed: Callable[[Chunk], Tensor], sample: ValidationSample) -> float:
    """MRR@10 of a sample by inner products. ``embed``: a chunk to vectors (b, d)."""
    queries, passages = (_vectors(embed, part) for part in (sample.queries, sample.passages))
    relevant = torch.from_numpy(sample.relevant).to(queries.device)
    best = (queries @ passages.T).topk(min(10, len(passages)), dim=1).indices  # (q, 10)
    hits = relevant.gather(1, best)
    first = hits.float().argmax(dim=1)
    return float((hits.any(dim=1) / (first + 1.0)).mean())


def _vectors(embed: Callable[[Chunk], Tensor], parts: list[Chunk]) -> Tensor:
    rows = torch.cat([chunk.rows for chunk in parts])
    vectors = torch.cat([embed(chunk).float() for chunk in parts])
    return torch.empty_like(vectors).index_copy_(0, rows, vectors)
