"""Compare fused attention with plain matrix products, on the same queries, keys and values, in the same run.

    python experiments/benchmarks/attention.py [heads=12] [size=32] [precision=fp32] [tokens=4096] [rounds=5] [threads=1]

``size`` is the width of a head: all-MiniLM-L6-v2 has 12 heads of width 32, BERT-base 12 of width 64. The program prints one
JSON line for each padded length of a row:

    forward     how many times faster the fused kernel is, without gradients, in CPU-seconds
    training    the same ratio for a forward and a backward pass, without dropout
    dropout     the ratio of training with a dropout of .1 on the attention weights
"""

import json
from collections.abc import Callable
from functools import partial

import torch
from sizes import PRECISIONS, given, in_turn
from torch import Tensor, nn

from condensery.models.encoder import plain_attention

Attention = Callable[..., Tensor]


def fused(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, p: float) -> Tensor:
    """torch's kernel, as ``plain_attention``."""
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=p)


def forward(attention: Attention, states: list[Tensor], visible: Tensor) -> None:
    """Attend without gradients; ``states`` are queries, keys and values (b, t, h, e), as a layer projects them."""
    with torch.inference_mode():
        attention(*(part.transpose(1, 2) for part in states), visible, 0.0)


def training(attention: Attention, states: list[Tensor], visible: Tensor, p: float = 0.0) -> None:
    """Compute attention with dropout ``p``, and its backward pass."""
    for part in states:
        part.grad = None
    attention(*(part.transpose(1, 2) for part in states), visible, p).sum().backward()


WORK: dict[str, Callable[..., None]] = {"forward": forward, "training": training, "dropout": partial(training, p=0.1)}


def main(heads: str, size: str, precision: str, tokens: str, rounds: str, threads: str) -> None:
    """Run the benchmark and print its lines."""
    torch.set_num_threads(int(threads))
    for length in (16, 32, 64, 128, 256, 512):
        shape = int(tokens) // length, length, int(heads), int(size)
        states = [torch.randn(shape, dtype=PRECISIONS[precision], requires_grad=True) for _ in range(3)]
        visible = torch.arange(length) < torch.randint(length // 2, length + 1, (shape[0], 1, 1, 1))

        found: dict[str, float] = {"length": length}
        for name, work in WORK.items():
            ways = [partial(work, way, states, visible) for way in (fused, plain_attention)]
            kernel, plain = in_turn(int(rounds), *ways)
            found[name] = round(plain / kernel, 2)
        print(json.dumps(found))


if __name__ == "__main__":
    main(**given(__doc__, heads="12", size="32", precision="fp32", tokens="4096", rounds="5", threads="1"))
