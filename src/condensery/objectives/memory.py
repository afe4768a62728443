"""Keep the memory of a CPU process nearly flat while chunk after chunk of ever other sizes passes through it.

No tensor outlives its chunk, and yet the process grew by half from 4 chunks to 50 in fp32, and by more in bf16. What grew:

- oneDNN, and PyTorch's own layer above it, keep a thousand compiled kernels by shape, some with buffers; every chunk has
  new shapes. Sixteen serve the layers of a chunk, which is most of what is used again: a tiny model in bf16 loses 8 % of
  its speed to compiling, others nothing that could be measured.
- glibc's allocator moves its border between mapped blocks and the heap as it goes, and keeps gaps in the heap that fit
  nothing. With the border fixed it spends a fifth less time in the operating system; the gaps go back every few chunks.
"""

import ctypes
import os
from collections.abc import Callable

_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc, malloc.h
_KEPT, _MAPPED = 1 << 30, 32 << 20  # bytes: of free heap that is kept, and of the smallest block that is mapped
_EVERY = 4  # chunks; what was given back has to be fetched again


class _Allocator:
    """glibc's; nothing happens where there is another."""

    mallopt: Callable[..., int]
    trim: Callable[..., int]

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL(None)
            self.mallopt, self.trim = library.mallopt, library.malloc_trim
        except (AttributeError, OSError, TypeError):
            self.mallopt = self.trim = lambda *_: 0


_allocator = _Allocator()


def keep_flat() -> None:
    """Switch the growth off; to be called before the first matrix product. Variables that are set already stay."""
    for name, value in _CACHES.items():
        os.environ.setdefault(name, value)
    _allocator.mallopt(_TRIM_THRESHOLD, _KEPT)
    _allocator.mallopt(_MMAP_THRESHOLD, _MAPPED)


def after_chunk(number: int) -> None:
    """Give gaps back after chunk ``number`` of a batch (from 0), where its turn is."""
    if (number + 1) % _EVERY == 0:
        _allocator.trim(0)
