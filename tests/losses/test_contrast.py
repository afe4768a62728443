"""The contrastive losses are the papers' sums, written out."""

import math

import pytest
import textbook
import torch

from condensery.losses.contrast import span_contrast, weighted
from condensery.losses.info_nce import info_nce


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [1.0, 0.2])
@pytest.mark.parametrize("documents", [1, 2, 5])
def test_span_contrast_is_the_mean_of_equation_6(documents: int, temperature: float) -> None:
    vectors, again = (_random(2 * documents, 6).requires_grad_() for _ in range(2))
    ours, expected = span_contrast(vectors, temperature), textbook.span_contrast(again, temperature)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)
    ours.backward()
    expected.backward()
    torch.testing.assert_close(vectors.grad, again.grad, rtol=1e-10, atol=1e-12)


def test_span_contrast_survives_products_that_overflow_a_plain_exponential() -> None:
    loss = span_contrast(_random(6, 4) * 1e3)
    assert torch.isfinite(loss)


def test_span_contrast_is_equation_5_of_query_as_context_for_passages_and_their_queries() -> None:
    passages, queries, tau = _random(3, 5), _random(3, 5, seed=1), 0.3
    total = 0.0
    for own, others in ((passages, queries), (queries, passages)):
        for i, vector in enumerate(own):
            batch = [*others, *(own[j] for j in range(3) if j != i)]
            total -= math.log(math.exp(vector @ others[i] / tau) / sum(math.exp(vector @ h / tau) for h in batch))
    together = torch.stack([passages, queries], dim=1).flatten(0, 1)  # a passage, its query, the next passage, ...
    assert float(span_contrast(together, tau)) == pytest.approx(total / 6, rel=1e-12)


def test_a_weighted_contrast_and_its_gradient_are_the_contrasts_times_the_weight() -> None:
    vectors, again = (_random(4, 5).requires_grad_() for _ in range(2))
    found, plain = weighted(span_contrast, 0.25)(vectors), span_contrast(again)
    torch.testing.assert_close(found, plain * 0.25, rtol=1e-14, atol=0)
    found.backward()
    plain.backward()
    assert again.grad is not None
    torch.testing.assert_close(vectors.grad, again.grad * 0.25, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("temperature", [1.0, 0.05])
@pytest.mark.parametrize("masked", [False, True], ids=["all negatives", "without known positives"])
def test_info_nce_is_the_likelihood_of_the_positive(masked: bool, temperature: float) -> None:
    queries, passages = _random(4, 5), _random(9, 5, seed=1)
    positive = torch.tensor([3, 0, 8, 3])
    known = torch.zeros(4, 9, dtype=torch.bool)
    known[torch.arange(4), positive] = True
    known[0, [1, 2]], known[2, 0], known[3, 5] = True, True, True
    before = known.clone()
    total = 0.0
    for query in range(4):
        scores = [float(queries[query] @ passages[p]) / temperature for p in range(9)]
        left_out = {p for p in range(9) if masked and known[query, p] and p != positive[query]}
        total -= math.log(
            math.exp(scores[positive[query]]) / sum(math.exp(s) for p, s in enumerate(scores) if p not in left_out)
        )
    ours = info_nce(queries, passages, positive, known if masked else None, temperature)
    assert float(ours) == pytest.approx(total / 4, rel=1e-12)
    assert torch.equal(known, before), "the caller's table was changed"


def test_a_masked_known_positive_gets_no_gradient_from_the_query() -> None:
    queries, passages = _random(1, 5), _random(3, 5, seed=1).requires_grad_()
    known = torch.tensor([[True, True, False]])
    info_nce(queries, passages, torch.tensor([0]), known).backward()
    assert passages.grad is not None
    assert not passages.grad[1].any()
    assert passages.grad[0].any()
    assert passages.grad[2].any()
