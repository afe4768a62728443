"""Turn signals into exceptions, so that a process runs its ``finally`` blocks before it ends.

Ctrl-C reaches every process of a terminal's process group. Only the process that the user started should report it. So
this process makes its children ignore Ctrl-C.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from typing import Any

came: list[int] = []
"""The signals of ``leave_upon`` that this process has received."""
_again: list[Callable[[], BaseException]] = []
"""A function that creates a new exception for the last signal. A stored exception would keep all its frames alive."""
_steps: list[None] = []
"""One entry for each ``after_this_step`` block that is running."""
_handlers: dict[int, Callable[[int, Any], None]] = {}
_AGAIN = 0.05  # seconds until a signal whose exception was lost is sent again


def leave_upon(numbers: Iterable[int], error: Callable[[int], BaseException]) -> None:
    """Make each of the signals ``numbers`` raise ``error(number)``.

    If Python cannot raise an exception, as in a ``__del__``, it prints the exception and continues as if there had been
    no signal. With this function, Python prints nothing in this case, and the signal is sent again a moment later.
    """

    def leave(number: int, frame: object) -> None:
        waits = _steps and not came and number != signal.SIGINT
        came.append(number)
        _again[:] = [partial(error, number)]
        if waits:
            return
        raised = error(number)
        raised.of_a_signal = True  # type: ignore[attr-defined]
        raise raised

    def hook(lost: Any) -> None:
        if getattr(lost.exc_value, "of_a_signal", False):
            threading.Timer(_AGAIN, os.kill, (os.getpid(), came[-1])).start()
        else:
            others(lost)

    others = sys.unraisablehook
    sys.unraisablehook = hook
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)
            _handlers[number] = leave


def hear_again() -> None:
    """Restore the handlers of ``leave_upon`` that a library has replaced. Lightning replaces the handler of SIGTERM."""
    for number, handler in _handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def leave_if_asked() -> None:
    """Raise the exception of the last signal again, if there was a signal.

    A library may have swallowed the exception or replaced it by another one, as may happen during an import. The caller
    must then neither report a fault nor begin new work.
    """
    if _again:
        raise _again[-1]()


@contextmanager
def after_this_step() -> Iterator[None]:
    """Context manager. Inside it, the first signal of ``leave_upon`` does not raise until the training step has ended.

    The code that runs the steps reads ``came`` after each step. After a signal, it writes a checkpoint and then calls
    ``leave_if_asked``. So no work is lost when SLURM warns that the time is nearly up. Ctrl-C and a second signal raise at
    once.
    """
    _steps.append(None)
    try:
        yield
    finally:
        _steps.pop()
    leave_if_asked()


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Context manager. Processes started inside it, and their children, ignore SIGINT, so this process must end them.

    The started processes inherit a mask that blocks SIGINT. In this process, a SIGINT is delayed until the block ends,
    because an ignored SIGINT would be lost. Only the main thread handles signals, so this function does nothing in another
    thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # multiprocessing's helper: its start within the block would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
