"""The contrastive loss over pairs of spans (coCondenser), and the label and teacher-score matrices of a batch.

A ``Contrast`` is a function that maps the vectors of the whole batch, in fp32 or wider, to a loss.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Contrast = Callable[[Tensor], Tensor]


def weighted(contrast: Contrast, weight: float) -> Contrast:
    """Return a loss that is ``contrast`` times ``weight``."""
    return lambda vectors: contrast(vectors) * weight


def span_contrast(vectors: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """Return the contrastive loss of coCondenser (Gao and Callan 2021b, eq. 6-7; Wu et al. 2023, eq. 5).

    Args:
        vectors: (2n, d) vectors; rows 2i and 2i + 1 are the two spans of document i, or a passage and its query.
        temperature: divisor of the inner products (tau of Wu et al. 2023); 1 gives the loss of Gao and Callan 2021b.

    Returns:
        the mean over spans of -log (exp<h_i1, h_i2> / sum over all other spans exp<h_ij, h_kl>); zero for a single pair.
    """
    similarity = vectors @ vectors.T / temperature  # (2n, 2n)
    similarity = similarity.masked_fill(torch.eye(len(vectors), dtype=torch.bool, device=vectors.device), -torch.inf)
    partner = torch.arange(len(vectors), device=vectors.device) ^ 1  # (2n,)
    return nn.functional.cross_entropy(similarity, partner)


def known_positives(judged: Tensor, passages: Tensor, queries: int) -> Tensor:
    """Return the relevance judgements of a batch as a matrix: bool (q, p), True where the passage is judged relevant.

    Args:
        judged: (j, 2) pairs of a query, numbered from 0, and the collection row of a passage judged relevant to the query.
        passages: (p,) the collection rows of the batch's passages, ascending.
        queries: the number q of queries.
    """
    column, here = _columns(judged, passages)  # (j,) each
    known = torch.zeros(queries, len(passages), dtype=torch.bool, device=passages.device)  # (q, p)
    known[judged[here, 0], column[here]] = True
    return known


def teacher_scores(scored: Tensor, scores: Tensor, passages: Tensor, queries: int) -> Tensor:
    """Return the teacher's scores of a batch as a matrix: fp32 (q, p), NaN where the teacher has not scored the pair.

    Args:
        scored: (s, 2) distinct pairs of a query, numbered from 0, and the collection row of a passage that the teacher
            scored for the query.
        scores: (s,) fp32, the score of each pair.
        passages: (p,) the collection rows of the batch's passages, ascending.
        queries: the number q of queries.
    """
    column, here = _columns(scored, passages)  # (s,) each
    teacher = torch.full((queries, len(passages)), torch.nan, dtype=scores.dtype, device=passages.device)  # (q, p)
    teacher[scored[here, 0], column[here]] = scores[here]
    return teacher


def _columns(pairs: Tensor, passages: Tensor) -> tuple[Tensor, Tensor]:
    """Find the passage of each pair (n, 2) in ``passages`` (p,), which are ascending.

    Returns:
        (n,) the index of each pair's passage in ``passages``, and (n,) bool, True where the passage is in ``passages``. The
        index is valid only where the second result is True.
    """
    column = torch.searchsorted(passages, pairs[:, 1].contiguous()).clamp(max=len(passages) - 1)  # (n,)
    return column, passages[column] == pairs[:, 1]
