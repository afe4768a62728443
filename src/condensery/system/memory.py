"""Keep the memory of a CPU process nearly flat while chunk after chunk of ever other sizes passes through it.

No tensor outlives its chunk, and yet a process grew by half from 4 chunks to 50. What grew, and what mends it:

- oneDNN, and PyTorch's own layer above it, keep a thousand compiled kernels by shape, some with buffers; every chunk has
  new shapes. Sixteen serve the layers of a chunk, which is most of what is used again: a tiny model in bf16 loses 8 % of
  its speed to compiling, others nothing that could be measured.
- PyTorch asks for memory at multiples of 64 bytes. glibc (2.36) cuts a sliver off in front to get there and puts it into
  its lists for small blocks, from where it becomes some small object that pins the large hole behind it; the next tensor
  of the same size does not fit in. Without those lists slivers join their hole again. The list of each thread
  (tcache) can only be switched off before a process starts: ``PROCESS``, which run.py starts itself again with.
- What goes back to the operating system has to be fetched again, page by page: 0.2 ms of copying then cost 4 ms. So nothing
  goes back by itself, and large blocks come from the heap as well; ``give_back`` is for where flatness is worth it.
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

    Nothing happens where a variable of it is set already, or off Linux.
    """
    if sys.platform == "linux" and not PROCESS.keys() & os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **PROCESS})


def _libc() -> ctypes.CDLL | None:
    """The C library, where it is glibc."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except (OSError, TypeError):
        return None


def keep_flat() -> None:
    """Switch the growth off; to be called before the first matrix product. Variables that are set already stay."""
    for name, value in _KERNELS.items():
        os.environ.setdefault(name, value)
    if library := _libc():
        library.mallopt(_MXFAST, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)
        library.mallopt(_MMAP_MAX, 0)


def give_back() -> None:
    """Give what is free back to the operating system."""
    if library := _libc():
        library.malloc_trim(0)
