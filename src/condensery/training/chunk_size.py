"""Finds the largest chunk size that fits into GPU memory, by measuring memory use before training."""

from collections.abc import Callable
from typing import Any

import torch

from condensery.distributed import from_rank_zero, rank, replicated
from condensery.models.precision import autocast
from condensery.training.modules.optimisation import TrainingModule
from condensery.training.settings import Precision

ROOM = 0.8  # share of the free memory for a chunk; the rest is for other tensors of a step and for fragmentation
LARGEST = 1 << 17  # tokens, padding included; larger chunks are no faster
HELD = 3  # number of values that training keeps for each weight: its gradient and AdamW's two moments


def chunk_that_fits(
    module: TrainingModule, batches: Any, precision: Precision, device: torch.device, smallest: int
) -> int:
    """Return the chunk size for ``chunk_tokens: auto``, in tokens with padding.

    On a GPU the chunk size is the largest that fits. On a CPU it is ``smallest``, because a CPU's caches are small and larger
    chunks are no faster. With several processes, the first process measures for all processes.

    Args:
        module: the module whose chunks are measured; it is moved to ``device``.
        batches: object that makes the batches; the first batch is measured. The object's ``budget`` is changed.
        precision: precision of training.
        device: device of training.
        smallest: smallest chunk size, in tokens with padding; it is assumed to fit.
    """
    if device.type == "cpu":
        return smallest
    tokens = smallest
    if rank() == 0:
        module.to(device)
        weights = sum(weight.numel() * weight.element_size() for weight in module.parameters())
        room = ROOM * (torch.cuda.mem_get_info(device)[0] - HELD * weights)
        with replicated(True):  # no communication with the other processes
            tokens = doubled(lambda budget: _peak(module, batches, budget, precision, device), room, smallest)
    return from_rank_zero(tokens)


def doubled(peak: Callable[[int], tuple[int, bool]], room: float, smallest: int) -> int:
    """Double the chunk size, starting from ``smallest``, as long as the next chunk is expected to fit.

    A chunk of twice the size is expected to need twice the memory. Doubling also ends if one chunk holds the whole batch, or
    once the size reaches ``LARGEST``.

    Args:
        peak: function of the chunk size. It returns the number of bytes that a chunk takes, and whether one chunk holds the
            whole batch.
        room: number of bytes that a chunk may take.
        smallest: first chunk size, in tokens with padding.

    Returns:
        the chunk size, in tokens with padding.
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
    """Run the largest chunk of the first batch forward and backward, and measure the peak memory.

    Returns:
        the peak memory in bytes, and whether each tower has only one chunk. A larger chunk size then changes nothing.
    """
    batches.budget = budget
    batch = batches.batch(0).to(device)
    encoder, _ = module.objective(batch)
    largest = max(batch.chunks, key=lambda chunk: chunk.tokens)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    with autocast(device, precision):
        vectors, own = encoder.encode(largest)
        total = sum(own.values(), vectors.float().sum() * 0.0)
        if total.requires_grad:  # false if the chunk's tower is frozen
            total.backward()
    taken = torch.cuda.max_memory_allocated(device) - before
    module.zero_grad(set_to_none=True)
    torch.cuda.empty_cache()
    return taken, len({chunk.tower for chunk in batch.chunks}) == len(batch.chunks)
