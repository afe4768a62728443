"""Keeps the memory of a CPU process nearly flat while it processes many chunks of different sizes.

No tensor outlives its chunk, yet a process grew by half from 4 chunks to 50. The causes and the remedies:

- Compiled kernels. oneDNN, and PyTorch's own layer above it, keep a thousand compiled kernels by shape, some with buffers,
  and every chunk has new shapes. The limit here is sixteen. They serve the layers of a chunk, which are most of the reuse.
  A tiny model in bf16 loses 8 % of its speed to compiling; other models showed no measurable loss.
- Slivers of the heap. PyTorch asks for memory at multiples of 64 bytes. To align a block, glibc (2.36) cuts a sliver off in
  front of it and puts the sliver into its lists for small blocks. A small object then takes the sliver and pins the large
  hole behind it, and the next tensor of the same size does not fit in. Without these lists slivers join their hole again.
  The list of each thread (tcache) can only be switched off before a process starts. ``PROCESS`` does so; run.py starts
  itself again with it.
- Returned pages. Memory that goes back to the operating system must be fetched again page by page: copying that took 0.2 ms
  then took 4 ms. So no memory goes back by itself, and large blocks come from the heap too. ``give_back`` returns memory
  where flatness is worth the time.
"""

import ctypes
import os
import sys

_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}
_MXFAST, _TRIM_THRESHOLD, _MMAP_MAX = 1, -1, -4  # glibc, malloc.h

PROCESS = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
"""The environment to start a process with that trains; ``keep_flat`` does the rest, and what it can without."""


def restart_flat() -> None:
    """Start the program of this process again with the environment ``PROCESS``, which its children inherit.

    Nothing happens where one of its variables is already set, or on a system other than Linux.
    """
    if sys.platform == "linux" and not PROCESS.keys() & os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **PROCESS})


def _libc() -> ctypes.CDLL | None:
    """The C library where it is glibc, otherwise None."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except (OSError, TypeError):
        return None


def keep_flat() -> None:
    """Switch off the growth of memory. Call it before the first matrix product. Variables that are already set stay."""
    for name, value in _KERNELS.items():
        os.environ.setdefault(name, value)
    if library := _libc():
        library.mallopt(_MXFAST, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)
        library.mallopt(_MMAP_MAX, 0)


def give_back() -> None:
    """Give free memory back to the operating system."""
    if library := _libc():
        library.malloc_trim(0)
