"""The number of threads that the numeric libraries get."""

import os
import sys

from condensery.system.children import cores

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_ASKED = os.environ.get("OMP_NUM_THREADS", "")


def threads_of_a_stage(threads: int | str, jobs: int) -> int:
    """Return the threads of each stage: as set, or the cores divided by ``jobs`` (at most ``OMP_NUM_THREADS``)."""
    if isinstance(threads, int):
        return threads
    share = max(1, cores() // jobs)
    return min(share, int(_ASKED)) if _ASKED.isdigit() and int(_ASKED) else share


def limit_threads(threads: int) -> None:
    """Limit the numeric libraries of this process to ``threads`` threads, whether or not they are imported yet."""
    for variable in THREADS:
        os.environ[variable] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
