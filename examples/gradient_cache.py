"""The gradient cache with encoders and a loss of your own: a large contrastive batch in the memory of one chunk."""

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModel, AutoTokenizer

from condensery import cached_backward

tokenizer = AutoTokenizer.from_pretrained("google-bert/bert-base-uncased")
model = AutoModel.from_pretrained("google-bert/bert-base-uncased").train()
optimiser = torch.optim.AdamW(model.parameters(), lr=2e-5)


def encode(texts: list[str]) -> torch.Tensor:
    """CLS vectors (b, d)."""
    return model(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt")).last_hidden_state[:, 0]


def contrast(queries: torch.Tensor, passages: torch.Tensor) -> torch.Tensor:
    """Passage i answers query i."""
    return cross_entropy(queries @ passages.T, torch.arange(len(queries)))


queries = [["what causes rain", "why does iron rust"], ["who wrote Hamlet", "what is a prime number"]]  # in chunks
passages = [["drops grow heavy", "water and air"], ["Shakespeare did"], ["one with two divisors"]]
loss = cached_backward(contrast, (encode, queries), (encode, passages))
optimiser.step()
print(f"loss {loss:.3f}")
