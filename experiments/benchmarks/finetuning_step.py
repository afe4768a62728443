"""Time a fine-tuning step of a bi-encoder, with and without the gradient cache, and that of plain code, in the same run.

    python experiments/benchmarks/finetuning_step.py [shape=B] [precision=fp32] [queries=32] [chunks=4] [steps=5] \
        [threads=1] [device=cpu] [mini_batch=32]

Shape A is BERT-base. Shape B has 4 layers with hidden size 256. Each query has a positive and a hard negative. Queries have 6
to 24 tokens, and passages 40 to 128. The dropout is 0.1, the optimiser AdamW, and the loss is over all passages of the batch.
Without the cache, queries and passages are one chunk each. With it, they are cut into about ``chunks`` chunks of equal size.
The plain code pads to the longest row, runs transformers' layers with fused attention, and keeps the graph of the whole
batch. The program prints one JSON line:

    cpu_s, cached_cpu_s, plain_cpu_s    CPU-seconds per step, median
    cached_to_uncached                  cached_cpu_s / cpu_s
    speedup                             plain_cpu_s / cpu_s
    their_cpu_s                         CPU-seconds of sentence-transformers' CachedMultipleNegativesRankingLoss, with its
                                        layers and mini-batches of ``mini_batch`` texts; null if it is not installed
    cached_speedup                      their_cpu_s / cached_cpu_s

With device=cuda, the plain code also runs in ``precision``, and a time ends when the GPU has finished the step.
"""

import json
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from sizes import SHAPES, VOCABULARY, given, in_turn, language_model, mixed
from torch import Tensor, nn

from condensery.losses.gradient_cache import backpropagate
from condensery.losses.info_nce import info_nce
from condensery.models.biencoder import PASSAGE, QUERY, BiEncoder
from condensery.models.encoder import Encoder
from condensery.system import memory_growth
from condensery.tokens.batches import Chunk, chunks

QUERY_LENGTHS, PASSAGE_LENGTHS = (6, 25), (40, 129)


def rows(number: int, lengths: tuple[int, int], seed: int, words: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random texts over a vocabulary of ``words`` tokens: the flat ids, and where each text begins."""
    random = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(random.integers(*lengths, number))])
    return random.integers(1_000, words, starts[-1]), starts


def batch(queries: int, parts: int, words: int = VOCABULARY) -> list[Chunk]:
    """Return queries, then passages, in about ``parts`` chunks. The first ``queries`` passages are the positives."""
    own, passages = rows(queries, QUERY_LENGTHS, 1, words), rows(2 * queries, PASSAGE_LENGTHS, 2, words)
    padded = (queries * (QUERY_LENGTHS[1] - 1), 2 * queries * (PASSAGE_LENGTHS[1] - 1))
    budget = -(-sum(padded) // parts)
    asked = chunks(*own, padded[0] if parts == 1 else budget, 0, tower=QUERY)
    names = np.arange(queries, 3 * queries)
    return [*asked, *chunks(*passages, padded[1] if parts == 1 else budget, 0, tower=PASSAGE, rows=names)]


def contrast(queries: int, vectors: Tensor) -> Tensor:
    """Return the loss of the whole batch."""
    return info_nce(vectors[:queries], vectors[queries:], torch.arange(queries, device=vectors.device))


class Vectors(nn.Module):
    """A backbone as a module of sentence-transformers: the CLS states are the vectors."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, features: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
        """Add the vectors of a mini-batch to its tokens."""
        states = self.backbone(features["input_ids"], features["attention_mask"]).last_hidden_state
        return features | {"sentence_embedding": states[:, 0]}


def cached_loss(vectors: Vectors, whole: list[Chunk], queries: int, mini_batch: int) -> Callable[[], Tensor]:
    """Return the cached loss of sentence-transformers on queries, positives and hard negatives, each padded by itself."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    model = SentenceTransformer(modules=[vectors], device=str(whole[0].input_ids.device))
    loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=mini_batch)
    columns = []
    for first in range(0, 3 * queries, queries):
        chunk = whole[min(first // queries, 1)]
        rows = torch.nonzero((chunk.rows >= first) & (chunk.rows < first + queries))[:, 0]
        width = int(chunk.lengths[rows].max())
        mask = chunk.attention_mask[rows, :width].long()
        columns.append({"input_ids": chunk.input_ids[rows, :width], "attention_mask": mask})
    return lambda: loss([dict(column) for column in columns], None)


def main(
    shape: str, precision: str, queries: str, chunks: str, steps: str, threads: str, device: str, mini_batch: str
) -> None:
    """Run the benchmark and print its line."""
    torch.set_num_threads(int(threads))
    number = int(queries)
    ours = BiEncoder(Encoder(language_model(SHAPES[shape], 0.1, "eager").base_model)).train().to(device)
    plain = language_model(SHAPES[shape], 0.1, "sdpa").base_model.train().to(device)
    whole, cut = ([part.to(device) for part in batch(number, parts)] for parts in (1, int(chunks)))

    def step(model: nn.Module, fused: bool, work: Callable[[], None]) -> Callable[[], None]:
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=fused)

        def one() -> None:
            with mixed(precision, device):
                work()
            optimiser.step()
            optimiser.zero_grad()

        return one

    def through_cache(parts: list[Chunk]) -> None:
        backpropagate(ours, parts, lambda vectors: contrast(number, vectors))

    def textbook() -> None:
        states = [plain(chunk.input_ids, chunk.attention_mask.long()).last_hidden_state[:, 0] for chunk in whole]
        vectors = torch.cat(states)[torch.argsort(torch.cat([chunk.rows for chunk in whole]))]
        contrast(number, vectors.float()).backward()

    ways = [
        step(ours, True, lambda: through_cache(whole)),
        step(ours, True, lambda: through_cache(cut)),
        step(plain, False, textbook),
    ]
    if find_spec("sentence_transformers"):
        vectors = Vectors(language_model(SHAPES[shape], 0.1, "sdpa").base_model).train().to(device)
        loss = cached_loss(vectors, whole, number, int(mini_batch))
        ways.append(step(vectors, True, lambda: loss().backward()))
    uncached, cached, baseline, *theirs = in_turn(int(steps), *ways, device=device)
    result = {
        "shape": shape,
        "precision": precision,
        "device": device,
        "queries": number,
        "chunks": len(cut),
        "cpu_s": round(uncached, 3),
        "cached_cpu_s": round(cached, 3),
        "plain_cpu_s": round(baseline, 3),
        "cached_to_uncached": round(cached / uncached, 2),
        "speedup": round(baseline / uncached, 2),
        "their_cpu_s": round(theirs[0], 3) if theirs else None,
        "cached_speedup": round(theirs[0] / cached, 2) if theirs else None,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    memory_growth.restart_flat()  # as run.py does
    memory_growth.keep_flat()  # as the stages that train do
    sizes = {"shape": "B", "precision": "fp32", "queries": "32", "chunks": "4", "steps": "5", "mini_batch": "32"}
    main(**given(__doc__, threads="1", device="cpu", **sizes))
