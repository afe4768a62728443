"""Computes the entropy of CLS attention in each layer (Gao and Callan 2021a, §5, after Clark et al. 2019).

The entropy measures over how many tokens CLS spreads its attention.

Symbols in shapes: b rows of a chunk, t width of the chunk, n packed tokens, d hidden size, h heads, e = d / h.
"""

import math
from typing import Any

import torch
from torch import Tensor

from condensery.models.encoder import Encoder, by_head, transformer_layer
from condensery.models.packing import PackedLayout
from condensery.tokens.batches import Chunk


def cls_entropy(encoder: Encoder, chunk: Chunk) -> Tensor:
    """Return the entropy of each row's CLS attention in nats, H = -Σ_j a_j ln a_j.

    Here a_j is the attention weight of the CLS token on token j. Padding is left out, so attention that is spread evenly
    over a row of k tokens has entropy ln k. Call this function with the encoder in evaluation mode.

    Returns:
        (layers, b) float64, the mean over the heads of each layer.
    """
    layout = PackedLayout(chunk)
    hidden = encoder.embed(layout)  # (n, d)
    entropies = []
    for layer in encoder.layers:
        entropies.append(_entropy(encoder, layer, hidden, layout))
        hidden = transformer_layer(layer, hidden, layout.tokens, None)
    return torch.stack(entropies)


def _entropy(encoder: Encoder, layer: Any, hidden: Tensor, layout: PackedLayout) -> Tensor:
    """Return the entropy (b,) in one layer, from the layer's input states (n, d)."""
    family, read = encoder.family, layout.cls
    heads, window = family.heads(layer), family.window(layer)
    states = hidden.index_select(0, read.index)  # (b, d)
    keys, _ = family.key_and_value(layer, hidden, layout.positions)
    query = by_head(heads, family.query(layer, states, read.packing.positions), read.packing).double()  # (b, h, 1, e)
    key = by_head(heads, keys, layout.tokens).double()  # (b, h, t, e)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (b, h, 1, t)
    if family.biased:
        every = torch.arange(scores.shape[-1], device=scores.device)  # (t,)
        scores = scores + family.bias(layer, every[None, :1], every)  # CLS is at position 0
    if layout.tokens.padding is not None:
        scores = scores.masked_fill(~layout.tokens.padding, -math.inf)
    if window is not None:
        scores[..., window + 1 :] = -math.inf
    return torch.special.entr(scores.softmax(dim=-1)).sum(dim=-1).mean(dim=1)[:, 0]
