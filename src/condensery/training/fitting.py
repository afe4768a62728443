"""How large a chunk may be: what fits into the memory of a GPU, measured once before a training."""

from collections.abc import Callable
from typing import Any

import torch

from condensery.distributed import from_rank_zero, rank, replicated
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.settings import Precision

ROOM = 0.8  # of the memory that is free; the rest is for what else a step needs, and for what lies in pieces
LARGEST = 1 << 17  # padded tokens; larger chunks are no faster
HELD = 3  # of each weight while it trains: its gradient and AdamW's two moments
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def chunk_that_fits(
    module: TrainingModule, batches: Any, precision: Precision, device: torch.device, smallest: int
) -> int:
    """The padded tokens of a chunk for ``chunk_tokens: auto``: on a GPU as many as fit, on a CPU ``smallest``.

    On a CPU larger chunks are no faster, for its caches are small. Of several processes the first one's counts.

    Args:
        module: whose steps are made; it is moved to ``device``.
        batches: of which the first is read; their ``budget`` is changed.
        precision: of the training.
        device: where it trains.
        smallest: tokens to begin with, which are taken to fit.
    """
    if device.type == "cpu":
        return smallest
    tokens = smallest
    if rank() == 0:
        module.to(device)
        weights = sum(weight.numel() * weight.element_size() for weight in module.parameters())
        room = ROOM * (torch.cuda.mem_get_info(device)[0] - HELD * weights)
        with replicated(True):  # without the other processes
            tokens = doubled(lambda budget: _peak(module, batches, budget, precision, device), room, smallest)
    return from_rank_zero(tokens)


def doubled(peak: Callable[[int], tuple[int, bool]], room: float, smallest: int) -> int:
    """``smallest`` doubled as often as the memory of the next, twice that of the last, is in ``room`` bytes.

    ``peak`` gives the bytes of a chunk of so many tokens, and whether the whole batch is in it.
    """
    budget = smallest
    while budget < LARGEST:
        bytes_taken, whole = peak(budget)
        if whole or 2 * bytes_taken > room:
            break
        budget *= 2
    return budget


def _peak(
    module: TrainingModule, batches: Any, budget: int, precision: Precision, device: torch.device
) -> tuple[int, bool]:
    """The memory that the largest chunk of the first batch takes, forth and back, and whether the batch is one chunk."""
    batches.budget = budget
    batch = batches.batch(0).to(device)
    encoder, _ = module.objective(batch)
    largest = max(batch.chunks, key=lambda chunk: chunk.tokens)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    with torch.autocast(device.type, DTYPES[precision], enabled=precision != "fp32"):
        vectors, own = encoder.encode(largest)
        total = sum(own.values(), vectors.float().sum() * 0.0)
        if total.requires_grad:  # not where this tower is frozen
            total.backward()
    taken = torch.cuda.max_memory_allocated(device) - before
    module.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    return taken, len({chunk.tower for chunk in batch.chunks}) == len(batch.chunks)
