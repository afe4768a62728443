"""Ctrl-C reaches every process of a terminal's group; only the one that was started there is to say something of it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started in the block, and those that they start, pass over SIGINT; who starts them ends them.

    They inherit a mask that blocks it. Here a SIGINT waits until the block ends: were it ignored, one that comes in
    between would be lost. For the main thread alone, as all that concerns signals; elsewhere it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # multiprocessing's helper: in the block its start would let SIGINT through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
