"""Ctrl-C reaches every process of a terminal's group; only the one that was started there is to say something of it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started in the block, and those that they start, pass over SIGINT; who starts them ends them.

    For the main thread alone, as all that concerns signals; elsewhere it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
