"""Time pre-training steps on passage-query pairs and on the same number of passage-passage pairs (Wu et al. 2023, §5.1).

    python experiments/benchmarks/query_as_context_step.py [shape=A|B] [precision=fp32|bf16] [pairs=N] [threads=1] [steps=5]

Shape A: BERT-base, 8 pairs per step. Shape B: 4 layers x 256, 32 pairs. Vocabulary 30,522, chunks of 2,048 tokens, dropout
0.1, AdamW. The tokens are random. The lengths are like those of real data: passages have 72 to 144 tokens, as if sentences
were packed to at most 144, and queries have 4 to 16 tokens, without [CLS] and [SEP]. Both kinds of pair use the package's
batches and step, alternately in one process. The program prints one JSON line per model:

    passage_passage_cpu_s, passage_query_cpu_s   CPU-seconds per step, median
    ratio                                        the first divided by the second; if it is above 1, queries are faster
    passage_passage_tokens, passage_query_tokens tokens per step that the encoder reads

coCondenser encodes both texts of a pair. CoT-MAE is timed in two ways. In the first, each text is the context of the other,
as in its paper for passages. In the second, only the first text is encoded, and the second is decoded, as for queries.
"""

import json
import os
import statistics
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from sizes import SHAPES, VOCABULARY, Shape, cpu_seconds, language_model
from torch import nn

from condensery.models.condenser import Condenser, CondenserShape
from condensery.models.masked_autoencoder import MaskedAutoEncoder, decoder_shape
from condensery.randomness import generator
from condensery.system import memory_growth
from condensery.tokens.batches import framed
from condensery.tokens.vocabulary import Vocabulary
from condensery.training.data.sources import Ids, Rows
from condensery.training.data.span_batches import ContextMasking, SpanBatches
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.modules.pretraining import CoCondenserModule, MaskedAutoEncoderModule

PASSAGE, QUERY = (72, 144), (4, 16)  # tokens, for passages with [CLS] and [SEP]
CHUNK = 2048


@dataclass
class RandomPairs:
    """Pairs of a passage and a second text of ``second`` tokens: a ``RowSource`` of random tokens."""

    items: int
    second: tuple[int, int]
    left_out: int = 0

    def rows(self, step: int, epoch: int, chosen: Ids) -> Rows:
        """See ``RowSource``. Each step has another batch, whose first texts are the same for both kinds of pair."""
        first = generator(1, "first", step).integers(PASSAGE[0] - 2, PASSAGE[1] - 1, len(chosen))
        other = generator(1, "second", step).integers(self.second[0], self.second[1] + 1, len(chosen))
        lengths = np.stack([first, other], axis=1).reshape(-1)
        tokens = generator(1, "tokens", step).integers(1_000, VOCABULARY, lengths.sum())
        return Rows(*framed(tokens, lengths, words()), np.arange(len(lengths)))


def words() -> Vocabulary:
    """Return a vocabulary with BERT's special tokens. One word in four has a second token, about as in English WordPiece."""
    special = np.array([0, 100, 101, 102, 103])
    continues = (np.arange(VOCABULARY) % 5 == 0).astype(np.uint8)
    continues[special] = 0
    return Vocabulary(VOCABULARY, 0, 101, 102, 103, 100, special, continues)


def batches(model: str, pairs: int, second: tuple[int, int]) -> SpanBatches:
    """Return the batches of a model, masked as in its recipe."""
    context = None if model == "coCondenser" else ContextMasking("partner", model == "CoT-MAE", 0.45)
    rate = 0.15 if context is None else 0.3
    source = RandomPairs(pairs, second)
    return SpanBatches(
        source, words(), batch_size=pairs, mask_rate=rate, whole_word=True, budget=CHUNK, seed=1, context=context
    )


def module_of(model: str, shape: Shape) -> TrainingModule:
    """Return the LightningModule that run.py trains."""
    backbone = language_model(shape, 0.1, "eager")
    if model == "coCondenser":
        return CoCondenserModule(Condenser(backbone, CondenserShape(2, shape.layers // 2, True))).train()
    return MaskedAutoEncoderModule(MaskedAutoEncoder(backbone, decoder_shape("masked"))).train()


def measure(model: str, shape: Shape, pairs: int, precision: str, steps: int) -> dict[str, object]:
    """Return the line of one model."""
    from condensery.losses.gradient_cache import backpropagate

    module = module_of(model, shape)
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True)
    kinds = {"passage_passage": (PASSAGE[0] - 2, PASSAGE[1] - 2), "passage_query": QUERY}
    made = {name: batches(model, pairs, second) for name, second in kinds.items()}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    tokens: dict[str, list[int]] = {name: [] for name in kinds}

    def step(name: str, number: int) -> None:
        batch = made[name].batch(number * made[name].steps_an_epoch())
        encoder, contrast = module.objective(batch)
        with torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext():
            backpropagate(encoder, batch.chunks, contrast)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0, foreach=True)
        optimiser.step()
        optimiser.zero_grad()
        tokens[name].append(batch.tokens)

    for number in range(steps + 1):  # alternately, so that a busy machine slows both; the first step warms up
        for name in kinds:
            times[name].append(cpu_seconds(partial(step, name, number)))
    cpu = {name: statistics.median(found[1:]) for name, found in times.items()}
    return {
        "model": model,
        **{f"{name}_cpu_s": round(value, 3) for name, value in cpu.items()},
        "ratio": round(cpu["passage_passage"] / cpu["passage_query"], 2),
        **{f"{name}_tokens": round(statistics.mean(found)) for name, found in tokens.items()},
    }


def main(shape: str = "B", precision: str = "fp32", pairs: str = "", threads: str = "1", steps: str = "5") -> None:
    """Run the benchmark and print its lines."""
    os.environ["OMP_NUM_THREADS"] = threads
    torch.set_num_threads(int(threads))
    size = SHAPES[shape]
    number = int(pairs) if pairs else size.spans // 2
    for model in ("coCondenser", "CoT-MAE", "CoT-MAE, one direction"):
        line = measure(model, size, number, precision, int(steps))
        print(json.dumps({**line, "pairs": number, "shape": shape, "precision": precision}), flush=True)


if __name__ == "__main__":
    memory_growth.restart_flat()  # as run.py does
    memory_growth.keep_flat()  # as the stages that train do
    try:
        options = dict(argument.split("=", 1) for argument in sys.argv[1:])
        known = {"shape", "precision", "pairs", "threads", "steps"}
        if options.get("shape", "B") not in SHAPES or options.get("precision", "fp32") not in {"fp32", "bf16"}:
            raise ValueError
        if options.keys() - known:
            raise ValueError
    except ValueError:
        sys.exit("usage: query_as_context_step.py [shape=A|B] [precision=fp32|bf16] [pairs=N] [threads=1] [steps=5]")
    main(**options)
