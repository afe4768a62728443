"""Keep the memory of a CPU process nearly constant while it processes many chunks of different sizes.

No tensor outlives its chunk. Yet the memory of a process grew by half between its 4th and its 50th chunk. The causes and
the remedies are:

- Compiled kernels. oneDNN and PyTorch's layer above oneDNN each cache a thousand compiled kernels, one per shape, and some
  kernels hold buffers. Chunks have many shapes. Here PyTorch keeps 16 kernels. oneDNN, which multiplies matrices in bf16,
  keeps 512. These 512 kernels take up to 0.4 GB. But a kernel takes up to 6 ms to compile. With only 16 kernels, a step of
  fine-tuning a model of 4 layers and 256 dimensions took 1.3 times as long (Xeon with AMX). In fp32, the number of kernels
  changes neither time nor memory.
- Heap fragments. PyTorch allocates memory at multiples of 64 bytes. To align a block, glibc (2.36) cuts off a small fragment
  before the block and puts the fragment into its lists of small free blocks. A small object may then take the fragment. So
  the fragment cannot be merged again with the large free block after it, and the next tensor of the same size does not fit.
  Without these lists, fragments are merged again. The list of each thread (tcache) can only be switched off before a process
  starts. The environment variable in ``PROCESS`` switches it off, and run.py restarts itself with this variable.
- Returned pages. Memory that was returned to the operating system must be fetched again page by page: a copy that took
  0.2 ms then took 4 ms. So memory is not returned automatically, and large blocks are allocated on the heap too.
  ``give_back`` returns memory if low memory use is worth the time.

A Lightning trainer, its model and its optimiser refer to each other in cycles. So they stay in memory after training until
Python collects garbage. In a run of six trainings in one process, each training began with more memory than the one before.
The last training needed twice as much as the first. ``clean_up`` after each stage prevents that.
"""

import ctypes
import gc
import os
import sys
from contextlib import suppress
from mmap import PAGESIZE
from pathlib import Path

_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "512", "LRU_CACHE_CAPACITY": "16"}
_SIZES, _GROWN = Path("/proc/self/statm"), 256 << 20  # bytes; collecting garbage takes a third of a second
_MXFAST, _TRIM_THRESHOLD, _MMAP_MAX = 1, -1, -4  # glibc, malloc.h

PROCESS = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.hugetlb=1"}
"""The environment variables that a training process starts with. ``keep_flat`` does the rest, and works without these
variables too.

With hugetlb=1, glibc (2.35) asks the system for large pages. This helps if the system gives them on request (``madvise`` in
/sys/kernel/mm/transparent_hugepage/enabled). Training then waits less for the translation of addresses. Older releases of
glibc ignore the setting.
"""


def restart_flat() -> None:
    """Restart the program of this process with the environment ``PROCESS``, which child processes inherit.

    The function does nothing if a variable of ``PROCESS`` is already set, or on a system other than Linux.
    """
    if sys.platform == "linux" and not PROCESS.keys() & os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **PROCESS})


def _libc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc, otherwise None."""
    with suppress(OSError, TypeError):
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    return None


def keep_flat() -> None:
    """Prevent the growth of memory. Call it before the first matrix product. Variables that are already set are kept."""
    for name, value in _KERNELS.items():
        os.environ.setdefault(name, value)
    if library := _libc():
        library.mallopt(_MXFAST, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)
        library.mallopt(_MMAP_MAX, 0)


def give_back() -> None:
    """Return free memory to the operating system."""
    if library := _libc():
        library.malloc_trim(0)


def resident() -> int:
    """Return the resident memory of this process in bytes; 0 on a system other than Linux."""
    return int(_SIZES.read_text().split()[1]) * PAGESIZE if _SIZES.exists() else 0


def clean_up(before: int) -> None:
    """If this process has much more memory than ``before``, free objects in reference cycles, and return free memory.

    Args:
        before: resident memory in bytes when the stage began.
    """
    if resident() > before + _GROWN:
        gc.collect()
        give_back()
