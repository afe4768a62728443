"""Keep the memory of a CPU process flat while chunk after chunk of ever other sizes passes through it.

No tensor outlives its chunk, and yet the process grew by half from 4 chunks to 50 in fp32, and by more in bf16. What grew:

- oneDNN, and PyTorch's own layer above it, keep a thousand compiled kernels by shape, some with buffers; every chunk has a
  new shape. Compiling again costs nothing that could be measured.
- glibc's allocator moves its border between mapped blocks and the heap as it goes, and leaves gaps behind. With the border
  fixed it does not, and spends a fifth less time in the operating system.
"""

import ctypes
import os

_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0", "LRU_CACHE_CAPACITY": "1"}
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc, malloc.h
_KEPT, _MAPPED = 1 << 30, 32 << 20  # bytes: of free heap that is kept, and of the smallest block that is mapped


def keep_flat() -> None:
    """Switch the growth off; to be called before the first matrix product. Variables that are set already stay."""
    for name, value in _CACHES.items():
        os.environ.setdefault(name, value)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another system, another allocator
        return
    mallopt(_TRIM_THRESHOLD, _KEPT)
    mallopt(_MMAP_THRESHOLD, _MAPPED)
