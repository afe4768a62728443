"""A cached loss of one's own, which is wrong in two ways that no loss curve shows, and what ``check_gradients`` says."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from condensery import cached_backward, check_gradients

encoder = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 8))
log_scale = nn.Parameter(torch.tensor(3.0))


def contrast(queries: Tensor, passages: Tensor) -> Tensor:
    """Passage i answers query i. The scale of the scores is learned."""
    scores = normalize(queries, dim=1) @ normalize(passages, dim=1).T * log_scale.exp()
    return cross_entropy(scores, torch.arange(len(queries)))


def by_hand(loss, *parts):
    """A gradient cache as one may write it in an afternoon."""
    with torch.no_grad():
        vectors = [torch.cat([encode(chunk) for chunk in chunks]) for encode, chunks in parts]
    vectors = [one.requires_grad_() for one in vectors]
    value = loss(*vectors)
    gradients = torch.autograd.grad(value, vectors)
    for (encode, chunks), gradient in zip(parts, gradients, strict=True):
        rows = gradient.split([len(chunk) for chunk in chunks])
        for chunk, part in zip(chunks, rows, strict=True):
            found = encode(chunk)
            if found.requires_grad:
                (found * part).sum().backward()
    return value.detach()


queries, passages = torch.randn(2, 8, 16)
parts = (encoder, queries.split(3)), (encoder, passages.split(3))
print(check_gradients(contrast, *parts, cached=by_hand))
print(check_gradients(contrast, *parts, cached=cached_backward))
